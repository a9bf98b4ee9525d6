"""The graph of a schedule's tasks and transfers with their dependences, and the loop that times it.

A lane does its tasks in order. A task begins when its lane is free and everything that it needs is
ready. The schedule determines what each task needs, so the times are longest paths in a graph, and
no search is necessary. The loop that computes them (`follow_tasks`) is compiled by numba where
numba is installed, and runs as plain Python otherwise.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.lowering.schedule.schedule import Schedule, ScheduleError, Task, TaskKind

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

COMPILED_FROM_TASKS = 20_000
"""Number of tasks from which on it is worth loading the compiler."""

F, B, DX, DW, U = TaskKind.F, TaskKind.B, TaskKind.DX, TaskKind.DW, TaskKind.U


@dataclass(frozen=True)
class StageTimes:
    """Durations of each stage's tasks and transfers.

    Parameters
    ----------
    forward_s, input_gradient_s, weight_gradient_s : float array
        Seconds of each pass, shape (stages,), or (stages, micro-batches) where micro-batches
        differ. A whole backward pass takes the sum of both gradients. Where a device has two
        engines, they share its arithmetic, so each of them takes the sum of all three times.
    update_s : float array, shape (stages,)
        Seconds of the weight update.
    activations_s, gradients_s : float array, shape (stages,)
        Seconds of the transfer of one micro-batch's result to the next stage, and of its gradient
        to the stage before: bytes over the link's rate.
    latency_s : float
        Seconds from the end of a transfer to its arrival.
    activations_lag_s, gradients_lag_s : float array, optional
        Lag of results that stream out while they are computed: seconds from the end of the
        producer task to the earliest time at which the consumer task can start without ever having
        to wait for the producer. The shape is (stages,) or (stages, micro-batches), indexed by the
        producer's stage. A lag is negative where the consumer can begin with the first parts of a
        result. The default is `latency_s`.
    activations_start_lag_s, gradients_start_lag_s : float array, optional
        Seconds from the end of the producer task to the beginning of the transfer, negative where
        it begins before. By default, the transfer may begin with the producer.
    activations_end_lag_s, gradients_end_lag_s : float array, optional
        Seconds from the end of the transfer to the earliest time at which the consumer task can
        start. The default is `latency_s`.

    Raises
    ------
    ScheduleError
        If a time is negative or not finite, or the numbers of stages differ.
    """

    forward_s: NDArray[np.float64]
    input_gradient_s: NDArray[np.float64]
    weight_gradient_s: NDArray[np.float64]
    update_s: NDArray[np.float64]
    activations_s: NDArray[np.float64]
    gradients_s: NDArray[np.float64]
    latency_s: float = 0.0
    activations_lag_s: NDArray[np.float64] | None = None
    gradients_lag_s: NDArray[np.float64] | None = None
    activations_start_lag_s: NDArray[np.float64] | None = None
    gradients_start_lag_s: NDArray[np.float64] | None = None
    activations_end_lag_s: NDArray[np.float64] | None = None
    gradients_end_lag_s: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        stages = len(self.forward_s)
        for name in self.__dataclass_fields__:
            if getattr(self, name) is None:
                continue
            value = np.asarray(getattr(self, name), np.float64)
            if name.endswith("lag_s"):
                if not np.isfinite(value).all():
                    raise ScheduleError(f"{name} must be finite")
            elif not np.isfinite(value).all() or (value < 0).any():
                raise ScheduleError(f"{name} must be finite and at least 0 s")
            if name != "latency_s" and len(value) != stages:
                raise ScheduleError(f"{name} has {len(value)} stages, forward_s has {stages}")
        # A whole number would make tables of whole numbers, which drop fractions.
        object.__setattr__(self, "latency_s", float(self.latency_s))

    def changed(self, change: Callable[[Any], Any]) -> StageTimes:
        """Times with a function applied to every array; the latency is an array without axes."""
        found = {
            name: change(np.asarray(value))
            for name in self.__dataclass_fields__
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **found)

    @classmethod
    def uniform(
        cls,
        num_stages: int,
        forward_s: ArrayLike,
        input_gradient_s: ArrayLike,
        weight_gradient_s: ArrayLike,
        *,
        transfer_s: ArrayLike = 0.0,
        update_s: ArrayLike = 0.0,
        latency_s: float = 0.0,
    ) -> StageTimes:
        """Times that are equal for all stages, or given as arrays with one time per stage."""

        def spread(value: ArrayLike) -> NDArray[np.float64]:
            return np.broadcast_to(np.asarray(value, np.float64), num_stages).copy()

        return cls(
            spread(forward_s),
            spread(input_gradient_s),
            spread(weight_gradient_s),
            spread(update_s),
            spread(transfer_s),
            spread(transfer_s),
            latency_s,
        )


class DeadlockError(ScheduleError):
    """Tasks wait for one another in a cycle.

    Parameters
    ----------
    cycle : list of str
        The cycle in words, one string for each task that waits for another.
    """

    def __init__(self, cycle: list[str]) -> None:
        self.cycle = cycle
        super().__init__("the schedule deadlocks: " + "; ".join(cycle))


@dataclass
class LinkLane:
    """The transfers from one device to another: those numbered ``first..last - 1``."""

    source: int
    destination: int
    first: int
    last: int


@dataclass
class EventGraph:
    """Tasks and transfers of a schedule, numbered consecutively, and their dependences.

    Column ``i`` of ``end_of`` has up to four tasks or transfers whose end task ``i`` waits for; -1
    means none. Its rows are: the transfer or local task that delivers the result that the task
    needs, with `lag` added for a transfer; the earlier task on the same stage, without a lag; the
    producer of a result that streams in over a link, with `maker_lag` added; and a dependence
    from `waits`, with `wait_lag` added. ``start_of`` has up to two tasks whose start task ``i``
    waits for.
    """

    schedule: Schedule
    times: StageTimes
    fifo_depth: int | None
    waits: Sequence[tuple[Task, Task, float]] = ()
    links: list[LinkLane] = field(default_factory=list)

    def __post_init__(self) -> None:
        schedule = self.schedule
        if len(self.times.forward_s) != schedule.num_stages:
            raise ScheduleError(
                f"{schedule.kind} has {schedule.num_stages} stages, the times have "
                f"{len(self.times.forward_s)}"
            )
        if self.fifo_depth is not None and self.fifo_depth < 1:
            raise ScheduleError(f"a link holds at least 1 result, not {self.fifo_depth}")
        lanes = schedule.lanes
        self.num_tasks = schedule.num_tasks
        self.kinds = _joined([lane.kinds for lane in lanes], np.int8)
        self.stages = _joined([lane.stages for lane in lanes], np.int32)
        self.microbatches = _joined([lane.microbatches for lane in lanes], np.int32)
        self.before, self.after = schedule.neighbours()
        self.device = np.array(schedule.placement, np.int32)
        self._check_ranges()
        shape = (schedule.num_stages, schedule.num_microbatches)
        self.forward = self._numbers(shape, F)
        self.backward = np.maximum(self._numbers(shape, B), self._numbers(shape, DX))
        self.blocking = schedule.transfer == "block"
        if not self.blocking:
            self._add_transfers()
        size = len(self.kinds)
        self.end_of = np.full((4, size), -1, np.int32)
        self.start_of = np.full((2, size), -1, np.int32)
        self.lag = np.zeros(size)
        self.maker_lag = np.zeros(size)
        self.wait_lag = np.zeros(size)
        self._connect(shape)
        if self.waits:
            self._add_waits()
        if self.fifo_depth is not None:
            self._limit_fifos()

    def _check_ranges(self) -> None:
        schedule = self.schedule
        numbered = self.kinds != U
        bad = (self.stages < 0) | (self.stages >= schedule.num_stages)
        bad |= numbered & (self.microbatches < 0)
        bad |= self.microbatches >= schedule.num_microbatches
        if bad.any():
            i = int(np.argmax(bad))
            raise ScheduleError(f"{self.name(i)} names a stage or micro-batch that there is not")

    def _numbers(self, shape: tuple[int, int], kind: int) -> NDArray[np.int32]:
        """Numbers of a kind's tasks by stage and micro-batch; -1 where there is none."""
        table = np.full(shape, -1, np.int32)
        found = np.flatnonzero(self.kinds[: self.num_tasks] == kind).astype(np.int32)
        table[self.stages[found], self.microbatches[found]] = found
        return table

    def _across(self, neighbour: NDArray[np.int32], tasks: NDArray[np.intp]) -> NDArray[np.int32]:
        """The stage before or after that of each task, on the route of its micro-batch."""
        found: NDArray[np.int32] = neighbour[
            self.schedule.route_of[self.microbatches[tasks]], self.stages[tasks]
        ]
        return found

    def _add_transfers(self) -> None:
        """Number the transfers after the tasks, with a lane for each pair of devices."""
        producers, destinations, payloads = [], [], []
        for kinds, neighbour, payload in (
            ((F,), self.after, TaskKind.SF),
            ((B, DX), self.before, TaskKind.SB),
        ):
            task = np.flatnonzero(np.isin(self.kinds, kinds))
            target = self._across(neighbour, task)
            task, target = task[target >= 0], target[target >= 0]
            sends = self.device[self.stages[task]] != self.device[target]
            producers.append(task[sends])
            destinations.append(self.device[target[sends]])
            payloads.append(np.full(int(sends.sum()), payload, np.int8))
        producer, destination, sent = map(np.concatenate, (producers, destinations, payloads))
        pair = self.device[self.stages[producer]].astype(np.int64) * 2**31 + destination
        order = np.lexsort((producer, pair))
        producer, destination, sent, pair = (
            each[order] for each in (producer, destination, sent, pair)
        )
        self.producer = producer.astype(np.int32)
        edges = np.flatnonzero(np.diff(pair)) + 1
        for first, last in zip([0, *edges], [*edges, len(pair)], strict=True):
            if last > first:
                source = int(self.device[self.stages[producer[first]]])
                at = self.num_tasks
                link = LinkLane(source, int(destination[first]), at + int(first), at + int(last))
                self.links.append(link)
        self.kinds = np.concatenate([self.kinds, sent])
        self.stages = np.concatenate([self.stages, self.stages[producer]])
        self.microbatches = np.concatenate([self.microbatches, self.microbatches[producer]])

    def _connect(self, shape: tuple[int, int]) -> None:
        n = self.num_tasks
        kinds, stages, numbers = self.kinds[:n], self.stages[:n], self.microbatches[:n]
        sent = {kind: np.full(shape, -1, np.int32) for kind in (TaskKind.SF, TaskKind.SB)}
        for kind, table in sent.items():
            found = np.flatnonzero(self.kinds == kind).astype(np.int32)
            table[self.stages[found], self.microbatches[found]] = found

        needs_activations = kinds == (TaskKind.RF if self.blocking else F)
        needs_gradient = (kinds == TaskKind.RB) if self.blocking else (kinds == B) | (kinds == DX)
        times = self.times

        def spread(values: NDArray[np.float64] | None) -> NDArray[np.float64]:
            """Times by stage and micro-batch, the latency by default."""
            found = np.full(shape, times.latency_s)
            if values is not None:
                found[:] = values if values.ndim == 2 else values[:, None]
            return found

        for mask, neighbour, table, local, streams, behind in (
            (
                needs_activations,
                self.before,
                sent[TaskKind.SF],
                self.forward,
                times.activations_lag_s,
                times.activations_end_lag_s,
            ),
            (
                needs_gradient,
                self.after,
                sent[TaskKind.SB],
                self.backward,
                times.gradients_lag_s,
                times.gradients_end_lag_s,
            ),
        ):
            task = np.flatnonzero(mask)
            other = self._across(neighbour, task)
            task, other = task[other >= 0], other[other >= 0]
            remote = self.device[other] != self.device[stages[task]]
            for here, source in ((remote, table), (~remote, local)):
                self.end_of[0, task[here]] = source[other[here], numbers[task[here]]]
                self._require(task[here], self.end_of[0])
            self.lag[task[remote]] = spread(behind)[other[remote], numbers[task[remote]]]
            if self.schedule.transfer == "stream":
                # A result that streams out is complete when both the link and its producer are
                # done.
                makers = local[other[remote], numbers[task[remote]]]
                self.end_of[2, task[remote]] = makers
                lags = spread(streams)
                self.maker_lag[task[remote]] = lags[other[remote], numbers[task[remote]]]

        backward = np.flatnonzero((kinds == B) | (kinds == DX))
        self.end_of[1, backward] = self.forward[stages[backward], numbers[backward]]
        self._require(backward, self.end_of[1])
        weight = np.flatnonzero(kinds == DW)
        self.end_of[1, weight] = self.backward[stages[weight], numbers[weight]]
        self._require(weight, self.end_of[1])
        if self.schedule.in_flight_limit:
            self._limit_in_flight(shape)
        if not self.blocking:
            waits = self.start_of if self.schedule.transfer == "stream" else self.end_of
            waits[0, n:] = self.producer
        for kind, starts in (
            (TaskKind.SF, times.activations_start_lag_s),
            (TaskKind.SB, times.gradients_start_lag_s),
        ):
            if starts is not None and self.schedule.transfer == "stream":
                (transfer,) = np.nonzero(self.kinds == kind)
                self.end_of[2, transfer] = self.producer[transfer - n]
                self.maker_lag[transfer] = spread(starts)[
                    self.stages[transfer], self.microbatches[transfer]
                ]

    def _limit_in_flight(self, shape: tuple[int, int]) -> None:
        """Let a forward pass wait until the activations that occupied its place are released."""
        release = np.maximum(self._numbers(shape, B), self._numbers(shape, DW))
        limit = np.array(self.schedule.in_flight_limit, np.int32)
        task = np.flatnonzero(self.kinds[: self.num_tasks] == F)
        earlier = self.microbatches[task] - limit[self.stages[task]]
        task, earlier = task[earlier >= 0], earlier[earlier >= 0]
        self.end_of[1, task] = release[self.stages[task], earlier]

    def _add_waits(self) -> None:
        """Add the dependences that the schedule itself does not contain."""
        tasks = chain.from_iterable(self.schedule.lanes)
        numbers = {task: number for number, task in enumerate(tasks)}
        for task, other, lag_s in self.waits:
            self.end_of[3, numbers[task]] = numbers[other]
            self.wait_lag[numbers[task]] = lag_s

    def _limit_fifos(self) -> None:
        """Let a transfer wait until the result `fifo_depth` transfers earlier is being consumed."""
        assert self.fifo_depth is not None
        shape = self.forward.shape
        consumers = (TaskKind.RF, TaskKind.RB) if self.blocking else None
        for kind, neighbour, table in (
            (
                TaskKind.SF,
                self.after,
                self._numbers(shape, consumers[0]) if consumers else self.forward,
            ),
            (
                TaskKind.SB,
                self.before,
                self._numbers(shape, consumers[1]) if consumers else self.backward,
            ),
        ):
            sends = np.flatnonzero(self.kinds == kind)
            target = self._across(neighbour, sends)
            channel = self.device[self.stages[sends]].astype(np.int64) * 2**31 + self.device[target]
            order = np.argsort(channel, kind="stable")
            sends, target, channel = sends[order], target[order], channel[order]
            users = table[target, self.microbatches[sends]]
            depth = self.fifo_depth
            same = channel[depth:] == channel[:-depth]
            self.start_of[1, sends[depth:][same]] = users[:-depth][same]

    def _require(self, tasks: NDArray[np.intp], column: NDArray[np.int32]) -> None:
        """Refuse a schedule that lacks a task on which one of `tasks` depends."""
        lacking = tasks[column[tasks] < 0]
        if len(lacking):
            raise ScheduleError(
                f"{self.name(int(lacking[0]))} needs a task that the schedule does not have"
            )

    def durations(self) -> NDArray[np.float64]:
        """Seconds that each task and transfer takes."""
        times = self.times
        whole = times.input_gradient_s + times.weight_gradient_s
        by_kind = {
            F: times.forward_s,
            B: whole,
            DX: times.input_gradient_s,
            DW: times.weight_gradient_s,
            U: times.update_s,
            TaskKind.SF: times.activations_s,
            TaskKind.SB: times.gradients_s,
        }
        if self.schedule.splits_engines:
            by_kind[F] = by_kind[B] = times.forward_s + whole
        duration = np.zeros(len(self.kinds))
        for kind, table in by_kind.items():
            at = np.flatnonzero(self.kinds == kind)
            if table.ndim == 1:
                duration[at] = table[self.stages[at]]
            else:
                duration[at] = table[self.stages[at], self.microbatches[at]]
        return duration

    def follow(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Start and end of every task and transfer, in seconds.

        Raises
        ------
        DeadlockError
            If tasks wait for one another in a cycle.
        """
        sizes = [len(lane) for lane in self.schedule.lanes]
        stops = np.cumsum([0, *sizes]).tolist()
        first = stops[:-1] + [link.first for link in self.links]
        last = stops[1:] + [link.last for link in self.links]
        size = len(self.kinds)
        lags = (self.lag, self.maker_lag, self.wait_lag)
        columns = (*self.end_of, *self.start_of, *lags, self.durations())
        start, end = np.zeros(size), np.full(size, -1.0)
        waiting = (np.full(size, -1, np.int32), np.full(len(first), -1, np.int32))
        state = (np.array(first, np.int64), np.arange(len(first), dtype=np.int64))
        loop = compiled_loop() if size >= COMPILED_FROM_TASKS else None
        if loop is not None:
            arrays = (np.array(first, np.int64), np.array(last, np.int64))
            loop(*arrays, *columns, start, end, *waiting, *state)
        else:
            lists = [each.tolist() for each in (*columns, start, end, *waiting, *state)]
            follow_tasks(first, last, *lists)  # type: ignore[no-untyped-call]
            start, end = np.array(lists[10]), np.array(lists[11])
            state = (np.array(lists[14]), state[1])
        if (end < 0).any():
            raise DeadlockError(self._cycle(state[0], np.array(last), end))
        return start, end

    def _cycle(
        self, pointer: NDArray[np.int64], last: NDArray[np.int64], end: NDArray[np.float64]
    ) -> list[str]:
        """A cycle of waiting tasks in words; it begins and ends with the same task."""
        lane_of = np.full(len(self.kinds), -1)
        bounds = np.cumsum([0] + [len(lane) for lane in self.schedule.lanes]).tolist()
        firsts = bounds[:-1] + [link.first for link in self.links]
        for lane, (a, b) in enumerate(zip(firsts, last.tolist(), strict=True)):
            lane_of[a:b] = lane
        task = int(next(p for p, stop in zip(pointer, last, strict=True) if p < stop))
        seen: dict[int, int] = {}
        steps: list[tuple[int, int]] = []
        while task not in seen:
            seen[task] = len(steps)
            wanted = [int(c[task]) for c in (*self.end_of, *self.start_of)]
            blocker = next(w for w in wanted if w >= 0 and end[w] < 0)
            steps.append((task, blocker))
            task = int(pointer[lane_of[blocker]])  # the task at which the blocker's lane stands
        words = []
        for waiter, blocker in steps[seen[task] :]:
            at = int(pointer[lane_of[blocker]])
            behind = "" if at == blocker else f", which comes after {self.name(at)}"
            words.append(f"{self.name(waiter)} waits for {self.name(blocker)}{behind}")
        return words

    def name(self, number: int) -> str:
        """A task or transfer in words."""
        kind = TaskKind(int(self.kinds[number]))
        stage = int(self.stages[number])
        task = Task(kind, stage, int(self.microbatches[number]))
        place = self.schedule.placement[stage] if stage < self.schedule.num_stages else "?"
        return f"{task} on device {place}"


def _joined(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)


def follow_tasks(  # type: ignore[no-untyped-def]
    first,
    last,
    end_of_0,
    end_of_1,
    end_of_2,
    end_of_3,
    start_of_0,
    start_of_1,
    lag,
    maker_lag,
    wait_lag,
    duration,
    start,
    end,
    waiters,
    next_waiter,
    pointer,
    stack,
):
    """Run every lane as far as it gets; a waiting lane is woken by the task that it waits for.

    The loop works on arrays and on lists alike. It visits each task once, and once more for each
    time that the task's lane is woken. Waiting lanes are kept in linked lists (`waiters`,
    `next_waiter`).
    """
    top = len(first)
    while top > 0:
        top -= 1
        lane = stack[top]
        i = pointer[lane]
        free = end[i - 1] if i > first[lane] else 0.0
        stop = last[lane]
        blocker = -1
        while i < stop:
            begin = free
            blocker = end_of_0[i]
            if blocker >= 0:
                if end[blocker] < 0:
                    break
                begin = max(begin, end[blocker] + lag[i])
            blocker = end_of_1[i]
            if blocker >= 0:
                if end[blocker] < 0:
                    break
                begin = max(begin, end[blocker])
            blocker = end_of_2[i]
            if blocker >= 0:
                if end[blocker] < 0:
                    break
                begin = max(begin, end[blocker] + maker_lag[i])
            blocker = end_of_3[i]
            if blocker >= 0:
                if end[blocker] < 0:
                    break
                begin = max(begin, end[blocker] + wait_lag[i])
            blocker = start_of_0[i]
            if blocker >= 0:
                if end[blocker] < 0:
                    break
                begin = max(begin, start[blocker])
            blocker = start_of_1[i]
            if blocker >= 0:
                if end[blocker] < 0:
                    break
                begin = max(begin, start[blocker])
            blocker = -1
            start[i] = begin
            free = begin + duration[i]
            end[i] = free
            woken = waiters[i]
            while woken >= 0:
                stack[top] = woken
                top += 1
                woken = next_waiter[woken]
            i += 1
        pointer[lane] = i
        if i < stop:
            next_waiter[lane] = waiters[blocker]
            waiters[blocker] = lane


@cache
def compiled_loop() -> Callable[..., None] | None:
    """The loop as machine code; None if numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    from fpgapipe.machine_code import compiled

    return compiled(follow_tasks)
