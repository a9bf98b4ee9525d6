"""Gateware of a link's end, :mod:`fpgapipe.hw.hls_models.spec.link`."""

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link import (
    DELIVERED_BITS,
    NUM_CHANNELS,
    SESSION_BITS,
    TRAILER_BYTES,
    LinkEngineSpec,
    LinkState,
)
from fpgapipe.hw.rtl.lib.axi import Slice
from fpgapipe.hw.rtl.link.link_beats import WORD, Downsizer, Upsizer, beat_layout
from fpgapipe.hw.rtl.link.link_receive import LinkReceiver
from fpgapipe.hw.rtl.link.link_session import TAG_BITS, LinkHandshake
from fpgapipe.hw.rtl.link.link_transmit import LinkTransmitter

SEED_BITS = SESSION_BITS - 1

SEND_CYCLES = 9
"""From the word that completes a frame to the frame's first beat at `tx`, if nothing is before."""

RECEIVE_CYCLES = 11
"""From a frame's last beat at `rx` to its first word at `o`, if nothing is before it."""

EVENTS = {
    "tx_word": 1,
    "rx_word": 2,
    "tx_frame": 1,
    "rx_frame": 1,
    "crc_error": 1,
    "replay": 1,
    "tx_stall": 1,
    "credit_wait": 1,
}
"""What an engine counts, and the bits of how often it may happen in a cycle."""


class LinkEngine(wiring.Component):
    """Gateware of :class:`~fpgapipe.hw.hls_models.spec.link.LinkEngineSpec`.

    A frame takes `SEND_CYCLES` and `RECEIVE_CYCLES` in the two ends. With `tx.ready` high and words
    that wait, each cycle has a beat. `i.ready` depends on `valid` of the other channels and
    on registers; no other output depends on an input in the same cycle.

    A session begins with `enable` and ends with `clear`, which begins another, or without `enable`.
    Words inside are then lost; a word that `o` offers may be withdrawn, a beat that `tx` offers
    stays. The seed of a device that was reset should be another one: an end takes a peer with the
    same session for the same.

    Members
    -------
    i : In(stream.Signature(WORD)).array(3)
        Words, by channel.
    o : Out(stream.Signature(WORD)).array(3)
        The other end's.
    tx : Out(stream.Signature(beat_layout(phy_bytes)))
    rx : In(stream.Signature(beat_layout(phy_bytes)))
        To and from the PHY. `rx` is always ready.
    enable : In(1)
    seed : In(15)
        The session's number is this, when it begins, and the sessions ended since the reset.
    clear : In(1)
        A pulse; not less than 8 cycles from one to the next. Without `enable` it does nothing.
    state : Out(3)
        LinkState.
    session, peer : Out(16)
        Sessions of this end and the other, 0 if there is none.
    delivered : Out(48).array(3)
        Words that left at `o` in this session.
    last_delivered : Out(48).array(3)
    last_known : Out(1)
        The same of the last session that was up, or of the first that ended.
    peer_delivered : Out(48).array(3)
    peer_delivered_known : Out(1)
        The same of the other end, as it said when it began its session; 0 if it was not up in the
        last one that this end was up in.
    tx_word, tx_frame, rx_frame, crc_error, replay : Out(1)
        In the cycles before, a word entered at an `i`, a frame with words was sent, one came and
        was good, one of any kind was damaged, a frame was sent again.
    rx_word : Out(2)
        Words that left in the cycle before, of all channels.
    tx_stall, credit_wait : Out(1)
        In the cycle before, a beat waited for `tx.ready`; a word, for room at the other end.
    """

    def __init__(self, spec: LinkEngineSpec) -> None:
        self.spec = spec
        beat = beat_layout(spec.phy_bytes)
        counts = Out(DELIVERED_BITS).array(NUM_CHANNELS)
        super().__init__(
            {
                "i": In(stream.Signature(WORD)).array(NUM_CHANNELS),
                "o": Out(stream.Signature(WORD)).array(NUM_CHANNELS),
                "tx": Out(stream.Signature(beat)),
                "rx": In(stream.Signature(beat)),
                "enable": In(1),
                "seed": In(SEED_BITS),
                "clear": In(1),
                "state": Out(3),
                "session": Out(SESSION_BITS),
                "peer": Out(SESSION_BITS),
                "delivered": counts,
                "last_delivered": counts,
                "last_known": Out(1),
                "peer_delivered": counts,
                "peer_delivered_known": Out(1),
                **{name: Out(bits) for name, bits in EVENTS.items()},
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        # Everything of a session is reset between it and the next: it runs while `running`.
        running, rests = Signal(), Signal(2)
        last_session, met = Signal(TAG_BITS), Signal(TAG_BITS)
        between = ResetInserter(~running)
        m.submodules.transmitter = transmitter = between(LinkTransmitter(spec))
        m.submodules.receiver = receiver = between(LinkReceiver(spec))
        m.submodules.handshake = handshake = between(LinkHandshake(spec))
        m.submodules.upsizer = upsizer = between(Upsizer(spec.phy_bytes))

        # What the PHY has been offered is not taken back, so this is not reset with the session.
        m.submodules.beats = beats = Slice(beat_layout(spec.beat_bytes))
        wiring.connect(m, transmitter.o, beats.i)
        if spec.phy_bytes < TRAILER_BYTES:
            m.submodules.downsizer = downsizer = Downsizer(spec.phy_bytes)
            wiring.connect(m, beats.o, downsizer.i)
            wiring.connect(m, downsizer.o, wiring.flipped(self.tx))
        else:
            wiring.connect(m, beats.o, wiring.flipped(self.tx))
        wiring.connect(m, wiring.flipped(self.rx), upsizer.i)
        for number in range(NUM_CHANNELS):
            wiring.connect(m, wiring.flipped(self.i[number]), transmitter.i[number])
            wiring.connect(m, receiver.o[number], wiring.flipped(self.o[number]))
        m.d.comb += [
            receiver.valid.eq(upsizer.valid),
            receiver.data.eq(upsizer.data),
            receiver.last.eq(upsizer.last),
            receiver.sound.eq(upsizer.sound),
            receiver.up.eq(handshake.up),
            receiver.peer.eq(handshake.peer),
            handshake.hello_valid.eq(receiver.hello_valid),
            handshake.hello.eq(receiver.hello),
            handshake.session.eq(self.session),
            handshake.last_known.eq(self.last_known),
            handshake.last_session.eq(last_session),
            handshake.met.eq(met),
            handshake.peer_sends.eq(receiver.feedback_valid),
            handshake.take.eq(transmitter.hello_take),
            handshake.sent.eq(transmitter.hello_sent),
            transmitter.hello_due.eq(handshake.due),
            transmitter.hello.eq(handshake.next_hello),
            transmitter.up.eq(handshake.up),
            transmitter.session.eq(self.session),
            transmitter.answer.eq(receiver.answer),
            transmitter.news.eq(receiver.news),
            transmitter.feedback_valid.eq(receiver.feedback_valid),
            transmitter.feedback.eq(receiver.feedback),
            self.state.eq(Mux(running, handshake.state, LinkState.OFF)),
            self.peer.eq(handshake.peer),
            self.peer_delivered_known.eq(handshake.peer_delivered_known),
        ]

        # A session ends: its counts are taken over when no more words can leave.
        num_ended, was_up, begins = Signal(SEED_BITS), Signal(), Signal()
        m.d.comb += begins.eq(~running & (rests == 0) & self.enable)
        with m.If(running & (self.clear | ~self.enable)):
            m.d.sync += [running.eq(0), rests.eq(3)]
        with m.Elif(rests != 0):
            m.d.sync += rests.eq(rests - 1)
        with m.Elif(begins):
            m.d.sync += [
                running.eq(1),
                self.session.eq(Cat((self.seed + num_ended)[:SEED_BITS], 1)),
            ]
        ended = rests == 2
        # A session that was never up delivered nothing, and the one before may still matter.
        counts = was_up | ~self.last_known
        with m.If(ended):
            m.d.sync += [num_ended.eq(num_ended + 1), self.session.eq(0), was_up.eq(0)]
            with m.If(counts):
                m.d.sync += [self.last_known.eq(1), last_session.eq(self.session)]
        with m.Elif(handshake.joins):
            m.d.sync += [was_up.eq(1), met.eq(receiver.hello.session)]

        leaves = [port.valid & port.ready for port in self.o]
        for number, leaves_here in enumerate(leaves):
            m.d.comb += [
                handshake.last_delivered[number].eq(self.last_delivered[number]),
                self.peer_delivered[number].eq(handshake.peer_delivered[number]),
            ]
            with m.If(ended):
                m.d.sync += self.delivered[number].eq(0)
                with m.If(counts):
                    m.d.sync += self.last_delivered[number].eq(self.delivered[number])
            with m.Elif(leaves_here):
                m.d.sync += self.delivered[number].eq(self.delivered[number] + 1)

        m.d.sync += [
            self.tx_word.eq(transmitter.entered),
            self.rx_word.eq(sum(leaves)),
            self.tx_frame.eq(transmitter.framed),
            self.rx_frame.eq(receiver.entered),
            self.crc_error.eq(receiver.damaged),
            self.replay.eq(transmitter.replayed),
            self.tx_stall.eq(self.tx.valid & ~self.tx.ready),
            self.credit_wait.eq(transmitter.waits),
        ]
        return m
