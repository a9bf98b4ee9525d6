"""Cycle model of the training core: when each instruction of a program starts and ends.

An event simulation of what instructions share: the memory bus, of which reading the program takes
its part (`bus_cycles`), dispatch, queues, semaphores and engines. `instruction_cycles` has what an
instruction takes for itself. Tests hold it to the gateware.
"""

import heapq
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from fpgapipe.hw.hls_models.bus_cycles import NEVER, Bus
from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.instruction_cycles import gemm_timing
from fpgapipe.hw.hls_models.isa import (
    NUM_SEMAPHORES,
    WORD_BYTES,
    Instruction,
    Opcode,
    words_of,
)
from fpgapipe.hw.hls_models.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.vector_cycles import vector_cycles
from fpgapipe.hw.hls_models.vector_op import VectorOp

START_CYCLES = 4
"""From the start command to a dispatch that would ask for the first program words."""

FETCH_CYCLES = 3
"""From a dispatch to the request on the bus for the words that take its place."""

FETCHED_CYCLES = 2
"""From behind a program word's beat on the bus to the word's dispatch."""

OFFER_CYCLES = 3
"""From the dispatch of an instruction's last word to its start."""

TAKE_CYCLES = 2
"""What taking semaphores adds to that."""

SIGNAL_CYCLES = 5
"""From the end of an instruction to the start of another that has waited for its signal."""

LOAD_CYCLES = 8
"""From a load's start to its first request on the bus."""

LOADED_CYCLES = 2
"""From behind a load's last beat on the bus to its end."""

STORE_CYCLES = 15
"""From a store's start to its first beat on the bus."""

SEND_CYCLES = 5
"""From behind a packet's last beat on the bus to its end, if the link waits for it."""

RECEIVE_CYCLES = 16
"""From the start of a RECEIVE to its first beat on the bus, beside the words of its first burst."""

READER_CYCLES = 19
"""From the start of a product to its first vector at the array: address generator, scratchpad,
quantiser."""

READ_AHEAD_CYCLES = 26
"""By which the streamed operand's reader is ahead of the array."""

SUMMED_CYCLES = 10
"""From the array's last sums to the end of a product whose sums stay in the accumulators."""

WRITTEN_CYCLES = 13
"""From the array's last sums to the end of a product whose results are written."""

_WORDS = {opcode: words_of(opcode) for opcode in Opcode}
_EPSILON = 1e-6


@dataclass(frozen=True)
class MemorySpec:
    """The memory behind the core's bus.

    Parameters
    ----------
    bytes_per_cycle : float
        Read and written together.
    latency_cycles : int
        From a read request to its first data, and from a write's last data to its response.
    """

    bytes_per_cycle: float = 64
    latency_cycles: int = 100

    def __post_init__(self) -> None:
        if not self.bytes_per_cycle > 0:
            raise ValueError(
                f"memory bytes_per_cycle must be above 0, not {self.bytes_per_cycle!r}"
            )
        if self.latency_cycles < 0:
            raise ValueError(
                f"memory latency_cycles must be at least 0, not {self.latency_cycles!r}"
            )


@dataclass(frozen=True)
class Prediction:
    """When a program's instructions run.

    Attributes
    ----------
    cycles : int
        From the start command to the last word written to memory, both included.
    starts, ends : tuple of float
        Of each instruction: taken by its engine, and done.
    gemm_cycles : float
        In which vectors enter an array.
    """

    cycles: int
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    gemm_cycles: float


def predict(
    program: Sequence[Instruction],
    core: CoreSpec,
    memory: MemorySpec | None = None,
    *,
    link_bytes_per_cycle: float | None = None,
) -> Prediction:
    """Time a program.

    Of other devices nothing is known: links take words as fast as they send them, though they keep
    some, and those of a RECEIVE come as soon as it begins.

    Parameters
    ----------
    program : sequence of Instruction
    core : CoreSpec
    memory : MemorySpec, optional
    link_bytes_per_cycle : float, optional
        Payload of every link; what its PHY's width and its frames allow, if not given.

    Raises
    ------
    ValueError
        If the program waits for semaphores that nothing signals, or needs an engine that the core
        does not have.
    """
    rates = [link_bytes_per_cycle or link.phy_bytes * link.efficiency for link in core.links]
    return _Run(program, core, memory or MemorySpec(), rates).run()


class _Engine(ABC):
    """An engine with its queue: instructions start, and end, in order.

    A kind of engine has a class of its own, and its engines a place in `_Run.engines`.

    Parameters
    ----------
    run : _Run
    depth : int
        Words that the queue holds besides the instruction at its head.
    in_flight : int
        Instructions that may have started and not ended.
    """

    def __init__(self, run: "_Run", depth: int, in_flight: int) -> None:
        self.run = run
        self.depth = depth
        self.words = 0
        self.leaving = 0
        self.queue: deque[int] = deque()
        self.offers: deque[float] = deque()
        self.may_begin = in_flight
        self.ready = 0.0  # when the next can be offered, by what came before it
        self.wakes = 0.0  # when an event is

    def put(self, index: int, now: float) -> None:
        """Take an instruction whose last word has been dispatched."""
        instruction = self.run.program[index]
        self.queue.append(index)
        self.offers.append(now + OFFER_CYCLES)
        self.words += _WORDS[instruction.opcode]
        self.issue(now)

    def issue(self, now: float) -> None:
        """Start the instruction at the head of the queue if it can be."""
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
        if earliest > now + _EPSILON:
            if not now < self.wakes <= earliest:
                self.wakes = earliest
                run.at(earliest, _Event.ISSUE, self)
            return
        for number in instruction.wait:
            run.semaphores[number] -= 1
        self.queue.popleft()
        self.offers.popleft()
        self.may_begin -= 1
        run.starts[index] = self.start(index, instruction, now)
        # The words of the next are collected one by one, which makes room for others.
        self.leaving = _WORDS[instruction.opcode]
        self.ready = run.starts[index] + self.leaving + 1
        run.at(self.ready, _Event.LEAVE, self)

    def end(self, index: int, now: float) -> None:
        """Let an instruction end."""
        self.run.ends[index] = now
        self.run.at(now + SIGNAL_CYCLES, _Event.SIGNAL, index)

    @abstractmethod
    def start(self, index: int, instruction: Instruction, now: float) -> float:
        """Begin an instruction; returns when the engine has taken it."""


class _Load(_Engine):
    def start(self, index: int, instruction: Instruction, now: float) -> float:
        bus = self.run.bus
        bus.reads.transfer(index, instruction.body, now + LOAD_CYCLES + bus.latency)
        self.run.bus_changes = True
        return now

    def moved(self, index: int, now: float) -> None:
        """The last word of an instruction is on the bus."""
        self.end(index, now + LOADED_CYCLES)


class _Store(_Engine):
    def start(self, index: int, instruction: Instruction, now: float) -> float:
        self.run.bus.writes.transfer(index, instruction.body, now + STORE_CYCLES)
        self.run.bus_changes = True
        return now

    def moved(self, index: int, now: float) -> None:
        """The last word of an instruction is on the bus."""
        self.end(index, now + self.run.bus.latency)


class _Send(_Engine):
    def start(self, index: int, instruction: Instruction, now: float) -> float:
        bus = self.run.bus
        sent, _ = bus.packets[instruction.engine]
        sent.transfer(index, instruction.body, now + LOAD_CYCLES + bus.latency)
        self.run.bus_changes = True
        return now

    def moved(self, index: int, now: float) -> None:
        """The last word of an instruction is on the bus."""
        self.end(index, now + SEND_CYCLES)


class _Receive(_Engine):
    def start(self, index: int, instruction: Instruction, now: float) -> float:
        _, received = self.run.bus.packets[instruction.engine]
        burst = self.run.core.burst_beats * self.run.core.bus_bytes / WORD_BYTES
        first = now + RECEIVE_CYCLES + burst / received.fastest
        received.transfer(index, instruction.body, first)
        self.run.bus_changes = True
        return now

    def moved(self, index: int, now: float) -> None:
        """The last word of an instruction is on the bus."""
        self.end(index, now + self.run.bus.latency)


class _Gemm(_Engine):
    def __init__(self, run: "_Run", depth: int, in_flight: int) -> None:
        super().__init__(run, depth, in_flight)
        self.reads_until = 0.0
        self.weights_until = 0.0
        self.streams_until = 0.0

    def start(self, index: int, instruction: Instruction, now: float) -> float:
        core = self.run.core
        timing = gemm_timing(instruction.body, core)
        # Weights of the first tile follow those of the tile before as fast as they are read;
        # without one before, they come when the product starts, and the array needs a cycle more.
        first_b = max(
            now + READER_CYCLES + timing.b_late + core.cols + 1,
            self.weights_until + timing.b_words,
        )
        # The streamed operand's reader may still be busy with the product before.
        taken = max(now, self.reads_until)
        first_a = taken + READER_CYCLES + timing.a_late
        begins = max(first_b, first_a, self.streams_until)
        ends = begins + timing.stream_cycles
        last_tile_from = ends - timing.last_tile_cycles
        self.weights_until = max(
            last_tile_from + timing.stall_cycles, first_b + timing.later_b_words
        )
        self.streams_until = ends
        self.reads_until = ends - READ_AHEAD_CYCLES - timing.a_late
        self.run.gemm_cycles += ends - begins
        latest = WRITTEN_CYCLES + timing.writes - 1 if timing.writes else SUMMED_CYCLES
        self.end(index, ends + core.array.latency_cycles + latest)
        return taken


class _Vector(_Engine):
    def __init__(self, run: "_Run", depth: int, in_flight: int) -> None:
        super().__init__(run, depth, in_flight)
        self.busy_until = 0.0

    def start(self, index: int, instruction: Instruction, now: float) -> float:
        # One at a time: the next is taken in the cycle in which the one before is done.
        taken = max(now, self.busy_until)
        assert self.run.core.vector is not None
        op = VectorOp.decoded(instruction.body)
        self.busy_until = taken + vector_cycles(op, self.run.core.vector)
        self.end(index, self.busy_until)
        return taken


class _Event(IntEnum):
    """What happens at a time."""

    SIGNAL = 0  # of an instruction
    LEAVE = 1  # an instruction has left its engine's queue
    ISSUE = 2  # an engine's next may start
    DISPATCH = 3


class _Run:
    """One run of the model: time goes from event to event."""

    def __init__(
        self,
        program: Sequence[Instruction],
        core: CoreSpec,
        memory: MemorySpec,
        link_bytes_per_cycle: Sequence[float],
    ) -> None:
        self.program = program
        self.core = core
        self.bus = Bus(core, memory.bytes_per_cycle, memory.latency_cycles, link_bytes_per_cycle)
        self.bus_changes = True
        self.starts = [0.0] * len(program)
        self.ends = [0.0] * len(program)
        self.gemm_cycles = 0.0
        self.semaphores = [0] * NUM_SEMAPHORES
        self.events: list[tuple[float, int, int, Any]] = []
        self.number = 0
        spec = SequencerSpec.of(core)
        self.load = _Load(self, spec.load_words, spec.in_flight)
        self.store = _Store(self, spec.store_words, spec.in_flight)
        self.engines: dict[tuple[Opcode, int], _Engine] = {
            (Opcode.LOAD, 0): self.load,
            (Opcode.STORE, 0): self.store,
        }
        for engine in range(core.num_engines):
            self.engines[Opcode.GEMM, engine] = _Gemm(self, spec.gemm_words, spec.in_flight)
        if core.vector:
            self.engines[Opcode.VECTOR, 0] = _Vector(self, spec.vector_words, spec.in_flight)
        for link in range(spec.num_links):
            self.engines[Opcode.SEND, link] = _Send(self, spec.send_words, spec.in_flight)
            self.engines[Opcode.RECEIVE, link] = _Receive(self, spec.receive_words, spec.in_flight)
        self.fetch_words = spec.fetch_words
        self.room = spec.prefetch_words  # for program words that are not yet asked for
        self.fetched: deque[float] = deque()  # when words came that are not yet dispatched
        self.next_instruction = 0
        self.next_header = 0.0  # when dispatch can look at it
        self.dispatching = False  # its words are here
        self.full: _Engine | None = None  # whose queue has no room for it

    def at(self, time: float, event: _Event, what: Any) -> None:
        """Let something happen; of what happens at the same time, in this order."""
        self.number += 1
        heapq.heappush(self.events, (time, event, self.number, what))

    def _fetch(self, now: float) -> None:
        """Ask for program words as far as there is room."""
        self._move(now)
        while self.room >= self.fetch_words:
            self.room -= self.fetch_words
            self.bus.fetch(self.fetch_words, now + FETCH_CYCLES)

    def _move(self, now: float) -> None:
        """Let words move until now, and what they end happen."""
        self.bus_changes = True
        read, write, packets = self.bus.move(now)
        for _, flow in packets:
            if flow.index >= 0:
                instruction = self.program[flow.index]
                mover = self.engines[instruction.opcode, instruction.engine]
                assert isinstance(mover, _Send | _Receive)
                mover.moved(flow.index, now)
        if write is not None and write.index >= 0:
            self.store.moved(write.index, now)
        if read is None:
            return
        if read.index >= 0:
            self.load.moved(read.index, now)
        elif not read.burst_words:
            here = now + FETCHED_CYCLES + 1
            self.fetched.extend(here - left for left in range(self.fetch_words, 0, -1))
            self._look()

    def _look(self) -> None:
        """Dispatch the next instruction as soon as can be, if all of its words are here."""
        if self.dispatching or self.next_instruction == len(self.program):
            return
        words = _WORDS[self.program[self.next_instruction].opcode]
        if len(self.fetched) < words:
            return
        self.dispatching = True
        header = max(self.next_header, self.fetched[0])
        self.at(max(header + words, self.fetched[words - 1]), _Event.DISPATCH, None)

    def _dispatch(self, now: float) -> None:
        """Hand an instruction to its engine's queue, or wait for room in it."""
        instruction = self.program[self.next_instruction]
        if instruction.opcode == Opcode.END:
            self.next_instruction = len(self.program)
            return
        engine = self.engines.get((instruction.opcode, instruction.engine))
        if engine is None:
            raise ValueError(
                f"instruction {self.next_instruction} is for an engine that the core does not "
                f"have: {instruction}"
            )
        if engine.words > engine.depth:
            self.full = engine
            return
        self.full = None
        engine.put(self.next_instruction, now)
        words = _WORDS[instruction.opcode]
        for _ in range(words):
            self.fetched.popleft()
        self.room += words
        self.next_instruction += 1
        self.next_header = now + 1
        self.dispatching = False
        self._fetch(now)
        self._look()

    def _signal(self, index: int, now: float) -> None:
        """Let an instruction's signals count."""
        instruction = self.program[index]
        self.engines[instruction.opcode, instruction.engine].may_begin += 1
        for number in instruction.signal:
            self.semaphores[number] += 1
        for engine in self.engines.values():
            engine.issue(now)

    def run(self) -> Prediction:
        """Go on until nothing happens any more."""
        bus, events = self.bus, self.events
        self._fetch(START_CYCLES)
        bus.share(0)
        while True:
            now = min(events[0][0], bus.next) if events else bus.next
            if now == NEVER:
                break
            if bus.next <= now:
                self._move(now)
            while events and events[0][0] <= now + _EPSILON:
                _, event, _, what = heapq.heappop(events)
                if event == _Event.SIGNAL:
                    self._signal(what, now)
                elif event == _Event.ISSUE:
                    what.issue(now)
                elif event == _Event.LEAVE:
                    what.words -= what.leaving
                    what.leaving = 0
                    what.issue(now)
                    if self.full is what:
                        self._dispatch(now)
                else:
                    self._dispatch(now)
            if self.bus_changes:
                self._move(now)
                bus.share(now)
                self.bus_changes = False
        waiting = [engine.queue[0] for engine in self.engines.values() if engine.queue]
        if waiting or self.next_instruction < len(self.program):
            raise ValueError(
                "the program waits for semaphores that nothing signals: "
                + "; ".join(f"instruction {i}: {self.program[i]}" for i in waiting)
            )
        return Prediction(
            math.ceil(bus.written or max(self.ends)),
            tuple(self.starts),
            tuple(self.ends),
            self.gemm_cycles,
        )
