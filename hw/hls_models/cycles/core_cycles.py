"""Cycle model of the training core: when each instruction of a program starts and ends.

An event simulation of what instructions share: the memory bus, of which reading the program takes
its part (`bus_cycles`), dispatch, queues, semaphores and engines (`engine_cycles`).
`instruction_cycles` has what an instruction takes for itself. Tests hold it to the gateware.
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
"""From the start command to a dispatch that would ask for the first program words."""

FETCH_CYCLES = 3
"""From a dispatch to the request on the bus for the words that take its place."""

FETCHED_CYCLES = 2
"""From behind a program word's beat on the bus to the word's dispatch."""

MOST_LATENCY_CYCLES = 1 << 40
"""Latency of a memory at most: numbers still tell a thousandth of a cycle of such times."""

DISPATCH_CYCLES = {
    "start_cycles": START_CYCLES,
    "fetch_cycles": FETCH_CYCLES,
    "fetched_cycles": FETCHED_CYCLES,
}
"""By the names that the machine code gives them."""


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
        if not 0 <= self.latency_cycles <= MOST_LATENCY_CYCLES:
            raise ValueError(
                f"memory latency_cycles must be in 0..{MOST_LATENCY_CYCLES}, not "
                f"{self.latency_cycles!r}"
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
    return CoreRun(program, core, memory or MemorySpec(), rates).run()


class CoreRun:
    """One run of the model: time goes from event to event.

    Parameters
    ----------
    program, core, memory
        As of `predict`.
    link_bytes_per_cycle : sequence of float
        Payload of each link.
    begins : float
        When the start command comes.

    Attributes
    ----------
    starts, ends : list of float
        As of `Prediction`, as far as is known.
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
        self.room = spec.prefetch_words  # for program words that are not yet asked for
        self.fetched: deque[float] = deque()  # when words came that are not yet dispatched
        self.next_instruction = 0
        self.next_header = 0.0  # when dispatch can look at it
        self.dispatching = False  # its words are here
        self.full: Engine | None = None  # whose queue has no room for it
        self._fetch(begins + START_CYCLES)
        self.bus.share(0)

    def sender(self, link: int, spec: SequencerSpec) -> Mover:
        """Make the engine of a link's SENDs."""
        return Send(self, spec.send_words, spec.in_flight)

    def receiver(self, link: int, spec: SequencerSpec) -> Mover:
        """Make the engine of a link's RECEIVEs."""
        return Receive(self, spec.receive_words, spec.in_flight)

    def at(self, time: float, event: Event, what: Any) -> None:
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
                assert isinstance(mover, Mover)
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
        words = PROGRAM_WORDS[self.program[self.next_instruction].opcode]
        if len(self.fetched) < words:
            return
        self.dispatching = True
        header = max(self.next_header, self.fetched[0])
        self.at(max(header + words, self.fetched[words - 1]), Event.DISPATCH, None)

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
        """Let an instruction's signals count."""
        instruction = self.program[index]
        self.engines[instruction.opcode, instruction.engine].may_begin += 1
        for number in instruction.signal:
            self.semaphores[number] += 1
        for engine in self.engines.values():
            engine.issue(now)

    def next(self) -> float:
        """When something happens next; `NEVER` if nothing does."""
        return min(self.events[0][0], self.bus.next) if self.events else self.bus.next

    def step(self, now: float) -> None:
        """Let what happens next happen, at its time."""
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
        """What has not begun, of each queue the first."""
        heads = [engine.queue[0] for engine in self.engines.values() if engine.queue]
        if self.next_instruction < len(self.program) and not heads:
            heads = [self.next_instruction]
        return [f"instruction {index}: {self.program[index]}" for index in heads]

    def prediction(self) -> Prediction:
        """What came of it, when nothing happens any more."""
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
        """Go on until nothing happens any more."""
        if not self.run_compiled():
            while (now := self.next()) != NEVER:
                self.step(now)
        if waiting := self.waiting():
            raise ValueError(
                "the program waits for semaphores that nothing signals: " + "; ".join(waiting)
            )
        return self.prediction()
