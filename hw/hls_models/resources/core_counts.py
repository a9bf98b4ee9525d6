"""What the blocks of a training core take of a device: counts of Yosys, and how they grow.

`COEFFICIENTS` has every number, each with its basis: *counted* by Yosys on this project's gateware,
or *derived* from the structure. Counts are those of parts with LUTs of six inputs, a LUT for every
LUT cell: a part puts some pairs of small ones into one, so that fewer are needed. Multiplexers and
carries beside LUTs are free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import COUNTER_BITS
from fpgapipe.hw.hls_models.isa.vector_op import LANES, MAX_SUMS
from fpgapipe.hw.hls_models.model.link_dma import SEND_WORDS
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec

WORD_BITS = 8 * WORD_BYTES

_SUM_BITS = 32 + COUNTER_BITS
"""Of a sum, or a maximum and its place, that waits for its next element."""


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
        ``derived`` or ``counted``.
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


_COUNTED = "Yosys 0.70, synth_xilinx -family xcup, modules kept apart: "

COEFFICIENTS = {
    each.block: each
    for each in (
        Coefficient(
            "cell", "cell", 2, 42, 0, 1, "counted",
            "one DSP for each int8 product; activation, two weights, product and two marks in "
            "flip-flops, plus acc_bits LUTs and flip-flops for the sum. Yosys leaves adder and "
            "registers outside a DSP48E2; Vivado is expected to pack them",
        ),
        Coefficient(
            "packed cell", "cell", 2.4, 17.3, 0, 1, "counted",
            "the same on a DSP48E1, where Yosys does pack product and sum (-family xc7, 8x8 and "
            "16x32, within 10 %)",
        ),
        Coefficient(
            "accumulator", "column", 640, 338, 0, 0, "counted",
            _COUNTED + "sum to FP32 103 LUT and 36 FF, plus 2 LUT and 3 FF a bit of the sum; FP32 "
            "adder 481 and 208; exponent 17 and 11; codes, old value and aside 39 and 83. Without "
            "its memory",
        ),
        Coefficient(
            "datapath", "engine", 230, 260, 0, 0, "counted",
            _COUNTED + "counting of vectors 186 LUT and 187 FF at 1,024 accumulators, the rest the "
            "line of what goes along with vectors",
        ),
        Coefficient(
            "transposer", "operand", 3054, 1707, 16, 0, "counted",
            _COUNTED + "544 bits, of which a LUT for each two stages of multiplexers: in four, out "
            "five and one for words that are not transposed; 32 memories of 32 x 34 bits",
        ),
        Coefficient(
            "quantiser", "operand", 2094, 1392, 0, 0, "counted",
            _COUNTED + "a block of 32 elements, however many rows the array has",
        ),
        Coefficient(
            "address generator", "operand", 1658, 1838, 0, 0, "counted",
            _COUNTED + "three loop nests of three loops",
        ),
        Coefficient(
            "operand reader", "operand", 1134, 935, 0, 0, "counted",
            _COUNTED + "16 words that wait in LUTs (312 LUT), masks, halves of FP32 words; without "
            "transposer, quantiser and address generator",
        ),
        Coefficient(
            "operand row", "row of an operand", 10.5, 16.4, 0, 0, "counted",
            _COUNTED + "the part of a block that leaves, and a vector put aside; 4 and 16 rows",
        ),
        Coefficient(
            "result writer", "engine", 793, 1052, 0, 0, "counted",
            _COUNTED + "two loop nests, tags of three stages; 4, 16 and 32 columns",
        ),
        Coefficient(
            "result word", "column up to 16", 0, 100, 0, 0, "counted",
            _COUNTED + "64 bytes in three registers, as far as there are columns of FP32",
        ),
        Coefficient(
            "result lane", "column", 71.6, 48.7, 0, 0, "counted",
            _COUNTED + "rounding to BF16 19 LUT and 16 FF, the rest a vector that leaves in parts",
        ),
        Coefficient(
            "scratchpad turned read", "port that is not aligned", 1536, 15, 0, 0, "counted",
            _COUNTED + "512 bits turned by five stages of multiplexers, a LUT for each two",
        ),
        Coefficient(
            "scratchpad turned write", "port that is not aligned", 1120, 1, 0, 0, "counted",
            _COUNTED + "512 bits turned by four of five stages, and their mask by five",
        ),
        Coefficient(
            "scratchpad port", "port", 93, 76, 0, 0, "counted",
            _COUNTED + "its place and whether it waits, masks and rows; registers of words and "
            "what chooses among memories follow from the structure",
        ),
        Coefficient(
            "load", "core", 1490, 2590, 0, 0, "counted",
            _COUNTED + "generator of bursts 760 LUT and 1,263 FF; a word in two registers",
        ),
        Coefficient(
            "store", "core", 1400, 2020, 0, 0, "counted",
            _COUNTED + "generator of bursts as for loads, 16 words that wait in LUTs (317 LUT)",
        ),
        Coefficient(
            "arbiter", "core", 191, 182, 0, 0, "counted",
            _COUNTED + "of two readers",
        ),
        Coefficient(
            "bus byte", "byte of width", 2, 9, 0, 0, "counted",
            _COUNTED + "the stores' beat and its strobes",
        ),
        Coefficient(
            "sequencer", "core", 2199, 3073, 0, 0, "counted",
            _COUNTED + "with its queues for loads and stores: 16 instructions in LUTs (314 LUT and "
            "526 FF) each, fetching 700 LUT, semaphores 600",
        ),
        Coefficient(
            "registers", "core", 926, 970, 0, 0, "counted", _COUNTED + "counters of 64 bits",
        ),
        Coefficient(
            "engine control", "engine", 1347, 3905, 0, 0, "counted",
            _COUNTED + "its queue, semaphores and counters, descriptors that wait between "
            "blocks (452 LUT and 609 FF): one engine and two",
        ),
        Coefficient(
            "engine semaphores", "engine but the first", 220, 150, 0, 0, "derived",
            "8 counters of 8 bits, each with the sum of five queues' signals (20 LUT) and the "
            "grants (7 LUT); two stages of the signals of each queue (10 FF)",
        ),
        Coefficient(
            "vector lane", "lane", 2416, 1735, 0, 4, "counted",
            _COUNTED + "three FP32 adders and two multipliers, of two DSPs each; comparisons and "
            "choices, maxima",
        ),
        Coefficient(
            "vector lane ways", "lane", 280, 531, 0, 0, "counted",
            _COUNTED + "what operands wait in on their way past the stages, coefficients, results "
            "on their way through the function units; 32 bits of reader and writer. Without sums",
        ),
        Coefficient(
            "vector ways", "vector engine", 5160, 6120, 0, 0, "counted",
            _COUNTED + "reader 3,200 LUT (635 of them 16 words each of X and Y) and 3,340 FF; "
            "writer 1,710 and 2,570; what goes along with beats. Addresses have 13 to 20 bits",
        ),
        Coefficient(
            "vector blocks", "vector engine with MXINT8", 2549, 577, 0, 0, "counted",
            _COUNTED + "a quantiser of 16 elements 1,209 LUT and 418 FF; masks, where blocks go, "
            "34 of 64 bytes that are one or the other, bytes chosen from words",
        ),
        Coefficient(
            "vector block lane", "lane with MXINT8", 120, 20, 0, 0, "counted",
            _COUNTED + "an element of X and one of Y, 54 LUT and 10 FF each; 2 and 16 lanes",
        ),
        Coefficient(
            "random numbers", "vector engine", 3066, 3762, 0, 0, "counted",
            _COUNTED + "Threefry, a stage a round",
        ),
        Coefficient(
            "function unit", "function lane", 1183, 853, 2, 7, "counted",
            _COUNTED + "tables of 1,024 rows; 853 FF beside those in DSPs",
        ),
        Coefficient(
            "vector control", "vector engine", 2350, 4070, 0, 0, "counted",
            _COUNTED + "what the sequencer (553 LUT and 2,825 FF: an instruction in its queue, "
            "another on its way) and registers (1,358 and 906) grow by; constants 429 and 339",
        ),
        Coefficient(
            "link end", "link", 3984, 3854, 0, 0, "counted",
            _COUNTED + "of slots 16, 16 and 4: sessions, window and replay, tables of slots, three "
            "output queues of 8 words in LUTs; without its memories of frames. The MAC or Aurora "
            "core is the board's shell",
        ),
        Coefficient(
            "link byte", "byte of width", 69, 50, 0, 0, "counted",
            _COUNTED + "CRC-32 both ways, beats; at least 16 bytes: 16 and 64",
        ),
        Coefficient(
            "packets", "link", 4877, 6644, 0, 0, "counted",
            _COUNTED + "send engine 2,622 LUT and 3,608 FF, receive engine 2,255 and 3,036, of "
            "which 32 words lie in LUTs; without the memory of 256 words to send. A bus of 64",
        ),
        Coefficient(
            "packet control", "link", 2657, 2404, 0, 0, "counted",
            _COUNTED + "what the sequencer (1,133 LUT and 1,469 FF: two queues) and registers "
            "(1,520 and 933) grow by, and the arbiter of readers. One link",
        ),
        Coefficient(
            "writers", "byte of the bus", 6.4, 1.6, 0, 0, "counted",
            _COUNTED + "arbiter of writers, where there are links",
        ),
        Coefficient(
            "writer", "byte of the bus and link", 4.5, 0, 0, 0, "counted",
            _COUNTED + "what it grows by with each: one link and two",
        ),
    )
}  # fmt: skip


def cells(rows: int, cols: int) -> Resources:
    """The cells of an array, on a part where Yosys leaves the adders outside the DSPs."""
    acc_bits = SystolicSpec(rows, 1).acc_bits
    return (COEFFICIENTS["cell"].resources + Resources(lut=acc_bits, ff=acc_bits)) * (rows * cols)


def skew(rows: int, cols: int) -> Resources:
    """Delay lines that make waves of vectors and vectors of waves: derived.

    Element `i` of `n` is delayed by `i` cycles: 8 bits of `rows` activations and weights each, and
    the sums of `cols` columns. Yosys makes two cycles of flip-flops; from three on, a LUT is a
    shift register of up to 32.
    """
    lanes = ((rows, 16), (cols, SystolicSpec(rows, 1).acc_bits))
    return Resources(
        lut=sum(bits * sum(-(-i // 32) for i in range(3, n)) for n, bits in lanes),
        ff=sum(bits * min(3, n * (n - 1) // 2) for n, bits in lanes),
    )


def accumulator(rows: int) -> Resources:
    """What is below one column, without the accumulators' memory."""
    acc_bits = SystolicSpec(rows, 1).acc_bits
    return COEFFICIENTS["accumulator"].resources + Resources(lut=2 * acc_bits, ff=3 * acc_bits)


def memory(depth: int, bits: int) -> Resources:
    """A memory that is written and read by rows, as Yosys places it on UltraScale+.

    Up to 64 rows lie in LUTs, of which eight hold 7 bits of 64 rows or 14 of 32; more in block RAM,
    18 kbit of which are 36 bits wide up to 512 rows, 18 up to 1,024 and so on.
    """
    if depth <= 64:
        return Resources(lut=8 * -(-bits // (14 if depth <= 32 else 7)), ff=bits)
    width = max(36 * 512 // max(depth, 512), 1)
    return Resources(bram36=-(-bits // width) / 2)


def operand_reader(rows: int) -> Resources:
    """One operand's way from the scratchpad to the array."""
    found = COEFFICIENTS["operand row"].resources * rows
    for block in ("transposer", "quantiser", "address generator", "operand reader"):
        found += COEFFICIENTS[block].resources
    return found


def result_writer(cols: int) -> Resources:
    """What writes the results of one engine: its fixed part, and the lanes it rounds."""
    found = COEFFICIENTS["result writer"].resources
    found += COEFFICIENTS["result word"].resources * min(cols, 16)
    return found + COEFFICIENTS["result lane"].resources * cols


def scratchpad_logic(banks: int, num_engines: int) -> Resources:
    """What lies between the ports of the scratchpad and its memories.

    Every engine, of products or of vectors, has two ports that read and one that writes anywhere;
    loads and stores have one each, for whole words. A port that reads chooses, for each granule of
    its own, among the even and odd words of all banks and turns what it has; one that writes turns
    64 bytes; a memory chooses among the writers. A LUT chooses from the four words of two banks;
    Yosys takes 3.2 for those of four. One takes the last step of a writer's turn together with the
    choice from two writers; of more, the steps are a LUT a bit each, and the choices that of one
    input and one select for each.
    """
    reads, writers = 2 * num_engines + 1, num_engines + 1
    sources = 32 * (1 + (banks - 1).bit_length())
    registers = reads * 2 * WORD_BITS + writers * WORD_BITS + 2 * num_engines * sources
    choices = reads * (1 if banks <= 2 else 0.8 * banks)
    if writers > 2:
        choices += writers - 1 + 2 * banks * math.ceil((2 * writers - 2) / 5)
    else:
        choices += 2 * banks
    return (
        COEFFICIENTS["scratchpad turned read"].resources * (2 * num_engines)
        + COEFFICIENTS["scratchpad turned write"].resources * num_engines
        + COEFFICIENTS["scratchpad port"].resources * (reads + writers)
        + Resources(lut=choices * WORD_BITS, ff=registers)
    )


def scratchpad_memory(banks: int, bank_bytes: int) -> Resources:
    """The memories, each with 64 bytes a row, of which two bytes at a time are written.

    A write mask for every 16 bits leaves the parity bits of block RAMs unused.
    """
    depth = bank_bytes // (2 * WORD_BYTES)
    if depth <= 64:
        held = memory(depth, WORD_BITS)
    else:
        held = Resources(bram36=-(-WORD_BITS // max(32 * 512 // max(depth, 512), 1)) / 2)
    return held * (2 * banks)


def transfers(bus_bytes: int) -> Resources:
    """Loads, stores, and the arbiter in front of the bus."""
    found = COEFFICIENTS["load"].resources + COEFFICIENTS["store"].resources
    bus = COEFFICIENTS["bus byte"].resources * bus_bytes
    # Beats that make a word wait for its last one.
    waiting = Resources(ff=8 * (WORD_BYTES - bus_bytes))
    return found + COEFFICIENTS["arbiter"].resources + bus + waiting


def control(num_engines: int) -> Resources:
    """Sequencer, registers, and what lies between blocks."""
    found = Resources()
    for block in ("sequencer", "registers"):
        found += COEFFICIENTS[block].resources
    found += COEFFICIENTS["engine control"].resources * num_engines
    return found + COEFFICIENTS["engine semaphores"].resources * (num_engines - 1)


def vector_engine(lanes: int, function_lanes: int, *, mx: bool = False) -> Resources:
    """A vector engine, without its ports of the scratchpad and its queue.

    Its memory of sums has as many bits for any number of lanes.
    """
    found = COEFFICIENTS["vector ways"].resources + COEFFICIENTS["random numbers"].resources
    for block in ("vector lane", "vector lane ways"):
        found += COEFFICIENTS[block].resources * lanes
    found += COEFFICIENTS["function unit"].resources * function_lanes
    if mx:
        found += COEFFICIENTS["vector blocks"].resources
        found += COEFFICIENTS["vector block lane"].resources * lanes
    return found + memory(MAX_SUMS * LANES // lanes, _SUM_BITS * lanes)


def links(specs: Sequence[LinkEngineSpec], bus_bytes: int) -> Resources:
    """Ends of links, what moves packets between them and memory, and what controls both."""
    found = Resources()
    for spec in specs:
        found += COEFFICIENTS["link end"].resources
        found += COEFFICIENTS["link byte"].resources * spec.beat_bytes
        # The transmitter's frames, and the receiver's with two more; words to send.
        for rows in (sum(spec.slots) * spec.frame_words, (sum(spec.slots) + 2) * spec.frame_words):
            found += memory(1 << (rows - 1).bit_length(), WORD_BITS)
        found += memory(SEND_WORDS, WORD_BITS + 1)
        found += COEFFICIENTS["packets"].resources + COEFFICIENTS["packet control"].resources
        found += COEFFICIENTS["writer"].resources * bus_bytes
    return found + COEFFICIENTS["writers"].resources * (bus_bytes if specs else 0)


def block_resources(spec: CoreSpec) -> dict[str, Resources]:
    """What a core's blocks take on UltraScale+, by name; all of a name together."""
    engines, pad, vector = spec.num_engines, spec.scratchpad, spec.vector
    found = {
        "operand readers": operand_reader(spec.rows) * (2 * engines),
        "arrays": (cells(spec.rows, spec.cols) + skew(spec.rows, spec.cols)) * engines,
        "accumulators": (
            accumulator(spec.rows) * spec.cols
            + COEFFICIENTS["datapath"].resources
            + memory(spec.acc_depth, 32 * spec.cols)
        )
        * engines,
        "result writers": result_writer(spec.cols) * engines,
        "scratchpad": scratchpad_logic(pad.banks, engines + int(vector is not None))
        + scratchpad_memory(pad.banks, pad.bank_bytes),
        "transfers": transfers(spec.bus_bytes),
        "control": control(engines),
    }
    if spec.links:
        found["links"] = links(spec.links, spec.bus_bytes)
    if vector:
        found["vector engine"] = vector_engine(vector.lanes, vector.function_lanes, mx=vector.mx)
        found["control"] += COEFFICIENTS["vector control"].resources
    return found


def counted_core(spec: CoreSpec) -> Resources:
    """What `Device` of hw/rtl/device.py takes on UltraScale+, in whole numbers."""
    found = Resources()
    for each in block_resources(spec).values():
        found += each
    return found.rounded()
