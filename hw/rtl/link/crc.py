"""Gateware of a frame's CRC-32, :func:`fpgapipe.hw.hls_models.spec.link.crc_of`, a beat a cycle."""

from functools import reduce
from operator import xor

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES

CRC_BITS = 32

POLYNOMIAL = 0xEDB88320
"""Of IEEE 802.3, its bits reversed: the first bit on the wire is the lowest."""

ONES = (1 << CRC_BITS) - 1
"""What a CRC begins with, and what inverts it at its end."""

_CHUNK_BITS = 64

TRAILER_BODY_BITS = 8 * TRAILER_BYTES - CRC_BITS
"""Of a trailer, the bits that its CRC covers."""


def _shifted(crc):
    """A CRC after one more bit of 0."""
    return crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)


def _parities(columns):
    """Masks of what each bit of a CRC is the parity of, from the bits that each input flips."""
    return [
        sum((column >> bit & 1) << place for place, column in enumerate(columns))
        for bit in range(CRC_BITS)
    ]


def data_masks(num_bits):
    """For each bit of a CRC that was 0, which of `num_bits` bits, the first the lowest, flip it."""
    columns = [POLYNOMIAL]
    while len(columns) < num_bits:
        columns.append(_shifted(columns[-1]))
    return _parities(columns[::-1])


def state_masks(num_bits):
    """For each bit of a CRC, by which of its bits it is flipped over `num_bits` bits of 0."""
    columns = []
    for place in range(CRC_BITS):
        column = 1 << place
        for _ in range(num_bits):
            column = _shifted(column)
        columns.append(column)
    return _parities(columns)


def _applied(masks, value):
    """Parities of a value's bits.

    Masks are far less text than the bits they choose, and faster to simulate, most of all those of
    a processor's width. The tree of a parity is left to the tool.
    """

    def masked(mask):
        width = min(len(value), _CHUNK_BITS)
        chunks = [
            value[at : at + width] & Const(mask >> at & (1 << width) - 1, width)
            for at in range(0, len(value), width)
        ]
        return reduce(xor, chunks).xor()

    return Cat(masked(mask) for mask in masks)


class FrameCrc(wiring.Component):
    """CRC of frames that come in beats, the trailer's 12 bytes as the last.

    Latency 2 cycles, throughput a beat a cycle: a beat's share of the CRC is found in the first
    stage, where no loop is; the second adds it to what was before, which takes a tree of 17 inputs.

    Parameters
    ----------
    beat_bytes : int
        At least 16.

    Members
    -------
    advance : In(1)
        Without it both stages rest.
    valid : In(1)
        There is a beat.
    ends : In(1)
        It is the trailer: its lowest 96 bits count, and the next beat begins a frame.
    data : In(8 * beat_bytes)
    crc : Out(32)
        CRC of the frame whose trailer came two cycles ago, until another one's is known.
    """

    def __init__(self, beat_bytes):
        self._bits = 8 * beat_bytes
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
        term = Signal(CRC_BITS, reset_less=True)
        has_term, term_ends = Signal(), Signal(reset_less=True)
        state = Signal(CRC_BITS, init=ONES)
        with m.If(self.advance):
            m.d.sync += [has_term.eq(self.valid), term_ends.eq(self.ends)]
            with m.If(self.valid & self.ends):
                body = self.data[:TRAILER_BODY_BITS]
                m.d.sync += term.eq(_applied(data_masks(TRAILER_BODY_BITS), body))
            with m.Elif(self.valid):
                m.d.sync += term.eq(_applied(data_masks(self._bits), self.data))
            with m.If(has_term):
                after = _applied(state_masks(self._bits), state) ^ term
                m.d.sync += state.eq(Mux(term_ends, ONES, after))
            with m.If(has_term & term_ends):
                m.d.sync += self.crc.eq(~(_applied(state_masks(TRAILER_BODY_BITS), state) ^ term))
        return m
