"""Resources of a training core on a device, for the planner.

:mod:`fpgapipe.hw.hls_models.resources.core_counts` has the resources of each block, and how they
are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.resources import control_counts, core_counts, scratchpad_counts
from fpgapipe.hw.hls_models.resources.core_counts import COEFFICIENTS as COEFFICIENTS
from fpgapipe.hw.hls_models.resources.core_counts import Resources as Resources
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec

BRAM36_DATA_BYTES = 4096
URAM_DATA_BYTES = 32768
"""Bytes of data that a block RAM and an UltraRAM hold; the parity bits are not used, since elements
have 8, 16 or 32 bits."""

MULTIPLIER_DSPS = {"DSP48E1": 2, "DSP48E2": 2, "DSP58": 1, "MULT18X18D": 4}
"""DSPs of a 24 x 24 bit product, the core of an FP32 multiplier, by kind of DSP. They are counted
by Yosys, except for DSP58, whose number is derived from its size, 27x24 bits."""

PACKED_DSP = "DSP48E2"
"""Kind of the DSPs that hold two packed cells: the pre-adders of others are too narrow, or, in the
case of DSP58, their packed form is another one."""

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
16 x 2 cells, and of 8 x 2 with a link, took 43,540 and 48,780 LUTs as nextpnr counted them when
FP32 arithmetic took more; with this number the model said 44,074 and 50,109."""

MOST_BANKS = ScratchpadSpec().banks
"""Largest number of scratchpad banks. Each bank has two memories, for the even and the odd words of
64 bytes."""

MEMORY_BLOCKS = WORD_BYTES // 8
"""Number of blocks in parallel that give a word; an UltraRAM or block RAM gives eight bytes per
cycle."""


@dataclass(frozen=True)
class CoreOnPart:
    """A core on an FPGA of some kind.

    Parameters
    ----------
    core : CoreSpec
    dsp_kind : str
        Kind of the DSPs, a key of `MULTIPLIER_DSPS`.
    has_uram : bool
        Whether the scratchpad consists of UltraRAM.
    """

    core: CoreSpec
    dsp_kind: str
    has_uram: bool = False

    def __post_init__(self) -> None:
        if self.dsp_kind not in MULTIPLIER_DSPS:
            raise ValueError(
                f"dsp_kind must be one of {', '.join(MULTIPLIER_DSPS)}, not {self.dsp_kind!r}"
            )
        if self.core.array.is_packed and self.dsp_kind != PACKED_DSP:
            raise ValueError(f"packed cells need parts with {PACKED_DSP}, not {self.dsp_kind}")


def array_resources(placed: CoreOnPart) -> Resources:
    """Resources of one engine's array without accumulators: cells, and the delay lines around."""
    return (_cells(placed) + _skew(placed)).rounded()


def column_blocks(placed: CoreOnPart) -> dict[str, Resources]:
    """Resources of one column of one engine, by block, with its accumulators and result writer.

    The columns of an engine may be on several dies. Their accumulators are one memory, of which
    each column has its share.
    """
    return {
        "arrays": _cells(placed) * (1 / placed.core.cols),
        "accumulators": _lut4(core_counts.accumulator(placed.core.array), placed)
        + _accumulator_memory(placed) * (1 / placed.core.cols),
        "result writers": _lut4(COEFFICIENTS["result lane"].resources, placed),
    }


def column_resources(placed: CoreOnPart) -> Resources:
    """Resources of one column of one engine."""
    return _sum(column_blocks(placed))


def fixed_blocks(placed: CoreOnPart) -> dict[str, Resources]:
    """Resources of the part that must be on one die, by block.

    This is everything except the columns and the scratchpad's memory blocks.
    """
    core, kind = placed.core, placed.dsp_kind
    pad, vector, engines = core.scratchpad, core.vector, core.num_engines
    writer = COEFFICIENTS["result writer"].resources
    writer += COEFFICIENTS["result word"].resources * min(core.cols, 16)
    writer += COEFFICIENTS["result part"].resources * min(core.cols, 32)
    num_ports = engines + (vector is not None)
    logic = {
        "operand readers": core_counts.operand_reader(core.rows, pad.port_bytes) * (2 * engines),
        "accumulators": COEFFICIENTS["datapath"].resources * engines,
        "result writers": writer * engines,
        "scratchpad": scratchpad_counts.scratchpad_logic(
            pad.banks,
            pad.bank_bytes,
            num_ports,
            pad.port_bytes,
            turned_reads=2 * engines if pad.parts == 1 else 0,
        )
        + (_scratchpad_memory(pad) if _pad_in_luts(pad) else Resources()),
        "transfers": core_counts.transfers(core.bus_bytes, core.memory_ports),
        "control": control_counts.control(SequencerSpec.of(core), counters=core.counters),
    }
    if core.links:
        logic["links"] = core_counts.links(core.links, core.bus_bytes)
    found = {name: _lut4(each, placed) for name, each in logic.items()}
    if vector is not None:
        lanes, functions = vector.lanes, vector.function_lanes
        engine = core_counts.vector_engine(
            lanes, functions, mx=vector.mx, random=vector.random, port_bytes=pad.port_bytes
        )
        dsps = LANE_MULTIPLIERS * MULTIPLIER_DSPS[kind] * lanes + FUNCTION_DSPS[kind] * functions
        of_lane, of_function = PACKED_REGISTERS.get(kind, (0, 0))
        packed = of_lane * lanes + of_function * functions
        found["vector engine"] = _lut4(replace(engine, ff=engine.ff - packed, dsp=dsps), placed)
    found["arrays"] = _skew(placed) * engines
    return found


def fixed_resources(placed: CoreOnPart) -> Resources:
    """Resources of everything except the columns and the scratchpad's memory blocks."""
    return _sum(fixed_blocks(placed))


def block_resources(placed: CoreOnPart) -> dict[str, Resources]:
    """Resources of a whole core, by block."""
    found = fixed_blocks(placed)
    for name, each in column_blocks(placed).items():
        columns = placed.core.cols * placed.core.num_engines
        found[name] = found.get(name, Resources()) + each * columns
    found["scratchpad"] += scratchpad_resources(placed)
    return found


def _sum(blocks: Mapping[str, Resources]) -> Resources:
    found = Resources()
    for each in blocks.values():
        found += each
    return found


def _pad_in_luts(pad: ScratchpadSpec) -> bool:
    """Whether the scratchpad's memories are so small that they lie in LUTs."""
    return pad.bank_bytes // (2 * pad.port_bytes) <= core_counts.MOST_LUT_ROWS


def _scratchpad_memory(pad: ScratchpadSpec) -> Resources:
    return scratchpad_counts.scratchpad_memory(pad.banks, pad.bank_bytes, pad.port_bytes)


def scratchpad_resources(placed: CoreOnPart) -> Resources:
    """Memory blocks of the scratchpad, enough for its size and for the width of its words."""
    pad = placed.core.scratchpad
    if _pad_in_luts(pad):
        return Resources()
    if placed.has_uram:
        least = -(-pad.size_bytes // URAM_DATA_BYTES)
        return Resources(uram=max(least, 2 * pad.banks * word_blocks(pad.port_bytes)))
    return _scratchpad_memory(pad)


def word_blocks(port_bytes: int) -> int:
    """Number of memory blocks in parallel that give a word of the scratchpad."""
    return -(-port_bytes // (WORD_BYTES // MEMORY_BLOCKS))


def core_resources(placed: CoreOnPart) -> Resources:
    """Resources of a whole core, in whole numbers."""
    return _sum(block_resources(placed)).rounded()


def _accumulator_memory(placed: CoreOnPart) -> Resources:
    """Memory of the accumulators of one engine."""
    return core_counts.memory(placed.core.acc_depth, 32 * placed.core.cols)


def _lut4(logic: Resources, placed: CoreOnPart) -> Resources:
    """Convert counts for LUTs of six inputs to the part, which may have LUTs of four inputs."""
    if placed.dsp_kind != "MULT18X18D":
        return logic
    return logic + Resources(lut=logic.lut * (LUT4_FACTOR - 1))


def _cells(placed: CoreOnPart) -> Resources:
    """Resources of the cells of one engine."""
    array = placed.core.array
    if placed.dsp_kind == "DSP48E1":
        cell = COEFFICIENTS["cell in a DSP48E1"].resources
        return cell * array.cells + Resources(dsp=array.dsps)
    return core_counts.cells(array)


def _skew(placed: CoreOnPart) -> Resources:
    """Resources of the delay lines; on ECP5, each bit takes a flip-flop."""
    array = placed.core.array
    if placed.dsp_kind != "MULT18X18D":
        return core_counts.skew(array)
    lanes = core_counts.skew_lanes(array)
    return Resources(ff=sum(bits * n * (n - 1) // 2 for n, bits in lanes))
