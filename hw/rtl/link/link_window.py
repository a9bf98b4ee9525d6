"""What a link's transmitter keeps account of: room at the peer, and the fate of transmissions."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link import NUMBER_BITS, SEQUENCE_BITS, WINDOW

FRAME_NAME = data.StructLayout({"channel": 2, "sequence": SEQUENCE_BITS})
"""Which frame a transmission is of."""


class FillWindow(wiring.Component):
    """Which frame of a channel is being filled, and whether the peer has room for it.

    Parameters
    ----------
    slots, frame_words : int
        As of `LinkEngineSpec`, of the channel.

    Members
    -------
    room : Out(1)
        Less than `slots` frames are filled and, for all that is known, not free again at the peer.
        A register; what is heard of the peer shows a cycle late.
    take : In(1)
        A word enters; only with `room`.
    last : In(1)
        It ends a packet, and so its frame.
    fill : Out(7)
        Sequence number of the frame that is being filled.
    word : Out
        How many words it has.
    complete : Out(1)
        The word that enters completes its frame.
    freed_valid : In(1)
    freed : In(7)
        The first frame that is not free at the peer, as the peer says. What cannot be is ignored.
    peer_freed : Out(7)
        The latest of these.
    """

    def __init__(self, slots, frame_words):
        self._slots, self._frame_words = slots, frame_words
        super().__init__(
            {
                "room": Out(1, init=1),
                "take": In(1),
                "last": In(1),
                "fill": Out(SEQUENCE_BITS),
                "word": Out(range(max(frame_words, 2))),
                "complete": Out(1),
                "freed_valid": In(1),
                "freed": In(SEQUENCE_BITS),
                "peer_freed": Out(SEQUENCE_BITS),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        used, news = Signal(SEQUENCE_BITS), Signal(SEQUENCE_BITS)
        m.d.comb += [
            self.complete.eq(self.take & (self.last | (self.word == self._frame_words - 1))),
            used.eq(self.fill - self.peer_freed),
            news.eq(self.freed - self.peer_freed),
        ]
        m.d.sync += self.room.eq(Mux(self.complete, used != self._slots - 1, used != self._slots))
        with m.If(self.complete):
            m.d.sync += [self.fill.eq(self.fill + 1), self.word.eq(0)]
        with m.Elif(self.take):
            m.d.sync += self.word.eq(self.word + 1)
        with m.If(self.freed_valid & (news <= used)):
            m.d.sync += self.peer_freed.eq(self.freed)
        return m


class TransmissionWindow(wiring.Component):
    """Numbers of transmissions, which frames they were of, and which of these were lost.

    Each transmission takes the next number. Feedback resolves numbers, one a cycle, from the oldest
    on; the frames of those lost queue up to be transmitted again. Unresolved numbers and queueing
    frames are `WINDOW` at most, if no other frame is started while some are in the queue.

    Members
    -------
    number : Out(8)
        Sequence number of the next transmission.
    open : Out(1)
        There may be another transmission.
    unresolved : Out(1)
        The fate of some is not known.
    start : In(1)
        There is a transmission, of `frame`; only with `open`.
    frame : In(FRAME_NAME)
    feedback_valid : In(1)
    seen, received : In(8), In(32)
        As in a trailer. What names a number that has not been given is ignored.
    replay_valid : Out(1)
        A frame is to be transmitted again.
    replay : Out(FRAME_NAME)
    replay_take : In(1)
        It is taken off the queue.

    Attributes
    ----------
    base, count, level
        Signals for proofs: the oldest unresolved number, the count of those, and frames that queue.
    resolving, place
        Signals for proofs: `base` is resolved now, by that bit of `received`.
    """

    def __init__(self):
        self.base = Signal(NUMBER_BITS, init=1)
        self.count = Signal(range(WINDOW + 1))
        self.level = Signal(range(WINDOW + 1))
        self.resolving = Signal()
        self.place = Signal(range(WINDOW))
        super().__init__(
            {
                "number": Out(NUMBER_BITS, init=1),
                "open": Out(1),
                "unresolved": Out(1),
                "start": In(1),
                "frame": In(FRAME_NAME),
                "feedback_valid": In(1),
                "seen": In(NUMBER_BITS),
                "received": In(WINDOW),
                "replay_valid": Out(1),
                "replay": Out(FRAME_NAME),
                "replay_take": In(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        m.submodules.under_way = under_way = Memory(shape=FRAME_NAME, depth=WINDOW, init=[])
        m.submodules.queue = queue = Memory(shape=FRAME_NAME, depth=WINDOW, init=[])
        begins, resolves = under_way.write_port(), under_way.read_port(domain="comb")
        push, head = queue.write_port(), queue.read_port(domain="comb")
        base, count, level = self.base, self.count, self.level

        # Numbers from `base` on are resolved as long as `resolving`; `place` is the bit of `known`
        # that tells of `base`.
        resolving, place = self.resolving, self.place
        lost, known = Signal(), Signal(WINDOW, reset_less=True)
        m.d.comb += [
            self.open.eq(count != WINDOW),
            self.unresolved.eq(count != 0),
            begins.addr.eq(self.number),
            begins.data.eq(self.frame),
            begins.en.eq(self.start),
            resolves.addr.eq(base),
            lost.eq(resolving & ~known.bit_select(place, 1)),
        ]
        m.d.sync += [
            self.number.eq(self.number + self.start),
            base.eq(base + resolving),
            count.eq(count + self.start - resolving),
        ]
        with m.If(resolving):
            m.d.sync += [place.eq(place - 1), resolving.eq(place != 0)]
        left, after = Signal(NUMBER_BITS), Signal(range(WINDOW + 1))
        m.d.comb += [
            left.eq(self.seen - base + ~resolving),
            after.eq(count - resolving),
        ]
        with m.If(self.feedback_valid & (left <= after)):
            m.d.sync += [known.eq(self.received), place.eq(left - 1), resolving.eq(left != 0)]

        produce, consume = Signal(range(WINDOW)), Signal(range(WINDOW))
        m.d.comb += [
            push.addr.eq(produce),
            push.data.eq(resolves.data),
            push.en.eq(lost),
            head.addr.eq(consume),
            self.replay.eq(head.data),
            self.replay_valid.eq(level != 0),
        ]
        m.d.sync += [
            produce.eq(produce + lost),
            consume.eq(consume + self.replay_take),
            level.eq(level + lost - self.replay_take),
        ]
        return m
