"""Gateware of one end of a link, :mod:`fpgapipe.hw.hls_models.spec.link`."""

from abc import abstractmethod
from typing import Any

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link import (
    DELIVERED_BITS,
    NUM_CHANNELS,
    SESSION_BITS,
    LinkEngineSpec,
    LinkState,
)
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec
from fpgapipe.hw.rtl.lib.axi import Slice
from fpgapipe.hw.rtl.link.link_beats import Downsizer, Upsizer, beat_layout, word_layout
from fpgapipe.hw.rtl.link.link_receive import LinkReceiver
from fpgapipe.hw.rtl.link.link_session import TAG_BITS, LinkHandshake
from fpgapipe.hw.rtl.link.link_transmit import LinkTransmitter

SEED_BITS = SESSION_BITS - 1

SEND_CYCLES = 9
"""Cycles from the word that completes a frame to the frame's first beat at `tx`, if none waits."""

RECEIVE_CYCLES = 11
"""Cycles from a frame's last beat at `rx` to its first word at `o`, if no word waits."""

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
"""Events that an engine reports; for each, the bits of the number of times in a cycle."""


class SessionEngine(wiring.Component):
    """An end of a link of either kind: its sessions, with what sends and receives inside.

    A session begins when `enable` becomes high and ends when it becomes low. `clear` ends the
    session and begins the next one. When a session ends, the words inside are lost. A word that `o`
    offers may then be withdrawn, but a beat that `tx` offers stays. After a reset, a device should
    have another seed, because an end cannot tell two peers with the same session number apart.

    Members
    -------
    i : In(stream.Signature(word_layout(port_bytes))).array(3)
        Words to the other end or their parts, by channel.
    o : Out(stream.Signature(word_layout(port_bytes))).array(3)
        Words from the other end or their parts, by channel.
    tx : Out(stream.Signature(beat_layout(spec)))
    rx : In(stream.Signature(beat_layout(spec)))
        Beats to and from the PHY. `rx` is always ready.
    enable : In(1)
        Whether the end is to have a session.
    seed : In(15)
        Base of the session numbers. When a session begins, the lower 15 bits of its number are the
        seed plus the number of sessions that have ended since the reset.
    clear : In(1)
        A pulse that ends the session; it does nothing without `enable`. There must be at least 8
        cycles from one pulse to the next.
    state : Out(3)
        The LinkState of this end.
    session, peer : Out(16)
        Session numbers of this end and of the other end, 0 if there is none.
    delivered : Out(48).array(3)
        Words that left at `o` in this session, by channel.
    last_delivered : Out(48).array(3)
    last_known : Out(1)
        The same counts of the last session that was up, or of the first session that ended if none
        was up; and whether any session has ended.
    peer_delivered : Out(48).array(3)
    peer_delivered_known : Out(1)
        The counts that the other end reported of its previous session, and whether it knows them.
        They are 0 if the other end was not up in the last session in which this end was up.
    tx_word, tx_frame, rx_frame, crc_error, replay : Out(1)
        Events a few cycles ago: a word entered at an `i`, a frame with words was sent, a good frame
        with words came, a damaged frame of any kind came, a frame was sent again.
    rx_word : Out(2)
        Number of words of all channels that left in the cycle before.
    tx_stall, credit_wait : Out(1)
        Whether a beat waited for `tx.ready` in the cycle before, and whether a word waited for room
        at the other end.
    """

    def __init__(self, spec: LinkEndSpec) -> None:
        self.spec = spec
        beat, word = self.beat_layout(spec), word_layout(spec.port_bytes)
        counts = Out(DELIVERED_BITS).array(NUM_CHANNELS)
        super().__init__(
            {
                "i": In(stream.Signature(word)).array(NUM_CHANNELS),
                "o": Out(stream.Signature(word)).array(NUM_CHANNELS),
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

    @staticmethod
    @abstractmethod
    def beat_layout(spec: Any) -> data.StructLayout:
        """Layout of the streams to and from the other end."""

    @abstractmethod
    def _add_ends(self, m, between, handshake):
        """Add transmitter and receiver, and what lies between them and the PHY; return both."""

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        # A session lasts while `running`; its state is reset before the next session begins.
        running, rests = Signal(), Signal(2)
        last_session, met = Signal(TAG_BITS), Signal(TAG_BITS)
        between = ResetInserter(~running)
        handshake = between(LinkHandshake(spec))
        transmitter, receiver = self._add_ends(m, between, handshake)
        m.submodules.handshake = handshake
        for number in range(NUM_CHANNELS):
            wiring.connect(m, wiring.flipped(self.i[number]), transmitter.i[number])
            wiring.connect(m, receiver.o[number], wiring.flipped(self.o[number]))
        m.d.comb += [
            receiver.up.eq(handshake.up),
            handshake.hello_valid.eq(receiver.hello_valid),
            handshake.hello.eq(receiver.hello),
            handshake.session.eq(self.session),
            handshake.last_known.eq(self.last_known),
            handshake.last_session.eq(last_session),
            handshake.met.eq(met),
            handshake.take.eq(transmitter.hello_take),
            handshake.sent.eq(transmitter.hello_sent),
            transmitter.hello_due.eq(handshake.due),
            transmitter.hello.eq(handshake.next_hello),
            transmitter.up.eq(handshake.up),
            self.state.eq(Mux(running, handshake.state, LinkState.OFF)),
            self.peer.eq(handshake.peer),
            self.peer_delivered_known.eq(handshake.peer_delivered_known),
        ]

        # When a session has ended and no more words can leave, its counts are copied.
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
        # A session that was never up delivered nothing, so the counts of the one before are kept.
        counts = was_up | ~self.last_known
        with m.If(ended):
            m.d.sync += [num_ended.eq(num_ended + 1), self.session.eq(0), was_up.eq(0)]
            with m.If(counts):
                m.d.sync += [self.last_known.eq(1), last_session.eq(self.session)]
        with m.Elif(handshake.joins):
            m.d.sync += [was_up.eq(1), met.eq(receiver.hello.session)]

        leaves = [port.valid & port.ready for port in self.o]
        if spec.parts > 1:
            leaves = self._last_parts(m, leaves, running)
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
            self.tx_stall.eq(self.tx.valid & ~self.tx.ready),
            self.credit_wait.eq(transmitter.waits),
        ]
        return m

    def _last_parts(self, m, leaves, running):
        """Whether parts of words leave, by channel, that are the last ones of their words."""
        found = []
        for number, moves in enumerate(leaves):
            part = Signal(range(self.spec.parts), name=f"part{number}")
            found.append(moves & (part == self.spec.parts - 1))
            with m.If(~running):
                m.d.sync += part.eq(0)
            with m.Elif(moves):
                m.d.sync += part.eq(part + 1)
        return found


class LinkEngine(SessionEngine):
    """Gateware of :class:`~fpgapipe.hw.hls_models.spec.link.LinkEngineSpec`.

    A frame takes `SEND_CYCLES` in the end that sends it and `RECEIVE_CYCLES` in the other. While
    words wait and `tx.ready` is high, each cycle has a beat. `i.ready` depends on `valid` of the
    other channels and on registers; no other output depends on an input in the same cycle.
    """

    spec: LinkEngineSpec

    @staticmethod
    def beat_layout(spec: Any) -> data.StructLayout:
        """Layout of the streams to and from the PHY."""
        return beat_layout(spec.phy_bytes)

    def _add_ends(self, m, between, handshake):
        spec = self.spec
        m.submodules.transmitter = transmitter = between(LinkTransmitter(spec))
        m.submodules.receiver = receiver = between(LinkReceiver(spec))
        m.submodules.upsizer = upsizer = between(Upsizer(spec.phy_bytes, spec.beat_bytes))

        # A beat that the PHY has been offered must stay, so this is not reset with the session.
        m.submodules.beats = beats = Slice(beat_layout(spec.beat_bytes))
        wiring.connect(m, transmitter.o, beats.i)
        if spec.phy_bytes < spec.beat_bytes:
            m.submodules.downsizer = downsizer = Downsizer(spec.phy_bytes)
            wiring.connect(m, beats.o, downsizer.i)
            wiring.connect(m, downsizer.o, wiring.flipped(self.tx))
        else:
            wiring.connect(m, beats.o, wiring.flipped(self.tx))
        wiring.connect(m, wiring.flipped(self.rx), upsizer.i)
        m.d.comb += [
            receiver.valid.eq(upsizer.valid),
            receiver.data.eq(upsizer.data),
            receiver.last.eq(upsizer.last),
            receiver.sound.eq(upsizer.sound),
            receiver.peer.eq(handshake.peer),
            handshake.peer_sends.eq(receiver.feedback_valid),
            transmitter.session.eq(self.session),
            transmitter.answer.eq(receiver.answer),
            transmitter.news.eq(receiver.news),
            transmitter.feedback_valid.eq(receiver.feedback_valid),
            transmitter.feedback.eq(receiver.feedback),
        ]
        m.d.sync += [
            self.tx_frame.eq(transmitter.framed),
            self.rx_frame.eq(receiver.entered),
            self.crc_error.eq(receiver.damaged),
            self.replay.eq(transmitter.replayed),
        ]
        return transmitter, receiver
