"""Gateware of a link's receiver, which turns beats into frames and frames into words."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link import (
    NUM_CHANNELS,
    NUMBER_BITS,
    SESSION_BITS,
    TRAILER,
    TRAILER_BYTES,
    WINDOW,
    FrameKind,
    LinkEngineSpec,
)
from fpgapipe.hw.rtl.lib.layouts import layout_of
from fpgapipe.hw.rtl.lib.memory import BlockMemory, BlockMemorySpec
from fpgapipe.hw.rtl.lib.queue import WordFifo
from fpgapipe.hw.rtl.link.crc import CRC_BITS, TRAILER_BODY_BITS, FrameCrc
from fpgapipe.hw.rtl.link.link_beats import FEEDBACK, word_layout
from fpgapipe.hw.rtl.link.link_pool import ReceiveChannel, SlotPool
from fpgapipe.hw.rtl.link.link_session import HELLO_LAYOUT

TRAILER_LAYOUT = layout_of(TRAILER)

OUTPUT_WORDS = 8
"""Largest number of a channel's words between the memory and the user. It covers the cycles from
the one in which a word is chosen to the one in which it is known to have left, and some more in
which other channels are chosen."""

SPARE_SLOTS = 2
"""Slots beyond those that the other end may fill: for a damaged frame, and for the one after it."""


class FrameVerdict(wiring.Component):
    """Splits beats into frames, and gives a verdict on each frame when its trailer has come.

    Words are written to a free slot as they come. A verdict comes 3 cycles after the trailer's
    beat; there is at most one per cycle. Any sequence of beats is accepted.

    Members
    -------
    valid : In(1)
    data : In(8 * beat_bytes)
    last, sound : In(1)
        A beat of `Upsizer`.
    slot_valid : In(1)
    slot : In(slot_bits)
        A free slot. Without one, a frame with words is lost.
    slot_take : Out(1)
        The slot is taken for the frame that ends, whether this is damaged or not.
    write : Out(part_beats)
    write_slot, write_word : Out
    write_data : Out(8 * port_bytes)
        A beat for the memory: its place in the row, its slot, its row in the slot, and the data,
        repeated for every place.
    done : Out(1)
        There is a verdict.
    good : Out(1)
        The frame is not damaged.
    trailer : Out(96)
        The frame's trailer, without its CRC.
    has_slot : Out(1)
    frame_slot : Out(slot_bits)
        The slot that was taken for the frame, if one was.
    """

    def __init__(self, spec: LinkEngineSpec, slot_bits: int) -> None:
        self.spec = spec
        self._slot_bits = slot_bits
        super().__init__(
            {
                "valid": In(1),
                "data": In(8 * spec.beat_bytes),
                "last": In(1),
                "sound": In(1),
                "slot_valid": In(1),
                "slot": In(slot_bits),
                "slot_take": Out(1),
                "write": Out(spec.part_beats),
                "write_slot": Out(slot_bits),
                "write_word": Out(range(max(spec.frame_parts, 2))),
                "write_data": Out(8 * spec.port_bytes),
                "done": Out(1),
                "good": Out(1),
                "trailer": Out(TRAILER_BODY_BITS),
                "has_slot": Out(1),
                "frame_slot": Out(slot_bits),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        m.submodules.crc = crc = FrameCrc(spec.beat_bytes)
        m.d.comb += [
            crc.advance.eq(1),
            crc.valid.eq(self.valid),
            crc.ends.eq(self.last),
            crc.data.eq(self.data),
        ]

        # The first stage has the trailer as it came, and whether the words before it are sound.
        ended, whole = Signal(), Signal(reset_less=True)
        trailer = [Signal(8 * TRAILER_BYTES, name=f"trailer{i}", reset_less=True) for i in range(2)]
        words = Signal(range(spec.frame_parts + 1), reset_less=True)
        take = self._take_beats if spec.trailer_beats == 1 else self._take_parts
        take(m, trailer[0], words, whole)
        m.d.sync += ended.eq(self.valid & self.last)

        # The second stage finds out whether the trailer makes sense, while the CRC is computed.
        checked, sane = Signal(), Signal(reset_less=True)
        fields = data.View(TRAILER_LAYOUT, trailer[0][:TRAILER_BODY_BITS])
        hello = data.View(HELLO_LAYOUT, trailer[0][:TRAILER_BODY_BITS])
        m.d.sync += checked.eq(ended)
        with m.If(ended):
            m.d.sync += [trailer[1].eq(trailer[0]), sane.eq(0)]
            with m.Switch(fields.kind):
                with m.Case(FrameKind.DATA):
                    m.d.sync += sane.eq(
                        whole
                        & (words == (fields.words + 1) << spec.parts.bit_length() - 1)
                        & (fields.channel < NUM_CHANNELS)
                        & ~fields.reserved
                    )
                with m.Case(FrameKind.CONTROL):
                    m.d.sync += sane.eq(
                        whole & (words == 0) & (fields.channel < NUM_CHANNELS) & ~fields.reserved
                    )
                with m.Case(FrameKind.HELLO):
                    m.d.sync += sane.eq(whole & (words == 0) & (hello.reserved == 0))

        # The third stage has the verdict.
        m.d.sync += self.done.eq(checked)
        with m.If(checked):
            m.d.sync += [
                self.good.eq(sane & (trailer[1][-CRC_BITS:] == crc.crc)),
                self.trailer.eq(trailer[1]),
            ]

        # The number of the slot passes through the same three stages.
        slots = [(self.slot_take, self.slot)]
        for stage in range(3):
            has_slot = Signal(name=f"has_slot{stage}")
            slot = Signal(self._slot_bits, name=f"slot{stage}", reset_less=True)
            before = slots[-1]
            m.d.sync += has_slot.eq(before[0])
            with m.If(before[0]):
                m.d.sync += slot.eq(before[1])
            slots.append((has_slot, slot))
        m.d.comb += [self.has_slot.eq(slots[-1][0]), self.frame_slot.eq(slots[-1][1])]
        return m

    def _take_beats(self, m, trailer, words, whole):
        """Take beats, the last of which is the trailer."""
        spec = self.spec
        # All beats of a frame but the last are words. `word` stops when there are too many.
        word = Signal(range(spec.frame_parts + 1))
        part = Signal(range(max(spec.part_beats, 2)))
        spoiled, begun, full = Signal(), Signal(), Signal()
        is_payload = self.valid & ~self.last
        m.d.comb += [
            full.eq(word == spec.frame_parts),
            self.write.eq(Mux(is_payload & self.slot_valid & ~full, 1 << part, 0)),
            self.write_slot.eq(self.slot),
            self.write_word.eq(word),
            self.write_data.eq(self.data.replicate(spec.part_beats)),
            self.slot_take.eq(self.valid & self.last & begun & self.slot_valid),
        ]
        with m.If(self.valid & self.last):
            m.d.sync += [word.eq(0), part.eq(0), spoiled.eq(0), begun.eq(0)]
        with m.Elif(is_payload):
            m.d.sync += begun.eq(1)
            with m.If(~self.sound | ~self.slot_valid | full):
                m.d.sync += spoiled.eq(1)
            with m.Elif(part == spec.part_beats - 1):
                m.d.sync += [part.eq(0), word.eq(word + 1)]
            with m.Else():
                m.d.sync += part.eq(part + 1)
        with m.If(self.valid & self.last):
            m.d.sync += [
                trailer.eq(self.data),
                words.eq(word),
                whole.eq(self.sound & ~spoiled & (part == 0)),
            ]

    def _take_parts(self, m, trailer, words, whole):
        """Take beats, the last few of which are parts of the trailer.

        Which these are is known when the last one has come. So all are written as if they were
        words, as far as a slot has room.
        """
        spec, few = self.spec, self.spec.trailer_beats - 1
        beat = Signal(range(spec.frame_parts + few + 1))
        spoiled, unkept, begun, full = Signal(), Signal(), Signal(), Signal()
        is_inner = self.valid & ~self.last
        m.d.comb += [
            full.eq(beat == spec.frame_parts + few),
            begun.eq(beat > few),
            self.write.eq(is_inner & self.slot_valid & (beat < spec.frame_parts)),
            self.write_slot.eq(self.slot),
            self.write_word.eq(beat),
            self.write_data.eq(self.data),
            self.slot_take.eq(self.valid & self.last & begun & self.slot_valid),
        ]
        with m.If(self.valid):
            m.d.sync += trailer.eq(Cat(trailer, self.data)[len(self.data) :])
        with m.If(self.valid & self.last):
            m.d.sync += [
                *(each.eq(0) for each in (beat, spoiled, unkept)),
                words.eq(beat - few),
                whole.eq(self.sound & ~spoiled & ~(unkept & begun) & (beat >= few)),
            ]
        with m.Elif(is_inner):
            with m.If(~self.sound | full):
                m.d.sync += spoiled.eq(1)
            with m.Else():
                m.d.sync += beat.eq(beat + 1)
            with m.If(~self.slot_valid):
                m.d.sync += unkept.eq(1)


class LinkReceiver(wiring.Component):
    """Accepts frames, sound or damaged, and delivers the words of each channel in order.

    A frame's first word is at `o` 10 cycles after the frame's last beat, if no word is before it.
    One word per cycle leaves the memory. The channels that have words and room for them take turns.

    Members
    -------
    valid : In(1)
    data : In(8 * beat_bytes)
    last, sound : In(1)
        A beat of `Upsizer`.
    o : Out(stream.Signature(word_layout(port_bytes))).array(3)
        Words or their parts, by channel.
    up : In(1)
        Whether DATA and CONTROL frames are accepted.
    peer : In(8)
        Lower bits of the session to which these frames must belong.
    hello_valid : Out(1)
    hello : Out(HELLO_LAYOUT)
        A sound HELLO frame that has come.
    answer : Out(FEEDBACK)
        Feedback for the trailers that are sent from now on.
    news : Out(1)
        From the next cycle on, `answer` says something new, or the other end has asked for it.
    feedback_valid : Out(1)
    feedback : Out(FEEDBACK)
        Feedback from the other end.
    entered, damaged : Out(1)
        A good and new frame with words came; a frame of any kind was damaged or found no free slot.
    """

    def __init__(self, spec: LinkEngineSpec) -> None:
        self.spec = spec
        self.pool = SlotPool(sum(spec.slots) + SPARE_SLOTS)
        self.channels = [
            ReceiveChannel(slots, spec.frame_words, self.pool.bits, spec.parts)
            for slots in spec.slots
        ]
        super().__init__(
            {
                "valid": In(1),
                "data": In(8 * spec.beat_bytes),
                "last": In(1),
                "sound": In(1),
                "o": Out(stream.Signature(word_layout(spec.port_bytes))).array(NUM_CHANNELS),
                "up": In(1),
                "peer": In(SESSION_BITS // 2),
                "hello_valid": Out(1),
                "hello": Out(HELLO_LAYOUT),
                "answer": Out(FEEDBACK),
                "news": Out(1),
                "feedback_valid": Out(1),
                "feedback": Out(FEEDBACK),
                "entered": Out(1),
                "damaged": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec, pool = self.spec, self.pool
        m.submodules.pool = pool
        m.submodules.verdict = verdict = FrameVerdict(spec, pool.bits)
        m.d.comb += [
            verdict.valid.eq(self.valid),
            verdict.data.eq(self.data),
            verdict.last.eq(self.last),
            verdict.sound.eq(self.sound),
            verdict.slot_valid.eq(pool.valid),
            verdict.slot.eq(pool.slot),
            pool.take.eq(verdict.slot_take),
        ]
        self._judge(m, verdict)
        self._deliver(m, verdict)
        return m

    def _judge(self, m, verdict):
        """Decode the frames that are not damaged, and keep those with new words."""
        fields = data.View(TRAILER_LAYOUT, verdict.trailer)
        good, counts, distance, is_new = Signal(), Signal(), Signal(NUMBER_BITS), Signal()
        seen = Signal(NUMBER_BITS)
        m.d.comb += [
            good.eq(verdict.done & verdict.good),
            self.damaged.eq(verdict.done & ~verdict.good),
            self.hello_valid.eq(good & (fields.kind == FrameKind.HELLO)),
            self.hello.eq(verdict.trailer),
            counts.eq(
                good & (fields.kind != FrameKind.HELLO) & self.up & (fields.session == self.peer)
            ),
            distance.eq(fields.number - seen),
            is_new.eq(counts & (distance != 0) & (distance <= WINDOW)),
        ]

        # `answer.seen` changes a cycle after `seen`, together with `answer.received`.
        moves, is_data, probes = Signal(), Signal(), Signal()
        shift = Signal(range(WINDOW + 1), reset_less=True)
        sequence = Signal(7, reset_less=True)
        channel = Signal(2, reset_less=True)
        frame = Signal(self.channels[0].frame.shape(), reset_less=True)
        has_slot = Signal()
        m.d.sync += [
            self.feedback_valid.eq(counts),
            moves.eq(is_new),
            is_data.eq(is_new & (fields.kind == FrameKind.DATA)),
            probes.eq(counts & fields.probe),
            has_slot.eq(verdict.has_slot),
        ]
        with m.If(verdict.done):
            m.d.sync += [
                self.feedback.seen.eq(fields.seen),
                self.feedback.received.eq(fields.received),
                *(
                    mine.eq(theirs.sequence)
                    for mine, theirs in zip(self.feedback.freed, fields.freed, strict=True)
                ),
                shift.eq(distance),
                sequence.eq(fields.sequence),
                channel.eq(fields.channel),
                frame.slot.eq(verdict.frame_slot),
                frame.words.eq(fields.words),
                frame.last.eq(fields.last),
            ]
        with m.If(is_new):
            m.d.sync += seen.eq(fields.number)
        with m.If(moves):
            m.d.sync += [
                self.answer.seen.eq(seen),
                self.answer.received.eq((self.answer.received << shift) | is_data),
            ]

        entered, frees = Signal(), Signal()
        for number, each in enumerate(self.channels):
            m.submodules[f"channel{number}"] = each
            m.d.comb += [
                each.enter.eq(is_data & (channel == number)),
                each.sequence.eq(sequence),
                each.frame.eq(frame),
                self.answer.freed[number].eq(each.freed),
            ]
        m.d.comb += [
            entered.eq(Cat(each.entered for each in self.channels).any()),
            frees.eq(Cat(each.take & each.head_ends for each in self.channels).any()),
            self.news.eq(moves | probes | frees),
        ]
        m.d.sync += [
            self.entered.eq(entered),
            self.pool.give.eq(has_slot & ~entered),
            self.pool.given.eq(frame.slot),
        ]

    def _deliver(self, m, verdict):
        """Move words from the memory to the channels' outputs."""
        spec, pool, channels = self.spec, self.pool, self.channels
        word_bits = spec.frame_parts.bit_length() - 1
        m.submodules.memory = memory = BlockMemory(
            BlockMemorySpec(
                (sum(spec.slots) + SPARE_SLOTS) * spec.frame_parts,
                8 * spec.port_bytes,
                8 * spec.beat_bytes,
            )
        )
        m.d.comb += [
            memory.write.eq(verdict.write),
            memory.write_row.eq(Cat(verdict.write_word[:word_bits], verdict.write_slot)),
            memory.write_data.eq(verdict.write_data),
        ]

        # A slot that becomes free goes to the pool, where it may have to wait for a cycle.
        may = Signal(NUM_CHANNELS)
        takes = Signal(NUM_CHANNELS)
        turn = Signal(NUM_CHANNELS, init=1)
        can_free = ~pool.release_valid | pool.release_ready
        rows = [Cat(each.head_word[:word_bits], each.head_slot) for each in channels]
        row, row_valid = Signal(memory.spec.row_bits, reset_less=True), Signal(NUM_CHANNELS)
        row_last = Signal(reset_less=True)
        word_valid, word_last = Signal(NUM_CHANNELS), Signal(reset_less=True)
        with m.If(can_free):
            m.d.sync += pool.release_valid.eq(0)
        for number, each in enumerate(channels):
            m.submodules[f"output{number}"] = fifo = WordFifo(
                word_layout(spec.port_bytes), OUTPUT_WORDS
            )
            room = Signal(range(OUTPUT_WORDS + 1), init=OUTPUT_WORDS, name=f"room{number}")
            leaves = fifo.o.valid & fifo.o.ready
            wiring.connect(m, fifo.o, wiring.flipped(self.o[number]))
            m.d.sync += room.eq(room + leaves - takes[number])
            m.d.comb += [
                may[number].eq(each.head_valid & (room != 0) & can_free),
                each.take.eq(takes[number]),
                fifo.i.valid.eq(word_valid[number]),
                fifo.i.payload.data.eq(memory.read_data),
                fifo.i.payload.last.eq(word_last),
            ]
            with m.If(takes[number]):
                m.d.sync += [
                    row.eq(rows[number]),
                    row_last.eq(each.head_last),
                    pool.release_valid.eq(each.head_ends),
                    pool.released.eq(each.head_slot),
                    turn.eq(1 << (number + 1) % NUM_CHANNELS),
                ]
        m.d.comb += takes.eq(chosen(may, turn))
        m.d.sync += [row_valid.eq(takes), word_valid.eq(row_valid), word_last.eq(row_last)]
        m.d.comb += [memory.read.eq(row_valid.any()), memory.read_row.eq(row)]


def chosen(may, turn):
    """Return a mask of the first bit of `may` at or cyclically after that of `turn`, or 0."""
    size = len(may)
    behind = [0] * size
    for first in range(size):
        for step in range(size):
            place = (first + step) % size
            before = Cat(may[(first + each) % size] for each in range(step))
            behind[place] |= turn[first] & may[place] & ~before.any()
    return Cat(behind)
