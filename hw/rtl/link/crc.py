"""Gateware of the CRC-32 of frames, :func:`fpgapipe.hw.hls_models.spec.link.crc_of`.

It takes a beat in each cycle.
"""

from functools import reduce
from operator import xor

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES

CRC_BITS = 32

POLYNOMIAL = 0xEDB88320
"""The polynomial of IEEE 802.3 with its bits reversed: the first bit on the wire is the lowest."""

ONES = (1 << CRC_BITS) - 1
"""Value with which a CRC begins; the CRC is also inverted at the end."""

_CHUNK_BITS = 64

TRAILER_BODY_BITS = 8 * TRAILER_BYTES - CRC_BITS
"""Number of bits of a trailer that its CRC covers."""


MULTIPLES = ((274, (0, 11, 19, 75, 93)), (185, (0, 19, 20, 46, 54, 93)))
"""Multiples of the polynomial with few terms: the degree, and the exponents of the other terms.

By such a multiple, the first bits of a beat are added to a few later ones each, which leaves fewer
bits for the parities. They were found by looking for equal sums of two or three powers, where one
sum also has the first and the last term.
"""


def _shifted(crc):
    """Return a CRC after one more 0 bit."""
    return crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)


def _parities(columns):
    """Return for each bit of a CRC the mask of the inputs whose parity it is.

    ``columns[i]`` has the bits of the CRC that input `i` flips.
    """
    return [
        sum((column >> bit & 1) << place for place, column in enumerate(columns))
        for bit in range(CRC_BITS)
    ]


def data_masks(num_bits):
    """Return for each bit of a CRC the mask of the data bits that flip it.

    The CRC was 0 before the `num_bits` data bits; the lowest of these comes first.
    """
    columns = [POLYNOMIAL]
    while len(columns) < num_bits:
        columns.append(_shifted(columns[-1]))
    return _parities(columns[::-1])


def state_masks(num_bits):
    """Return for each bit of a CRC the mask of the earlier CRC's bits that flip it.

    The earlier CRC is that before `num_bits` 0 bits.
    """
    columns = []
    for place in range(CRC_BITS):
        column = 1 << place
        for _ in range(num_bits):
            column = _shifted(column)
        columns.append(column)
    return _parities(columns)


def _applied(masks, value):
    """Return the parities of a value's bits that the masks select.

    A mask is far shorter in Verilog than a list of the bits that it selects. It is also faster to
    simulate, most of all with the width of a processor's words. The synthesis tool builds the tree
    of each parity.
    """

    def masked(mask):
        width = min(len(value), _CHUNK_BITS)
        chunks = [
            value[at : at + width] & Const(mask >> at & (1 << width) - 1, width)
            for at in range(0, len(value), width)
        ]
        return reduce(xor, chunks).xor()

    return Cat(masked(mask) for mask in masks)


def _folded(m, word):
    """Return a word of as many bits or fewer that has the same CRC if nothing came before it."""
    for degree, exponents in MULTIPLES:
        # The first bit has the largest power. As many bits are folded as do not meet each other.
        most = degree - max(exponents)
        while len(word) > degree:
            number = min(len(word) - degree, most)
            first, rest = word[:number], word[number:]
            added = [first << (degree - number - exponent) for exponent in exponents]
            word = Signal(len(rest), name=f"folded{len(rest)}")
            m.d.comb += word.eq(reduce(xor, added, rest))
    return word


class FrameCrc(wiring.Component):
    """CRC of frames that come in beats; the last beat has the end of the trailer and the CRC.

    The latency is 2 cycles and the throughput one beat per cycle. The first stage computes the
    contribution of a beat, which has no loop. The second adds it to the CRC of the beats before,
    which takes a tree of 17 inputs.

    Parameters
    ----------
    beat_bytes : int
        Bytes of a beat, at least 4. The last beat has at most 16.

    Members
    -------
    advance : In(1)
        Whether the stages move; without it both keep what they have.
    valid : In(1)
        Whether there is a beat.
    ends : In(1)
        Whether the beat is the last one. Then the bytes of the trailer in front of the CRC count,
        of which there are 12 at most, and the next beat begins a frame.
    data : In(8 * beat_bytes)
        The beat.
    crc : Out(32)
        CRC of a frame, from two cycles after its trailer until the CRC of the next frame is known.
    """

    def __init__(self, beat_bytes):
        self._bits = 8 * beat_bytes
        self._last_bits = min(self._bits, 8 * TRAILER_BYTES) - CRC_BITS
        super().__init__(
            {
                "advance": In(1),
                "valid": In(1),
                "ends": In(1),
                "data": In(self._bits),
                "crc": Out(CRC_BITS),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        if not self._last_bits:
            return self._of_words(m)
        term = Signal(CRC_BITS, reset_less=True)
        has_term, term_ends = Signal(), Signal(reset_less=True)
        state = Signal(CRC_BITS, init=ONES)
        # What comes before the last bits of a beat, first folded to fewer bits. The last beat has
        # nothing there, and the end of the trailer in the place of its last bits.
        first_bits = self._bits - self._last_bits
        word = _folded(m, Cat(self.data[:first_bits], Const(0, self._last_bits)))
        end = Mux(self.ends, self.data[: self._last_bits], self.data[first_bits:])
        whole = Signal(len(word))
        m.d.comb += whole.eq(Mux(self.ends, 0, word) ^ (end << (len(word) - self._last_bits)))
        with m.If(self.advance):
            m.d.sync += [has_term.eq(self.valid), term_ends.eq(self.ends)]
            with m.If(self.valid):
                m.d.sync += term.eq(_applied(data_masks(len(whole)), whole))
            with m.If(has_term):
                after = _applied(state_masks(self._bits), state) ^ term
                m.d.sync += state.eq(Mux(term_ends, ONES, after))
            with m.If(has_term & term_ends):
                m.d.sync += self.crc.eq(~(_applied(state_masks(self._last_bits), state) ^ term))
        return m

    def _of_words(self, m):
        """Take beats as wide as the CRC itself, which are added to it before it is shifted.

        The last beat has the CRC alone.
        """
        term = Signal(CRC_BITS, reset_less=True)
        has_term, term_ends = Signal(), Signal(reset_less=True)
        state = Signal(CRC_BITS, init=ONES)
        after = _applied(state_masks(self._bits), state ^ term)
        with m.If(self.advance):
            m.d.sync += [has_term.eq(self.valid), term_ends.eq(self.ends)]
            with m.If(self.valid):
                m.d.sync += term.eq(self.data)
            with m.If(has_term):
                m.d.sync += state.eq(Mux(term_ends, ONES, after))
            with m.If(has_term & term_ends):
                m.d.sync += self.crc.eq(~state)
        return m
