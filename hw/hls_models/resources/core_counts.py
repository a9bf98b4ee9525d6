"""Resources of the blocks of a training core: counts by Yosys, and how they grow with parameters.

`COEFFICIENTS` has every number with its basis: *counted* by Yosys on this project's gateware, or
*derived* from the structure. Counts are for parts with LUTs of six inputs, with one LUT for every
LUT cell; a part needs fewer, because it puts some pairs of small cells into one LUT. The
multiplexers and carry chains next to the LUTs are free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import COUNTER_BITS
from fpgapipe.hw.hls_models.isa.vector_op import LANES, MAX_SUMS
from fpgapipe.hw.hls_models.model.link_dma import most_send_words
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.hw.hls_models.spec.interleave import BUFFERED_WORDS
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec, OnChipSpec
from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec

WORD_BITS = 8 * WORD_BYTES

MOST_LUT_ROWS = 64
"""Rows of the deepest memory that lies in LUTs."""

_SUM_BITS = 32 + COUNTER_BITS
"""Width of an entry of the vector engine's memory of sums: a sum, or a maximum and its index."""


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
        """Return the counts rounded up to whole numbers."""
        # Shares of a whole, such as a column's of the accumulators' memory, add up to it but for
        # the rounding of floating-point numbers.
        return Resources(*(math.ceil(round(getattr(self, f.name), 6)) for f in fields(self)))


@dataclass(frozen=True)
class Coefficient:
    """Resources of one unit of a block.

    Attributes
    ----------
    block, unit : str
        Name of the block, and the unit that the numbers are for, such as ``vector lane`` and
        ``lane``.
    lut, ff, bram36, dsp : float
        Resources of one unit, on parts with LUTs of six inputs.
    basis : str
        ``derived`` or ``counted``.
    reason : str
        Explanation of the numbers.
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
        """The numbers as `Resources`."""
        return Resources(self.lut, self.ff, self.bram36, 0, self.dsp)


_COUNTED = "Yosys 0.70, synth_xilinx -family xcup, modules kept apart: "

COEFFICIENTS = {
    each.block: each
    for each in (
        Coefficient(
            "cell", "cell", 2, 42, 0, 0, "counted",
            "besides its DSPs (`SystolicSpec`): activation, two weights, product and two marks in "
            "flip-flops, plus acc_bits LUTs and flip-flops for the sum. Yosys leaves adder and "
            "registers outside a DSP48E2; Vivado is expected to pack them",
        ),
        Coefficient(
            "two packed cells", "DSP", 1, 10, 0, 0, "counted",
            _COUNTED + "activation and two marks in flip-flops, and a LUT that enables the swap; "
            "weights, products and sums are in the DSP",
        ),
        Coefficient(
            "sum of cascades", "pair of columns", 39, 40, 0, 0, "counted",
            _COUNTED + "adders of 19 and 20 bits with their registers, where a column is two "
            "cascades",
        ),
        Coefficient(
            "cell in a DSP48E1", "cell", 2.4, 17.3, 0, 0, "counted",
            "the same on a DSP48E1, where Yosys does pack product and sum (-family xc7, 8x8 and "
            "16x32, within 10 %)",
        ),
        Coefficient(
            "accumulator", "column", 335, 371, 0, 0, "counted",
            _COUNTED + "sum to FP32 1 LUT and 39 FF, plus 6 LUT and 3 FF a bit of the sum; FP32 "
            "adder 318 and 238; exponent 9 and 11; codes, old value and aside 7 and 83. Without "
            "its memory",
        ),
        Coefficient(
            "datapath", "engine", 230, 260, 0, 0, "counted",
            _COUNTED + "counting of vectors 186 LUT and 187 FF at 1,024 accumulators, the rest the "
            "line of what goes along with vectors",
        ),
        Coefficient(
            "transposer", "operand", 1427, 1709, 16, 0, "counted",
            _COUNTED + "544 bits, of which a LUT for each two stages of multiplexers: three, and "
            "one for words that are not transposed; 32 memories of 32 x 34 bits",
        ),
        Coefficient(
            "quantiser", "operand", 1949, 1392, 0, 0, "counted",
            _COUNTED + "a block of 32 elements, however many rows the array has",
        ),
        Coefficient(
            "address generator", "operand", 1390, 1838, 0, 0, "counted",
            _COUNTED + "three loop nests of three loops",
        ),
        Coefficient(
            "operand reader", "operand", 1200, 950, 0, 0, "counted",
            _COUNTED + "16 words that wait in LUTs (312 LUT), masks, halves of FP32 words; without "
            "transposer, quantiser and address generator",
        ),
        Coefficient(
            "operand row", "row of an operand", 13.4, 16.4, 0, 0, "counted",
            _COUNTED + "the part of a block that leaves, in its order, and a vector put aside; 4, "
            "16 and 32 rows",
        ),
        Coefficient(
            "narrow reader of 4", "operand in parts of 4 elements", 707, 481, 2, 0, "counted",
            _COUNTED + "transposer 327 LUT and 206 FF, quantiser, reader; without rows",
        ),
        Coefficient(
            "narrow reader of 8", "operand in parts of 8 elements", 1644, 718, 4, 0, "counted",
            _COUNTED + "transposer 1,012 LUT and 340 FF, quantiser, reader; without rows",
        ),
        Coefficient(
            "narrow reader of 16", "operand in parts of 16 elements", 3388, 1185, 8, 0, "derived",
            "as that of parts of 8, of which twice as many bits are rotated by a step more",
        ),
        Coefficient(
            "narrow reader row", "row of an operand in parts", 38.7, 59, 0, 0, "counted",
            _COUNTED + "an element that is quantised and put aside; 4 and 16 rows",
        ),
        Coefficient(
            "narrow scratchpad port", "port of a scratchpad of narrow words", 75, 0, 0, 0,
            "counted", _COUNTED + "as of a scratchpad port, and the number of a part",
        ),
        Coefficient(
            "narrow vector ways", "vector engine with narrow ports", -1150, -930, 0, 0, "counted",
            _COUNTED + "what the reader has less of: words that wait, parts chosen from them",
        ),
        Coefficient(
            "counter", "counter", 34, 0, 0, 0, "counted",
            _COUNTED + "registers with 21 counters of 64 bits and with 6",
        ),
        Coefficient(
            "result writer", "engine", 670, 1052, 0, 0, "counted",
            _COUNTED + "two loop nests, tags of three stages; 4 to 64 columns",
        ),
        Coefficient(
            "result word", "column up to 16", 33.3, 100, 0, 0, "counted",
            _COUNTED + "64 bytes in three registers, as far as there are columns of FP32",
        ),
        Coefficient(
            "result part", "column up to 32", 38, 16.6, 0, 0, "counted",
            _COUNTED + "rounding to BF16 19 LUT and 16 FF, and a part of the vector in either form",
        ),
        Coefficient(
            "result lane", "column", 32.7, 32.1, 0, 0, "counted",
            _COUNTED + "a vector that leaves in parts, or that comes next",
        ),
        Coefficient(
            "scratchpad turned write", "port that is not aligned", 1088, 0, 0, 0, "counted",
            _COUNTED + "512 bits and their mask turned by four stages",
        ),
        Coefficient(
            "scratchpad port", "port", 93, 0, 0, 0, "counted",
            _COUNTED + "its place and whether it waits, masks and rows; registers and what chooses "
            "among memories follow from the structure",
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
            "memory ports", "core with two", 244, 167, 0, 0, "counted",
            _COUNTED + "order of bursts and of writes; a bus of 16, 32 and 64 bytes. Without the "
            "memories of words that wait",
        ),
        Coefficient(
            "memory ports byte", "byte of width", 8, 0, 0, 0, "counted",
            _COUNTED + "words of one port or the other",
        ),
        Coefficient(
            "bus byte", "byte of width", 2, 9, 0, 0, "counted",
            _COUNTED + "the stores' beat and its strobes",
        ),
        Coefficient(
            "sequencer", "core", 1189, 0, 0, 0, "counted",
            _COUNTED + "fetching 700 LUT; ten sequencers of three to nine queues and 16 to 32 "
            "semaphores, within 2 %. Flip-flops follow from the structure",
        ),
        Coefficient(
            "queue", "queue of the sequencer", 398, 0, 0, 0, "counted",
            _COUNTED + "16 instructions in LUTs (314 LUT)",
        ),
        Coefficient(
            "queue semaphore", "queue and semaphore", 9.9, 0, 0, 0, "counted",
            _COUNTED + "each semaphore counts the signals of all queues, and each queue waits for "
            "any of them",
        ),
        Coefficient(
            "registers", "core", 600, 0, 0, 0, "counted",
            _COUNTED + "counters of 64 bits. Flip-flops follow from the structure",
        ),
        Coefficient(
            "engine control", "engine", 668, 596, 0, 0, "counted",
            _COUNTED + "its counters, descriptors that wait between blocks (452 LUT, and all "
            "flip-flops here): one engine and two",
        ),
        Coefficient(
            "vector lane", "lane", 1737, 1819, 0, 4, "counted",
            _COUNTED + "three FP32 adders and two multipliers, of two DSPs each; comparisons and "
            "choices, maxima",
        ),
        Coefficient(
            "vector lane ways", "lane", 280, 531, 0, 0, "counted",
            _COUNTED + "what operands wait in on their way past the stages, coefficients, results "
            "on their way through the function units; 32 bits of reader and writer. Without sums",
        ),
        Coefficient(
            "vector ways", "vector engine", 4950, 6080, 0, 0, "counted",
            _COUNTED + "reader 3,050 LUT (635 of them 16 words each of X and Y) and 3,310 FF; "
            "writer 1,650 and 2,550; what goes along with beats. Addresses have 13 to 20 bits",
        ),
        Coefficient(
            "vector blocks", "vector engine with MXINT8", 2430, 577, 0, 0, "counted",
            _COUNTED + "a quantiser of 16 elements 1,138 LUT and 418 FF; masks, where blocks go, "
            "34 of 64 bytes that are one or the other, bytes chosen from words",
        ),
        Coefficient(
            "vector block lane", "lane with MXINT8", 124, 20, 0, 0, "counted",
            _COUNTED + "an element of X and one of Y, 54 LUT and 10 FF each; 2 and 16 lanes",
        ),
        Coefficient(
            "random numbers", "vector engine", 3066, 3762, 0, 0, "counted",
            _COUNTED + "Threefry, a stage a round",
        ),
        Coefficient(
            "shared random numbers", "vector engine of fewer than 16 lanes", 2710, 2482, 0, 0,
            "counted", _COUNTED + "Threefry, a stage for two rounds",
        ),
        Coefficient(
            "function unit", "function lane", 1157, 855, 2, 7, "counted",
            _COUNTED + "tables of 1,024 rows; 855 FF beside those in DSPs",
        ),
        Coefficient(
            "vector control", "vector engine", 990, 339, 0, 0, "counted",
            _COUNTED + "what registers (560 LUT) grow by; constants 429 LUT, and all flip-flops "
            "here",
        ),
        Coefficient(
            "link end", "link", 4127, 3854, 0, 0, "counted",
            _COUNTED + "of slots 16, 16 and 4: sessions, window and replay, tables of slots, three "
            "output queues of 8 words in LUTs; without its memories of frames. The MAC or Aurora "
            "core is the board's shell",
        ),
        Coefficient(
            "link byte", "byte of width", 43.6, 50, 0, 0, "counted",
            _COUNTED + "CRC-32 both ways, beats; at least 16 bytes: 16 and 64",
        ),
        Coefficient(
            "on-chip end", "on-chip link", 2530, 3790, 0, 0, "counted",
            _COUNTED + "sessions, 1,642 LUT; three buffers of 32 words in LUTs, 888",
        ),
        Coefficient(
            "packets", "link", 5655, 6745, 0, 0, "counted",
            _COUNTED + "send engine 3,246 LUT and 3,643 FF, receive engine 2,409 and 3,102, of "
            "which 32 words lie in LUTs; without the memory of 256 words to send. A bus of 64",
        ),
        Coefficient(
            "shared ports", "core with links", 620, 11, 0, 0, "counted",
            _COUNTED + "ports of the scratchpad for loads or stores and for links, by turns: words "
            "that are written 575 and 580 LUT, reads 37 and 43, with one link and with two",
        ),
        Coefficient(
            "narrow link", "link whose words pass in parts", 3872, 5168, 0, 0, "counted",
            _COUNTED + "of 4 bytes: end 1,777 LUT and 2,165 FF, send engine 1,148 and 1,681, "
            "receive engine 1,121 and 1,522, less the bytes of width",
        ),
        Coefficient(
            "packet beats", "link on a bus of fewer than 64 bytes", 175, 0, 0, 0, "counted",
            _COUNTED + "beats of a packet that the receive engine puts in their places: 60, 210 "
            "and 256 LUT for a bus of 16, 4 and 32 bytes",
        ),
        Coefficient(
            "packet control", "link", 1240, 47, 0, 0, "counted",
            _COUNTED + "what registers (1,230 LUT) grow by, the arbiter of readers, and the count "
            "of a clock (7 LUT, 45 FF). One link",
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


def cells(array: SystolicSpec) -> Resources:
    """Resources of an array's cells, on a part where Yosys leaves the adders outside the DSPs."""
    dsps = Resources(dsp=array.dsps)
    if array.is_packed:
        first_marks = Resources(ff=-2 * array.cascades)  # they come from outside of the pair
        pair = COEFFICIENTS["two packed cells"].resources * array.rows + first_marks
        pair += COEFFICIENTS["sum of cascades"].resources * (array.cascades - 1)
        return pair * (array.cols // 2) + dsps
    sums = Resources(lut=array.acc_bits, ff=array.acc_bits)
    cell = COEFFICIENTS["cell"].resources + sums
    return cell * array.cells + dsps


def skew_lanes(array: SystolicSpec) -> tuple[tuple[int, int], ...]:
    """Delay lines of an array: their elements, of which `i` is delayed by `i` cycles, and bits."""
    if array.is_packed:
        down, pairs = array.rows // array.cascades, array.cols // 2
        return (down, 16 * array.cascades), (pairs, 2 * array.acc_bits)
    return (array.rows, 16), (array.cols, array.acc_bits)


def skew(array: SystolicSpec) -> Resources:
    """Resources of the delay lines that skew the array's vectors and align its sums (derived).

    There are 8 bits each of activations and weights for all rows, and the sums of all columns. For
    delays of up to two cycles, Yosys uses flip-flops; from three cycles on, it uses LUTs, which are
    shift registers of up to 32 cycles.

    Packed cells get weights and their marks two cycles later, and no activation goes on from the
    last pair. Their control is counted here, too, since it does not grow with the cells: which
    column comes next, the swap on its way, and which vectors are valid.
    """
    lanes = skew_lanes(array)
    found = Resources(
        lut=sum(bits * sum(-(-i // 32) for i in range(3, n)) for n, bits in lanes),
        ff=sum(bits * min(3, n * (n - 1) // 2) for n, bits in lanes),
    )
    if array.is_packed:
        swaps = array.rows // array.cascades + array.cols // 2
        later = 2 * (8 * array.rows + array.cols) - 8 * array.rows
        found += Resources(
            lut=array.cols + 8, ff=later + array.cols + swaps + array.latency_cycles + 1
        )
    return found


def accumulator(array: SystolicSpec) -> Resources:
    """Resources of one column's accumulator, without its memory."""
    bits = array.acc_bits
    return COEFFICIENTS["accumulator"].resources + Resources(lut=6 * bits, ff=3 * bits)


def memory(depth: int, bits: int, granule_bits: int | None = None) -> Resources:
    """Resources of a memory that is written and read by rows, as Yosys maps it to UltraScale+.

    Memories of up to 64 rows are in LUTs: eight LUTs hold 64 rows of 7 bits or 32 rows of 14 bits.
    Larger ones are in block RAM: 18 kbit are 36 bits wide up to 512 rows, 18 bits wide up to 1,024
    rows, and so on. Where granules of a row are written by themselves, each has whole bytes of 9
    bits.
    """
    if depth <= MOST_LUT_ROWS:
        return Resources(lut=8 * -(-bits // (14 if depth <= 32 else 7)), ff=bits)
    if granule_bits is not None and granule_bits < bits:
        bits = bits // granule_bits * 9 * -(-granule_bits // 9)
    return Resources(bram36=half_blocks(depth, bits, 36) / 2)


def half_blocks(depth: int, bits: int, row_bits: int) -> int:
    """Blocks of 18 kbit of a memory, if one of 512 rows has `row_bits` bits."""
    width = row_bits * 512 // max(depth, 512)
    return -(-bits // width) if width else bits * -(-depth // (32 * 512))


def operand_reader(rows: int, port_bytes: int = WORD_BYTES) -> Resources:
    """Resources of one operand's path from the scratchpad to the array."""
    if port_bytes < WORD_BYTES:
        return narrow_reader(rows, port_bytes // 2)
    found = COEFFICIENTS["operand row"].resources * rows
    for block in ("transposer", "quantiser", "address generator", "operand reader"):
        found += COEFFICIENTS[block].resources
    if rows == MX_BLOCK:
        found += Resources(ff=-8 * (rows + 1))  # no part of a block is chosen and kept
    return found


def narrow_reader(rows: int, lanes: int) -> Resources:
    """Resources of an operand's path whose blocks come in parts of `lanes` elements.

    Each lane of the transposer has a memory of its own; the quantiser keeps and quantises `rows`
    elements, whatever the number of lanes.
    """
    found = COEFFICIENTS["address generator"].resources
    found += COEFFICIENTS[f"narrow reader of {lanes}"].resources
    return found + COEFFICIENTS["narrow reader row"].resources * rows


def transfers(bus_bytes: int, memory_ports: int = 1) -> Resources:
    """Resources of loads, of stores, of the arbiter in front of the bus, and of two ports."""
    found = COEFFICIENTS["load"].resources + COEFFICIENTS["store"].resources
    bus = COEFFICIENTS["bus byte"].resources * bus_bytes
    # The beats of a word are kept until the last one has arrived.
    waiting = Resources(ff=8 * (WORD_BYTES - bus_bytes))
    if memory_ports > 1:
        found += COEFFICIENTS["memory ports"].resources
        found += COEFFICIENTS["memory ports byte"].resources * bus_bytes
        for bits in (8 * bus_bytes + 3, 9 * bus_bytes + 1):  # read, and written with strobes
            found += memory(BUFFERED_WORDS, bits) * memory_ports
    return found + COEFFICIENTS["arbiter"].resources + bus + waiting


def vector_engine(
    lanes: int,
    function_lanes: int,
    *,
    mx: bool = False,
    random: bool = True,
    port_bytes: int = WORD_BYTES,
) -> Resources:
    """Resources of a vector engine, without its scratchpad ports and its queue.

    The size of its memory of sums does not depend on the number of lanes.
    """
    found = COEFFICIENTS["vector ways"].resources
    if random:
        shared = "shared " if lanes < LANES else ""
        found += COEFFICIENTS[f"{shared}random numbers"].resources
    if port_bytes < WORD_BYTES and not mx:
        found += COEFFICIENTS["narrow vector ways"].resources
    for block in ("vector lane", "vector lane ways"):
        found += COEFFICIENTS[block].resources * lanes
    found += COEFFICIENTS["function unit"].resources * function_lanes
    if mx:
        found += COEFFICIENTS["vector blocks"].resources
        found += COEFFICIENTS["vector block lane"].resources * lanes
    return found + memory(MAX_SUMS * LANES // lanes, _SUM_BITS * lanes)


def _link_end(spec: LinkEngineSpec) -> Resources:
    """Resources of an end of a link between devices, or of all that it has if words pass in parts.

    They include the memories of the transmitter's frames and of the receiver's, which are two more
    and are written by beats.
    """
    found = COEFFICIENTS["link end" if spec.parts == 1 else "narrow link"].resources
    found += COEFFICIENTS["link byte"].resources * spec.beat_bytes
    beat_bits = 8 * spec.beat_bytes
    for slots, granule_bits in ((sum(spec.slots), None), (sum(spec.slots) + 2, beat_bits)):
        rows, bits = slots * spec.frame_parts, 8 * spec.port_bytes
        found += memory(1 << (rows - 1).bit_length(), bits, granule_bits)
    return found


def links(specs: Sequence[LinkEndSpec], bus_bytes: int) -> Resources:
    """Resources of link ends, of the engines that move packets, and of the control of both."""
    found = Resources()
    if any(spec.parts == 1 for spec in specs):
        found += COEFFICIENTS["shared ports"].resources
    for spec in specs:
        if isinstance(spec, OnChipSpec):
            found += COEFFICIENTS["on-chip end"].resources
        else:
            found += _link_end(spec)
        if spec.parts == 1:
            found += COEFFICIENTS["packets"].resources
        if spec.parts == 1 and bus_bytes < WORD_BYTES:
            found += COEFFICIENTS["packet beats"].resources
        sent = most_send_words(spec.port_bytes) * spec.parts
        found += memory(sent, 8 * spec.port_bytes + 1)
        found += COEFFICIENTS["packet control"].resources
        found += COEFFICIENTS["writer"].resources * bus_bytes
    return found + COEFFICIENTS["writers"].resources * (bus_bytes if specs else 0)
