"""Resources of a training core: what each block takes of a device, and how that is known.

`COEFFICIENTS` has every number, each with its basis: *derived* from the structure, *counted* by
Yosys on this project's gateware, or an *estimate* for a block that is not written yet. Estimates
are replaced by counts as the blocks appear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from fpgapipe.hw.hls_models.systolic import SystolicSpec

BRAM36_DATA_BYTES = 4096
URAM_DATA_BYTES = 32768
"""Bytes that a block holds in elements of 8, 16 or 32 bits: its parity bits stay unused."""

MULTIPLIER_DSPS = {"DSP48E1": 2, "DSP48E2": 2, "DSP58": 1, "MULT18X18D": 4}
"""DSPs of a 24 x 24 bit product, the core of an FP32 multiplier, by kind of DSP. Derived from their
sizes: 25x18, 27x18, 27x24 and 18x18 bits."""


@dataclass(frozen=True)
class Resources:
    """Counts of a device's resources; ``bram36`` counts a block of 18 kbit as a half."""

    lut: float = 0
    ff: float = 0
    bram36: float = 0
    uram: float = 0
    dsp: float = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, number: float) -> Resources:
        return Resources(*(getattr(self, f.name) * number for f in fields(self)))

    def rounded(self) -> Resources:
        """Whole numbers, rounded up."""
        return Resources(*(math.ceil(getattr(self, f.name)) for f in fields(self)))


@dataclass(frozen=True)
class Coefficient:
    """What one unit of a block takes.

    Attributes
    ----------
    block, unit : str
        ``vector lane``, ``lane``: what it is, and of what there are several.
    lut, ff, bram36, dsp : float
        Of one unit, on parts with LUTs of six inputs.
    basis : str
        ``derived``, ``counted`` or ``estimate``.
    reason : str
        How the numbers come about.
    """

    block: str
    unit: str
    lut: float
    ff: float
    bram36: float
    dsp: float
    basis: str
    reason: str

    @property
    def resources(self) -> Resources:
        """The numbers as they add up."""
        return Resources(self.lut, self.ff, self.bram36, 0, self.dsp)


COEFFICIENTS = {
    each.block: each
    for each in (
        Coefficient(
            "cell", "cell", 0, 42, 0, 1, "counted",
            "one DSP for each int8 product (two in a DSP48E2 later); activation, two weights, "
            "product and two marks in flip-flops, plus acc_bits LUTs and flip-flops for the sum: "
            "Yosys 0.70, synth_xilinx -family xcup and synth_ecp5, 8x8 to 32x32 cells: within 3 % "
            "from 16x32 on. Yosys leaves adder and registers outside a DSP48E2; Vivado "
            "is expected to pack them",
        ),
        Coefficient(
            "packed cell", "cell", 2.4, 18.5, 0, 1, "counted",
            "the same on a DSP48E1, where Yosys does pack product and sum (-family xc7, 8x8 and "
            "16x32, within 8 %)",
        ),
        Coefficient(
            "accumulator", "column", 650, 430, 1, 0, "estimate",
            "sum to FP32 with scale (leading zeros and shift of 21 bits: 150 LUT, 110 FF), FP32 "
            "adder in five stages (two shifters, 27-bit adder, rounding: 430 LUT, 270 FF), "
            "rounding to BF16 and ReLU (70 LUT, 50 FF); 1,024 sums of 32 bits fill a block RAM",
        ),
        Coefficient(
            "quantiser", "row", 75, 60, 0, 0, "estimate",
            "largest exponent of 32 (a tree, 10 LUT an element), shift and round to 8 bits (50 "
            "LUT), registers; counted twice an engine, for either operand",
        ),
        Coefficient(
            "transposer", "row", 110, 60, 0, 0, "estimate",
            "two squares of bytes in distributed RAM and a rotation at either side; 8 bits of 32 "
            "rows and five stages of 2:1 multiplexers in pairs",
        ),
        Coefficient(
            "address generators", "engine", 2400, 2200, 0, 0, "estimate",
            "three streams (streamed, stationary, results), each six nested loops of 32-bit "
            "adders and counters with padding checks",
        ),
        Coefficient(
            "vector lane", "lane", 950, 800, 0.5, 0, "estimate",
            "FP32 adder (430 LUT), multiplier beside its DSPs (130), compare and select (70), "
            "casts and masks (120), function table of 512 x 36 bits and interpolation control "
            "(200); its DSPs are those of MULTIPLIER_DSPS",
        ),
        Coefficient(
            "vector control", "core", 2500, 2200, 1, 0, "estimate",
            "four address generators, reduction tree control, instruction decoding",
        ),
        Coefficient(
            "memory port", "byte of width", 75, 110, 0.25, 0, "estimate",
            "AXI4 load and store engine: two FIFOs of 512 words (64 bytes wide: 2 x 8 block "
            "RAMs), alignment, bursts, outstanding reads; 4,800 LUT and 7,000 FF at 64 bytes",
        ),
        Coefficient(
            "link", "byte of width", 70, 90, 0.25, 0, "estimate",
            "CRC-32 both ways (some 20 LUT a byte each), framing, credits, replay buffer and "
            "receive FIFO; the MAC or Aurora core is the board's shell",
        ),
        Coefficient(
            "link control", "link", 900, 900, 0, 0, "estimate",
            "sequence numbers, credit counters, replay control, statistics",
        ),
        Coefficient(
            "scratchpad bank", "block of memory", 12, 10, 0, 0, "estimate",
            "its share of bank selection and output multiplexers",
        ),
        Coefficient(
            "sequencer", "core", 3500, 4000, 4, 0, "estimate",
            "six instruction queues with tokens, AXI4-Lite registers, counters; 4,096 words of 32 "
            "bits of program",
        ),
    )
}  # fmt: skip

LUT4_FACTOR = 1.6
"""LUTs of four inputs for one of six, for all blocks that were not counted: an estimate."""


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
    scratchpad_bytes : int
        Of all engines together.
    acc_depth : int
        FP32 accumulators below each column.
    memory_ports, port_bytes : int
        AXI4 masters, and bytes that one moves in a cycle.
    link_widths : tuple of int
        Bytes a cycle of each link.
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
    memory_ports: int
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
    return (_cell(shape) * (shape.rows * shape.cols) + _skew(shape)).rounded()


def column_resources(shape: CoreShape) -> Resources:
    """One column of one engine's array with its accumulator; columns may lie on several dies."""
    return _cell(shape) * shape.rows + _accumulator(shape)


def fixed_resources(shape: CoreShape) -> Resources:
    """All but columns and scratchpad: what has to lie on one die."""
    lane = _logic("vector lane", shape) + Resources(dsp=MULTIPLIER_DSPS[shape.dsp_kind])
    engine = (
        _logic("quantiser", shape) * (2 * shape.rows)
        + _logic("transposer", shape) * shape.rows
        + _logic("address generators", shape)
        + _skew(shape)
    )
    links = _logic("link", shape) * sum(shape.link_widths)
    return (
        engine * shape.num_engines
        + lane * shape.vector_lanes
        + _logic("vector control", shape)
        + _logic("memory port", shape) * (shape.memory_ports * shape.port_bytes)
        + links
        + _logic("link control", shape) * len(shape.link_widths)
        + _logic("sequencer", shape)
    )


def scratchpad_resources(shape: CoreShape) -> Resources:
    """Memory blocks: enough for the bytes, and enough side by side for the streams.

    An engine reads `rows` elements of up to four bytes in a cycle, a block gives eight (UltraRAM)
    or four (block RAM, so that 1,024 words remain deep).
    """
    block, width = (URAM_DATA_BYTES, 8) if shape.has_uram else (BRAM36_DATA_BYTES, 4)
    number = max(
        -(-shape.scratchpad_bytes // block), -(-4 * shape.rows // width) * shape.num_engines
    )
    held = Resources(uram=number) if shape.has_uram else Resources(bram36=number)
    return held + _logic("scratchpad bank", shape) * number


def core_resources(shape: CoreShape) -> Resources:
    """Everything of a core, in whole numbers."""
    columns = column_resources(shape) * (shape.cols * shape.num_engines)
    return (columns + fixed_resources(shape) + scratchpad_resources(shape)).rounded()


def _logic(block: str, shape: CoreShape) -> Resources:
    """A coefficient, on parts with LUTs of four inputs with as many more of them."""
    found = COEFFICIENTS[block]
    factor = LUT4_FACTOR if shape.dsp_kind == "MULT18X18D" and found.basis == "estimate" else 1
    return Resources(found.lut * factor, found.ff, found.bram36, 0, found.dsp)


def _cell(shape: CoreShape) -> Resources:
    if shape.dsp_kind == "DSP48E1":
        return _logic("packed cell", shape)
    acc_bits = SystolicSpec(shape.rows, 1).acc_bits
    return _logic("cell", shape) + Resources(lut=acc_bits, ff=acc_bits)


def _accumulator(shape: CoreShape) -> Resources:
    logic = _logic("accumulator", shape)
    # In halves of a block RAM: 512 sums of 32 bits fill one.
    return Resources(logic.lut, logic.ff, -(-shape.acc_depth // 512) / 2, 0, logic.dsp)


def _skew(shape: CoreShape) -> Resources:
    """Delay lines that make waves of vectors: derived.

    Element `i` of `n` is delayed by `i` cycles: 8 bits of `rows` activations, and of `cols` weights
    and sums. AMD parts take a LUT for 32 bits of shift register, ECP5 a flip-flop for each.
    """
    sum_bits = SystolicSpec(shape.rows, 1).acc_bits
    lanes = ((shape.rows, 8), (shape.cols, 8 + sum_bits))
    if shape.dsp_kind == "MULT18X18D":
        return Resources(ff=sum(bits * n * (n - 1) // 2 for n, bits in lanes))
    return Resources(lut=sum(bits * sum(-(-i // 32) for i in range(n)) for n, bits in lanes))
