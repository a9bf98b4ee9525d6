"""Cycles of each task of a device, found with the cycle model of that device alone.

They are found from two runs of the cycle model
(:mod:`fpgapipe.hw.hls_models.cycles.core_cycles`). In the first run, received data are there as
soon as they are asked for. Tasks then follow each other without a pause, and the duration of a task
is the time from the end of the task before to its own end, so that overlaps are counted once. In
the second run, the data that a task receives arrive only when the device has nothing else left to
do. This shows how long a task still takes after each part of its data has arrived.

Both together show how far a task overlaps with the task on the next device, which uses the first
parts of a result while the last parts are still computed.

Where a device does two concurrent tasks, on two GEMM engines, their instructions are interleaved in
its program and share queues. Two such tasks form a *step*, and the device does one step after the
other. The tasks of a step are put in the order of their ends: the duration of the first is the time
until its end, and that of the second the time from there to its own end. The first task also has to
wait for the data that the second receives, as far as this delays its own instructions.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fpgapipe.hw.hls_models.cycles.core_cycles import CoreRun, MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import (
    PacketTimes,
    WireTiming,
    arrivals,
    transfer_cycles,
)
from fpgapipe.hw.hls_models.cycles.run_tables import Held
from fpgapipe.hw.hls_models.isa.instructions import Opcode, semaphores_of
from fpgapipe.hw.hls_models.model.link_dma import words_of_packet
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.schedule.schedule import TaskKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.placement import Placement
    from fpgapipe.lowering.program.device_program import DeviceProgram


AT_ONCE_CYCLES = 40
"""Most cycles from the end of as many RECEIVEs as may be in flight to the begin of the next ones,
if these were waiting."""


class Sent(NamedTuple):
    """A part of a task's result that is sent.

    Attributes
    ----------
    task : int
        Index of the task in the device's tasks.
    begin, end : float
        Begin and end of the part's SEND, in cycles relative to the end of the task, on a link that
        accepts everything at once.
    words : int
        Number of words of the part.
    """

    task: int
    begin: float
    end: float
    words: int


class Needed(NamedTuple):
    """A part of the data that a task receives.

    Attributes
    ----------
    task : int
        Index of the task in the device's tasks.
    rest : float
        Cycles from the arrival of the part, if it is the last to arrive, to the end of the task;
        negative if no instruction waits for the part.
    concurrent : int
        Index of the task that ends first in the same step; -1 if that is this task.
    rest_concurrent : float
        Cycles from the arrival of the part to the end of the first task of the step.
    behind : int
        The part's RECEIVE begins no earlier than during an earlier task, which is this many tasks
        before the one that receives, in the order of ends; 0 if it does not wait for another task.
    offset : float
        Cycles from the end of that earlier task to the begin of the RECEIVE, mostly negative.
    """

    task: int
    rest: float
    concurrent: int
    rest_concurrent: float
    behind: int = 0
    offset: float = 0.0


class Lag(NamedTuple):
    """Least number of cycles from the end of a task to the beginning of tasks that need its result.

    Attributes
    ----------
    cycles : float
        Lag of the task that uses the result.
    concurrent : int
        Index of the task that ends before it in the same step; -1 if there is none.
    cycles_concurrent : float
        Lag of the concurrent task, which cannot end without the result either.
    start : float
        Cycles from the end of the task to the beginning of the transfer; negative before the end.
    behind : float
        Cycles from the end of the transfer to the beginning of the task that uses the result, if
        the parts follow each other as fast as the link sends them.
    """

    cycles: float
    concurrent: int
    cycles_concurrent: float
    start: float
    behind: float


@dataclass(frozen=True)
class TaskTimes:
    """Cycles of the tasks of one device's program.

    Parameters
    ----------
    program : DeviceProgram
    memory : MemorySpec
    step_of : sequence of int
        Number of the step of each task. Numbers do not decrease, and concurrent tasks have the
        same.
    """

    program: DeviceProgram
    memory: MemorySpec
    step_of: Sequence[int]

    @cached_property
    def task_of(self) -> NDArray[np.int64]:
        """Number of the task of each instruction but END."""
        tasks = [each.task for each in self.program.kernels]
        return np.array([tasks[kernel] for kernel in self.program.kernel_of], np.int64)

    @cached_property
    def _steady(self) -> CoreRun:
        """The run in which received data are there at once."""
        return self._run()

    def _run(self, held: Held | None = None) -> CoreRun:
        program = self.program
        links = [inf] * len(program.core.links)
        run = CoreRun(program.instructions, program.core, self.memory, links, held=held)
        run.run()
        return run

    @cached_property
    def order(self) -> list[int]:
        """Numbers of the tasks, step by step; those of a step in the order of their ends."""
        ends = self._own_ends(self._steady.ends)
        return sorted(range(len(ends)), key=lambda task: (self.step_of[task], ends[task]))

    def _own_ends(self, ends: Sequence[float]) -> NDArray[np.float64]:
        """Cycle in which the last instruction of each task has ended."""
        found = np.zeros(len(self.program.tasks))
        np.maximum.at(found, self.task_of, np.asarray(ends)[: len(self.task_of)])
        return found

    def ends_of(self, ends: Sequence[float]) -> NDArray[np.float64]:
        """Cycle in which each task and all before it have ended, from the ends of instructions."""
        found = self._own_ends(ends)
        found[self.order] = np.maximum.accumulate(found[self.order])
        return found

    @cached_property
    def _steady_ends(self) -> NDArray[np.float64]:
        """Ends of tasks in the first run."""
        return self.ends_of(self._steady.ends)

    @cached_property
    def _pausing_ends(self) -> NDArray[np.float64]:
        """Ends of tasks in the second run."""
        return self.ends_of(self._pausing.ends)

    @cached_property
    def durations(self) -> NDArray[np.float64]:
        """Cycles of each task from the end of the one before, if it need not wait for data."""
        ends = self._steady_ends
        found = np.zeros(len(ends))
        found[self.order] = np.diff(ends[self.order], prepend=0.0)
        return found

    @cached_property
    def spans(self) -> NDArray[np.float64]:
        """Cycles of each task from the end of the step before."""
        found = self.durations.copy()
        for before, task in pairwise(self.order):
            if self.step_of[before] == self.step_of[task]:
                found[task] += found[before]
        return found

    def sent(self, link: int, channel: int, *, updating: bool = False) -> list[Sent]:
        """Parts that a link sends on a channel in passes, or in the update, in order."""
        run, ends = self._steady, self._steady_ends
        return [
            Sent(
                task,
                float(run.starts[index] - ends[task]),
                float(run.ends[index] - ends[task]),
                words_of_packet(body),
            )
            for index, task, body in self._packets(Opcode.SEND, link, channel, updating)
        ]

    def needed(self, link: int, channel: int, *, updating: bool = False) -> list[Needed]:
        """Parts that a link receives on a channel in passes, or in the update, in order."""
        run, ends = self._pausing, self._pausing_ends
        firsts: dict[int, int] = {}
        for task in self.order:
            firsts.setdefault(self.step_of[task], task)
        found = []
        packets = self._packets(Opcode.RECEIVE, link, channel, updating)
        gates = self._gates([index for index, _, _ in packets])
        for (index, task, _), gate in zip(packets, gates, strict=True):
            first = firsts[self.step_of[task]]
            waiter = self._waiter_of.get(index)
            rest, concurrent = (
                -1.0 if waiter is None else float(ends[each] - run.starts[waiter])
                for each in (task, first)
            )
            behind, offset = 0, 0.0
            if 0 <= gate < self.order.index(first):
                behind = self.order.index(task) - gate
                offset = float(run.starts[index] - ends[self.order[gate]])
            concurrent_task = -1 if first == task else first
            found.append(Needed(task, rest, concurrent_task, concurrent, behind, offset))
        return found

    def _gates(self, receives: Sequence[int]) -> list[int]:
        """For each RECEIVE, the place in `order` of the task during which it begins; -1 for none.

        A RECEIVE begins during a task if the program gets to it only once that task has got its own
        data. A RECEIVE that has waited for the end of an earlier one was there as soon as that.
        """
        run, in_flight = self._pausing, SequencerSpec.of(self.program.core).in_flight
        ends = self._pausing_ends[self.order]
        found: list[int] = []
        for number, index in enumerate(receives):
            start, before = run.starts[index], number - in_flight
            if before >= 0 and start <= run.ends[receives[before]] + AT_ONCE_CYCLES:
                found.append(found[before])
                continue
            gate = int(np.searchsorted(ends, start))
            if gate < len(ends) and start <= self._got.get(self.order[gate], 0.0):
                gate -= 1
            found.append(gate)
        return found

    @cached_property
    def _got(self) -> dict[int, float]:
        """Cycle in which each task that receives has got all of its data, where they come late."""
        found: dict[int, float] = {}
        for index in self.program.instructions.places_of(Opcode.RECEIVE).tolist():
            task = int(self.task_of[index])
            found[task] = max(found.get(task, 0.0), self._pausing.ends[index])
        return found

    def _packets(
        self, opcode: Opcode, link: int, channel: int, updating: bool
    ) -> list[tuple[int, int, Mapping[str, Any]]]:
        """Number, task and body of a link's SENDs or RECEIVEs on a channel.

        They are those of passes, or what devices exchange in the update, after the last pass.
        """
        tasks, program = self.program.tasks, self.program.instructions
        places = np.flatnonzero((program.opcodes == opcode) & (program.engines == link))
        return [
            (index, int(self.task_of[index]), body)
            for index, body in ((each, program.body(each)) for each in places.tolist())
            if body["channel"] == channel
            and (tasks[self.task_of[index]].kind is TaskKind.U) == updating
        ]

    @cached_property
    def _pausing(self) -> CoreRun:
        """The run in which received data arrive when the device has nothing else left to do."""
        return self._run(Held(self.task_of.tolist(), self._waiter_of))

    @cached_property
    def _waiter_of(self) -> dict[int, int]:
        """For each RECEIVE that instructions wait for, the first of these instructions.

        There is one semaphore between two queues, so the n-th instruction that waits on it waits
        for the n-th instruction that signals it.
        """
        program = self.program.instructions
        receives = program.opcodes == Opcode.RECEIVE
        found: dict[int, int] = {}
        for number in semaphores_of(int(np.bitwise_or.reduce(program.signals[receives]))):
            bit = 1 << number
            sources = np.flatnonzero(receives & (program.signals & bit != 0)).tolist()
            waiters = np.flatnonzero(program.waits & bit).tolist()
            for source, waiter in zip(sources, waiters, strict=True):
                found[source] = min(waiter, found.get(source, waiter))
        return found


def link_ends(placement: Placement, maker: int, user: int) -> tuple[Channel, int, int]:
    """Channel, number of the sending link and number of the receiving link of two neighbours."""
    channel = Channel.ACTIVATIONS if maker < user else Channel.GRADIENTS
    return channel, placement.link(maker, user), placement.link(user, maker)


def lags(
    sent: Sequence[Sent],
    needed: Sequence[Needed],
    durations: NDArray[np.float64],
    cores: tuple[CoreSpec, CoreSpec],
    link: int,
    memories: tuple[MemorySpec, MemorySpec],
    wire: WireTiming,
    channel: int,
) -> dict[int, Lag]:
    """Least time from the end of each task to the beginning of the task that uses its result.

    Parameters
    ----------
    sent : sequence of Sent
        Parts that the producing device sends on one channel.
    needed : sequence of Needed
        Parts that the consuming device receives, in the same order.
    durations : float array
        Cycles of the consuming device's tasks.
    cores, memories : pairs
        Cores and memories of the producing and the consuming device.
    link : int
        Number of the producing device's link.
    wire : WireTiming
    channel : int

    Returns
    -------
    dict of int to Lag
        Lag for each task of the producing device, by its number. The consuming task ends no earlier
        than the end of the producing task plus the lag plus its own duration.
    """
    parts: defaultdict[int, list[tuple[Sent, Needed]]] = defaultdict(list)
    for one, other in zip(sent, needed, strict=True):
        parts[one.task].append((one, other))
    found = {}
    for task, pairs in parts.items():
        spec = cores[0].links[link]
        slots, ends = spec.slots[channel], (spec, cores[1])
        words = [one.words for one, _ in pairs]
        begins, reads = [one.begin for one, _ in pairs], [one.end for one, _ in pairs]
        come = arrivals(begins, reads, words, PacketTimes(ends, memories, wire, slots))
        at_once = [0.0] * len(pairs)
        packed = arrivals(at_once, at_once, words, PacketTimes(ends, memories, wire, slots))
        user, concurrent = pairs[0][1].task, pairs[0][1].concurrent
        rest, rest_concurrent = (
            max(at + getattr(other, name) for at, (_, other) in zip(come, pairs, strict=True))
            for name in ("rest", "rest_concurrent")
        )
        lag_concurrent = 0.0 if concurrent < 0 else rest_concurrent - float(durations[concurrent])
        behind = max(at + other.rest for at, (_, other) in zip(packed, pairs, strict=True))
        behind -= sum(transfer_cycles(count, spec, slots, wire) for count in words)
        duration = float(durations[user])
        found[task] = Lag(rest - duration, concurrent, lag_concurrent, begins[0], behind - duration)
    return found
