"""Event simulation: the times at which all tasks and transfers of a schedule take place."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.lowering.schedule.schedule import Schedule, Task, TaskKind
from fpgapipe.partition.timeline.event_graph import DeadlockError, EventGraph, StageTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["DeadlockError", "Link", "StageTimes", "Timeline", "simulate"]

F, B, DW = TaskKind.F, TaskKind.B, TaskKind.DW


@dataclass(frozen=True)
class Timeline:
    """The times of a schedule's tasks and transfers, in seconds.

    Attributes
    ----------
    schedule : Schedule
    start_s, end_s : tuple of float array
        For each lane, the start and end times of its tasks.
    links : tuple of Link
        For each pair of sender and receiver, the transfers between them.
    """

    schedule: Schedule
    start_s: tuple[NDArray[np.float64], ...]
    end_s: tuple[NDArray[np.float64], ...]
    links: tuple[Link, ...]

    @cached_property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end of any task."""
        return max((float(end[-1]) for end in self.end_s if len(end)), default=0.0)

    @cached_property
    def span_s(self) -> float:
        """The longest time that any device is in use, from its first start to its last end.

        Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, where devices enter the
        next mini-batch one after the other.
        """
        spans: dict[int, list[float]] = {}
        for lane, start, end in zip(self.schedule.lanes, self.start_s, self.end_s, strict=True):
            if len(start):
                spans.setdefault(lane.device, []).extend((float(start[0]), float(end[-1])))
        return max((max(times) - min(times) for times in spans.values()), default=0.0)

    @cached_property
    def busy_s(self) -> tuple[float, ...]:
        """For each lane, the time in which it computes; blocking transfers do not count."""
        busy = []
        for lane, start, end in zip(self.schedule.lanes, self.start_s, self.end_s, strict=True):
            computes = lane.kinds <= DW
            busy.append(float((end[computes] - start[computes]).sum()))
        return tuple(busy)

    @cached_property
    def bubble_rate(self) -> float:
        """Share of `span_s` in which the average engine does not compute."""
        if self.span_s == 0:
            return 0.0
        return 1.0 - sum(self.busy_s) / len(self.busy_s) / self.span_s

    @cached_property
    def link_busy_s(self) -> tuple[float, ...]:
        """For each pair of sender and receiver, seconds in which they transfer."""
        if self.links:
            return tuple(link.busy_s for link in self.links)
        # Sends that block an engine are tasks of its lane.
        busy = []
        for lane, start, end in zip(self.schedule.lanes, self.start_s, self.end_s, strict=True):
            for kind in (TaskKind.SF, TaskKind.SB):
                sends = lane.kinds == kind
                if sends.any():
                    busy.append(float((end - start)[sends].sum()))
        return tuple(busy)

    def peak_microbatches(self) -> tuple[int, ...]:
        """For each device, the most micro-batches whose activations its stages keep at once.

        Activations are kept from the end of a forward pass to the end of the pass that uses them
        last. While they are computed, they are in working buffers.
        """
        ones = np.ones(self.schedule.num_stages)
        return tuple(round(peak) for peak in self.peak_activations(ones))

    def peak_activations(self, activation_bytes: NDArray[np.float64]) -> tuple[float, ...]:
        """For each device, the most bytes of activations kept at once.

        Parameters
        ----------
        activation_bytes : float array, shape (stages,)
            Bytes that each stage keeps of one micro-batch.
        """
        begins: dict[int, list[NDArray[np.float64]]] = {}
        releases: dict[int, list[NDArray[np.float64]]] = {}
        for lane, end in zip(self.schedule.lanes, self.end_s, strict=True):
            takes = lane.kinds == F
            # With a split backward pass, the weight gradient is the last to read the activations.
            last = (lane.kinds == B) | (lane.kinds == DW)
            for where, mask in ((begins, takes), (releases, last)):
                rows = np.stack([end[mask], activation_bytes[lane.stages[mask]]])
                where.setdefault(lane.device, []).append(rows)
        peaks = []
        for device in range(self.schedule.num_devices):
            peaks.append(_peak(begins.get(device, []), releases.get(device, []), self.makespan_s))
        return tuple(peaks)

    def tasks(self) -> list[tuple[int, Task, float, float]]:
        """``(lane, task, start, end)`` of every task, for drawing; slow for large schedules."""
        rows = []
        for i, lane in enumerate(self.schedule.lanes):
            times = zip(lane, self.start_s[i].tolist(), self.end_s[i].tolist(), strict=True)
            rows += [(i, task, start, end) for task, start, end in times]
        return rows


@dataclass(frozen=True)
class Link:
    """The transfers from one device to another, in order.

    Attributes
    ----------
    source, destination : int
        Sending and receiving device.
    kinds : int8 array
        ``SF`` for activations, ``SB`` for gradients.
    stages, microbatches : integer arrays
        Stage and micro-batch whose result is sent.
    start_s, end_s : float array
        Seconds at which the transfer starts and stops occupying the link.
    """

    source: int
    destination: int
    kinds: NDArray[np.int8]
    stages: NDArray[np.int32]
    microbatches: NDArray[np.int32]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]

    @property
    def busy_s(self) -> float:
        """Seconds in which the link transfers something."""
        return float((self.end_s - self.start_s).sum())


def simulate(
    schedule: Schedule,
    times: StageTimes,
    *,
    fifo_depth: int | None = None,
    waits: Sequence[tuple[Task, Task, float]] = (),
) -> Timeline:
    """Compute the times of all tasks and transfers of a schedule.

    Parameters
    ----------
    schedule : Schedule
    times : StageTimes
    fifo_depth : int, optional
        Number of results that may be under way between two devices, counted separately for
        activations and gradients. A transfer begins only when a place is free; a result frees its
        place when the task that uses it begins. There is no limit if it is not given.
    waits : sequence of (Task, Task, float), optional
        Additional dependences, at most one for each task: the first task begins no earlier than
        the given seconds after the end of the second one (before its end, if they are negative).

    Raises
    ------
    DeadlockError
        If tasks wait for one another in a cycle.
    ScheduleError
        If a task needs one that the schedule does not have, or the numbers of stages differ.
    """
    network = EventGraph(schedule, times, fifo_depth, waits=waits)
    start, end = network.follow()
    stops = np.cumsum([0] + [len(lane) for lane in schedule.lanes])
    links = []
    for link in network.links:
        at = slice(link.first, link.last)
        links.append(
            Link(
                link.source,
                link.destination,
                network.kinds[at],
                network.stages[at],
                network.microbatches[at],
                start[at],
                end[at],
            )
        )
    cuts = [slice(a, b) for a, b in itertools.pairwise(stops)]
    return Timeline(
        schedule, tuple(start[cut] for cut in cuts), tuple(end[cut] for cut in cuts), tuple(links)
    )


def _peak(
    begins: list[NDArray[np.float64]], releases: list[NDArray[np.float64]], makespan_s: float
) -> float:
    """Highest amount kept at any time, given rows of times and of amounts taken and released."""
    if not begins:
        return 0.0
    taken = np.concatenate(begins, axis=1)
    given = np.concatenate(releases, axis=1) if releases else np.zeros((2, 0))
    # Memory that is released at the same moment at which other memory is taken counts as free.
    # Rounding must not put the two events in the wrong order.
    given[0] -= 1e-12 * makespan_s
    times = np.concatenate([given[0], taken[0]])
    change = np.concatenate([-given[1], taken[1]])
    order = np.lexsort((np.arange(len(times)), times))
    return float(np.cumsum(change[order]).max(initial=0.0))
