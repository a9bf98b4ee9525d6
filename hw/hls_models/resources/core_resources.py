"""Resources of a training core on a device, for the planner.

:mod:`fpgapipe.hw.hls_models.resources.core_counts` has the resources of each block, and how they
are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.resources import control_counts, core_counts
from fpgapipe.hw.hls_models.resources.core_counts import COEFFICIENTS as COEFFICIENTS
from fpgapipe.hw.hls_models.resources.core_counts import Resources as Resources
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec

BRAM36_DATA_BYTES = 4096
URAM_DATA_BYTES = 32768
"""Bytes of data that a block RAM and an UltraRAM hold; the parity bits are not used, since elements
have 8, 16 or 32 bits."""

MULTIPLIER_DSPS = {"DSP48E1": 2, "DSP48E2": 2, "DSP58": 1, "MULT18X18D": 4}
"""DSPs of a 24 x 24 bit product, the core of an FP32 multiplier, by kind of DSP. They are counted
by Yosys, except for DSP58, whose number is derived from its size, 27x24 bits."""

LANE_MULTIPLIERS = 2
"""Number of FP32 multipliers of a vector lane."""

FUNCTION_DSPS = {"DSP48E1": 9, "DSP48E2": 7, "DSP58": 7, "MULT18X18D": 13}
"""DSPs of a function unit, by kind of DSP. They are counted by Yosys, except for DSP58: it is wider
than a DSP48E2, so that no more are needed."""

PACKED_REGISTERS = {"DSP48E1": (156, 132)}
"""Flip-flops that Yosys moves into the DSPs of a vector lane and of a function unit, by their kind;
it moves none into others. Counted."""

LUT4_FACTOR = 1.6
"""Number of four-input LUTs that replace one of six inputs, for all blocks except cells. Cores of
16 x 2 cells, and of 8 x 2 with a link, take 43,540 and 48,780 LUTs as nextpnr counts them; with
this number the model says 44,074 and 50,109."""

MOST_BANKS = ScratchpadSpec().banks
"""Largest number of scratchpad banks. Each bank has two memories, for the even and the odd words of
64 bytes."""

MEMORY_BLOCKS = WORD_BYTES // 8
"""Number of blocks in parallel that give a word; an UltraRAM or block RAM gives eight bytes per
cycle."""


@dataclass(frozen=True)
class CoreShape:
    """The quantities that determine a core's resources.

    Parameters
    ----------
    rows, cols : int
        Rows and columns of an engine's array.
    num_engines : int
        Number of GEMM engines.
    vector_lanes : int
        Lanes of the vector engine; 0 without one.
    scratchpad_bytes : int
        Size of the scratchpad, which all engines share.
    acc_depth : int
        Number of FP32 accumulators below each column.
    port_bytes : int
        Bytes that the bus to the memory moves per cycle.
    links : tuple of LinkEngineSpec
        Ends of links.
    dsp_kind : str
        Kind of the DSPs, a key of `MULTIPLIER_DSPS`.
    has_uram : bool
        Whether the scratchpad consists of UltraRAM.
    scratchpad_port_bytes : int
        Bytes of a word of the scratchpad.
    random : bool
        Whether the vector engine draws random numbers.
    counters : bool
        Whether the core has all counters.
    mx : bool
        Whether the vector engine reads and writes MXINT8.
    num_function_lanes : int or None
        Elements per cycle for functions; None stands for a quarter of the lanes.
    num_banks : int or None
        Banks of the scratchpad; None stands for as many as its size fills.
    """

    rows: int
    cols: int
    num_engines: int
    vector_lanes: int
    scratchpad_bytes: int
    acc_depth: int
    port_bytes: int
    links: tuple[LinkEngineSpec, ...]
    dsp_kind: str
    has_uram: bool
    scratchpad_port_bytes: int = WORD_BYTES
    random: bool = True
    counters: bool = True
    mx: bool = False
    num_function_lanes: int | None = None
    num_banks: int | None = None

    def __post_init__(self) -> None:
        if self.dsp_kind not in MULTIPLIER_DSPS:
            raise ValueError(
                f"dsp_kind must be one of {', '.join(MULTIPLIER_DSPS)}, not {self.dsp_kind!r}"
            )

    @classmethod
    def of(cls, core: CoreSpec, dsp_kind: str, *, has_uram: bool = False) -> CoreShape:
        """The shape of a core that is given, on parts with these DSPs."""
        vector = core.vector
        return cls(
            core.rows,
            core.cols,
            core.num_engines,
            vector.lanes if vector else 0,
            core.scratchpad.size_bytes,
            core.acc_depth,
            core.bus_bytes,
            core.links,
            dsp_kind,
            has_uram,
            scratchpad_port_bytes=core.scratchpad.port_bytes,
            random=vector.random if vector else True,
            counters=core.counters,
            mx=vector.mx if vector else False,
            num_function_lanes=vector.function_lanes if vector else None,
            num_banks=core.scratchpad.banks,
        )


def array_resources(shape: CoreShape) -> Resources:
    """Resources of one engine's array without accumulators: cells, and the delay lines around."""
    return (_cells(shape, shape.cols) + _skew(shape)).rounded()


def column_blocks(shape: CoreShape) -> dict[str, Resources]:
    """Resources of one column of one engine, by block, with its accumulators and result writer.

    The columns of an engine may be on several dies. Their accumulators are one memory, of which
    each column has its share.
    """
    return {
        "arrays": _cells(shape, 1),
        "accumulators": _lut4(core_counts.accumulator(shape.rows), shape)
        + _accumulator_memory(shape) * (1 / shape.cols),
        "result writers": _lut4(COEFFICIENTS["result lane"].resources, shape),
    }


def column_resources(shape: CoreShape) -> Resources:
    """Resources of one column of one engine."""
    return _sum(column_blocks(shape))


def fixed_blocks(shape: CoreShape) -> dict[str, Resources]:
    """Resources of the part that must be on one die, by block.

    This is everything except the columns and the scratchpad's memory blocks.
    """
    engines, has_vector = shape.num_engines, shape.vector_lanes > 0
    writer = COEFFICIENTS["result writer"].resources
    writer += COEFFICIENTS["result word"].resources * min(shape.cols, 16)
    sequencer = SequencerSpec.sized(
        engines,
        shape.links,
        shape.port_bytes,
        shape.scratchpad_port_bytes,
        has_vector=has_vector,
    )
    control = control_counts.control(sequencer, counters=shape.counters)
    logic = {
        "operand readers": core_counts.operand_reader(shape.rows, shape.scratchpad_port_bytes)
        * (2 * engines),
        "accumulators": COEFFICIENTS["datapath"].resources * engines,
        "result writers": writer * engines,
        "scratchpad": core_counts.scratchpad_logic(
            banks(shape), _bank_bytes(shape), engines + has_vector, shape.scratchpad_port_bytes
        )
        + (_scratchpad_memory(shape) if _pad_in_luts(shape) else Resources()),
        "transfers": core_counts.transfers(shape.port_bytes),
        "control": control,
    }
    if shape.links:
        logic["links"] = core_counts.links(shape.links, shape.port_bytes)
    found = {name: _lut4(each, shape) for name, each in logic.items()}
    if has_vector:
        lanes = shape.vector_lanes
        vector = core_counts.vector_engine(
            lanes,
            function_lanes(shape),
            mx=shape.mx,
            random=shape.random,
            port_bytes=shape.scratchpad_port_bytes,
        )
        multipliers = LANE_MULTIPLIERS * MULTIPLIER_DSPS[shape.dsp_kind] * lanes
        functions = FUNCTION_DSPS[shape.dsp_kind] * function_lanes(shape)
        of_lane, of_function = PACKED_REGISTERS.get(shape.dsp_kind, (0, 0))
        packed = of_lane * lanes + of_function * function_lanes(shape)
        vector = replace(vector, ff=vector.ff - packed, dsp=multipliers + functions)
        found["vector engine"] = _lut4(vector, shape)
    found["arrays"] = _skew(shape) * engines
    return found


def fixed_resources(shape: CoreShape) -> Resources:
    """Resources of everything except the columns and the scratchpad's memory blocks."""
    return _sum(fixed_blocks(shape))


def block_resources(shape: CoreShape) -> dict[str, Resources]:
    """Resources of a whole core, by block."""
    found = fixed_blocks(shape)
    for name, each in column_blocks(shape).items():
        found[name] = found.get(name, Resources()) + each * (shape.cols * shape.num_engines)
    found["scratchpad"] += scratchpad_resources(shape)
    return found


def _sum(blocks: Mapping[str, Resources]) -> Resources:
    found = Resources()
    for each in blocks.values():
        found += each
    return found


def function_lanes(shape: CoreShape) -> int:
    """Elements per cycle for functions: a quarter of the lanes where nothing else is given."""
    if shape.num_function_lanes is not None:
        return shape.num_function_lanes
    return -(-shape.vector_lanes // 4)


def banks(shape: CoreShape) -> int:
    """Number of scratchpad banks where none is given.

    It is the largest power of two that the scratchpad's size fills, at least two and at most
    `MOST_BANKS`.
    """
    if shape.num_banks is not None:
        return shape.num_banks
    number = MOST_BANKS
    while number > 2 and 2 * number * _word_blocks(shape) > _least_blocks(shape):
        number //= 2
    return number


def _word_blocks(shape: CoreShape) -> int:
    """Number of blocks in parallel that give a word of the scratchpad."""
    return -(-shape.scratchpad_port_bytes // (WORD_BYTES // MEMORY_BLOCKS))


def _bank_bytes(shape: CoreShape) -> int:
    """Size of a bank: a power of two, all banks together no larger than the scratchpad."""
    return (1 << (shape.scratchpad_bytes.bit_length() - 1)) // banks(shape)


def _pad_in_luts(shape: CoreShape) -> bool:
    """Whether the scratchpad's memories are so small that they lie in LUTs."""
    rows = _bank_bytes(shape) // (2 * shape.scratchpad_port_bytes)
    return rows <= core_counts.MOST_LUT_ROWS


def _scratchpad_memory(shape: CoreShape) -> Resources:
    return core_counts.scratchpad_memory(
        banks(shape), _bank_bytes(shape), shape.scratchpad_port_bytes
    )


def scratchpad_resources(shape: CoreShape) -> Resources:
    """Memory blocks of the scratchpad, enough for its size and for the width of its words."""
    if _pad_in_luts(shape):
        return Resources()
    if shape.has_uram:
        return Resources(uram=max(_least_blocks(shape), 2 * banks(shape) * _word_blocks(shape)))
    return _scratchpad_memory(shape)


def core_resources(shape: CoreShape) -> Resources:
    """Resources of a whole core, in whole numbers."""
    return _sum(block_resources(shape)).rounded()


def _accumulator_memory(shape: CoreShape) -> Resources:
    """Memory of the accumulators of one engine."""
    return core_counts.memory(shape.acc_depth, 32 * shape.cols)


def _least_blocks(shape: CoreShape) -> int:
    return -(-shape.scratchpad_bytes // (URAM_DATA_BYTES if shape.has_uram else BRAM36_DATA_BYTES))


def _lut4(logic: Resources, shape: CoreShape) -> Resources:
    """Convert counts for LUTs of six inputs to the part, which may have LUTs of four inputs."""
    if shape.dsp_kind != "MULT18X18D":
        return logic
    return logic + Resources(lut=logic.lut * (LUT4_FACTOR - 1))


def _cells(shape: CoreShape, cols: int) -> Resources:
    if shape.dsp_kind == "DSP48E1":
        return COEFFICIENTS["packed cell"].resources * (shape.rows * cols)
    return core_counts.cells(shape.rows, cols)


def _skew(shape: CoreShape) -> Resources:
    """Resources of the delay lines; on ECP5, each bit takes a flip-flop."""
    if shape.dsp_kind != "MULT18X18D":
        return core_counts.skew(shape.rows, shape.cols)
    lanes = ((shape.rows, 16), (shape.cols, SystolicSpec(shape.rows, 1).acc_bits))
    return Resources(ff=sum(bits * n * (n - 1) // 2 for n, bits in lanes))
