"""Payloads of a link's streams, and converters between its beats and those of narrower PHYs."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES, WINDOW


def word_layout(num_bytes: int = WORD_BYTES) -> data.StructLayout:
    """Layout of a word of a channel or of its parts, and whether it is the last of a packet."""
    return data.StructLayout({"data": 8 * num_bytes, "last": 1})


def beat_layout(num_bytes: int) -> data.StructLayout:
    """Layout of a stream to or from a PHY, with the fields of AXI4-Stream."""
    return data.StructLayout({"data": 8 * num_bytes, "keep": num_bytes, "last": 1})


FEEDBACK = data.StructLayout(
    {"seen": 8, "received": WINDOW, "freed": data.ArrayLayout(7, 3)},
)
"""The part of a trailer that reports to its receiver about the receiver's own frames."""

FRAME_BEAT_LAST_KEEP = (1 << TRAILER_BYTES) - 1
"""``keep`` of a frame's last beat, which has 16 bytes at any width of the beat."""


class Downsizer(wiring.Component):
    """Splits beats of 16 bytes into beats of a PHY of 4 or 8 bytes, the lowest bytes first.

    There is no latency. The throughput is one narrow beat per cycle, with full backpressure.

    Members
    -------
    i : In(stream.Signature(beat_layout(16)))
        Wide beats; all their bytes are valid.
    o : Out(stream.Signature(beat_layout(phy_bytes)))
        Narrow beats.
    """

    def __init__(self, phy_bytes):
        self._bytes = phy_bytes
        super().__init__(
            {
                "i": In(stream.Signature(beat_layout(TRAILER_BYTES))),
                "o": Out(stream.Signature(beat_layout(phy_bytes))),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        parts = TRAILER_BYTES // self._bytes
        part = Signal(range(parts))
        at_end = part == parts - 1
        m.d.comb += [
            self.o.valid.eq(self.i.valid),
            self.o.payload.data.eq(self.i.payload.data.word_select(part, 8 * self._bytes)),
            self.o.payload.keep.eq(~0),
            self.o.payload.last.eq(self.i.payload.last & at_end),
            self.i.ready.eq(self.o.ready & at_end),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += part.eq(Mux(at_end, 0, part + 1))
        return m


class Upsizer(wiring.Component):
    """Joins beats of a PHY into beats of the link, and checks whether they are sound.

    A beat leaves 1 cycle after its last part; the throughput is one beat of the PHY per cycle. A
    beat is not sound if the frame ends before all its parts have come, or if ``keep`` of one of its
    parts is wrong. Later beats of the same frame may be sound again.

    Parameters
    ----------
    phy_bytes, beat_bytes : int
        Width of either, as in `LinkEngineSpec`: the same, or 16 bytes for those of the link.

    Members
    -------
    i : In(stream.Signature(beat_layout(phy_bytes)))
        Beats of the PHY; always ready.
    valid : Out(1)
        Whether there is a beat.
    data : Out(8 * beat_bytes)
        The beat.
    last : Out(1)
        Whether the beat ends a frame.
    sound : Out(1)
        Whether all parts of the beat came, with the right bytes.
    """

    def __init__(self, phy_bytes, beat_bytes):
        self._bytes, self._beat_bytes = phy_bytes, beat_bytes
        super().__init__(
            {
                "i": In(stream.Signature(beat_layout(phy_bytes))),
                "valid": Out(1),
                "data": Out(8 * self._beat_bytes),
                "last": Out(1),
                "sound": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        beat = self.i.payload
        m.d.comb += self.i.ready.eq(1)
        ones = (1 << self._bytes) - 1
        last_keep = FRAME_BEAT_LAST_KEEP & ones
        is_kept = beat.keep == Mux(beat.last, last_keep, ones)
        if self._bytes == self._beat_bytes:
            m.d.sync += self.valid.eq(self.i.valid)
            with m.If(self.i.valid):
                m.d.sync += [
                    self.data.eq(beat.data),
                    self.last.eq(beat.last),
                    self.sound.eq(is_kept),
                ]
            return m

        parts = TRAILER_BYTES // self._bytes
        part = Signal(range(parts))
        spoiled = Signal()
        at_end = part == parts - 1
        m.d.sync += self.valid.eq(self.i.valid & (at_end | beat.last))
        with m.If(self.i.valid):
            m.d.sync += [
                self.data.eq(Cat(self.data, beat.data)[8 * self._bytes :]),
                self.last.eq(beat.last),
                self.sound.eq(is_kept & at_end & ~spoiled),
                part.eq(Mux(at_end | beat.last, 0, part + 1)),
                spoiled.eq((spoiled | ~is_kept) & ~(at_end | beat.last)),
            ]
        return m
