"""One schedule timed again and again with other durations, and the path that decides each time.

The order of a schedule's tasks does not depend on how long they take. So the graph of dependences
is made once, and a simulation with other durations is only the loop over the tasks. The time of a
mini-batch is the longest path in that graph. The path that is longest for some durations is a lower
bound for all others: there it may not be the longest, but it still is a path.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.lowering.schedule.schedule import Schedule, TaskKind
from fpgapipe.partition.timeline.event_graph import (
    DeadlockError,
    EventGraph,
    StageTimes,
    compiled_loop,
    follow_tasks,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

COMPILED_FROM_STEPS = 100_000
"""Number of tasks in all simulations so far from which on it is worth loading the compiler."""

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, UPDATE, ACTIVATIONS, GRADIENTS = range(6)
"""Rows of a table of durations: the passes of a stage, and the transfers that it sends."""
NUM_ROWS = 6
_WHOLE, _ALL, _NONE = range(NUM_ROWS, NUM_ROWS + 3)


@dataclass(frozen=True)
class Path:
    """A chain of tasks and transfers, each of which waits for the one before.

    Attributes
    ----------
    counts : float array, shape (6, stages)
        How often the path contains each duration, in the rows `FORWARD` to `GRADIENTS`.
    lag_s : float
        Seconds of latency along the path.
    """

    counts: Floats
    lag_s: float

    def seconds(self, durations: Floats) -> float:
        """Length of the path for a table of durations."""
        return float((self.counts * durations).sum()) + self.lag_s


class Replay:
    """The simulation of one schedule for any durations.

    Parameters
    ----------
    schedule : Schedule
    latency_s : float
        Seconds from the end of a transfer to its arrival.

    Attributes
    ----------
    simulations : int
        Number of simulations so far.
    fixed_order : bool
        Whether the order of the tasks is the same for all durations.
    """

    fixed_order = True

    def __init__(self, schedule: Schedule, latency_s: float = 0.0) -> None:
        self.schedule = schedule
        self.stages = schedule.num_stages
        ones = StageTimes.uniform(self.stages, 1, 1, 1, latency_s=latency_s)
        graph = EventGraph(schedule, ones, None)
        self.graph = graph
        rows = np.full(max(TaskKind) + 1, _NONE, np.int64)
        rows[TaskKind.F] = FORWARD
        rows[TaskKind.B] = _WHOLE
        rows[TaskKind.DX] = INPUT_GRADIENT
        rows[TaskKind.DW] = WEIGHT_GRADIENT
        rows[TaskKind.U] = UPDATE
        rows[TaskKind.SF] = ACTIVATIONS
        rows[TaskKind.SB] = GRADIENTS
        if schedule.splits_engines:
            rows[TaskKind.F] = rows[TaskKind.B] = _ALL
        self.which = rows[graph.kinds] * self.stages + graph.stages
        stops = np.cumsum([0, *(len(lane) for lane in schedule.lanes)])
        self.first = np.array([*stops[:-1], *(link.first for link in graph.links)], np.int64)
        self.last = np.array([*stops[1:], *(link.last for link in graph.links)], np.int64)
        self.lane_ends = np.array(
            [stop - 1 for begin, stop in itertools.pairwise(stops) if stop > begin]
        )
        self.simulations = 0
        self._columns = (*graph.end_of, *graph.start_of, graph.lag, graph.maker_lag, graph.wait_lag)

    @cached_property
    def _lists(self) -> list[list[Any]]:
        """The columns for plain Python, which reads lists in less time than arrays."""
        return [each.tolist() for each in self._columns]

    def _task_seconds(self, durations: Floats) -> Floats:
        forward, input_gradient, weight_gradient = durations[:3]
        whole = input_gradient + weight_gradient
        rows = np.concatenate([durations, [whole, forward + whole, np.zeros(self.stages)]])
        seconds: Floats = rows.reshape(-1)[self.which]
        return seconds

    def minibatch_s(self, durations: Floats) -> float:
        """Seconds of a mini-batch; of an asynchronous schedule, in the steady state.

        Parameters
        ----------
        durations : float array, shape (6, stages)
            Seconds of each stage's passes and transfers, in the rows `FORWARD` to `GRADIENTS`.

        Raises
        ------
        DeadlockError
            If tasks wait for one another in a cycle.
        """
        return self._timed(durations)[0]

    def longest(self, durations: Floats) -> tuple[float, Path]:
        """Seconds of a mini-batch, and the path that takes them."""
        seconds, path = self._timed(durations)
        if path is None:
            path = self._critical()
        return seconds, path

    def _timed(self, durations: Floats) -> tuple[float, Path | None]:
        self.simulations += 1
        seconds = self._task_seconds(durations)
        if not self.schedule.synchronous:
            paths = self.lane_paths()
            lengths = [path.seconds(durations) for path in paths]
            longest = int(np.argmax(lengths))
            return lengths[longest], paths[longest]
        self._follow(seconds)
        ends = self._end[self.lane_ends]
        if (self._end < 0).any():
            raise DeadlockError(["tasks wait for one another in a cycle"])
        return float(ends.max(initial=0.0)), None

    def _follow(self, seconds: Floats) -> None:
        size, lanes = len(self.which), len(self.first)
        loop = None
        if self.simulations * size >= COMPILED_FROM_STEPS:
            loop = compiled_loop()
        if loop is None:
            start, end = [0.0] * size, [-1.0] * size
            waiting = [-1] * size, [-1] * lanes
            lanes_at = self.first.tolist(), list(range(lanes))
            lists = [*self._lists, seconds.tolist(), start, end, *waiting, *lanes_at]
            follow_tasks(self.first.tolist(), self.last.tolist(), *lists)  # type: ignore[no-untyped-call]
            self._start, self._end = np.array(start), np.array(end)
            return
        self._start, self._end = np.zeros(size), np.full(size, -1.0)
        waits = np.full(size, -1, np.int32), np.full(lanes, -1, np.int32)
        state = self.first.copy(), np.arange(lanes, dtype=np.int64)
        times = seconds, self._start, self._end
        loop(self.first, self.last, *self._columns, *times, *waits, *state)

    def _critical(self) -> Path:
        """The longest path of the last simulation, traced back from the task that ends last."""
        start, end = self._start, self._end
        counts = np.zeros((_NONE + 1) * self.stages)
        lag_s = 0.0
        firsts = set(self.first.tolist())
        task = int(self.lane_ends[int(np.argmax(end[self.lane_ends]))])
        graph = self.graph
        after_ends = [
            (graph.end_of[0], graph.lag),
            (graph.end_of[1], np.zeros_like(graph.lag)),
            (graph.end_of[2], graph.maker_lag),
        ]
        counts[self.which[task]] += 1
        while True:
            begin = start[task]
            if task not in firsts and end[task - 1] == begin:
                task -= 1
                counts[self.which[task]] += 1
                continue
            for column, lags in after_ends:
                other = int(column[task])
                if other >= 0 and end[other] + lags[task] == begin:
                    lag_s += float(lags[task])
                    task = other
                    counts[self.which[task]] += 1
                    break
            else:
                other = next(
                    (
                        int(column[task])
                        for column in graph.start_of
                        if column[task] >= 0 and start[column[task]] == begin
                    ),
                    -1,
                )
                if other < 0:  # begins with the mini-batch
                    break
                task = other
        return Path(self._folded(counts), lag_s)

    def lane_paths(self) -> list[Path]:
        """For each engine and each link, a path of all that it does.

        An engine does one task at a time, so no mini-batch takes less than its work.
        """
        paths = []
        for first, last in zip(self.first.tolist(), self.last.tolist(), strict=True):
            counts = np.bincount(self.which[first:last], minlength=(_NONE + 1) * self.stages)
            paths.append(Path(self._folded(counts.astype(np.float64)), 0.0))
        return paths

    def _folded(self, counts: Floats) -> Floats:
        table = counts.reshape(-1, self.stages)
        found = table[:NUM_ROWS].copy()
        found[INPUT_GRADIENT] += table[_WHOLE] + table[_ALL]
        found[WEIGHT_GRADIENT] += table[_WHOLE] + table[_ALL]
        found[FORWARD] += table[_ALL]
        return found
