"""Bookkeeping of a link's receiver: the free slots, and the order of each channel's frames."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link import SEQUENCE_BITS


class SlotPool(wiring.Component):
    """The pool of free slots' numbers.

    Members
    -------
    valid : Out(1)
        Whether a slot is free.
    slot : Out
        A free slot, the same until it is taken.
    take : In(1)
        The slot is taken; only with `valid`.
    give : In(1)
    given : In
        A slot that becomes free again.
    release_valid, release_ready : In(1), Out(1)
    released : In
        Another slot that becomes free again; it waits while `give` is high.

    Attributes
    ----------
    fresh, level, consume, produce, memory
        Signals and memory, for proofs. Slots from number `fresh` on have never been taken; the
        memory holds the numbers of `level` others, from address `consume` to `produce`.
    """

    def __init__(self, num_slots):
        self._num_slots = num_slots
        self.bits = (num_slots - 1).bit_length()
        self.fresh = Signal(range(num_slots + 1))
        self.level = Signal(range(num_slots + 1))
        self.produce = Signal(self.bits)
        self.consume = Signal(self.bits)
        self.memory = Memory(shape=self.bits, depth=1 << self.bits, init=[])
        super().__init__(
            {
                "valid": Out(1),
                "slot": Out(self.bits),
                "take": In(1),
                "give": In(1),
                "given": In(self.bits),
                "release_valid": In(1),
                "release_ready": Out(1),
                "released": In(self.bits),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        m.submodules.memory = self.memory
        push, head = self.memory.write_port(), self.memory.read_port(domain="comb")
        has_fresh, pops = Signal(), Signal()
        m.d.comb += [
            has_fresh.eq(self.fresh != self._num_slots),
            head.addr.eq(self.consume),
            self.slot.eq(Mux(has_fresh, self.fresh, head.data)),
            self.valid.eq(has_fresh | (self.level != 0)),
            pops.eq(self.take & ~has_fresh),
            self.release_ready.eq(~self.give),
            push.addr.eq(self.produce),
            push.data.eq(Mux(self.give, self.given, self.released)),
            push.en.eq(self.give | self.release_valid),
        ]
        m.d.sync += [
            self.fresh.eq(self.fresh + (self.take & has_fresh)),
            self.consume.eq(self.consume + pops),
            self.produce.eq(self.produce + push.en),
            self.level.eq(self.level + push.en - pops),
        ]
        return m


class ReceiveChannel(wiring.Component):
    """Brings the frames of a channel, which come in any order, into the order of their sequence.

    It keeps the numbers of their slots, not their words. A frame's first word is at `head_valid` 2
    cycles after the frame entered; then one word per cycle can be taken.

    Parameters
    ----------
    slots, frame_words : int
        Slots of the channel and words of a full frame, as in `LinkEngineSpec`.
    slot_bits : int
        Width of a slot's number in the pool, bits.
    parts : int
        Parts of a word that are delivered one by one.

    Members
    -------
    enter : In(1)
        A frame has come.
    sequence : In(7)
        Sequence number of the frame.
    frame : In(StructLayout({"slot": slot_bits, "words": 5, "last": 1}))
        The frame's slot, its words less one, and whether its last word ends a packet.
    entered : Out(1)
        The frame is kept: its sequence number is within the `slots` numbers from the next frame to
        deliver on, and the frame is not there already.
    head_valid : Out(1)
        Whether there is a word, or a part of one, to deliver.
    head_slot, head_word : Out
        Slot of that word, and its number in the frame; of a part, that among all parts.
    head_last : Out(1)
        Whether it ends a packet.
    head_ends : Out(1)
        Whether it is the last one of its frame.
    take : In(1)
        It is delivered; only with `head_valid`.
    freed : Out(7)
        Number of frames whose words have all been delivered, modulo 128.

    Attributes
    ----------
    present, next, frames
        Signals and memory, for proofs: a bit for each frame that is kept, the sequence number after
        that of the head's frame, and the memory of frames.
    words, ends_packet
        Signals for proofs: `words` and `last` of the head's frame.
    """

    def __init__(self, slots, frame_words, slot_bits, parts=1):
        self._slots, self._parts = slots, parts
        self._frame = data.StructLayout({"slot": slot_bits, "words": 5, "last": 1})
        self.present = Signal(slots)
        self.next = Signal(SEQUENCE_BITS)
        self.words = Signal(5, reset_less=True)
        self.ends_packet = Signal(reset_less=True)
        self.frames = Memory(shape=self._frame, depth=slots, init=[])
        super().__init__(
            {
                "enter": In(1),
                "sequence": In(SEQUENCE_BITS),
                "frame": In(self._frame),
                "entered": Out(1),
                "head_valid": Out(1),
                "head_slot": Out(slot_bits),
                "head_word": Out(range(max(frame_words * parts, 2))),
                "head_last": Out(1),
                "head_ends": Out(1),
                "take": In(1),
                "freed": Out(SEQUENCE_BITS),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        m.submodules.frames = frames = self.frames
        write, read = frames.write_port(), frames.read_port(domain="comb")
        bits = self._slots.bit_length() - 1
        place = self.sequence[:bits]
        distance, is_there = Signal(SEQUENCE_BITS), Signal()
        m.d.comb += [
            distance.eq(self.sequence - self.freed),
            is_there.eq(self.present.bit_select(place, 1)),
            self.entered.eq(self.enter & (distance < self._slots) & ~is_there),
            write.addr.eq(place),
            write.data.eq(self.frame),
            write.en.eq(self.entered),
            read.addr.eq(self.next),
        ]

        # A frame is present until its last word is taken; `next` increases when it is loaded.
        words, ends_packet = self.words, self.ends_packet
        at_end = Const(self._parts - 1, self._parts.bit_length() - 1)
        frees, loads = Signal(), Signal()
        m.d.comb += [
            self.head_ends.eq(self.head_word == Cat(at_end, words)),
            self.head_last.eq(self.head_ends & ends_packet),
            frees.eq(self.take & self.head_ends),
            loads.eq((~self.head_valid | frees) & self.present.bit_select(self.next[:bits], 1)),
        ]
        with m.If(loads):
            m.d.sync += [
                self.head_valid.eq(1),
                self.head_slot.eq(read.data.slot),
                self.head_word.eq(0),
                words.eq(read.data.words),
                ends_packet.eq(read.data.last),
                self.next.eq(self.next + 1),
            ]
        with m.Elif(frees):
            m.d.sync += self.head_valid.eq(0)
        with m.Elif(self.take):
            m.d.sync += self.head_word.eq(self.head_word + 1)
        with m.If(frees):
            m.d.sync += [
                self.present.bit_select(self.freed[:bits], 1).eq(0),
                self.freed.eq(self.freed + 1),
            ]
        with m.If(self.entered):
            m.d.sync += self.present.bit_select(place, 1).eq(1)
        return m
