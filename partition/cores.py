"""Training cores for a device: what one is made of, whether it fits, and how large it can be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from fpgapipe.hw.hls_models.core_resources import (
    BRAM36_DATA_BYTES,
    URAM_DATA_BYTES,
    CoreShape,
    Resources,
    column_resources,
    core_resources,
    fixed_resources,
)
from fpgapipe.hw.hls_models.device import DeviceSpec
from fpgapipe.hw.hls_models.gemm import EngineSpec
from fpgapipe.hw.hls_models.mx import MX_BLOCK
from fpgapipe.hw.hls_models.vector_op import LANES
from fpgapipe.partition.work_products import Formats

CELLS_PER_LANE = 64
"""Of a core that `core_of` makes, at least: a lane takes as many LUTs as some sixty cells with what
is below them, and where LUTs are few, a larger array is worth more than further lanes."""

RESOURCES = ("lut", "ff", "bram36", "uram", "dsp")


@dataclass(frozen=True)
class CoreConfig:
    """A training core: what the generator builds and the cost model counts with.

    Parameters
    ----------
    rows, cols : int
        Cells of an engine's array; rows divide 32, the block of the operands' format.
    clk_hz : float
    scratchpad_bytes : int
        On-chip memory for operands, of all engines together.
    vector_lanes : int
        FP32 lanes, shared by the engines; 16 at most, the elements of a vector.
    num_engines : int
        GEMM engines: 1, or 2 for a forward and a backward engine at the same time.
    memory_ports, port_bytes : int
        AXI4 masters, and bytes that one moves in a cycle.
    num_links : int
        Link engines; a device with fewer ports has fewer.
    acc_depth : int
        FP32 accumulators below each column.
    formats : Formats
        Bytes of an element.

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
    memory_ports: int = 1
    port_bytes: int = 64
    num_links: int = 2
    acc_depth: int = 1024
    formats: Formats = field(default_factory=Formats)

    def __post_init__(self) -> None:
        if self.rows not in (1, 2, 4, 8, 16, 32):
            raise ValueError(f"core rows must divide 32, not {self.rows!r}")
        for name in ("cols", "vector_lanes", "num_engines", "memory_ports", "port_bytes"):
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
        """Multiply-accumulates a cycle, all engines."""
        return self.rows * self.cols * self.num_engines

    def memory_bytes_per_cycle(self, device: DeviceSpec) -> float:
        """What ports and memories together let through; 0 without memory."""
        ports = self.memory_ports * self.port_bytes
        return min(ports, device.memory_bytes_per_s / self.clk_hz)

    def engine(self, device: DeviceSpec) -> EngineSpec:
        """One GEMM engine with an equal share of scratchpad and memory."""
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
        )

    def shape(self, device: DeviceSpec) -> CoreShape:
        """What decides the core's resources on a device."""
        rates = sorted(
            (port.payload_bytes_per_s for port in device.ports for _ in range(port.count)),
            reverse=True,
        )
        return CoreShape(
            self.rows,
            self.cols,
            self.num_engines,
            self.vector_lanes,
            self.scratchpad_bytes,
            self.acc_depth,
            self.memory_ports,
            self.port_bytes,
            tuple(_width(rate / self.clk_hz) for rate in rates[: self.num_links]),
            device.dsp_kind,
            device.uram > 0,
        )


def _width(bytes_per_cycle: float) -> int:
    """The power of two, at most 64 bytes, that carries a rate."""
    return min(64, 1 << max(math.ceil(math.log2(bytes_per_cycle)), 0))


@dataclass(frozen=True)
class Violation:
    """A limit that a core exceeds.

    Attributes
    ----------
    resource : str
        ``lut``, ``ff``, ``bram36``, ``uram``, ``dsp`` of all dies; ``columns`` where the columns do
        not divide over the dies; ``one die: lut`` where what cannot be divided fits no die.
    needed, available : int
    """

    resource: str
    needed: int
    available: int

    def __str__(self) -> str:
        return f"{self.resource}: needs {self.needed:,}, {self.available:,} usable"


def core_fits(device: DeviceSpec, core: CoreConfig) -> list[Violation]:
    """Limits of a device that a core exceeds; none if it fits.

    The array may span dies: its columns are dealt to them whole, since activations that cross
    a border pass a register anyway while sums stay in their column. Scratchpad blocks may lie
    anywhere. All else is on one die.
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
    dies = [Resources(d.lut, d.ff, d.bram36, d.uram, d.dsp) for d in device.dies]
    places = []
    for home, die in enumerate(dies):
        if all(getattr(fixed, name) <= getattr(die, name) for name in RESOURCES):
            left = [die + fixed * -1 if i == home else die for i, die in enumerate(dies)]
            places.append(sum(_columns(die, column) for die in left))
    if not places:
        roomiest = max(device.dies, key=lambda die: die.lut)
        return [
            Violation(f"one die: {name}", int(getattr(fixed, name)), getattr(roomiest, name))
            for name in RESOURCES
            if getattr(fixed, name) > getattr(roomiest, name)
        ] or [Violation("one die", 1, 0)]
    columns = core.cols * core.num_engines
    return [] if max(places) >= columns else [Violation("columns", columns, max(places))]


def _columns(die: Resources, column: Resources) -> int:
    return min(
        int(getattr(die, name) // getattr(column, name))
        for name in RESOURCES
        if getattr(column, name)
    )


def largest_core(device: DeviceSpec, num_engines: int = 1) -> CoreConfig:
    """The candidate with the most cells; more rows decide between equals.

    Raises
    ------
    ValueError
        If not even a core of one column fits; says which limits are exceeded.
    """
    return candidate_cores(device, num_engines)[0]


def candidate_cores(device: DeviceSpec, num_engines: int = 1) -> list[CoreConfig]:
    """Cores worth trying on a device, most cells first.

    For 4, 8, 16 and 32 rows: the widest that fits, the widest power of two, since channels often
    are powers of two, and a half and a quarter of that, since a tile takes at least as many cycles
    as the array has columns.

    Raises
    ------
    ValueError
        If not even a core of one column fits; says which limits are exceeded.
    """
    found: list[CoreConfig] = []
    for rows in (32, 16, 8, 4):
        widest = _widest(device, rows, num_engines)
        if widest:
            power = 1 << (widest.bit_length() - 1)
            widths = {widest, power, max(power // 2, 1), max(power // 4, 1)}
            found += [core_of(device, rows, cols, num_engines) for cols in widths]
    if not found:
        broken = core_fits(device, core_of(device, 4, 1, num_engines))
        raise ValueError(f"no core fits {device.name}: {'; '.join(map(str, broken))}")
    return sorted(found, key=lambda core: (-core.cells, -core.rows, core.cols))


def _widest(device: DeviceSpec, rows: int, num_engines: int) -> int:
    """Most columns of a core that fits, as `CoreSpec` allows them; 0 if none does."""
    low, high = 0, device.dsp // (rows * num_engines) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if core_fits(device, core_of(device, rows, middle, num_engines)):
            high = middle
        else:
            low = middle
    return low if low <= MX_BLOCK else low // MX_BLOCK * MX_BLOCK


def core_of(device: DeviceSpec, rows: int, cols: int, num_engines: int = 1) -> CoreConfig:
    """A core with a given array, the rest sized for the device.

    One memory port of 64 bytes for 32 columns, as far as the memory has bandwidth for them; all
    UltraRAM as scratchpad, or where there is none three quarters of the block RAM that the rest
    leaves. Lanes are a power of two, 2 at least, otherwise at most 16, one for `CELLS_PER_LANE`
    cells, and one for each element that the ports can read and write in a cycle.
    """
    bytes_per_cycle = device.memory_bytes_per_s / device.clk_hz
    port_bytes = max(_width(bytes_per_cycle), 4) if bytes_per_cycle else 4
    ports = max(1, min(-(-cols * num_engines // 32), int(bytes_per_cycle // port_bytes)))
    formats = Formats()
    lanes = max(2, ports * port_bytes // (2 * formats.feature_bytes))
    lanes = min(lanes, max(2, rows * cols * num_engines // CELLS_PER_LANE), LANES)
    lanes = 1 << (lanes.bit_length() - 1)
    least = EngineSpec.least_scratchpad_bytes(rows, cols) * num_engines
    core = CoreConfig(
        rows, cols, device.clk_hz, least, lanes, num_engines, ports, port_bytes, formats=formats
    )
    if device.uram:
        room = device.uram * URAM_DATA_BYTES
    else:
        shape = core.shape(device)
        rest = fixed_resources(shape) + column_resources(shape) * (cols * num_engines)
        room = int((device.bram36 - rest.bram36) * 3 // 4) * BRAM36_DATA_BYTES
    return replace(core, scratchpad_bytes=max(least, room))
