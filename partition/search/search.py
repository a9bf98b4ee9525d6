"""Exact search over cuts and devices, the same for chains and for graphs.

`Search.best` finds stages whose period is at most a cap, either any such stages or the cheapest.
`least_period` and `least_minibatch` call it repeatedly.

The smallest period is found by bisection. If there is a solution for a cap, its period becomes the
upper bound; if there is none, the cap becomes the lower bound.

The mini-batch time has two parts, ``sum + steady_periods * period``. `best` gives the least sum
under a cap, which does not rise with the cap. So no value in a range of periods is below ``least
sum at its upper end + steady_periods * its lower end``. Ranges that cannot hold anything better are
dropped; the others are split until none is left or the budget is spent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpgapipe.partition.search.cuts import Cuts, Slot
from fpgapipe.partition.search.problem import (
    TOLERANCE,
    Objective,
    Partition,
    StageAssignment,
    Transfer,
)

ROUNDING = 1e-12
"""Relative gap at which a bisection ends."""
PRUNE = 1e-10
"""Relative improvement that is too small to search for."""
MAX_CELLS = 6e7
"""Largest table, in cells, that the search for the mini-batch time may keep."""
MAX_WORK = 1.2e9
"""Default number of table cells after which the search for the mini-batch time stops with a
bound."""
KEPT = 8
"""Number of best partitions that are kept for evaluation by a simulation."""

State = tuple[int, ...]
"""State of a search: number of devices used so far, or one such number for each class of devices.
`ReplicaSearch` has the number of devices used and the replicas of the last stage."""
Vector = NDArray[Any]
"""Vector over the cuts: costs, or whether each cut can be reached."""
Evaluate = Callable[[Sequence[StageAssignment]], float]
"""Function that returns the mini-batch time of stages, from a simulation."""


class End(NamedTuple):
    """First device of a stage, the cut that ends it, and its number of devices (replicas)."""

    device: int
    cut: int
    replicas: int = 1


Ends = list[End]


@dataclass(frozen=True)
class Bounds:
    """The best stages found, and a lower bound that no stages can beat."""

    ends: Ends
    value_s: float
    bound_s: float
    candidates: tuple[Ends, ...] = ()


class Search:
    """Searches over the cuts of one problem.

    Parameters
    ----------
    cuts : Cuts

    Attributes
    ----------
    work : float
        Table cells filled so far, plus a fixed number of cells per step.
    """

    def __init__(self, cuts: Cuts) -> None:
        self.cuts = cuts
        self.problem = cuts.problem
        self.work = 0.0
        classes = self.problem.device_classes
        self.free = self.problem.free_order and len(classes) > 1

    @property
    def bound_s(self) -> float:
        """Lower bound of the period, in seconds."""
        return self.problem.bound_s

    def states(self) -> float:
        """Number of sets of devices to consider."""
        if not self.free:
            return float(self.problem.num_devices)
        return float(np.prod([1.0 + len(group) for group in self.problem.device_classes]))

    def best(self, cap_s: float, cheapest: bool) -> Ends | None:
        """Stages with a period of at most `cap_s`: any such, or those with the least sum.

        The memory that a stage needs depends on the number of stages behind it. So every number of
        stages is tried where memory is limited; otherwise one pass is enough for all. Numbers that
        are too small even with the memory of a last stage are left out.
        """
        num_devices = min(self.problem.num_devices, self.cuts.problem.num_layers)
        counts: Sequence[int] = [num_devices]
        if self.problem.has_memory_limit:
            least = _Run(self, cap_s, num_devices, cheapest=False, is_bound=True).least_count()
            counts = range(least, num_devices + 1)
        found: tuple[float, Ends] | None = None
        for count in counts:
            run = _Run(self, cap_s, count, cheapest)
            best = run.solve()
            if best is not None and (found is None or best[0] < found[0]):
                found = best
                if not cheapest:
                    break
        return None if found is None else found[1]


class _Run:
    """One pass of the dynamic program for one cap and one number of stages.

    In a pass that gives a bound, every stage needs the memory of a last one, which is the least.
    """

    def __init__(
        self, search: Search, cap_s: float, count: int, cheapest: bool, *, is_bound: bool = False
    ) -> None:
        self.search = search
        self.cuts = search.cuts
        self.problem = search.problem
        self.cap_s = cap_s
        self.count = count
        self.cheapest = cheapest
        self.is_bound = is_bound
        self.exactly = self.problem.has_memory_limit
        self.rows: dict[State, Vector] = {}

    def solve(self) -> tuple[float, Ends] | None:
        start: Vector
        if self.cheapest:
            start = np.full(self.cuts.size, np.inf)
            start[0] = 0.0
        else:
            start = np.zeros(self.cuts.size, bool)
            start[0] = True
        self.rows = {self._first: start}
        level: dict[State, Vector] = {self._first: start}
        best: tuple[float, State] | None = None
        for stage in range(self.count):
            level = self._next(level, stage)
            if not level:
                break
            self.rows.update(level)
            if self.exactly and stage < self.count - 1:
                continue
            for state, row in level.items():
                value = float(row[-1]) if self.cheapest else (0.0 if row[-1] else np.inf)
                if value < (best[0] if best else np.inf):
                    best = (value, state)
            if best and not self.cheapest:
                break
        return None if best is None else (best[0], self._trace(best[1]))

    def least_count(self) -> int:
        """The least number of stages that reaches the last cut; one more than all if none does."""
        start = np.zeros(self.cuts.size, bool)
        start[0] = True
        level: dict[State, Vector] = {self._first: start}
        for stage in range(self.count):
            level = self._next(level, stage)
            if any(row[-1] for row in level.values()):
                return stage + 1
        return self.count + 1

    @property
    def _first(self) -> State:
        """The state before all stages."""
        return (0,) * (len(self.problem.device_classes) if self.search.free else 1)

    def _next(self, level: dict[State, Vector], stage: int) -> dict[State, Vector]:
        """The vectors of all states after another stage."""
        following: dict[State, Vector] = {}
        for state, row in level.items():
            for state_after, slot in self._moves(state, stage):
                self.search.work += self.cuts.work
                new = self._step(row, slot)
                if not (np.isfinite(new).any() if self.cheapest else new.any()):
                    continue
                if state_after in following:
                    old = following[state_after]
                    new = np.minimum(old, new) if self.cheapest else old | new
                following[state_after] = new
        return following

    def _step(self, row: Vector, slot: Slot) -> Vector:
        if row.dtype == bool:
            return self.cuts.reach(row, slot, self.cap_s)
        return self.cuts.extend(row, slot, self.cap_s)

    def _moves(self, state: State, stage: int) -> Iterator[tuple[State, Slot]]:
        after = 0 if self.is_bound else self.count - 1 - stage
        if not self.search.free:
            yield (stage + 1,), Slot(stage, stage, after)
            return
        for i, group in enumerate(self.problem.device_classes):
            if state[i] < len(group):
                yield (
                    (*state[:i], state[i] + 1, *state[i + 1 :]),
                    Slot(group[state[i]], stage, after),
                )

    def _trace(self, state: State) -> Ends:
        ends: Ends = []
        end = self.cuts.size - 1
        for stage in range(sum(state) - 1, -1, -1):
            before, slot, start = self._step_back(state, stage, end)
            ends.append(End(slot.device, end))
            state, end = before, start
        return ends[::-1]

    def _step_back(self, state: State, stage: int, end: int) -> tuple[State, Slot, int]:
        """The state before the best stage that ends at `end`, its slot, and its first cut."""
        best: tuple[float, State, Slot, int] | None = None
        for before in self._states_before(state):
            if before not in self.rows:
                continue
            slot = next(slot for after, slot in self._moves(before, stage) if after == state)
            row = self.rows[before]
            cost = row if self.cheapest else np.where(row, 0.0, np.inf)
            start = self.cuts.previous(cost, slot, self.cap_s, end)
            if start < 0 or not np.isfinite(cost[start]):
                continue
            if not self.search.free or not self.cheapest:
                return before, slot, start
            seed = np.full(self.cuts.size, np.inf)
            seed[start] = cost[start]
            value = float(self.cuts.extend(seed, slot, self.cap_s)[end])
            if best is None or value < best[0]:
                best = (value, before, slot, start)
        assert best is not None
        return best[1:]

    def _states_before(self, state: State) -> Iterator[State]:
        if not self.search.free:
            yield (state[0] - 1,)
            return
        for i, used in enumerate(state):
            if used:
                yield (*state[:i], used - 1, *state[i + 1 :])


def slots_of(ends: Ends, num_devices: int) -> list[Slot]:
    """Slots of stages; replicas divide the micro-batches, so each has fewer of them in flight."""
    slots = []
    behind = sum(end.replicas for end in ends)
    for stage, end in enumerate(ends):
        behind -= end.replicas
        after = -(-behind // end.replicas)
        slots.append(Slot(end.device, min(stage, num_devices - 1), after, end.replicas))
    return slots


def measure(cuts: Cuts, ends: Ends) -> tuple[float, float]:
    """Period and mini-batch time of stages, in seconds."""
    schedule = cuts.problem.schedule
    period = total = 0.0
    start = 0
    slots = slots_of(ends, cuts.problem.num_devices)
    for stage, (slot, end) in enumerate(zip(slots, ends, strict=True)):
        transfer = float(cuts.transfer_s(slot.link)[end.cut])
        charge = _charge(cuts, transfer)
        compute = cuts.seconds[cuts.kind(slot)]
        period = max(period, _stage_time(cuts, slot, start, end.cut) + charge / end.replicas)
        if schedule.transfer is Transfer.OVERLAP and transfer:
            shares = cuts.shares(end.replicas, ends[stage + 1].replicas, stage == 0)
            period = max(period, schedule.transfers_per_period * transfer / shares)
        time = float(compute[end.cut] - compute[start]) + charge
        total += schedule.fill_factor * time + schedule.fill_transfers * transfer
        start = end.cut
    return period, total + schedule.steady_periods * period


def _stage_time(cuts: Cuts, slot: Slot, start: int, end: int) -> float:
    return max(float(load[end] - load[start]) for load in cuts.loads_s(slot))


def _charge(cuts: Cuts, transfer_s: float) -> float:
    schedule = cuts.problem.schedule
    blocks = schedule.transfer is Transfer.BLOCK
    return schedule.transfers_per_period * transfer_s if blocks else 0.0


def least_period(search: Search, solve: Callable[[float], Ends | None]) -> Bounds | None:
    """Stages with the smallest period; None if no stages are allowed at all."""
    cuts = search.cuts
    ends = solve(np.inf)
    if ends is None:
        return None
    high, low = measure(cuts, ends)[0], search.bound_s * (1 - ROUNDING)
    if (found := solve(low * (1 + 2 * ROUNDING))) is not None:
        return Bounds(found, measure(cuts, found)[0], low)
    while high - low > ROUNDING * high:
        cap = (low + high) / 2
        found = solve(cap)
        if found is None:
            low = cap
        else:
            ends, high = found, min(cap, measure(cuts, found)[0])
    return Bounds(ends, measure(cuts, ends)[0], low)


def least_minibatch(search: Search, bottleneck: Bounds, max_work: float) -> Bounds:
    """Stages with the smallest mini-batch time; they are never worse than `bottleneck`.

    The search stops after `max_work` table cells. The bound is then that of the remaining ranges.
    """
    last_work = search.work + max_work
    cuts, schedule = search.cuts, search.problem.schedule
    steady = schedule.steady_periods
    best, value = bottleneck.ends, measure(cuts, bottleneck.ends)[1]
    seen = [best]
    floor = schedule.fill_factor * float(search.problem.device_compute_s.min(axis=1).sum())
    simple = floor + steady * bottleneck.bound_s
    if simple >= value * (1 - PRUNE) or search.states() * cuts.size > MAX_CELLS:
        return Bounds(best, value, simple, (best,))
    heap: list[tuple[float, int, float, float]] = []
    number = itertools.count()

    def consider(low_s: float, high_s: float) -> None:
        """Look for the best stages with a period in ``low_s..high_s``."""
        nonlocal best, value
        ends = search.best(high_s, cheapest=True)
        if ends is None:
            return
        seen.append(ends)
        period, minibatch = measure(cuts, ends)
        if minibatch < value:
            best, value = ends, minibatch
        # For caps from this period up to high_s the least sum is the same, so only shorter periods
        # can give something better.
        bound = minibatch - steady * period + steady * low_s
        if low_s < period:
            heappush(heap, (bound, next(number), low_s, period))

    consider(bottleneck.bound_s, np.inf)
    while heap and heap[0][0] < value * (1 - PRUNE) and search.work < last_work:
        _, _, low, high = heappop(heap)
        if high - low > PRUNE * high:
            middle = low + (high - low) / 2
            consider(low, middle)
            consider(middle, high * (1 - ROUNDING))
    bound = min([value, *(each[0] for each in heap)])
    ranked = sorted({tuple(ends) for ends in seen}, key=lambda each: measure(cuts, list(each))[1])
    kept = [list(ends) for ends in ranked[:KEPT]]
    return Bounds(best, value, max(bound, simple), (*kept, bottleneck.ends))


def partition(
    cuts: Cuts,
    bounds: Bounds,
    objective: Objective,
    reason: str,
    evaluate: Evaluate | None = None,
) -> Partition:
    """The complete answer; with `evaluate`, the best few are timed and the fastest is chosen."""
    period, minibatch = measure(cuts, bounds.ends)
    stages = assignments(cuts, bounds.ends)
    value = period if objective is Objective.BOTTLENECK else minibatch
    bound = min(bounds.bound_s, value)
    optimal = value - bound <= TOLERANCE * value
    if not optimal:
        reason = f"stopped {(value - bound) / value:.2%} above the bound: {reason}"
    if evaluate is not None:
        others = [assignments(cuts, ends) for ends in bounds.candidates]
        timed = [(evaluate(each), i) for i, each in enumerate([stages, *others])]
        minibatch, chosen = min(timed)
        if objective is Objective.BOTTLENECK:
            minibatch, chosen = timed[0]
        if chosen:
            stages, period = others[chosen - 1], measure(cuts, bounds.candidates[chosen - 1])[0]
        if objective is Objective.MINIBATCH:
            optimal, bound = False, 0.0
            reason = f"best of {len(timed)} partitions by evaluation; under the model: {reason}"
    return Partition(stages, period, minibatch, objective, bound, optimal, reason)


def assignments(cuts: Cuts, ends: Ends) -> tuple[StageAssignment, ...]:
    """The stages with their layers, times and memory."""
    problem = cuts.problem
    stages = []
    start = 0
    for slot, end in zip(slots_of(ends, problem.num_devices), ends, strict=True):
        layers = cuts.layers_between(start, end.cut)
        transfer = float(cuts.transfer_s(slot.link)[end.cut])
        memory = problem.kept_bytes(
            problem.state[layers].sum(),
            problem.weight_bytes[layers].sum(),
            problem.activation_bytes[layers].sum(),
            slot.stages_after,
        )
        stages.append(
            StageAssignment(
                tuple(problem.names[i] for i in layers),
                tuple(range(end.device, end.device + end.replicas)),
                end.replicas,
                _stage_time(cuts, slot, start, end.cut) + _charge(cuts, transfer) / end.replicas,
                transfer,
                float(memory),
            )
        )
        start = end.cut
    return tuple(stages)
