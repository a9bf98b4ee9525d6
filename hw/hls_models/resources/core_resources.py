"""Resources of a training core on a device, as the planner asks for them.

What blocks take, and how that is known, is in :mod:`fpgapipe.hw.hls_models.resources.core_counts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.resources import core_counts
from fpgapipe.hw.hls_models.resources.core_counts import COEFFICIENTS as COEFFICIENTS
from fpgapipe.hw.hls_models.resources.core_counts import Resources as Resources
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec

BRAM36_DATA_BYTES = 4096
URAM_DATA_BYTES = 32768
"""Bytes that a block holds in elements of 8, 16 or 32 bits: its parity bits stay unused."""

MULTIPLIER_DSPS = {"DSP48E1": 2, "DSP48E2": 2, "DSP58": 1, "MULT18X18D": 4}
"""DSPs of a 24 x 24 bit product, the core of an FP32 multiplier, by kind of DSP. Counted by Yosys,
but for DSP58: that is derived from its size, 27x24 bits."""

LANE_MULTIPLIERS = 2
"""FP32 multipliers of a vector lane."""

FUNCTION_DSPS = {"DSP48E1": 9, "DSP48E2": 7, "DSP58": 7, "MULT18X18D": 13}
"""DSPs of a function unit. Counted by Yosys, but for DSP58: one holds more bits than a DSP48E2, so
that no more are needed."""

LUT4_FACTOR = 1.6
"""LUTs of four inputs for one of six, for all but cells: counted on the blocks of a 4 x 4 core,
from 1.3 (operand reader, datapath) to 1.8 (scratchpad) and 3.8 (sequencer)."""

MOST_BANKS = ScratchpadSpec().banks
"""Of the scratchpad; each has a memory for even and one for odd words of 64 bytes."""

MEMORY_BLOCKS = WORD_BYTES // 8
"""Blocks side by side that give a word; an UltraRAM or a block RAM gives eight bytes a cycle."""


@dataclass(frozen=True)
class CoreShape:
    """What decides a core's resources.

    Parameters
    ----------
    rows, cols : int
        Cells of an engine's array.
    num_engines : int
        GEMM engines.
    vector_lanes : int
        0 for no vector engine.
    scratchpad_bytes : int
        Of all engines together.
    acc_depth : int
        FP32 accumulators below each column.
    port_bytes : int
        That the bus to the memory moves in a cycle.
    link_widths : tuple of int
        Bytes of the stream to each link's PHY.
    dsp_kind : str
        A key of `MULTIPLIER_DSPS`.
    has_uram : bool
        Whether the scratchpad is UltraRAM.
    """

    rows: int
    cols: int
    num_engines: int
    vector_lanes: int
    scratchpad_bytes: int
    acc_depth: int
    port_bytes: int
    link_widths: tuple[int, ...]
    dsp_kind: str
    has_uram: bool

    def __post_init__(self) -> None:
        if self.dsp_kind not in MULTIPLIER_DSPS:
            raise ValueError(
                f"dsp_kind must be one of {', '.join(MULTIPLIER_DSPS)}, not {self.dsp_kind!r}"
            )


def array_resources(shape: CoreShape) -> Resources:
    """One engine's array without accumulators: cells, and the delay lines around them."""
    return (_cells(shape, shape.cols) + _skew(shape)).rounded()


def column_blocks(shape: CoreShape) -> dict[str, Resources]:
    """One column of one engine, with what accumulates and writes its results, by block.

    Columns may lie on several dies.
    """
    # In halves of a block RAM: 512 sums of 32 bits fill one.
    memory = Resources(bram36=-(-shape.acc_depth // 512) / 2)
    return {
        "arrays": _cells(shape, 1),
        "accumulators": _lut4(core_counts.accumulator(shape.rows), shape) + memory,
        "result writers": _lut4(COEFFICIENTS["result lane"].resources, shape),
    }


def column_resources(shape: CoreShape) -> Resources:
    """One column of one engine."""
    return _sum(column_blocks(shape))


def fixed_blocks(shape: CoreShape) -> dict[str, Resources]:
    """All but columns and scratchpad memories, by block: what has to lie on one die."""
    engines, has_vector = shape.num_engines, shape.vector_lanes > 0
    ends = [LinkEngineSpec(phy_bytes=width) for width in shape.link_widths]
    writer = COEFFICIENTS["result writer"].resources
    writer += COEFFICIENTS["result word"].resources * min(shape.cols, 16)
    control = core_counts.control(engines)
    if has_vector:
        control += COEFFICIENTS["vector control"].resources
    logic = {
        "operand readers": core_counts.operand_reader(shape.rows) * (2 * engines),
        "accumulators": COEFFICIENTS["datapath"].resources * engines,
        "result writers": writer * engines,
        "scratchpad": core_counts.scratchpad_logic(banks(shape), engines + has_vector),
        "transfers": core_counts.transfers(shape.port_bytes),
        "control": control,
    }
    if ends:
        logic["links"] = core_counts.links(ends, shape.port_bytes)
    found = {name: _lut4(each, shape) for name, each in logic.items()}
    if has_vector:
        lanes = shape.vector_lanes
        vector = core_counts.vector_engine(lanes, function_lanes(shape))
        multipliers = LANE_MULTIPLIERS * MULTIPLIER_DSPS[shape.dsp_kind] * lanes
        functions = FUNCTION_DSPS[shape.dsp_kind] * function_lanes(shape)
        found["vector engine"] = replace(_lut4(vector, shape), dsp=multipliers + functions)
    found["arrays"] = _skew(shape) * engines
    return found


def fixed_resources(shape: CoreShape) -> Resources:
    """All but columns and scratchpad memories."""
    return _sum(fixed_blocks(shape))


def block_resources(shape: CoreShape) -> dict[str, Resources]:
    """Everything of a core, by block."""
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
    """Elements a cycle of functions: a quarter of the lanes, as `VectorSpec` has it."""
    return -(-shape.vector_lanes // 4)


def banks(shape: CoreShape) -> int:
    """Of the scratchpad: a power of two, as many as its bytes fill, at most `MOST_BANKS`."""
    number = MOST_BANKS
    while number > 1 and 2 * number * MEMORY_BLOCKS > _least_blocks(shape):
        number //= 2
    return number


def scratchpad_resources(shape: CoreShape) -> Resources:
    """Memory blocks: enough for the bytes, and enough side by side for words of 64 bytes."""
    number = max(_least_blocks(shape), 2 * banks(shape) * MEMORY_BLOCKS)
    return Resources(uram=number) if shape.has_uram else Resources(bram36=number)


def core_resources(shape: CoreShape) -> Resources:
    """Everything of a core, in whole numbers."""
    columns = column_resources(shape) * (shape.cols * shape.num_engines)
    return (columns + fixed_resources(shape) + scratchpad_resources(shape)).rounded()


def _least_blocks(shape: CoreShape) -> int:
    return -(-shape.scratchpad_bytes // (URAM_DATA_BYTES if shape.has_uram else BRAM36_DATA_BYTES))


def _lut4(logic: Resources, shape: CoreShape) -> Resources:
    """What was counted in LUTs of six inputs, on a part that may have those of four."""
    if shape.dsp_kind != "MULT18X18D":
        return logic
    return logic + Resources(lut=logic.lut * (LUT4_FACTOR - 1))


def _cells(shape: CoreShape, cols: int) -> Resources:
    if shape.dsp_kind == "DSP48E1":
        return COEFFICIENTS["packed cell"].resources * (shape.rows * cols)
    return core_counts.cells(shape.rows, cols)


def _skew(shape: CoreShape) -> Resources:
    """Delay lines; ECP5 takes a flip-flop for each bit."""
    if shape.dsp_kind != "MULT18X18D":
        return core_counts.skew(shape.rows, shape.cols)
    lanes = ((shape.rows, 16), (shape.cols, SystolicSpec(shape.rows, 1).acc_bits))
    return Resources(ff=sum(bits * n * (n - 1) // 2 for n, bits in lanes))
