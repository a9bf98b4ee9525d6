"""Gateware of one end of a link between two cores of an FPGA.

It does what :mod:`fpgapipe.hw.hls_models.spec.on_chip` says.
"""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS
from fpgapipe.hw.hls_models.spec.on_chip import SIDE, LinkEndSpec, OnChipSpec
from fpgapipe.hw.rtl.lib.axi import Slice
from fpgapipe.hw.rtl.lib.layouts import layout_of
from fpgapipe.hw.rtl.lib.queue import WordFifo
from fpgapipe.hw.rtl.link.link import LinkEngine, SessionEngine
from fpgapipe.hw.rtl.link.link_beats import word_layout
from fpgapipe.hw.rtl.link.link_session import HELLO_LAYOUT

SIDE_LAYOUT = layout_of(SIDE)
BEAT = data.StructLayout({"word": 8 * WORD_BYTES, "side": SIDE_LAYOUT})
"""Layout of a beat."""

FREED = data.ArrayLayout(8, NUM_CHANNELS)

PASS_CYCLES = 4
"""Cycles from a word at `i` of one end to `o` of the other, besides the wires between them."""

ROUND_CYCLES = 8
"""Cycles from a word at `i` to the next one in its place, besides those of the wires both ways."""


class OnChipTransmitter(wiring.Component):
    """Sends the words for which the other end has room, and what this end has to tell.

    A beat is at `o` a cycle after its word is taken. Words of one channel pass at one a cycle. The
    channels that have words and room for them take turns. `i.ready` depends on the other channels'
    `valid`. Without words, there are beats only if there is something to tell.

    Members
    -------
    i : In(stream.Signature(word_layout())).array(3)
        Words, by channel.
    o : Out(stream.Signature(BEAT))
        Beats.
    open : In(1)
        Whether both ends are up, so that words may be sent.
    up : In(1)
        Whether this end is up. The first beat after that is a HELLO, which tells the other end.
    hello_due : In(1)
    hello_take : Out(1)
    hello : In(HELLO_LAYOUT)
    hello_sent : Out(1)
        `due`, `take`, `next_hello` and `sent` of `LinkHandshake`.
    left : In(3)
        For each channel, whether a word leaves this end's buffer.
    freed : In(FREED)
        For each channel, words that have left the other end's buffer, as a beat tells.
    entered, waits : Out(1)
        A word was accepted; a word waits for room at the other end.

    Attributes
    ----------
    room, owed, turn
        For proofs: for each channel, words that the other end has room for, and words that have
        left this end's buffer and were not told; and the channel of the last word.
    """

    def __init__(self, spec: OnChipSpec) -> None:
        self.spec = spec
        self.room = [
            Signal(range(slots + 1), init=slots, name=f"room{channel}")
            for channel, slots in enumerate(spec.slots)
        ]
        self.turn = Signal(range(NUM_CHANNELS))
        self.owed = [Signal(8, name=f"owed{channel}") for channel in range(NUM_CHANNELS)]
        super().__init__(
            {
                "i": In(stream.Signature(word_layout())).array(NUM_CHANNELS),
                "o": Out(stream.Signature(BEAT)),
                "open": In(1),
                "up": In(1),
                "hello_due": In(1),
                "hello_take": Out(1),
                "hello": In(HELLO_LAYOUT),
                "hello_sent": Out(1),
                "left": In(NUM_CHANNELS),
                "freed": In(FREED),
                "entered": Out(1),
                "waits": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        told = Signal()  # the other end knows that this one is up
        hello = self.hello_due | (self.up & ~told)
        m.d.comb += [
            self.hello_take.eq(hello & self.o.ready),
            self.hello_sent.eq(self.hello_take),
        ]
        with m.If(self.hello_take):
            m.d.sync += told.eq(self.up)

        # The channel behind that of the last word is looked at first.
        turn, chosen = self.turn, Signal(range(NUM_CHANNELS))
        can = Signal(NUM_CHANNELS)
        m.d.comb += can.eq(
            Cat((i.valid & (room != 0)) for i, room in zip(self.i, self.room, strict=True))
        )
        with m.Switch(turn):
            for last in range(NUM_CHANNELS):
                with m.Case(last):
                    for step in range(NUM_CHANNELS, 0, -1):
                        channel = (last + step) % NUM_CHANNELS
                        with m.If(can[channel]):
                            m.d.comb += chosen.eq(channel)
        goes = Signal()
        m.d.comb += [
            goes.eq(self.open & can.any() & ~hello & self.o.ready),
            self.entered.eq(goes),
            self.waits.eq(self.open & Cat(i.valid for i in self.i).any() & ~can.any()),
            *(i.ready.eq(goes & (chosen == channel)) for channel, i in enumerate(self.i)),
        ]
        with m.If(goes):
            m.d.sync += turn.eq(chosen)

        owed = self.owed
        side = self.o.payload.side
        tells = self.up & ~hello & Cat(*owed).any()
        word = Signal(word_layout())
        with m.Switch(chosen):
            for channel, i in enumerate(self.i):
                with m.Case(channel):
                    m.d.comb += word.eq(i.payload)
        m.d.comb += [
            self.o.valid.eq(hello | (self.open & can.any()) | tells),
            self.o.payload.word.eq(Mux(hello, self.hello.as_value(), word.data)),
            side.is_hello.eq(hello),
            side.is_word.eq(~hello & self.open & can.any()),
            side.channel.eq(chosen),
            side.last.eq(word.last),
        ]
        for channel, (room, count) in enumerate(zip(self.room, owed, strict=True)):
            reports = self.o.ready & tells
            m.d.comb += side.freed[channel].words.eq(Mux(hello, 0, count))
            m.d.sync += [
                count.eq(Mux(reports, 0, count) + self.left[channel]),
                room.eq(room - (goes & (chosen == channel)) + self.freed[channel]),
            ]
        return m


class OnChipReceiver(wiring.Component):
    """Buffers the words that come, by channel.

    A word is at `o` 3 cycles after its beat, if no word is before it. All beats are taken: the
    other end sends no more words than there is room for.

    Members
    -------
    i : In(stream.Signature(BEAT))
        Beats; always ready.
    o : Out(stream.Signature(word_layout())).array(3)
        Words, by channel.
    up : In(1)
        Whether words are taken; others are of another session.
    hello_valid : Out(1)
    hello : Out(HELLO_LAYOUT)
        A HELLO has come.
    peer_sends : Out(1)
        A beat of the other end's session has come that is no HELLO.
    left : Out(3)
        For each channel, whether a word leaves the buffer.
    freed : Out(FREED)
        For each channel, words that have left the other end's buffer.

    Attributes
    ----------
    valid, beat
        Signals for proofs: whether a beat came in the cycle before, and that beat.
    """

    def __init__(self, spec: OnChipSpec) -> None:
        self.spec = spec
        self.valid, self.beat = Signal(), Signal(BEAT, reset_less=True)
        self.buffers = [WordFifo(word_layout(), slots) for slots in spec.slots]
        super().__init__(
            {
                "i": In(stream.Signature(BEAT)),
                "o": Out(stream.Signature(word_layout())).array(NUM_CHANNELS),
                "up": In(1),
                "hello_valid": Out(1),
                "hello": Out(HELLO_LAYOUT),
                "peer_sends": Out(1),
                "left": Out(NUM_CHANNELS),
                "freed": Out(FREED),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        valid, beat = self.valid, self.beat
        m.d.sync += valid.eq(self.i.valid)
        with m.If(self.i.valid):
            m.d.sync += beat.eq(self.i.payload)
        side = beat.side
        m.d.comb += [
            self.i.ready.eq(1),
            self.hello_valid.eq(valid & side.is_hello),
            self.hello.as_value().eq(beat.word),
            self.peer_sends.eq(valid & ~side.is_hello & self.up),
        ]
        for channel, (buffer, o) in enumerate(zip(self.buffers, self.o, strict=True)):
            m.submodules[f"buffer{channel}"] = buffer
            wiring.connect(m, buffer.o, wiring.flipped(o))
            m.d.comb += [
                buffer.i.valid.eq(self.peer_sends & side.is_word & (side.channel == channel)),
                buffer.i.payload.data.eq(beat.word),
                buffer.i.payload.last.eq(side.last),
                self.left[channel].eq(o.valid & o.ready),
                self.freed[channel].eq(Mux(self.peer_sends, side.freed[channel].words, 0)),
            ]
        return m


class OnChipEngine(SessionEngine):
    """Gateware of `OnChipSpec`.

    The streams `tx` and `rx` have the layout `BEAT`. A word takes `PASS_CYCLES` from one end to the
    other besides the wires. The events of frames never come.
    """

    spec: OnChipSpec

    @staticmethod
    def beat_layout(spec: Any) -> data.StructLayout:
        """Layout of the streams to and from the other end."""
        return BEAT

    def _add_ends(self, m, between, handshake):
        m.submodules.transmitter = transmitter = between(OnChipTransmitter(self.spec))
        m.submodules.receiver = receiver = between(OnChipReceiver(self.spec))
        # A beat that the wires have been offered must stay, so this is not reset with the session.
        m.submodules.beats = beats = Slice(BEAT)
        wiring.connect(m, transmitter.o, beats.i)
        wiring.connect(m, beats.o, wiring.flipped(self.tx))
        wiring.connect(m, wiring.flipped(self.rx), receiver.i)
        m.d.comb += [
            handshake.peer_sends.eq(receiver.peer_sends),
            transmitter.open.eq(handshake.up & handshake.peer_up),
            transmitter.left.eq(receiver.left),
            transmitter.freed.eq(receiver.freed),
        ]
        return transmitter, receiver


def engine_class(spec: LinkEndSpec) -> type[SessionEngine]:
    """Return the class of the gateware of an end of a link of either kind."""
    return OnChipEngine if isinstance(spec, OnChipSpec) else LinkEngine
