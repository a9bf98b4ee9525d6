"""Gateware of an engine's queue of instructions, and of the FIFO that queues are made of."""

from amaranth.hdl import C, Cat, Module, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.fields import Group
from fpgapipe.hw.hls_models.isa.instructions import (
    CORE_SEMAPHORES,
    HEADER,
    NUM_SEMAPHORES,
    WORD_BYTES,
)
from fpgapipe.hw.hls_models.model.sequencer import INDEX_BITS
from fpgapipe.hw.rtl.lib.layouts import layout_of
from fpgapipe.hw.rtl.lib.semaphores import Consumer, Producer

WORD_BITS = 8 * WORD_BYTES

QUEUED = data.StructLayout(
    {
        "index_low": 16,
        "wait": NUM_SEMAPHORES,
        "signal": NUM_SEMAPHORES,
        "index_high": INDEX_BITS - 16,
    }
)
"""Layout of an instruction's header in a queue. The instruction's number replaces the fields that
only dispatch reads, so queues are no wider than the program."""


def started_layout(num_semaphores: int) -> data.StructLayout:
    """Layout of what is kept of an instruction until it is done: its signals and its number."""
    return data.StructLayout({"mask": num_semaphores, "index": INDEX_BITS})


def issue_layout(group: Group) -> data.StructLayout:
    """Layout of what an engine gets: the instruction's number, modulo 2**24, and its body."""
    return data.StructLayout({"index": unsigned(32), "body": layout_of(group)})


class QueueState(wiring.Signature):
    """State of a queue that a host may read; directions are as the queue's side sees them.

    Members
    -------
    head : Out(32)
        Number of the next instruction, valid while `semaphores` or `offered` is high.
    oldest : Out(32)
        Number of the oldest instruction that has been started and is not done, valid while `busy`.
    missing : Out(num_semaphores)
        Semaphores that the next instruction waits for and that are 0.
    semaphores : Out(1)
        The next instruction waits for semaphores.
    busy : Out(1)
        An instruction has been started and is not done.
    empty : Out(1)
        No instruction is in the queue or under way.
    offered : Out(1)
        The next instruction waits for its engine.
    """

    def __init__(self, num_semaphores):
        super().__init__(
            {
                "head": Out(32),
                "oldest": Out(32),
                "missing": Out(num_semaphores),
                "semaphores": Out(1),
                "busy": Out(1),
                "empty": Out(1),
                "offered": Out(1),
            }
        )


class WordFifo(wiring.Component):
    """First-in, first-out buffer in a memory with a registered output.

    The latency is 2 cycles and the throughput one word per cycle. It holds `depth` words and one
    more at its output. ``i.ready`` depends on registers alone.

    Members
    -------
    i : In(stream.Signature(shape))
    o : Out(stream.Signature(shape))
        Words in and out.

    Attributes
    ----------
    memory, produce, consume, level, writes, reads
        Memory and signals for proofs: the addresses of the next write and of the next read, the
        number of words in the memory, and whether one is written or read in this cycle.
    """

    def __init__(self, shape, depth):
        if depth < 2 or depth & (depth - 1):
            raise ValueError(f"FIFO depth must be a power of two, at least 2, not {depth!r}")
        self._depth = depth
        # A row is never read in the cycle in which it is written. Yosys is told so; for block RAMs
        # that do not keep their old rows then, such as those of ECP5, it would add logic.
        self.memory = Memory(shape=shape, depth=depth, init=[], attrs={"no_rw_check": 1})
        self.produce = Signal(range(depth))
        self.consume = Signal(range(depth))
        self.level = Signal(range(depth + 1))
        self.writes, self.reads = Signal(), Signal()
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        m.submodules.memory = self.memory
        write = self.memory.write_port()
        read = self.memory.read_port()
        m.d.comb += [
            self.i.ready.eq(~self.level[-1]),  # the bit is set if the level is `depth`
            write.addr.eq(self.produce),
            write.data.eq(self.i.payload),
            self.writes.eq(self.i.valid & self.i.ready),
            write.en.eq(self.writes),
            read.addr.eq(self.consume),
            self.reads.eq((self.level != 0) & (~self.o.valid | self.o.ready)),
            read.en.eq(self.reads),
            self.o.payload.eq(read.data),
        ]
        with m.If(self.writes):
            m.d.sync += self.produce.eq(self.produce + 1)
        with m.If(self.reads):
            m.d.sync += self.consume.eq(self.consume + 1)
        with m.If(self.writes & ~self.reads):
            m.d.sync += self.level.eq(self.level + 1)
        with m.Elif(self.reads & ~self.writes):
            m.d.sync += self.level.eq(self.level - 1)
        m.d.sync += self.o.valid.eq(self.reads | (self.o.valid & ~self.o.ready))
        return m


class EngineQueue(wiring.Component):
    """Queue of the instructions of one engine.

    It starts an instruction when the semaphores that this waits for can be taken, and signals the
    instruction's semaphores when it is done.

    An instruction is offered 3 cycles after its last part entered, or 5 cycles if it waits for
    semaphores that can be taken at once. The throughput is an instruction of `p` parts every
    ``p + 1`` or ``p + 3`` cycles.

    An offer is withdrawn when ``halt`` rises; no instruction moves at `o` while ``halt`` is high.

    Parameters
    ----------
    group : Group
        Fields of the instructions' bodies.
    depth : int
        Number of words that are kept beside the instruction at the head.
    in_flight : int
        Number of instructions that may have been started and not have signalled.
    num_semaphores : int
    part_bits : int
        Width of the parts in which words enter, which divides 512.

    Members
    -------
    i : In(stream.Signature(part_bits))
        Parts of words, the lowest bits first; an instruction begins with the layout `QUEUED`.
    o : Out(stream.Signature(issue_layout(group)))
        Instructions that are started.
    done : In(1)
        A pulse for each instruction that has ended, in the order of `o`, at the earliest in the
        cycle after the instruction moved at `o`.
    consumer : Out(Consumer)
        Takes the semaphores that an instruction waits for.
    producer : Out(Producer)
        Signals the semaphores of an instruction, two cycles after its ``done`` if no earlier
        instruction still has to signal.
    halt : In(1)
        Stops the starts of instructions.
    waiting : Out(1)
        An instruction waits for semaphores.
    busy : Out(1)
        Some instruction has been started and is not done.
    empty : Out(1)
        No word is in the queue, and no instruction is under way.

    Attributes
    ----------
    parts, fifo, started, collected, granted, begun, num_done
        Number of parts of an instruction, submodules and signals for proofs.
    """

    def __init__(
        self, group, depth, in_flight, num_semaphores=CORE_SEMAPHORES, part_bits=WORD_BITS
    ):
        self._num_semaphores = num_semaphores
        self._part_bits = part_bits
        bits, word_parts = HEADER.bits + group.bits, WORD_BITS // part_bits
        self._used = -(-bits // part_bits)
        self.parts = -(-bits // WORD_BITS) * word_parts
        self._in_flight = in_flight
        self.fifo = WordFifo(unsigned(part_bits), depth * word_parts)
        self.started = WordFifo(started_layout(num_semaphores), in_flight)
        self.collected = Signal(range(self.parts + 1))
        self.granted = Signal()
        self.begun = Signal(range(in_flight + 1))
        self.num_done = Signal(range(in_flight + 1))
        super().__init__(
            {
                "i": In(stream.Signature(unsigned(part_bits))),
                "o": Out(stream.Signature(issue_layout(group))),
                "done": In(1),
                "consumer": Out(Consumer(num_semaphores)),
                "producer": Out(Producer(num_semaphores)),
                "halt": In(1),
                "waiting": Out(1),
                "busy": Out(1),
                "empty": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        m.submodules.fifo = fifo = self.fifo
        collected, granted, begun = self.collected, self.granted, self.begun
        wiring.connect(m, wiring.flipped(self.i), fifo.i)

        # The parts that have fields are collected in registers, but for the last part of the last
        # word, which stays at the FIFO's output. The others are dropped.
        kept = min(self._used, self.parts - 1)
        earlier = Signal(self._part_bits * kept, reset_less=True)
        complete = Signal()
        moves = Signal()
        whole = Signal(self._part_bits * (kept + 1))
        m.d.comb += [
            complete.eq(fifo.o.valid & (collected == self.parts - 1)),
            whole.eq(Cat(earlier, fifo.o.payload)),
            fifo.o.ready.eq((collected != self.parts - 1) | moves),
        ]
        with m.If(moves):
            m.d.sync += collected.eq(0)
        with m.Elif(fifo.o.valid & fifo.o.ready):
            m.d.sync += collected.eq(collected + 1)
        if kept:
            keeps = collected != kept if kept == self.parts - 1 else collected < kept
            with m.If(fifo.o.valid & keeps):
                m.d.sync += earlier.eq(Cat(earlier, fifo.o.payload)[self._part_bits :])
        head = data.View(QUEUED, whole[: HEADER.bits])
        # Dispatch has checked that the instruction names no other semaphores.
        waits, signalled = (mask[: self._num_semaphores] for mask in (head.wait, head.signal))
        index = Cat(head.index_low, head.index_high)

        may = Signal()
        m.d.comb += [
            may.eq(complete & ~granted & (begun != self._in_flight) & ~self.halt),
            self.consumer.request.eq(may & waits.any()),
            self.consumer.mask.eq(waits),
            self.waiting.eq(self.consumer.request),
            self.o.valid.eq(granted & ~self.halt),
            self.o.payload.as_value().eq(Cat(index, C(0, 32 - INDEX_BITS), whole[HEADER.bits :])),
            moves.eq(self.o.valid & self.o.ready),
        ]
        with m.If(moves):
            m.d.sync += granted.eq(0)
        with m.Elif(self.consumer.grant | (may & ~waits.any())):
            m.d.sync += granted.eq(1)

        # An instruction that was started is kept here until it has signalled. There is always room
        # in this FIFO, since at most `in_flight` instructions are under way.
        m.submodules.started = started = self.started
        num_done = self.num_done
        signals = Signal()
        m.d.comb += [
            started.i.payload.mask.eq(signalled),
            started.i.payload.index.eq(index),
            started.i.valid.eq(moves),
            started.o.ready.eq(num_done != 0),
            signals.eq(started.o.valid & started.o.ready),
            self.producer.valid.eq(signals),
            self.producer.mask.eq(started.o.payload.mask),
            self.producer.index.eq(started.o.payload.index),
            self.busy.eq(begun != 0),
            self.empty.eq((fifo.level == 0) & ~fifo.o.valid & (collected == 0) & (begun == 0)),
        ]
        m.d.sync += [
            num_done.eq(num_done + self.done - signals),
            begun.eq(begun + moves - signals),
        ]
        return m
