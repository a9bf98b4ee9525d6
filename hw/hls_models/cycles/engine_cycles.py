"""How the engines of a core take instructions, for its cycle model.

Each engine has a queue. `core_cycles` fills the queues and keeps the semaphores;
`instruction_cycles` and `vector_cycles` have the times that an instruction takes on its own.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol

from fpgapipe.hw.hls_models.cycles.bus_cycles import Bus
from fpgapipe.hw.hls_models.cycles.instruction_cycles import gemm_timing
from fpgapipe.hw.hls_models.cycles.vector_cycles import meeting_cycles, vector_cycles
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, Instruction, Opcode, words_of
from fpgapipe.hw.hls_models.isa.vector_op import VectorOp
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

OFFER_CYCLES = 3
"""Cycles from the dispatch of an instruction's last word to its start."""

TAKE_CYCLES = 2
"""Cycles that taking semaphores adds to `OFFER_CYCLES`."""

SIGNAL_CYCLES = 5
"""Cycles from the end of an instruction to the start of another one that waits for its signal."""

LOAD_CYCLES = 8
"""Cycles from a load's start to its first request on the bus."""

LOADED_CYCLES = 2
"""Cycles from the end of a load's last beat on the bus to the end of the load."""

STORE_CYCLES = 15
"""Cycles from a store's start to its first beat on the bus."""

SEND_CYCLES = 5
"""Cycles from the end of a packet's last beat on the bus to the end of the SEND, if the link takes
the word at once."""

RECEIVE_CYCLES = 16
"""Cycles from the start of a RECEIVE to its first beat on the bus, in addition to the time in which
the link gives the words of the first burst."""

READER_CYCLES = 19
"""Cycles from the start of a product to its first vector at the array, through the address
generator, the scratchpad and the quantiser."""

KEPT_CYCLES = 1
"""Cycles for which a queue keeps a product after the parts of its engine have taken it."""

READ_AHEAD_CYCLES = 26
"""Cycles by which the streamed operand's reader is ahead of the array."""

SUMMED_CYCLES = 10
"""Cycles from the array's last sums to the end of a product whose sums stay in the accumulators."""

WRITTEN_CYCLES = 13
"""Cycles from the array's last sums to the end of a product whose results are written."""

PROGRAM_WORDS = {opcode: words_of(opcode) for opcode in Opcode}
"""Program words of an instruction, 64 bytes each, by opcode."""

EPSILON = 1e-6
"""Difference below which two times are equal, since times are sums of fractions."""


class Event(IntEnum):
    """Kinds of events."""

    SIGNAL = 0  # an instruction signals its semaphores
    LEAVE = 1  # an instruction has left its engine's queue
    ISSUE = 2  # an engine's next instruction may start
    DISPATCH = 3  # the next instruction may be dispatched
    CALL = 4  # a function is to be called with the time


class Kind(IntEnum):
    """Kinds of engines that the machine code (`compiled_loop`) can simulate."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    VECTOR = 3
    SEND = 4
    RECEIVE = 5
    LINK_SEND = 6
    LINK_RECEIVE = 7
    HELD = 8


class Run(Protocol):
    """The part of a run (`core_cycles.CoreRun`) that its engines use.

    Attributes
    ----------
    program : sequence of Instruction
    core : CoreSpec
    bus : Bus
    bus_changes : bool
        Whether the bus has to be shared again.
    word_parts : int
        Parts of a program word.
    semaphores : list of int
        Count of each semaphore.
    starts, ends : list of float
        Times of each instruction that has started or ended.
    gemm_cycles : float
        Cycles in which vectors have entered an array.
    """

    program: Sequence[Instruction]
    core: CoreSpec
    bus: Bus
    bus_changes: bool
    word_parts: int
    semaphores: list[int]
    starts: list[float]
    ends: list[float]
    gemm_cycles: float

    def at(self, time: float, event: "Event", what: Any) -> None:
        """Schedule an event."""


class Engine(ABC):
    """An engine with its queue: instructions start, and end, in order.

    Each kind of engine has a class of its own; `CoreRun.engines` holds the engines.

    Parameters
    ----------
    run : Run
    depth : int
        Number of words that the queue holds in addition to the instruction at its head.
    in_flight : int
        Number of instructions that may have started and not ended.

    Attributes
    ----------
    kept_cycles : int
        Cycles for which the queue keeps an instruction that has been taken.
    """

    kept_cycles = 0

    def __init__(self, run: Run, depth: int, in_flight: int) -> None:
        self.run = run
        self.depth = depth
        self.words = 0
        self.leaving = 0
        self.queue: deque[int] = deque()
        self.offers: deque[float] = deque()
        self.may_begin = in_flight
        self.ready = 0.0  # earliest time of the next offer, given the previous instruction
        self.wakes = 0.0  # time of the scheduled ISSUE event

    def put(self, index: int, now: float) -> None:
        """Take an instruction whose last word has been dispatched."""
        instruction = self.run.program[index]
        self.queue.append(index)
        self.offers.append(now + OFFER_CYCLES)
        self.words += PROGRAM_WORDS[instruction.opcode]
        self.issue(now)

    def issue(self, now: float) -> None:
        """Start the instruction at the head of the queue, if it can start."""
        if not (self.queue and self.may_begin):
            return
        run, index = self.run, self.queue[0]
        instruction = run.program[index]
        earliest = max(self.offers[0], self.ready)
        if instruction.wait:
            earliest += TAKE_CYCLES
            for number in instruction.wait:
                if not run.semaphores[number]:
                    return
        if earliest > now + EPSILON:
            if not now < self.wakes <= earliest:
                self.wakes = earliest
                run.at(earliest, Event.ISSUE, self)
            return
        for number in instruction.wait:
            run.semaphores[number] -= 1
        self.queue.popleft()
        self.offers.popleft()
        self.may_begin -= 1
        run.starts[index] = self.start(index, instruction, now)
        # The parts of the next instruction are collected one by one, which frees room in the queue.
        self.leaving = PROGRAM_WORDS[instruction.opcode]
        collected = run.word_parts * self.leaving
        self.ready = run.starts[index] + self.kept_cycles + collected + 1
        run.at(self.ready, Event.LEAVE, self)

    def end(self, index: int, now: float) -> None:
        """Note the end of an instruction, and schedule its signals."""
        self.run.ends[index] = now
        self.run.at(now + SIGNAL_CYCLES, Event.SIGNAL, index)

    @abstractmethod
    def start(self, index: int, instruction: Instruction, now: float) -> float:
        """Begin an instruction, and return the time at which the engine takes it."""


class Mover(Engine):
    """An engine that moves words over the bus."""

    @abstractmethod
    def moved(self, index: int, now: float) -> None:
        """Handle the end of a transfer: its last word has moved over the bus."""


class Load(Mover):
    """Reads from memory into the scratchpad; data begins after the memory's latency."""

    kind = Kind.LOAD

    def start(self, index: int, instruction: Instruction, now: float) -> float:
        """See `Engine`."""
        bus = self.run.bus
        bus.reads.transfer(index, instruction.body, now + LOAD_CYCLES + bus.latency)
        self.run.bus_changes = True
        return now

    def moved(self, index: int, now: float) -> None:
        """See `Mover`."""
        self.end(index, now + LOADED_CYCLES)


class Store(Mover):
    """Writes from the scratchpad to memory; an instruction ends with its last response."""

    kind = Kind.STORE

    def start(self, index: int, instruction: Instruction, now: float) -> float:
        """See `Engine`."""
        self.run.bus.writes.transfer(index, instruction.body, now + STORE_CYCLES)
        self.run.bus_changes = True
        return now

    def moved(self, index: int, now: float) -> None:
        """See `Mover`."""
        self.end(index, now + self.run.bus.latency)


class Send(Mover):
    """Reads from memory for a link, which takes words as fast as it sends them."""

    kind = Kind.SEND

    def start(self, index: int, instruction: Instruction, now: float) -> float:
        """See `Engine`."""
        bus = self.run.bus
        sent, _ = bus.packets[instruction.engine]
        sent.transfer(index, instruction.body, now + LOAD_CYCLES + bus.latency)
        self.run.bus_changes = True
        return now

    def moved(self, index: int, now: float) -> None:
        """See `Mover`."""
        self.end(index, now + SEND_CYCLES)


class Receive(Mover):
    """Writes the words of a link to memory; they have arrived when the instruction starts."""

    kind = Kind.RECEIVE

    def start(self, index: int, instruction: Instruction, now: float) -> float:
        """See `Engine`."""
        _, received = self.run.bus.packets[instruction.engine]
        burst = self.run.core.burst_beats * self.run.core.bus_bytes / WORD_BYTES
        first = now + RECEIVE_CYCLES + burst / received.fastest
        received.transfer(index, instruction.body, first)
        self.run.bus_changes = True
        return now

    def moved(self, index: int, now: float) -> None:
        """See `Mover`."""
        self.end(index, now + self.run.bus.latency)


class Gemm(Engine):
    """A GEMM engine, through whose array the vectors of its products follow each other."""

    kind = Kind.GEMM
    kept_cycles = KEPT_CYCLES

    def __init__(self, run: Run, depth: int, in_flight: int) -> None:
        super().__init__(run, depth, in_flight)
        self.reads_until = 0.0
        self.weights_until = 0.0
        self.streams_until = 0.0

    def start(self, index: int, instruction: Instruction, now: float) -> float:
        """See `Engine`."""
        core = self.run.core
        timing = gemm_timing(instruction.body, core)
        # Weights of the first tile follow those of the previous tile as fast as they are read.
        # Without a previous tile, they come when the product starts, and the array needs one more
        # cycle.
        first_b = max(
            now + READER_CYCLES + timing.b_late + core.array.load_cycles,
            self.weights_until + timing.b_words,
        )
        # The streamed operand's reader may still be busy with the previous product.
        taken = max(now, self.reads_until)
        first_a = taken + READER_CYCLES + timing.a_late
        begins = max(first_b, first_a, self.streams_until)
        ends = begins + timing.stream_cycles
        last_tile_from = ends - timing.last_tile_cycles
        self.weights_until = max(
            last_tile_from + timing.stall_cycles, first_b + timing.later_b_words
        )
        self.streams_until = ends
        self.reads_until = ends - READ_AHEAD_CYCLES - timing.a_ahead
        self.run.gemm_cycles += ends - begins
        latest = WRITTEN_CYCLES + timing.writes - 1 if timing.writes else SUMMED_CYCLES
        self.end(index, ends + core.array.latency_cycles + latest)
        return taken


class Vector(Engine):
    """The vector engine."""

    kind = Kind.VECTOR

    def __init__(self, run: Run, depth: int, in_flight: int) -> None:
        super().__init__(run, depth, in_flight)
        self.busy_until = 0.0

    def start(self, index: int, instruction: Instruction, now: float) -> float:
        """See `Engine`."""
        # One instruction runs at a time; the next is taken in the cycle in which it is done.
        taken = max(now, self.busy_until)
        core = self.run.core
        assert core.vector is not None
        op = VectorOp.decoded(instruction.body)
        lost = meeting_cycles(op, core.vector, core.scratchpad)
        self.busy_until = taken + vector_cycles(op, core.vector, core.scratchpad.parts) + lost
        self.end(index, self.busy_until)
        return taken
