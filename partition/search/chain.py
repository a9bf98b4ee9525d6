"""Exact partition of a chain, or of any network along one order of its layers.

One of four algorithms decides whether a given period can be reached:

* Equal devices and links, no memory limit: every stage takes as many layers as it can. If a stage
  begins later, it never ends earlier, so no other choice gets further with as many stages.
* Equal devices and links, memory limits, transfers that do not block: the same, but from the last
  stage backwards, because the activations that a stage keeps depend on the number of stages behind
  it.
* Devices in free order, equal links, no memory limit: the furthest end for every set of devices. A
  set is described by the number of devices of each class.
* All other cases: the set of reachable cuts after each stage (`fpgapipe.partition.search.search`).
"""

from __future__ import annotations

import numpy as np

from fpgapipe.partition.search.cuts import Ints, Row, Slot
from fpgapipe.partition.search.limits import explain
from fpgapipe.partition.search.problem import (
    Objective,
    Partition,
    PartitionProblem,
    StageAssignment,
    Transfer,
)
from fpgapipe.partition.search.search import (
    MAX_CELLS,
    MAX_WORK,
    Bounds,
    End,
    Ends,
    Evaluate,
    Search,
    assignments,
    least_minibatch,
    least_period,
    measure,
    partition,
)


def plan_chain(
    problem: PartitionProblem,
    objective: Objective = Objective.BOTTLENECK,
    *,
    order: Ints | None = None,
    evaluate: Evaluate | None = None,
    max_work: float = MAX_WORK,
) -> Partition:
    """The best partition of a network along one order of its layers.

    Parameters
    ----------
    problem : PartitionProblem
    objective : Objective
        Time to minimise.
    order : array of int, optional
        A topological order of the layers; the default is the order in the problem. Unless the
        network is a chain, the answer is the best for this order only.
    evaluate : callable, optional
        Function that returns the mini-batch time of stages. If it is given, the best few partitions
        for the mini-batch objective are ranked again by it.
    max_work : float
        Number of table cells after which the search for the mini-batch time stops and gives a
        bound.

    Raises
    ------
    PlanError
        If no partition keeps the limits.
    """
    row = Row(problem, order)
    search = Search(row)
    reach = Reach(search)
    bounds = reach.smallest()
    if bounds is None:
        raise explain(problem, lambda p: fit_chain(p, order))
    reason = reach.reason
    if objective is Objective.MINIBATCH:
        if search.free:
            bounds = _with_fewer_classes(search, bounds)
        bounds = least_minibatch(search, bounds, max_work)
        reason = "least sum of stage times for every period that could be better"
    if not problem.is_chain:
        bounds = Bounds(bounds.ends, bounds.value_s, 0.0, bounds.candidates)
        reason = f"other orders of the layers were not tried; for this one, {reason}"
    return partition(row, bounds, objective, reason, evaluate)


def _with_fewer_classes(search: Search, bounds: Bounds) -> Bounds:
    """Stages on only the faster classes of devices, where their mini-batch time is shorter.

    They are a start for the search that follows, and the final result where the tables of that
    search would be too large.
    """
    assert isinstance(search.cuts, Row)
    problem = search.problem
    best = bounds
    seconds = problem.device_compute_s.sum(axis=0)
    classes = sorted(problem.device_classes, key=lambda group: float(seconds[group[0]]))
    for count in range(1, len(classes)):
        devices = np.array([device for group in classes[:count] for device in group])
        row = Row(problem.with_devices(devices), search.cuts.order)
        found = Reach(Search(row)).smallest()
        if found is None:
            continue
        ends = [End(int(devices[end.device]), end.cut) for end in found.ends]
        if measure(search.cuts, ends)[1] < measure(search.cuts, best.ends)[1]:
            best = Bounds(ends, measure(search.cuts, ends)[0], bounds.bound_s)
    return best


def fit_chain(
    problem: PartitionProblem, order: Ints | None = None
) -> tuple[StageAssignment, ...] | None:
    """Any stages that keep within the limits; None if there are none."""
    row = Row(problem, order)
    ends = Reach(Search(row)).solve(np.inf)
    return None if ends is None else assignments(row, ends)


class Reach:
    """Finds stages whose period is at most a given one, by the quickest exact algorithm."""

    def __init__(self, search: Search) -> None:
        assert isinstance(search.cuts, Row)
        self.search = search
        self.row = search.cuts
        self.problem = search.problem
        equal = len(self.problem.device_classes) == 1 and self.problem.has_equal_links
        limited = self.problem.has_memory_limit
        if equal and not limited:
            self.solve, self.reason = self._forward, "every stage reaches as far as it can"
        elif equal and self.problem.schedule.transfer is not Transfer.BLOCK:
            self.solve = self._backward
            self.reason = "every stage reaches as far back as compute and memory let it"
        elif search.free and not limited:
            self.solve, self.reason = self._by_counts, "furthest reach of every set of devices"
        elif search.states() * self.row.size > MAX_CELLS:
            raise ValueError(
                f"{self.problem.num_devices} devices in free order with memory limits are "
                f"{search.states():,.0f} sets of devices, too many for {self.row.size - 1} layers; "
                "give their order"
            )
        else:
            self.solve = lambda cap_s: search.best(cap_s, cheapest=False)
            self.reason = "all cuts that can be reached after each stage"

    def smallest(self) -> Bounds | None:
        """Stages with the smallest period; None if no stages are allowed at all."""
        return least_period(self.search, self.solve)

    def _furthest(self, device: int, cap_s: float) -> Ints:
        """For each cut at which a stage may begin, the last cut at which it may end."""
        first = self.row.window(Slot(device, 0, 0), cap_s)
        least = np.minimum.accumulate(first[::-1])[::-1]
        last = np.searchsorted(least, self.row.positions, side="right") - 1
        return np.maximum(last, self.row.positions)

    def _forward(self, cap_s: float) -> Ends | None:
        furthest = self._furthest(0, cap_s).tolist()
        goal, end = self.row.size - 1, 0
        ends: Ends = []
        while end < goal and len(ends) < self.problem.num_devices:
            start, end = end, furthest[end]
            if end == start:
                return None
            ends.append(End(len(ends), end))
        return ends if end == goal else None

    def _backward(self, cap_s: float) -> Ends | None:
        row, memory = self.row, float(self.problem.memory_bytes[0])
        slot = Slot(0, 0, 0)
        before = row.seconds[row.kind(slot)]
        first = np.searchsorted(before, before - cap_s)
        allowed = np.where(row.is_open(slot, cap_s), row.positions, row.size)
        following = np.minimum.accumulate(allowed[::-1])[::-1]
        starts = [row.size - 1]
        while starts[-1] > 0 and len(starts) <= self.problem.num_devices:
            end = starts[-1]
            kept = row.memory_before(len(starts) - 1)
            by_memory = int(np.searchsorted(kept, kept[end] - memory))
            start = int(following[max(int(first[end]), by_memory)])
            if start >= end:
                return None
            starts.append(start)
        if starts[-1] > 0:
            return None
        return [End(stage, cut) for stage, cut in enumerate(starts[-2::-1])]

    def _by_counts(self, cap_s: float) -> Ends | None:
        """Stages found from the furthest cut for every number of devices of each class."""
        classes = self.problem.device_classes
        furthest = [self._furthest(group[0], cap_s) for group in classes]
        shape = [len(group) + 1 for group in classes]
        counts = np.indices(shape).reshape(len(shape), -1)
        strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        order = np.argsort(counts.sum(axis=0), kind="stable")
        levels = np.split(order, np.cumsum(np.bincount(counts.sum(axis=0)))[:-1])
        ends = np.zeros(counts.shape[1], np.int64)
        goal = self.row.size - 1
        for level in levels[1:]:
            for i, stride in enumerate(strides):
                here = level[counts[i, level] > 0]
                ends[here] = np.maximum(ends[here], furthest[i][ends[here - stride]])
            if (ends[level] == goal).any():
                break
        found = np.flatnonzero(ends == goal)
        if not len(found):
            return None
        return self._trace_counts(int(found[0]), ends, furthest, counts, strides)

    def _trace_counts(
        self, state: int, ends: Ints, furthest: list[Ints], counts: Ints, strides: list[int]
    ) -> Ends:
        classes = self.problem.device_classes
        result: Ends = []
        while ends[state] > 0:
            for i, stride in enumerate(strides):
                used = int(counts[i, state])
                if used and furthest[i][ends[state - stride]] == ends[state]:
                    if ends[state - stride] < ends[state]:
                        result.append(End(classes[i][used - 1], int(ends[state])))
                    state -= stride
                    break
        return result[::-1]
