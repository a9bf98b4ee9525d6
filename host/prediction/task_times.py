"""What each task of a device takes, found on that device alone.

Two runs of the cycle model (:mod:`fpgapipe.hw.hls_models.cycles.core_cycles`) tell. In the one all
that is received is there as soon as it is asked for: tasks follow each other without a pause, and a
task takes as long as its end is later than that of the task before, their overlap included. In the
other what a task receives comes only when the device has nothing else left to do: that shows how
long a task still takes after each part of what it needs has come.

From these follows how far a task and the one on the next device overlap, as the first parts of a
result are used while the last are computed.

Where a device does two tasks side by side, on two GEMM engines, their instructions are mixed in its
program and share queues: they are a *step*. The device does one step after the other. The tasks of
a step are taken in the order in which they end, so that the first takes as long as until its end,
and the second what it needs beyond; and the first has to wait, too, for what the second receives,
as far as that holds up its own instructions.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fpgapipe.hw.hls_models.cycles.bus_cycles import NEVER
from fpgapipe.hw.hls_models.cycles.compiled_core import run_compiled
from fpgapipe.hw.hls_models.cycles.compiled_tables import Held
from fpgapipe.hw.hls_models.cycles.core_cycles import DISPATCH_CYCLES, CoreRun, MemorySpec
from fpgapipe.hw.hls_models.cycles.engine_cycles import Kind, Mover
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming, arrivals
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.model.link_dma import words_of_packet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.program.device_program import DeviceProgram


class Sent(NamedTuple):
    """A part of a task's result on its way out.

    Attributes
    ----------
    task : int
        Index in the device's tasks.
    begin, end : float
        Of the part's SEND, in cycles from the end of the task; with a link that takes everything.
    words : int
    """

    task: int
    begin: float
    end: float
    words: int


class Needed(NamedTuple):
    """A part of what a task receives.

    Attributes
    ----------
    task : int
    rest : float
        Cycles that the task takes when the part, as the last, has come; less than 0 if nothing of
        the task waits for it.
    concurrent : int
        The task that ends first of the step, -1 if it is the same.
    rest_concurrent : float
        Cycles that this one takes when the part has come.
    """

    task: int
    rest: float
    concurrent: int
    rest_concurrent: float


class Lag(NamedTuple):
    """How long after the end of a task others begin, at the earliest.

    Attributes
    ----------
    cycles : float
        Of the task that uses the result.
    concurrent : int
        The task that ends before it in the same step, -1 without one.
    cycles_concurrent : float
        Of that task, which cannot end without the result either.
    """

    cycles: float
    concurrent: int
    cycles_concurrent: float


@dataclass(frozen=True)
class TaskTimes:
    """Of one device's program.

    Parameters
    ----------
    program : DeviceProgram
    memory : MemorySpec
    step_of : sequence of int
        Of each task, the number of its step; it rises, and tasks side by side have the same.
    """

    program: DeviceProgram
    memory: MemorySpec
    step_of: Sequence[int]

    @cached_property
    def task_of(self) -> NDArray[np.int64]:
        """Of each instruction but END, the number of its task."""
        tasks = [each.task for each in self.program.kernels]
        return np.array([tasks[kernel] for kernel in self.program.kernel_of], np.int64)

    @cached_property
    def _steady(self) -> CoreRun:
        """The run in which all that is received is there."""
        program = self.program
        links = [inf] * len(program.core.links)
        run = CoreRun(program.instructions, program.core, self.memory, links)
        run.run()
        return run

    @cached_property
    def order(self) -> list[int]:
        """Numbers of the tasks, step by step, those of a step in the order in which they end."""
        ends = self._own_ends(self._steady.ends)
        return sorted(range(len(ends)), key=lambda task: (self.step_of[task], ends[task]))

    def _own_ends(self, ends: Sequence[float]) -> NDArray[np.float64]:
        """When the last instruction of each task has ended."""
        found = np.zeros(len(self.program.tasks))
        np.maximum.at(found, self.task_of, np.asarray(ends)[: len(self.task_of)])
        return found

    def ends_of(self, ends: Sequence[float]) -> NDArray[np.float64]:
        """When each task, with all before it, has ended, given the end of each instruction."""
        found = self._own_ends(ends)
        found[self.order] = np.maximum.accumulate(found[self.order])
        return found

    @cached_property
    def durations(self) -> NDArray[np.float64]:
        """Cycles of each task, if it need not wait for others: from the end of the one before."""
        ends = self.ends_of(self._steady.ends)
        found = np.zeros(len(ends))
        found[self.order] = np.diff(ends[self.order], prepend=0.0)
        return found

    @cached_property
    def spans(self) -> NDArray[np.float64]:
        """Cycles of each task, from the end of the step before."""
        found = self.durations.copy()
        for before, task in pairwise(self.order):
            if self.step_of[before] == self.step_of[task]:
                found[task] += found[before]
        return found

    def sent(self, link: int, channel: int) -> list[Sent]:
        """What a link sends on a channel, in order."""
        run = self._steady
        ends = self.ends_of(run.ends)
        return [
            Sent(
                task,
                float(run.starts[index] - ends[task]),
                float(run.ends[index] - ends[task]),
                words_of_packet(body),
            )
            for index, task, body in self._packets(Opcode.SEND, link, channel)
        ]

    def needed(self, link: int, channel: int) -> list[Needed]:
        """What a link receives on a channel, in order."""
        run = self._pausing
        ends = self.ends_of(run.ends)
        firsts: dict[int, int] = {}
        for task in self.order:
            firsts.setdefault(self.step_of[task], task)
        found = []
        for index, task, _ in self._packets(Opcode.RECEIVE, link, channel):
            first = firsts[self.step_of[task]]
            waiter = self._waiter_of.get(index)
            rest, concurrent = (
                -1.0 if waiter is None else float(ends[each] - run.starts[waiter])
                for each in (task, first)
            )
            found.append(Needed(task, rest, -1 if first == task else first, concurrent))
        return found

    def _packets(
        self, opcode: Opcode, link: int, channel: int
    ) -> list[tuple[int, int, Mapping[str, Any]]]:
        """Number, task and body of a link's SENDs or RECEIVEs on a channel."""
        return [
            (index, int(task), each.body)
            for index, (each, task) in enumerate(
                zip(self.program.instructions, self.task_of, strict=False)
            )
            if (each.opcode, each.engine) == (opcode, link) and each.body["channel"] == channel
        ]

    @cached_property
    def _pausing(self) -> _PausingRun:
        """The run in which what is received comes at the last moment."""
        run = _PausingRun(self.program, self.task_of.tolist(), self._waiter_of, self.memory)
        run.run()
        return run

    @cached_property
    def _waiter_of(self) -> dict[int, int]:
        """For each RECEIVE that something waits for, what does so first.

        Between two queues there is one semaphore, so the n-th to wait waits for the n-th to signal.
        """
        signals: defaultdict[int, list[int]] = defaultdict(list)
        waits: defaultdict[int, list[int]] = defaultdict(list)
        for index, each in enumerate(self.program.instructions):
            if each.opcode is Opcode.RECEIVE:
                for number in each.signal:
                    signals[number].append(index)
            for number in each.wait:
                waits[number].append(index)
        found: dict[int, int] = {}
        for number, sources in signals.items():
            for source, waiter in zip(sources, waits[number], strict=True):
                found[source] = min(waiter, found.get(source, waiter))
        return found


class _PausingRun(CoreRun):
    """A run in which what a task receives comes when nothing else is left to do."""

    def __init__(
        self,
        program: DeviceProgram,
        task_of: Sequence[int],
        waiter_of: Mapping[int, int],
        memory: MemorySpec,
    ) -> None:
        self.task_of = task_of
        self.waiter_of = waiter_of
        self.held: list[_Held] = []
        links = [inf] * len(program.core.links)
        super().__init__(program.instructions, program.core, memory, links)

    def receiver(self, link: int, spec: SequencerSpec) -> Mover:
        """See `CoreRun`."""
        self.held.append(_Held(self, spec.receive_words, spec.in_flight))
        return self.held[-1]

    def run_compiled(self) -> bool:
        """See `CoreRun`."""
        return run_compiled([self], DISPATCH_CYCLES, held=Held(self.task_of, self.waiter_of))

    def next(self) -> float:
        """See `CoreRun`; lets something come if nothing else happens."""
        then = super().next()
        if then != NEVER:
            self.last = then
            return then
        waiting = [each for each in self.held if each.waiting]
        if not waiting:
            return NEVER
        # Of two tasks side by side, what the program waits for first.
        first = min(waiting, key=lambda each: each.first_waiter)
        first.release(first.first_task, self.last)
        return super().next()


class _Held(Mover):
    """The engine of a link's RECEIVEs; they end when they are let."""

    kind = Kind.HELD

    def __init__(self, run: _PausingRun, depth: int, in_flight: int) -> None:
        super().__init__(run, depth, in_flight)
        self._pausing = run
        self.waiting: list[int] = []
        self._until = -1

    @property
    def first_task(self) -> int:
        """The task that receives what is next."""
        return self._pausing.task_of[self.waiting[0]]

    @property
    def first_waiter(self) -> int:
        """Number of the instruction that waits for what is next; -1 if none does."""
        return self._pausing.waiter_of.get(self.waiting[0], -1)

    def start(self, index: int, instruction: Instruction, now: float) -> float:
        """See `Engine`."""
        self.waiting.append(index)
        self.release(self._until, now)
        return now

    def release(self, task: int, now: float) -> None:
        """Let what tasks up to this one receive come."""
        self._until = max(self._until, task)
        while self.waiting and self.first_task <= self._until:
            self.end(self.waiting.pop(0), now)

    def moved(self, index: int, now: float) -> None:
        """See `Mover`: nothing goes over the bus."""
        raise AssertionError("what comes at once does not move")


def lags(
    sent: Sequence[Sent],
    needed: Sequence[Needed],
    durations: NDArray[np.float64],
    cores: tuple[CoreSpec, CoreSpec],
    link: int,
    memories: tuple[MemorySpec, MemorySpec],
    wire: WireTiming,
) -> dict[int, Lag]:
    """How long after the end of a task the one that uses its result begins, at the earliest.

    Parameters
    ----------
    sent : sequence of Sent
        Of the device that makes the results, on one channel.
    needed : sequence of Needed
        Of the device that uses them; each takes what is sent in its turn.
    durations : float array
        Of the user's tasks.
    cores, memories : pairs
        Of both devices.
    link : int
        Number of the maker's link.
    wire : WireTiming

    Returns
    -------
    dict of int to Lag
        By the number of the maker's task. The user's end is then at least the lag and its duration
        behind the maker's end.
    """
    parts: defaultdict[int, list[tuple[Sent, Needed]]] = defaultdict(list)
    for one, other in zip(sent, needed, strict=True):
        parts[one.task].append((one, other))
    found = {}
    for task, pairs in parts.items():
        come = arrivals(
            [one.begin for one, _ in pairs],
            [one.end for one, _ in pairs],
            [one.words for one, _ in pairs],
            (cores[0].links[link], cores[1]),
            memories,
            wire,
        )
        user, concurrent = pairs[0][1].task, pairs[0][1].concurrent
        rest, rest_concurrent = (
            max(at + getattr(other, name) for at, (_, other) in zip(come, pairs, strict=True))
            for name in ("rest", "rest_concurrent")
        )
        lag_concurrent = 0.0 if concurrent < 0 else rest_concurrent - float(durations[concurrent])
        found[task] = Lag(rest - float(durations[user]), concurrent, lag_concurrent)
    return found
