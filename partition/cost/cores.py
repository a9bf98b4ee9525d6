"""Training cores: their parameters, whether one fits a device, and how large it can be."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.cycles.gemm import EngineSpec
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_op import LANES
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.hw.hls_models.resources.core_resources import (
    BRAM36_DATA_BYTES,
    MEMORY_BLOCKS,
    MOST_BANKS,
    URAM_DATA_BYTES,
    CoreShape,
    Resources,
    banks,
    column_resources,
    core_resources,
    fixed_resources,
    function_lanes,
)
from fpgapipe.hw.hls_models.spec.device import DeviceSpec
from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES, LinkEngineSpec
from fpgapipe.partition.cost.work_products import Formats
from fpgapipe.partition.plan import CorePlan, LinkPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CELLS_PER_LANE = 64
"""Fewest array cells per vector lane in a core that `core_of` makes with more than two lanes.

A lane takes about as many LUTs as sixty cells together with their accumulators. Where LUTs are
scarce, a larger array is worth more than further lanes."""


LEAST_LINK_WIDTH = 4
"""Narrowest stream to a link's PHY, bytes."""

SHORT_FRAME_WORDS = 4
"""Words of the frames of links that are as slow as that: 94 % of such a frame are words."""


@dataclass(frozen=True)
class Savings:
    """What a core does without, so that it fits a small device.

    Attributes
    ----------
    scratchpad_port_bytes : int
        Bytes that a port of the scratchpad reads or writes in a cycle.
    most_lanes : int
        Largest number of vector lanes.
    random, counters : bool
        As in `CoreConfig`.
    most_banks : int
        Largest number of banks of the scratchpad. Fewer banks need fewer multiplexers.
    """

    scratchpad_port_bytes: int = WORD_BYTES
    most_lanes: int = LANES
    random: bool = True
    counters: bool = True
    most_banks: int = MOST_BANKS


SAVINGS = (
    Savings(),
    Savings(16, 2, counters=False),
    Savings(8, 1, counters=False),
    Savings(8, 1, random=False, counters=False),
    Savings(8, 1, random=False, counters=False, most_banks=2),
)
"""Savings that are tried where no core fits without them, the first ones."""

RESOURCES = ("lut", "ff", "bram36", "uram", "dsp")
"""Names of the FPGA resources that a core is checked against."""


@dataclass(frozen=True)
class CoreConfig:
    """A training core, as the generator builds it and the cost model counts it.

    Parameters
    ----------
    rows, cols : int
        Rows and columns of an engine's array of cells. The rows must divide 32, the block size of
        the operands' format.
    clk_hz : float
        Clock frequency of the core, Hz.
    scratchpad_bytes : int
        On-chip memory for operands, all engines together.
    vector_lanes : int
        FP32 lanes, shared by the engines; at most 16, the number of elements in a vector.
    num_engines : int
        GEMM engines: 1, or 2 for a forward and a backward engine that run concurrently.
    port_bytes : int
        Bytes that the bus to the memory moves in a cycle.
    num_links : int
        Link engines; a device with fewer ports has fewer of them.
    acc_depth : int
        FP32 accumulators below each column.
    formats : Formats
        Bytes per element.
    scratchpad_port_bytes : int
        Bytes that a port of the scratchpad reads or writes in a cycle.
    random : bool
        Whether the vector engine draws random numbers, as dropout needs them.
    counters : bool
        Whether the core counts what its engines wait for.
    most_banks : int
        Largest number of banks of the scratchpad, 2 or 4.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    rows: int
    cols: int
    clk_hz: float
    scratchpad_bytes: int
    vector_lanes: int
    num_engines: int = 1
    port_bytes: int = 64
    num_links: int = 0
    acc_depth: int = 1024
    formats: Formats = field(default_factory=Formats)
    scratchpad_port_bytes: int = WORD_BYTES
    random: bool = True
    counters: bool = True
    most_banks: int = MOST_BANKS

    def __post_init__(self) -> None:
        if self.rows not in (1, 2, 4, 8, 16, 32):
            raise ValueError(f"core rows must divide 32, not {self.rows!r}")
        for name in ("cols", "vector_lanes", "num_engines", "port_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"core {name} must be at least 1, not {getattr(self, name)!r}")
        if self.vector_lanes > LANES:
            raise ValueError(f"core vector_lanes must be at most {LANES}, not {self.vector_lanes}")
        if not (math.isfinite(self.clk_hz) and self.clk_hz > 0):
            raise ValueError(f"core clock must be finite and above 0 Hz, not {self.clk_hz!r}")
        if self.num_links < 0:
            raise ValueError(f"core num_links must be at least 0, not {self.num_links!r}")
        EngineSpec(  # checks the rest
            self.rows, self.cols, self.scratchpad_bytes // self.num_engines, 0, 0, self.acc_depth
        )

    @property
    def cells(self) -> int:
        """Multiply-accumulates per cycle, all engines together."""
        return self.rows * self.cols * self.num_engines

    def memory_bytes_per_cycle(self, device: DeviceSpec) -> float:
        """Bytes per cycle that both the bus and the memories sustain; 0 without memory."""
        return min(self.port_bytes, device.memory_bytes_per_s / self.clk_hz)

    def engine(self, device: DeviceSpec) -> EngineSpec:
        """One GEMM engine, with its equal share of scratchpad and memory bandwidth."""
        fastest = max(
            device.memories, key=lambda m: m.count * m.bandwidth_bytes_per_s, default=None
        )
        latency_s = fastest.latency_s if fastest else 0.0
        return EngineSpec(
            self.rows,
            self.cols,
            self.scratchpad_bytes // self.num_engines,
            self.memory_bytes_per_cycle(device) / self.num_engines,
            math.ceil(latency_s * self.clk_hz),
            self.acc_depth,
            WORD_BYTES // self.scratchpad_port_bytes,
        )

    def shape(self, device: DeviceSpec) -> CoreShape:
        """The parameters that determine the core's resources on a device."""
        rates = sorted(
            (port.payload_bytes_per_s for port in device.ports for _ in range(port.count)),
            reverse=True,
        )
        links = self._ported([link_of(rate / self.clk_hz) for rate in rates[: self.num_links]])
        return CoreShape(
            self.rows,
            self.cols,
            self.num_engines,
            self.vector_lanes,
            self.scratchpad_bytes,
            self.acc_depth,
            self.port_bytes,
            links,
            device.dsp_kind,
            device.uram > 0,
            self.scratchpad_port_bytes,
            self.random,
            self.counters,
            num_banks=None if self.most_banks == MOST_BANKS else self.most_banks,
        )

    def _ported(self, links: Sequence[LinkEngineSpec]) -> tuple[LinkEngineSpec, ...]:
        return ported(links, self.port_bytes, self.scratchpad_port_bytes)

    def planned(self, device: DeviceSpec, links: Sequence[LinkEngineSpec]) -> CorePlan:
        """The core as the plan describes it to the generator, with its link engines."""
        shape, engine = self.shape(device), self.engine(device)
        number = banks(shape)
        return CorePlan(
            rows=self.rows,
            cols=self.cols,
            num_engines=self.num_engines,
            clk_hz=self.clk_hz,
            vector_lanes=self.vector_lanes,
            function_lanes=function_lanes(shape),
            scratchpad_banks=number,
            scratchpad_bank_bytes=_power_up_to(self.scratchpad_bytes) // number,
            acc_depth=self.acc_depth,
            bus_bytes=self.port_bytes,
            memory_bytes_per_cycle=self.memory_bytes_per_cycle(device),
            memory_latency_cycles=engine.memory_latency_cycles,
            links=tuple(LinkPlan(**dataclasses.asdict(each)) for each in self._ported(links)),
            scratchpad_port_bytes=self.scratchpad_port_bytes,
            random=self.random,
            counters=self.counters,
        )


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
    links: Sequence[LinkEngineSpec], bus_bytes: int, scratchpad_port_bytes: int
) -> tuple[LinkEngineSpec, ...]:
    """A core's ends of links: words pass in parts where the core saves LUTs in this way elsewhere.

    All links must be as wide as its bus.
    """
    narrow = scratchpad_port_bytes < WORD_BYTES and bus_bytes <= TRAILER_BYTES
    if not narrow or any(link.phy_bytes != bus_bytes for link in links):
        return tuple(links)
    return tuple(dataclasses.replace(link, port_bytes=bus_bytes) for link in links)


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


def core_fits(device: DeviceSpec, core: CoreConfig) -> list[Violation]:
    """Limits of a device that a core exceeds; an empty list if it fits.

    The array may span dies. Each column lies entirely on one die: sums stay within their column,
    and activations pass a register between columns anyway, so they may cross a die border.
    Scratchpad blocks may lie anywhere. Everything else lies on one die.
    """
    shape = core.shape(device)
    needed = core_resources(shape)
    found = [
        Violation(name, int(getattr(needed, name)), getattr(device, name))
        for name in RESOURCES
        if getattr(needed, name) > getattr(device, name)
    ]
    return found or _die_violations(device, core, shape)


def _die_violations(device: DeviceSpec, core: CoreConfig, shape: CoreShape) -> list[Violation]:
    fixed, column = fixed_resources(shape).rounded(), column_resources(shape)
    places = _homes(device, fixed, column)
    if not places:
        roomiest = max(device.dies, key=lambda die: die.lut)
        return [
            Violation(f"one die: {name}", int(getattr(fixed, name)), getattr(roomiest, name))
            for name in RESOURCES
            if getattr(fixed, name) > getattr(roomiest, name)
        ] or [Violation("one die", 1, 0)]
    columns = core.cols * core.num_engines
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


def largest_core(device: DeviceSpec, num_engines: int = 1, num_links: int = 0) -> CoreConfig:
    """The candidate core with the most cells; of equal ones, that with more rows.

    Raises
    ------
    ValueError
        If not even a core of one column fits. The message says which limits are exceeded.
    """
    return candidate_cores(device, num_engines, num_links)[0]


def candidate_cores(
    device: DeviceSpec, num_engines: int = 1, num_links: int = 0, *, random: bool = False
) -> list[CoreConfig]:
    """Cores worth trying on a device, those with the most cells first.

    If no core fits without `SAVINGS`, they are those of one engine that fit with any of them; if
    `random`, only those that draw random numbers. Their widths are powers of two, because a small
    scratchpad holds few tilings of others.

    For each of 4, 8, 16 and 32 rows, these widths are tried: the widest array that fits; the
    widest power of two, since channel counts are often powers of two; and a half and a quarter of
    that, since a tile takes at least as many cycles as the array has columns.

    Raises
    ------
    ValueError
        If not even a core of one column fits. The message says which limits are exceeded.
    """
    found: list[CoreConfig] = []
    for savings in usable_savings(num_engines, num_links, random=random):
        sized = partial(
            core_of, device, num_engines=num_engines, num_links=num_links, savings=savings
        )
        for rows in (32, 16, 8, 4):
            widest = _widest(device, rows, num_engines, sized)
            if widest:
                power = 1 << (widest.bit_length() - 1)
                widths = {power, max(power // 2, 1), max(power // 4, 1)}
                if savings == SAVINGS[0]:
                    widths.add(widest)
                found += [sized(rows, cols) for cols in widths]
        if found and savings == SAVINGS[0]:
            break
    if not found:
        broken = core_fits(device, sized(4, 1))
        raise ValueError(f"no core fits {device.name}: {'; '.join(map(str, broken))}")
    return sorted(found, key=lambda core: (-core.cells, -core.rows, core.cols))


def usable_savings(num_engines: int, num_links: int, *, random: bool) -> list[Savings]:
    """Savings to try: none for several engines; if `random`, those with random numbers.

    Banks are saved only in cores with links.
    """
    usable = [
        savings
        for savings in SAVINGS
        if (savings.random or not random) and (num_links or savings.most_banks == MOST_BANKS)
    ]
    return usable if num_engines == 1 else usable[:1]


def _widest(
    device: DeviceSpec, rows: int, num_engines: int, sized: Callable[[int, int], CoreConfig]
) -> int:
    """Most columns that `CoreSpec` allows and with which a core fits; 0 if none does."""
    low, high = 0, device.dsp // (rows * num_engines) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if core_fits(device, sized(rows, middle)):
            high = middle
        else:
            low = middle
    return low if low <= MX_BLOCK else low // MX_BLOCK * MX_BLOCK


def core_of(
    device: DeviceSpec,
    rows: int,
    cols: int,
    num_engines: int = 1,
    *,
    num_links: int = 0,
    scratchpad_bytes: int | None = None,
    savings: Savings = SAVINGS[0],
) -> CoreConfig:
    """A core with a given array; everything else is sized for the device.

    The bus to the memory is as wide as the memory bandwidth needs, at most 64 bytes. The scratchpad
    is the largest power of two of bytes that fits the available memory: all UltraRAM, or without
    UltraRAM three quarters of the block RAM that the rest of the core leaves, and no more than
    `scratchpad_bytes` if that is given. It is never smaller than the engines need. The number of
    vector lanes is a power of two and at least 2, or 1 if `savings` allow no more. Otherwise it is
    at most 16, at most one lane per `CELLS_PER_LANE` cells, and at most the number of elements that
    the bus can both read and write in a cycle.
    """
    bytes_per_cycle = device.memory_bytes_per_s / device.clk_hz
    port_bytes = max(_width(bytes_per_cycle), 4) if bytes_per_cycle else 4
    formats = Formats()
    lanes = max(2, port_bytes // (2 * formats.activation_bytes))
    lanes = min(lanes, max(2, rows * cols * num_engines // CELLS_PER_LANE), LANES)
    lanes = min(_power_up_to(lanes), savings.most_lanes)
    least = EngineSpec.least_scratchpad_bytes(rows, cols) * num_engines
    core = CoreConfig(
        rows,
        cols,
        device.clk_hz,
        least,
        lanes,
        num_engines,
        port_bytes=port_bytes,
        num_links=num_links,
        formats=formats,
        scratchpad_port_bytes=savings.scratchpad_port_bytes,
        random=savings.random,
        counters=savings.counters,
        most_banks=savings.most_banks,
    )
    if device.uram:
        room = device.uram * URAM_DATA_BYTES
    else:
        shape = core.shape(device)
        rest = fixed_resources(shape) + column_resources(shape) * (cols * num_engines)
        room = int((device.bram36 - rest.bram36) * 3 // 4) * BRAM36_DATA_BYTES
    room = min(room, scratchpad_bytes or room)
    size = max(_power_up_to(max(room, 1)), 1 << (least - 1).bit_length())
    return replace(core, scratchpad_bytes=size)
