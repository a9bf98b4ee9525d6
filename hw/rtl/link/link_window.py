"""Bookkeeping of a link's transmitter: room at the peer, and which transmissions arrived."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link import NUMBER_BITS, SEQUENCE_BITS, WINDOW

FRAME_NAME = data.StructLayout({"channel": 2, "sequence": SEQUENCE_BITS})
"""The frame that a transmission contains: its channel and its sequence number."""


class FillWindow(wiring.Component):
    """Numbers the frames of a channel, and tells whether the peer has room for the next one.

    Parameters
    ----------
    slots, frame_words : int
        Slots of the channel and words of a full frame, as in `LinkEngineSpec`.

    Members
    -------
    room : Out(1)
        Fewer than `slots` frames are complete and not known to be free again at the peer. This is
        a register, so a report of the peer changes it a cycle late.
    take : In(1)
        A word enters; only with `room`.
    last : In(1)
        The word ends a packet, and so its frame.
    fill : Out(7)
        Sequence number of the frame that is being filled.
    word : Out
        Number of words in that frame.
    complete : Out(1)
        The word that enters completes its frame.
    freed_valid : In(1)
    freed : In(7)
        The peer's report of the first frame that is not free. A report that is not possible is
        ignored.
    peer_freed : Out(7)
        The latest such report.
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
    """Numbers the transmissions, and queues the frames of those that were lost.

    Each transmission takes the next number. Feedback resolves one number per cycle, the oldest
    first. The frame of a lost transmission enters a queue, from which it is transmitted again. The
    unresolved numbers and the queue's frames together are at most `WINDOW`, if no other frame is
    started while a frame is in the queue.

    Members
    -------
    number : Out(8)
        Sequence number of the next transmission.
    open : Out(1)
        Whether another transmission may start.
    unresolved : Out(1)
        Whether the result of any transmission is not known.
    start : In(1)
        A transmission of `frame` starts; only with `open`.
    frame : In(FRAME_NAME)
        The frame that is transmitted.
    feedback_valid : In(1)
    seen, received : In(8), In(32)
        Feedback, as in a trailer. It is ignored if `seen` is a number that was not used yet.
    replay_valid : Out(1)
        Whether the queue has a frame.
    replay : Out(FRAME_NAME)
        The first frame of the queue.
    replay_take : In(1)
        That frame leaves the queue.

    Attributes
    ----------
    base, count, level
        Signals for proofs: the oldest unresolved number, the count of unresolved numbers, and the
        number of frames in the queue.
    resolving, place
        Signals for proofs: whether `base` is resolved in this cycle, and by which bit of
        `received`.
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

        # A number is resolved in each cycle of `resolving`; `place` is the bit of `known` that says
        # whether transmission `base` arrived.
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
