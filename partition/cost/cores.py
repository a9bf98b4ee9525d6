"""Training cores: their parameters, whether one fits a device, and how large it can be."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_op import LANES
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.hw.hls_models.resources.core_resources import (
    BRAM36_DATA_BYTES,
    MEMORY_BLOCKS,
    MOST_BANKS,
    PACKED_DSP,
    URAM_DATA_BYTES,
    CoreOnPart,
    Resources,
    column_resources,
    core_resources,
    fixed_resources,
    word_blocks,
)
from fpgapipe.hw.hls_models.spec.core_spec import (
    LEAST_BANK_BYTES,
    CoreSpec,
    NoRoom,
    ScratchpadSpec,
    VectorSpec,
)
from fpgapipe.hw.hls_models.spec.device import DeviceSpec
from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES, LinkEngineSpec
from fpgapipe.hw.hls_models.spec.node import NodeSpec
from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP, LinkEndSpec, OnChipSpec
from fpgapipe.hw.hls_models.spec.systolic import Form, SystolicSpec
from fpgapipe.partition.cost.work_products import Formats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

MOST_BURSTS, FEW_BURSTS = 64, 16
"""Bursts under way at a time in most cores, and in those with narrow ports of the scratchpad.

A small board's memory answers within tens of cycles and gives a few bytes a cycle, so that 16
bursts keep it busy; a queue of so many is made of LUTs, whose outputs are sooner there than a block
RAM's.
"""

CELLS_PER_LANE = 64
"""Fewest array cells per vector lane in a core that `core_of` makes with more than two lanes.

A lane takes about as many LUTs as sixty cells together with their accumulators. Where LUTs are
scarce, a larger array is worth more than further lanes."""


LEAST_COLUMNS = {Form.PLAIN: 1, Form.PACKED: 4}
"""Columns of the narrowest array of each form."""

LEAST_LINK_WIDTH = 4
"""Narrowest stream to a link's PHY, bytes."""

SHORT_FRAME_WORDS = 4
"""Words of the frames of links that are as slow as that: 94 % of such a frame are words."""


LANES_PER_FUNCTION = 4
"""Vector lanes for each of those that apply functions, in a core without savings of them."""


@dataclass(frozen=True)
class Savings:
    """Savings of a core that does not fit without them.

    Attributes
    ----------
    scratchpad_port_bytes : int
        Bytes that a port of the scratchpad reads or writes in a cycle.
    most_lanes, most_function_lanes : int
        Largest number of vector lanes, and of those that apply functions.
    random : bool
        Whether the vector engine draws random numbers, as dropout needs them.
    counters : bool
        Whether the core counts what its engines wait for.
    most_banks : int
        Largest number of banks of the scratchpad. Fewer banks need fewer multiplexers.
    form : Form
        How the cells are made. Packed ones need fewer LUTs and DSPs, and a DSP48E2.
    """

    scratchpad_port_bytes: int = WORD_BYTES
    most_lanes: int = LANES
    most_function_lanes: int = LANES // LANES_PER_FUNCTION
    random: bool = True
    counters: bool = True
    most_banks: int = MOST_BANKS
    form: Form = Form.PLAIN


NO_SAVINGS = Savings()

LARGE_SAVINGS = (
    Savings(counters=False),
    Savings(most_function_lanes=2),
    Savings(form=Form.PACKED),
    Savings(form=Form.PACKED, most_function_lanes=2),
    Savings(most_lanes=8, most_function_lanes=2),
    Savings(form=Form.PACKED, most_lanes=8, most_function_lanes=2),
)
"""Savings of which the first ones are tried with which an array fits that does not without any.

Neither counters nor plain cells save cycles, but no vendor's tool has placed packed ones yet. Few
instructions apply functions, and all take lanes.
"""

SMALL_SAVINGS = (
    Savings(16, 2, counters=False),
    Savings(8, 1, counters=False),
    Savings(8, 1, random=False, counters=False),
    Savings(8, 1, random=False, counters=False, most_banks=2),
)
"""Savings that are tried, the first ones, on a device that no core fits without them."""

RESOURCES = ("lut", "ff", "bram36", "uram", "dsp")
"""Names of the FPGA resources that a core is checked against."""


def _width(bytes_per_cycle: float) -> int:
    """The smallest power of two, at most 64 bytes, that carries a rate."""
    return min(64, 1 << max(math.ceil(math.log2(bytes_per_cycle)), 0))


def link_width(bytes_per_cycle: float) -> int:
    """Width in bytes of the stream to a link's PHY that carries a rate: a power of two in 4..64."""
    return max(_width(bytes_per_cycle), LEAST_LINK_WIDTH)


def link_of(bytes_per_cycle: float) -> LinkEngineSpec:
    """The link engine for a rate, with the usual number of slots.

    Frames of the slowest links are short, since a small board has few block RAMs for slots.
    """
    phy_bytes = link_width(bytes_per_cycle)
    if phy_bytes == LEAST_LINK_WIDTH:
        return LinkEngineSpec(phy_bytes, SHORT_FRAME_WORDS, (4, 4, 2))
    return LinkEngineSpec(phy_bytes)


def ported(
    links: Sequence[LinkEndSpec], bus_bytes: int, scratchpad_port_bytes: int
) -> tuple[LinkEndSpec, ...]:
    """A core's ends of links: words pass in parts where the core saves LUTs in this way elsewhere.

    All links must be as wide as its bus.
    """
    narrow = scratchpad_port_bytes < WORD_BYTES and bus_bytes <= TRAILER_BYTES
    if not narrow or any(link.phy_bytes != bus_bytes for link in links):
        return tuple(links)
    return tuple(
        replace(link, port_bytes=bus_bytes) if isinstance(link, LinkEngineSpec) else link
        for link in links
    )


def _power_up_to(number: int) -> int:
    """The largest power of two that is not above a number."""
    return 1 << (number.bit_length() - 1)


@dataclass(frozen=True)
class Violation:
    """A limit of a device that a core exceeds.

    Attributes
    ----------
    resource : str
        ``lut``, ``ff``, ``bram36``, ``uram`` or ``dsp`` if all dies together have too few;
        ``columns`` if the columns cannot be distributed over the dies; ``one die: lut`` (and so on)
        if the part of the core that cannot be divided fits on no die.
    needed, available : int
        Amount that the core needs, and usable amount.
    """

    resource: str
    needed: int
    available: int

    def __str__(self) -> str:
        return f"{self.resource}: needs {self.needed:,}, {self.available:,} usable"


def on_part(device: DeviceSpec, core: CoreSpec) -> CoreOnPart:
    """A core on the FPGA of a device, as its resources are counted."""
    return CoreOnPart(core, device.dsp_kind, has_uram=device.uram > 0)


def core_fits(device: DeviceSpec, core: CoreSpec) -> list[Violation]:
    """Limits of a device that a core exceeds; an empty list if it fits.

    The array may span dies. Each column lies entirely on one die: sums stay within their column,
    and activations pass a register between columns anyway, so they may cross a die border.
    Scratchpad blocks may lie anywhere. Everything else lies on one die.
    """
    placed = on_part(device, core)
    needed = core_resources(placed)
    found = [
        Violation(name, int(getattr(needed, name)), getattr(device, name))
        for name in RESOURCES
        if getattr(needed, name) > getattr(device, name)
    ]
    return found or _die_violations(device, placed)


def _die_violations(device: DeviceSpec, placed: CoreOnPart) -> list[Violation]:
    fixed, column = fixed_resources(placed).rounded(), column_resources(placed)
    places = _homes(device, fixed, column)
    if not places:
        roomiest = max(device.dies, key=lambda die: die.lut)
        return [
            Violation(f"one die: {name}", int(getattr(fixed, name)), getattr(roomiest, name))
            for name in RESOURCES
            if getattr(fixed, name) > getattr(roomiest, name)
        ] or [Violation("one die", 1, 0)]
    columns = placed.core.cols * placed.core.num_engines
    most = max(places.values())
    return [] if most >= columns else [Violation("columns", columns, most)]


def _homes(device: DeviceSpec, fixed: Resources, column: Resources) -> dict[int, int]:
    """Dies with room for the part that cannot be divided, and how many columns then fit."""
    dies = [Resources(d.lut, d.ff, d.bram36, d.uram, d.dsp) for d in device.dies]
    found = {}
    for home, die in enumerate(dies):
        if all(getattr(fixed, name) <= getattr(die, name) for name in RESOURCES):
            left = [die + fixed * -1 if i == home else die for i, die in enumerate(dies)]
            found[home] = sum(_columns(die, column) for die in left)
    return found


def over_dies(
    device: DeviceSpec,
    fixed: Resources,
    columns: Sequence[Resources],
    scratchpad: Resources,
) -> list[Resources]:
    """Resources that a core takes on each die of a device that it fits.

    The rules are those of `core_fits`. The part that cannot be divided goes to the die with the
    most room for it of those with which all columns fit. Then the columns are placed one by one,
    each on the die with the most room, and the scratchpad blocks after them in the same way.
    """
    dies = [Resources(d.lut, d.ff, d.bram36, d.uram, d.dsp) for d in device.dies]
    used = [Resources() for _ in dies]

    def room(at: int, item: Resources) -> float:
        """How many copies of an item still fit on a die."""
        left = dies[at] + used[at] * -1
        needed = [name for name in RESOURCES if getattr(item, name)]
        return min(float(getattr(left, name) / getattr(item, name)) for name in needed)

    def put(item: Resources) -> None:
        at = max(range(len(dies)), key=lambda die: room(die, item))
        used[at] += item

    homes = _homes(device, fixed.rounded(), columns[0]) or dict.fromkeys(range(len(dies)), 0)
    enough = min(len(columns), max(homes.values()))
    home = max((each for each in homes if homes[each] >= enough), key=lambda at: room(at, fixed))
    used[home] += fixed
    for column in columns:
        put(column)
    blocks = Resources(bram36=1, uram=0) if scratchpad.bram36 else Resources(uram=1)
    for _ in range(round(max(scratchpad.bram36, scratchpad.uram))):
        put(blocks)
    return used


def _columns(die: Resources, column: Resources) -> int:
    return min(
        int(getattr(die, name) // getattr(column, name))
        for name in RESOURCES
        if getattr(column, name)
    )


def scratchpad_floor(device: DeviceSpec) -> int:
    """Scratchpad size in bytes below which a smaller one saves hardly any memory blocks."""
    block_bytes = URAM_DATA_BYTES if device.uram else BRAM36_DATA_BYTES
    return 2 * MOST_BANKS * MEMORY_BLOCKS * block_bytes


@lru_cache(maxsize=1 << 8)
def candidate_cores(
    device: DeviceSpec,
    num_engines: int = 1,
    num_links: int = 0,
    *,
    random: bool = False,
    form: Form | None = None,
) -> tuple[NodeSpec, ...]:
    """Cores worth trying on a device, those with the most cells first.

    If no core fits without savings, they are those of one engine that fit with any of
    `SMALL_SAVINGS`; if `random`, only those that draw random numbers. Their widths are powers of
    two, because a small scratchpad holds few tilings of others.

    For each of 4, 8, 16 and 32 rows, these widths are tried: the widest array that fits; the
    widest power of two, since channel counts are often powers of two; and all others down to an MX
    block, or to a quarter of that where it is narrower, since a tile takes at least as many cycles
    as the array has columns.

    Raises
    ------
    ValueError
        If not even a core of one column fits. The message says which limits are exceeded.
    """
    none, _, small = usable_savings(device, form, num_engines, num_links, random=random)
    sized = partial(core_of, device, num_engines=num_engines, num_links=num_links)
    narrowest = LEAST_COLUMNS[none.form]
    found: list[NodeSpec] = []
    for savings in (none, *small):
        for rows in (32, 16, 8, 4):
            widest = _widest(device, rows, num_engines, partial(sized, savings=savings), none.form)
            if widest:
                power = widest.bit_length() - 1
                least = max(min(power - 2, MX_BLOCK.bit_length() - 1), narrowest.bit_length() - 1)
                widths = {1 << n for n in range(least, power + 1)}
                if savings is none:
                    widths.add(widest)
                found += [sized(rows, cols, savings=savings) for cols in widths]
        if found and savings is none:
            break
    if not found:
        broken = core_fits(device, sized(4, narrowest, savings=savings).core)
        raise ValueError(f"no core fits {device.name}: {'; '.join(map(str, broken))}")
    return _most_cells_first(found)


@lru_cache(maxsize=1 << 8)
def wider_cores(
    device: DeviceSpec, num_engines: int = 1, num_links: int = 0, *, form: Form | None = None
) -> tuple[NodeSpec, ...]:
    """Cores of more columns than fit a device without savings, those with the most cells first.

    For each of 4, 8, 16 and 32 rows, powers of two are tried, each with the first of
    `LARGE_SAVINGS` that it fits with. Parameters are those of `candidate_cores`; packed cells are a
    saving if `form` is None.
    """
    none, large, _ = usable_savings(device, form, num_engines, num_links, random=True)
    sized = partial(core_of, device, num_engines=num_engines, num_links=num_links)
    found = []
    for rows in (32, 16, 8, 4):
        widest = _widest(device, rows, num_engines, partial(sized, savings=none), none.form)
        cols = 1 << widest.bit_length()
        while widest:
            some = [savings for savings in large if cols >= LEAST_COLUMNS[savings.form]]
            if node := _first_that_fits(device, partial(sized, rows, cols), some):
                found.append(node)
            elif cols >= max(LEAST_COLUMNS.values()):
                break
            cols *= 2
    return _most_cells_first(found)


def _most_cells_first(nodes: Sequence[NodeSpec]) -> tuple[NodeSpec, ...]:
    order = sorted(nodes, key=lambda n: (-n.core.cells, -n.core.rows, n.core.cols))
    return tuple(order)


def _first_that_fits(
    device: DeviceSpec, sized: Callable[..., NodeSpec], savings: Sequence[Savings]
) -> NodeSpec | None:
    """The core with the first of some savings with which it fits; None if it fits with none."""
    nodes = (sized(savings=each) for each in savings)
    return next((node for node in nodes if not core_fits(device, node.core)), None)


def usable_savings(
    device: DeviceSpec, form: Form | None, num_engines: int, num_links: int, *, random: bool
) -> tuple[Savings, list[Savings], list[Savings]]:
    """No savings but those of a form of cells, and the large and the small ones to try.

    There are no small ones for several engines. Banks are saved only in cores with links.

    Parameters
    ----------
    device : DeviceSpec
    form : Form, optional
        How all cells are made; plain, or packed as one of the large savings, if it is None.
    num_engines, num_links : int
    random : bool
        Whether the core must draw random numbers.
    """
    none = Savings(form=form or NO_SAVINGS.form)
    large = [
        savings
        for savings in LARGE_SAVINGS
        if savings != none
        and (savings.form is form if form else savings.form is Form.PLAIN or has_packed(device))
    ]
    small = [
        replace(savings, form=none.form)
        for savings in SMALL_SAVINGS
        if num_engines == 1
        and (savings.random or not random)
        and (num_links or savings.most_banks == MOST_BANKS)
    ]
    return none, large, small


def has_packed(device: DeviceSpec) -> bool:
    """Whether a device's DSPs can be packed cells."""
    return device.dsp_kind == PACKED_DSP


def _widest(
    device: DeviceSpec,
    rows: int,
    num_engines: int,
    sized: Callable[[int, int], NodeSpec],
    form: Form,
) -> int:
    """Most columns that `CoreSpec` allows and with which a core fits; 0 if none does."""
    most = 4 * device.dsp // (SystolicSpec(rows, 4, form=form).dsps * num_engines)
    narrow = range(4, MX_BLOCK, 2) if form is Form.PACKED else range(1, MX_BLOCK)
    widths: list[int] = [
        0,
        *(n for n in (*narrow, *range(MX_BLOCK, most + 1, MX_BLOCK)) if n <= most),
    ]
    low, high = 0, len(widths)
    while high - low > 1:
        middle = (low + high) // 2
        if core_fits(device, sized(rows, widths[middle]).core):
            high = middle
        else:
            low = middle
    return widths[low]


def core_of(
    device: DeviceSpec,
    rows: int,
    cols: int,
    num_engines: int = 1,
    *,
    num_links: int = 0,
    scratchpad_bytes: int | None = None,
    savings: Savings = NO_SAVINGS,
) -> NodeSpec:
    """A core with a given array, as the node of a device; everything else is sized for the device.

    The bus to the memory is as wide as the memory bandwidth needs, at most 64 bytes. The scratchpad
    is the largest power of two of bytes that fits the available memory: all UltraRAM, or without
    UltraRAM three quarters of the block RAM that the rest of the core leaves, and no more than
    `scratchpad_bytes` if that is given. It is never smaller than the engines need. The number of
    vector lanes is a power of two and at least 2, or 1 if `savings` allow no more. Otherwise it is
    at most 16, at most one lane per `CELLS_PER_LANE` cells, and at most the number of elements that
    the bus can both read and write in a cycle. Of the device's ports, the fastest `num_links` have
    a link.

    Raises
    ------
    ValueError
        If there is no such array, or the device's DSPs cannot hold its cells.
    """
    form = savings.form
    if form is Form.PACKED and not has_packed(device):
        raise ValueError(
            f"packed cells need parts with {PACKED_DSP}; {device.name} has {device.dsp_kind}"
        )
    bytes_per_cycle = device.memory_bytes_per_s / device.clk_hz
    bus_bytes = max(_width(bytes_per_cycle), 4) if bytes_per_cycle else 4
    lanes = max(2, bus_bytes // (2 * Formats().activation_bytes))
    lanes = min(lanes, max(2, rows * cols * num_engines // CELLS_PER_LANE), LANES)
    lanes = min(_power_up_to(lanes), savings.most_lanes)
    functions = min(-(-lanes // LANES_PER_FUNCTION), savings.most_function_lanes)
    least = SystolicSpec(rows, cols, form=form).least_scratchpad_bytes * num_engines
    least = 1 << (least - 1).bit_length()
    port_bytes = savings.scratchpad_port_bytes
    ports = sorted(
        (port for port in device.ports for _ in range(port.count)),
        key=lambda port: -port.payload_bytes_per_s,
    )
    links = [
        OnChipSpec()
        if port.protocol == ON_CHIP
        else link_of(port.payload_bytes_per_s / device.clk_hz)
        for port in ports[:num_links]
    ]
    core = CoreSpec(
        rows,
        cols,
        num_engines,
        scratchpad=_scratchpad(device, least, port_bytes, savings.most_banks),
        bus_bytes=bus_bytes,
        outstanding=MOST_BURSTS if port_bytes == WORD_BYTES else FEW_BURSTS,
        vector=VectorSpec(lanes, functions, random=savings.random),
        links=ported(links, bus_bytes, port_bytes),
        counters=savings.counters,
        form=form,
        memory_ports=device.memory_ports,
    )
    if device.uram:
        room = device.uram * URAM_DATA_BYTES
    else:
        placed = on_part(device, core)
        rest = fixed_resources(placed) + column_resources(placed) * (cols * num_engines)
        room = int((device.bram36 - rest.bram36) * 3 // 4) * BRAM36_DATA_BYTES
    room = min(room, scratchpad_bytes or room)
    size = max(_power_up_to(max(room, 1)), least)
    scratchpad = _scratchpad(device, size, port_bytes, savings.most_banks)
    fastest = max(device.memories, key=lambda m: m.count * m.bandwidth_bytes_per_s, default=None)
    latency_s = fastest.latency_s if fastest else 0.0
    return NodeSpec(
        replace(core, scratchpad=scratchpad),
        device.clk_hz,
        float(min(core.most_memory_bytes, bytes_per_cycle)),  # as it comes back from a file
        math.ceil(latency_s * device.clk_hz),
    )


def _scratchpad(
    device: DeviceSpec, size_bytes: int, port_bytes: int, most_banks: int
) -> ScratchpadSpec:
    """A scratchpad of a size: of two banks, or four where these are filled with memory blocks."""
    block_bytes = URAM_DATA_BYTES if device.uram else BRAM36_DATA_BYTES
    number = most_banks
    while number > 2 and 2 * number * word_blocks(port_bytes) > -(-size_bytes // block_bytes):
        number //= 2
    return ScratchpadSpec(number, max(size_bytes // number, LEAST_BANK_BYTES), port_bytes)


def with_links(node: NodeSpec, links: Sequence[LinkEndSpec]) -> NodeSpec:
    """The node with other ends of links."""
    core = node.core
    ends = ported(links, core.bus_bytes, core.scratchpad.port_bytes)
    return replace(node, core=replace(core, links=ends))


def with_room(
    asked: Asked,
    make: Callable[[Asked], Answer],
    larger: Callable[[Asked], Asked | None],
) -> tuple[Asked, Answer]:
    """Results of `make` with scratchpads, down to one with room for a tiling of each layer.

    The planner chooses the smallest scratchpad that costs no time. Whether there is a tiling of
    each layer that fits it is known only when the layer's program is made.

    Parameters
    ----------
    asked : object
    make : callable
    larger : callable
        Returns what was asked with larger scratchpads; None if there is no room for them.
    """
    while True:
        try:
            return asked, make(asked)
        except (UserError, NoRoom) as error:
            has_no_room = isinstance(error, NoRoom) or isinstance(error.__cause__, NoRoom)
            more = larger(asked) if has_no_room else None
            if more is None:
                raise
            asked = more


def with_larger_scratchpad(
    device: DeviceSpec, node: NodeSpec, limit_bytes: int | None = None
) -> NodeSpec | None:
    """The node with a scratchpad twice as large; None if the device has no room for it.

    It has as many banks as its size fills, or as many as before if only these fit. It is not made
    larger than the limit.
    """
    old = node.core.scratchpad
    if limit_bytes and 2 * old.size_bytes > limit_bytes:
        return None
    filled = _scratchpad(device, 2 * old.size_bytes, old.port_bytes, MOST_BANKS)
    for scratchpad in (filled, replace(old, bank_bytes=2 * old.bank_bytes)):
        core = replace(node.core, scratchpad=scratchpad)
        if not core_fits(device, core):
            return replace(node, core=core)
    return None
