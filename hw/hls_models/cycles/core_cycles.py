"""Cycle model of the training core: when each instruction of a program starts and ends.

This is an event simulation of the things that instructions share: the memory bus, over which the
program is read as well (`bus_cycles`), dispatch, queues, semaphores and engines (`engine_cycles`).
`instruction_cycles` has the times that an instruction takes on its own. Tests compare the model
with the gateware.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fpgapipe.hw.hls_models.cycles.bus_cycles import NEVER, Bus
from fpgapipe.hw.hls_models.cycles.compiled_core import run_compiled
from fpgapipe.hw.hls_models.cycles.engine_cycles import (
    EPSILON,
    PROGRAM_WORDS,
    Engine,
    Event,
    Gemm,
    Load,
    Mover,
    Receive,
    Send,
    Store,
    Vector,
)
from fpgapipe.hw.hls_models.isa.instructions import NUM_SEMAPHORES, Instruction, Opcode
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

START_CYCLES = 4
"""Cycles from the start command to the first fetch, which follows as if after a dispatch."""

FETCH_CYCLES = 3
"""Cycles from a dispatch to the bus request for the program words that refill the freed room."""

FETCHED_CYCLES = 2
"""Cycles from the end of a program word's beat on the bus to the dispatch of its last part."""

MOST_LATENCY_CYCLES = 1 << 40
"""Largest latency of a memory; floating-point times of this size still resolve 1/1000 cycle."""

DISPATCH_CYCLES = {
    "start_cycles": START_CYCLES,
    "fetch_cycles": FETCH_CYCLES,
    "fetched_cycles": FETCHED_CYCLES,
}
"""Constants under the names that the machine code uses for them."""


@dataclass(frozen=True)
class MemorySpec:
    """The memory behind the core's bus.

    Parameters
    ----------
    bytes_per_cycle : float
        Bandwidth, reads and writes together.
    latency_cycles : int
        Cycles from a read request to its first data, and from a write's last data to its response.
    """

    bytes_per_cycle: float = 64
    latency_cycles: int = 100

    def __post_init__(self) -> None:
        if not self.bytes_per_cycle > 0:
            raise ValueError(
                f"memory bytes_per_cycle must be above 0, not {self.bytes_per_cycle!r}"
            )
        if not 0 <= self.latency_cycles <= MOST_LATENCY_CYCLES:
            raise ValueError(
                f"memory latency_cycles must be in 0..{MOST_LATENCY_CYCLES}, not "
                f"{self.latency_cycles!r}"
            )


@dataclass(frozen=True)
class Prediction:
    """Times at which a program's instructions run, in cycles.

    Attributes
    ----------
    cycles : int
        Cycles from the start command to the last word written to memory, both included.
    starts, ends : tuple of float
        Times at which each instruction is taken by its engine, and at which it is done.
    gemm_cycles : float
        Cycles in which vectors enter an array, all engines together.
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
    """Predict the cycles of a program on a single core.

    Other devices are not modelled. A link takes words only as fast as it sends them, although a
    real one can buffer some, and the words of a RECEIVE arrive as soon as it begins.

    Parameters
    ----------
    program : sequence of Instruction
    core : CoreSpec
    memory : MemorySpec, optional
    link_bytes_per_cycle : float, optional
        Payload bandwidth of every link. By default, it follows from the PHY's width and the frames.

    Raises
    ------
    ValueError
        If the program waits for semaphores that nothing signals, or needs an engine that the core
        does not have.
    """
    rates = [link_bytes_per_cycle or link.phy_bytes * link.efficiency for link in core.links]
    return CoreRun(program, core, memory or MemorySpec(), rates).run()


class CoreRun:
    """One run of the model, in which time advances from event to event.

    Parameters
    ----------
    program, core, memory
        The same as for `predict`.
    link_bytes_per_cycle : sequence of float
        Payload bandwidth of each link.
    begins : float
        Time of the start command.

    Attributes
    ----------
    starts, ends : list of float
        Times as in `Prediction`, for the instructions that have started or ended.
    """

    def __init__(
        self,
        program: Sequence[Instruction],
        core: CoreSpec,
        memory: MemorySpec,
        link_bytes_per_cycle: Sequence[float],
        begins: float = 0,
    ) -> None:
        self.program = program
        self.core = core
        self.bus = Bus(core, memory.bytes_per_cycle, memory.latency_cycles, link_bytes_per_cycle)
        self.begins = begins
        self.bus_changes = True
        self.starts = [0.0] * len(program)
        self.ends = [0.0] * len(program)
        self.gemm_cycles = 0.0
        self.semaphores = [0] * NUM_SEMAPHORES
        self.events: list[tuple[float, int, int, Any]] = []
        self.number = 0
        spec = SequencerSpec.of(core)
        self.load = Load(self, spec.load_words, spec.in_flight)
        self.store = Store(self, spec.store_words, spec.in_flight)
        self.engines: dict[tuple[Opcode, int], Engine] = {
            (Opcode.LOAD, 0): self.load,
            (Opcode.STORE, 0): self.store,
        }
        for engine in range(core.num_engines):
            self.engines[Opcode.GEMM, engine] = Gemm(self, spec.gemm_words, spec.in_flight)
        if core.vector:
            self.engines[Opcode.VECTOR, 0] = Vector(self, spec.vector_words, spec.in_flight)
        for link in range(spec.num_links):
            self.engines[Opcode.SEND, link] = self.sender(link, spec)
            self.engines[Opcode.RECEIVE, link] = self.receiver(link, spec)
        self.fetch_words = spec.fetch_words
        self.word_parts, self.header_parts = spec.word_parts, spec.header_parts
        self.room = spec.prefetch_words  # room for program words that are not yet requested
        self.fetched: deque[float] = deque()  # arrival times of words not yet dispatched
        self.next_instruction = 0
        self.next_header = 0.0  # when dispatch can look at the next instruction's header
        self.dispatching = False  # whether the next instruction's words are all here
        self.full: Engine | None = None  # the engine whose queue has no room for it
        self._fetch(begins + START_CYCLES)
        self.bus.share(0)

    def sender(self, link: int, spec: SequencerSpec) -> Mover:
        """Return a new engine for a link's SENDs."""
        return Send(self, spec.send_words, spec.in_flight)

    def receiver(self, link: int, spec: SequencerSpec) -> Mover:
        """Return a new engine for a link's RECEIVEs."""
        return Receive(self, spec.receive_words, spec.in_flight)

    def at(self, time: float, event: Event, what: Any) -> None:
        """Schedule an event; events of the same time happen in the order of `Event`."""
        self.number += 1
        heapq.heappush(self.events, (time, event, self.number, what))

    def _fetch(self, now: float) -> None:
        """Request program words as far as there is room for them."""
        self._move(now)
        while self.room >= self.fetch_words:
            self.room -= self.fetch_words
            self.bus.fetch(self.fetch_words, now + FETCH_CYCLES)

    def _move(self, now: float) -> None:
        """Let words move until now, and handle the transfers that end with them."""
        self.bus_changes = True
        read, write, packets = self.bus.move(now)
        for _, flow in packets:
            if flow.index >= 0:
                instruction = self.program[flow.index]
                mover = self.engines[instruction.opcode, instruction.engine]
                assert isinstance(mover, Mover)
                mover.moved(flow.index, now)
        if write is not None and write.index >= 0:
            self.store.moved(write.index, now)
        if read is None:
            return
        if read.index >= 0:
            self.load.moved(read.index, now)
        elif not read.burst_words:
            here = now + FETCHED_CYCLES
            later = range(self.fetch_words - 1, -1, -1)
            self.fetched.extend(here - self.word_parts * left for left in later)
            self._look()

    def _look(self) -> None:
        """Schedule the dispatch of the next instruction, if all of its words are here."""
        if self.dispatching or self.next_instruction == len(self.program):
            return
        words = PROGRAM_WORDS[self.program[self.next_instruction].opcode]
        if len(self.fetched) < words:
            return
        self.dispatching = True
        # The first part of a word is here before its last one.
        header = max(self.next_header, self.fetched[0] - (self.word_parts - 1))
        handed_out = header + self.header_parts - 1 + self.word_parts * words
        self.at(max(handed_out, self.fetched[words - 1]), Event.DISPATCH, None)

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
        words = PROGRAM_WORDS[instruction.opcode]
        for _ in range(words):
            self.fetched.popleft()
        self.room += words
        self.next_instruction += 1
        self.next_header = now + 1
        self.dispatching = False
        self._fetch(now)
        self._look()

    def _signal(self, index: int, now: float) -> None:
        """Add an instruction's signals to the semaphores."""
        instruction = self.program[index]
        self.engines[instruction.opcode, instruction.engine].may_begin += 1
        for number in instruction.signal:
            self.semaphores[number] += 1
        for engine in self.engines.values():
            engine.issue(now)

    def next(self) -> float:
        """Return the time of the next event; `NEVER` if there is none."""
        return min(self.events[0][0], self.bus.next) if self.events else self.bus.next

    def step(self, now: float) -> None:
        """Handle the next events, whose time is `now`."""
        bus, events = self.bus, self.events
        if bus.next <= now:
            self._move(now)
        while events and events[0][0] <= now + EPSILON:
            _, event, _, what = heapq.heappop(events)
            if event == Event.SIGNAL:
                self._signal(what, now)
            elif event == Event.ISSUE:
                what.issue(now)
            elif event == Event.LEAVE:
                what.words -= what.leaving
                what.leaving = 0
                what.issue(now)
                if self.full is what:
                    self._dispatch(now)
            elif event == Event.DISPATCH:
                self._dispatch(now)
            else:
                what(now)
        if self.bus_changes:
            self._move(now)
            bus.share(now)
            self.bus_changes = False

    def waiting(self) -> list[str]:
        """Describe the first instruction of each queue that has not begun."""
        heads = [engine.queue[0] for engine in self.engines.values() if engine.queue]
        if self.next_instruction < len(self.program) and not heads:
            heads = [self.next_instruction]
        return [f"instruction {index}: {self.program[index]}" for index in heads]

    def prediction(self) -> Prediction:
        """Return the result when there are no more events."""
        return Prediction(
            math.ceil(self.bus.written or max(self.ends)),
            tuple(self.starts),
            tuple(self.ends),
            self.gemm_cycles,
        )

    def run_compiled(self) -> bool:
        """Go on as `run` does, as machine code; False if that is left to Python."""
        return run_compiled([self], DISPATCH_CYCLES)

    def run(self) -> Prediction:
        """Run until there are no more events, and return the result."""
        if not self.run_compiled():
            while (now := self.next()) != NEVER:
                self.step(now)
        if waiting := self.waiting():
            raise ValueError(
                "the program waits for semaphores that nothing signals: " + "; ".join(waiting)
            )
        return self.prediction()
