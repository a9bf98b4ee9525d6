"""zb-auto: the best order found for split backward passes under a limit on kept activations.

Source of the idea: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024. The search here is a
different one: orders made by rules and by a greedy algorithm are compared in the event simulation.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator

import numpy as np

from fpgapipe.lowering.schedule.schedule import Lane, Schedule, ScheduleError, TaskKind
from fpgapipe.partition.schedule.schedule_kind import ScheduleKind
from fpgapipe.partition.schedule.schedule_kinds import check_passes
from fpgapipe.partition.schedule.split_backward import h1_model, split_chain, zb_h1
from fpgapipe.partition.timeline.timeline import StageTimes, Timeline, simulate

MAX_GREEDY_TASKS = 60_000
"""Most tasks for which the greedy algorithm runs. For larger schedules only orders made by rules
are compared."""

F, DX, DW, U = TaskKind.F, TaskKind.DX, TaskKind.DW, TaskKind.U


def zb_auto(
    num_devices: int, num_microbatches: int, times: StageTimes, *, memory_limit: int | None = None
) -> Schedule:
    """Find an order of forward passes, input gradients and weight gradients.

    Parameters
    ----------
    num_devices, num_microbatches : int
    times : StageTimes
        Times of the stages on these devices.
    memory_limit : int, optional
        Number of micro-batches whose activations each device has room for. The default is that of
        1F1B, `num_devices`.

    Returns
    -------
    Schedule
        The best order found. Where the limit admits zb-h1, neither its span nor its makespan is
        longer than that of zb-h1.

    Raises
    ------
    ScheduleError
        If the limit is below 1, or there are too many micro-batches.
    """
    p, m = num_devices, num_microbatches
    limit = p if memory_limit is None else memory_limit
    check_passes("zb-auto", p, m)
    if limit < 1:
        raise ScheduleError(f"zb-auto needs room for at least 1 micro-batch, not {limit}")
    best: tuple[tuple[float, float], Schedule] | None = None
    bound: Timeline | None = None
    if limit >= p:
        bound = simulate(zb_h1(p, m), times)
        best = ((bound.span_s, bound.makespan_s), zb_h1(p, m))
    for schedule in _candidates(p, m, times, limit):
        timeline = simulate(schedule, times)
        score = (timeline.span_s, timeline.makespan_s)
        if bound is not None and score[1] > bound.makespan_s * (1 + 1e-12):
            continue
        if best is None or score < best[0]:
            best = (score, schedule)
    assert best is not None
    return dataclasses.replace(best[1], kind="zb-auto")


def _candidates(p: int, m: int, times: StageTimes, limit: int) -> Iterator[Schedule]:
    """Orders that keep the limit on activations."""
    seen = set()
    for extra in sorted({0, 1, 2, 3, p // 2, p - 1, 2 * p}):
        warm_up = tuple(min(2 * (p - i) - 1, p - i + extra, limit) for i in range(p))
        # The forward passes are ahead of dX by at most the warm-up, and dX is ahead of dW by at
        # most what is left of the limit.
        owed = tuple(min(limit - warm, 2 * i) for i, warm in enumerate(warm_up))
        if (warm_up, owed) not in seen:
            seen.add((warm_up, owed))
            yield split_chain("zb-auto", m, warm_up, owed)
    if 3 * p * m <= MAX_GREEDY_TASKS:
        for patience in (0.0, 0.5, 1.0):
            for eager in (False, True):
                yield _greedy(p, m, times, limit, patience, eager)


def _greedy(
    p: int, m: int, times: StageTimes, limit: int, patience: float, eager: bool
) -> Schedule:
    """Let each free device do the most urgent task that is ready.

    Input gradients come first, since other devices wait for them; then forward passes while there
    is room for their activations; then weight gradients. A device that has only weight gradients
    to do begins one unless another task becomes ready within `patience` times that one's duration.
    `eager` devices prefer forward passes until the pipeline is full.
    """
    state = _Greedy(p, m, times, limit, patience, eager)
    return state.run()


class _Greedy:
    def __init__(
        self, p: int, m: int, times: StageTimes, limit: int, patience: float, eager: bool
    ) -> None:
        self.p, self.m, self.limit = p, m, limit
        self.patience, self.eager = patience, eager
        self.duration = {
            F: _table(times.forward_s, m),
            DX: _table(times.input_gradient_s, m),
            DW: _table(times.weight_gradient_s, m),
        }
        hop = times.latency_s
        self.to_next = [each + hop for each in times.activations_s.tolist()]
        self.to_previous = [each + hop for each in times.gradients_s.tolist()]
        self.done = {kind: [0] * p for kind in (F, DX, DW)}
        self.free = [0.0] * p
        infinity = float("inf")
        self.activations = [[0.0] * m] + [[infinity] * m for _ in range(p - 1)]
        self.gradient = [[infinity] * m for _ in range(p)]
        self.orders: list[list[tuple[int, int, int]]] = [[] for _ in range(p)]

    def run(self) -> Schedule:
        """Take the decisions of all devices in the order of time."""
        queue = [(0.0, device) for device in range(self.p)]
        left = 3 * self.p * self.m
        asleep = [False] * self.p
        while left:
            now, device = heapq.heappop(queue)
            asleep[device] = False
            choice = self._choose(device, now)
            if choice is None:
                asleep[device] = True  # until a neighbour's task wakes it
                continue
            kind, begin = choice
            if kind < 0:
                heapq.heappush(queue, (begin, device))
                continue
            end = self._do(device, kind, begin)
            left -= 1
            heapq.heappush(queue, (end, device))
            for other in (device - 1, device + 1):
                if 0 <= other < self.p and asleep[other]:
                    asleep[other] = False
                    heapq.heappush(queue, (max(now, self.free[other]), other))
        for device, order in enumerate(self.orders):
            order.append((int(U), device, -1))
        route = tuple(range(self.p))
        lanes = tuple(Lane.of(i, "compute", order) for i, order in enumerate(self.orders))
        return Schedule(
            "zb-auto", self.m, route, (route,), np.zeros(self.m, np.int32), lanes, "after"
        )

    def _choose(self, device: int, now: float) -> tuple[int, float] | None:
        """The kind of the next task and its start.

        The result (-1, t) means that the device must decide again at time t, None that it does not
        know yet of anything to wait for.
        """
        forwards, backwards, weights = (self.done[kind][device] for kind in (F, DX, DW))
        infinity = float("inf")
        room = forwards - weights < self.limit
        at_f = self.activations[device][forwards] if forwards < self.m and room else infinity
        at_b = self.gradient[device][backwards] if backwards < forwards else infinity
        full = forwards - backwards >= self.p - device
        first, second = ((DX, at_b), (F, at_f))
        if self.eager and not full:
            first, second = second, first
        for kind, at in (first, second):
            if at <= now:
                return int(kind), now
        soonest = min(at_f, at_b)
        if weights < backwards:
            wait = self.patience * self.duration[DW][device][weights]
            if soonest > now + wait:
                return int(DW), now
        return None if soonest == infinity else (-1, soonest)

    def _do(self, device: int, kind: int, begin: float) -> float:
        number = self.done[TaskKind(kind)][device]
        end = begin + self.duration[TaskKind(kind)][device][number]
        self.done[TaskKind(kind)][device] += 1
        self.free[device] = end
        self.orders[device].append((kind, device, number))
        if kind == F:
            if device + 1 < self.p:
                self.activations[device + 1][number] = end + self.to_next[device]
            else:
                self.gradient[device][number] = end
        elif kind == DX and device:
            self.gradient[device - 1][number] = end + self.to_previous[device]
        return end


def _table(durations: object, m: int) -> list[list[float]]:
    array = np.asarray(durations, np.float64)
    if array.ndim == 1:
        array = np.broadcast_to(array[:, None], (len(array), m))
    table: list[list[float]] = array.tolist()
    return table


def _made_for(
    num_devices: int, num_microbatches: int, times: StageTimes, memory_limit: int | None
) -> Schedule:
    return zb_auto(num_devices, num_microbatches, times, memory_limit=memory_limit)


ZB_AUTO = ScheduleKind("zb-auto", zb_h1, h1_model, make_for=_made_for)
"""The kind, whose order is that of zb-h1 where times are not known."""
