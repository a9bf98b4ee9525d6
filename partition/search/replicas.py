"""Stages that are replicated on several equal devices: hybrid pipeline and data parallelism.

The replicas of a stage process the micro-batches in turn. Each of m replicas with n devices behind
the stage keeps the activations of as many micro-batches as a single device would with
``ceil(n / m)`` stages behind it; with PipeDream's schedule that is its ``ceil((m + n) / m)``. Every
replica has a link of its own. So the transfers between two stages share as many links as the
smaller stage has devices (`Cuts.shares` says where PipeDream's two models differ).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fpgapipe.partition.search.cuts import Bools, Cuts, Row, Slot, Synchronisation
from fpgapipe.partition.search.dag import MAX_CUTS, Downsets, list_downsets
from fpgapipe.partition.search.limits import explain
from fpgapipe.partition.search.problem import (
    Floats,
    Objective,
    Partition,
    PartitionProblem,
    PlanError,
    StageAssignment,
    Transfer,
)
from fpgapipe.partition.search.search import (
    MAX_WORK,
    End,
    Ends,
    Evaluate,
    Search,
    State,
    assignments,
    least_minibatch,
    least_period,
    partition,
)

MOST_STEPS = 1_000_000
"""Most combinations of devices in use and of replicas that are tried for each period."""


def plan_replicated(
    problem: PartitionProblem,
    objective: Objective = Objective.BOTTLENECK,
    *,
    synchronisation: Synchronisation = Synchronisation.RING,
    evaluate: Evaluate | None = None,
    max_cuts: int = MAX_CUTS,
    max_work: float = MAX_WORK,
) -> Partition:
    """The best stages where each may have any number of replicas, within the number of devices.

    Every number of replicas is tried for every stage. The effort grows with the cube of the number
    of devices (its square, where transfers cost nothing), times the number of layers of a chain or
    the square of the number of downsets.

    Parameters
    ----------
    problem : PartitionProblem
        Problem with equal devices and equal links.
    objective : Objective
        Time to minimise.
    synchronisation : Synchronisation
        Cost model for keeping replicas equal.
    evaluate : callable, optional
        Function that returns the mini-batch time of stages. If it is given, the best few partitions
        for the mini-batch objective are ranked again by it.
    max_cuts : int
        Most downsets of a graph for which all are considered as cuts. If there are more, only cuts
        along the order given are considered, and the answer has only a simple bound.
    max_work : float
        Number of table cells after which the search for the mini-batch time stops and gives a
        bound.

    Raises
    ------
    PlanError
        If no partition keeps the limits, or there are too many devices to try all replicas.
    ValueError
        If devices or links differ.
    """
    if len(problem.device_classes) > 1 or not problem.has_equal_links:
        raise ValueError("replicas need equal devices and equal links")
    _check_effort(problem)
    masks = None if problem.is_chain else list_downsets(problem, max_cuts)
    cuts = _cuts(problem, masks, synchronisation)
    search = ReplicaSearch(cuts)
    bounds = least_period(search, lambda cap_s: search.best(cap_s, cheapest=False))
    if bounds is None:
        raise explain(problem, lambda p: _fit(p, masks, synchronisation))
    reason = "every number of replicas for every stage"
    if objective is Objective.MINIBATCH:
        bounds = least_minibatch(search, bounds, max_work)
    if masks is None and not problem.is_chain:
        reason = f"more than {max_cuts:,} downsets; other orders of the layers were not tried"
        bounds = replace(bounds, bound_s=search.bound_s if objective is Objective.BOTTLENECK else 0)
    return partition(cuts, bounds, objective, reason, evaluate)


def _check_effort(problem: PartitionProblem) -> None:
    """Refuse numbers of devices for which the search would take longer than ten minutes."""
    n = problem.num_devices
    steps = n**2 / 2
    if problem.schedule.transfer is Transfer.OVERLAP:
        steps *= n / 3
    if problem.has_memory_limit:
        steps *= n / 3
    if steps > MOST_STEPS:
        raise PlanError(
            f"stages of several replicas on {n:,} devices are {steps:,.0f} combinations, more than "
            f"the {MOST_STEPS:,} that are tried; take fewer devices, or one device a stage "
            "(--straight)"
        )


def _cuts(
    problem: PartitionProblem, masks: list[int] | None, synchronisation: Synchronisation
) -> Cuts:
    cuts = Row(problem) if masks is None else Downsets(problem, masks)
    cuts.synchronisation = synchronisation
    return cuts


def _fit(
    problem: PartitionProblem, masks: list[int] | None, synchronisation: Synchronisation
) -> tuple[StageAssignment, ...] | None:
    cuts = _cuts(problem, masks, synchronisation)
    ends = ReplicaSearch(cuts).best(np.inf, cheapest=False)
    return None if ends is None else assignments(cuts, ends)


class ReplicaSearch(Search):
    """Searches over cuts and numbers of replicas."""

    @property
    def bound_s(self) -> float:
        """Lower bound of the period: all work divided by the number of devices, in seconds."""
        problem = self.problem
        return float(problem.device_compute_s.min(axis=1).sum()) / problem.num_devices

    def best(self, cap_s: float, cheapest: bool) -> Ends | None:
        """Stages with a period of at most `cap_s`: any such, or those with the least sum.

        The memory that a stage needs depends on the number of devices behind it. So every number
        of devices is tried where memory is limited; otherwise one pass is enough for all.
        """
        counts = range(self.problem.num_devices, self.problem.num_devices + 1)
        if self.problem.has_memory_limit:
            counts = range(1, self.problem.num_devices + 1)
        found: tuple[float, Ends] | None = None
        for count in counts:
            best = self._run(cap_s, count, cheapest)
            if best is not None and (found is None or best[0] < found[0]):
                found = best
                if not cheapest:
                    break
        return None if found is None else found[1]

    def _run(self, cap_s: float, count: int, cheapest: bool) -> tuple[float, Ends] | None:
        """One pass; a state is the number of devices used and the replicas of the last stage."""
        start = np.full(self.cuts.size, np.inf)
        start[0] = 0.0
        rows: dict[State, Floats] = {(0, 0): start}
        for used in range(count):
            for state in [(used, last) for last in range(used + 1) if (used, last) in rows]:
                for m in range(1, count - used + 1):
                    self.work += self.cuts.work
                    new = self._step(rows[state], state, m, count, cap_s, cheapest)
                    if np.isfinite(new).any():
                        after = (used + m, m if self._last_matters else 0)
                        rows[after] = np.minimum(rows[after], new) if after in rows else new
        ends = [s for s in rows if s[0] == count or not self.problem.has_memory_limit]
        best = min(ends, key=lambda s: rows[s][-1], default=None)
        if best is None or not np.isfinite(rows[best][-1]):
            return None
        return float(rows[best][-1]), self._trace(rows, best, count, cap_s, cheapest)

    @property
    def _last_matters(self) -> bool:
        return self.problem.schedule.transfer is Transfer.OVERLAP

    def _slot(self, used: int, m: int, count: int) -> Slot:
        """The slot of m replicas; the receiving stage checks the transfers that leave them."""
        behind = count - used - m
        link = 0 if used + m < self.problem.num_devices else self.problem.num_devices - 1
        return Slot(used, link, -(-behind // m), m, np.inf)

    def _starts(self, row: Floats, state: State, m: int, cap_s: float) -> Floats:
        """Costs up to each cut; inf where the transfers to m replicas exceed the period."""
        used, last = state
        if not used or not self._last_matters:
            return row
        shares = self.cuts.shares(last, m, first=used == last)
        fits = self.cuts.is_open(Slot(used, 0, 0, m, shares), cap_s)
        return np.where(fits, row, np.inf)

    def _step(
        self, row: Floats, state: State, m: int, count: int, cap_s: float, cheapest: bool
    ) -> Floats:
        slot = self._slot(state[0], m, count)
        row = self._starts(row, state, m, cap_s)
        if cheapest:
            return self.cuts.extend(row, slot, cap_s)
        ends: Bools = self.cuts.reach(np.isfinite(row), slot, cap_s)
        return np.where(ends, 0.0, np.inf)

    def _trace(
        self, rows: dict[State, Floats], state: State, count: int, cap_s: float, cheapest: bool
    ) -> Ends:
        ends: Ends = []
        cut = self.cuts.size - 1
        while state[0]:
            best: tuple[float, State, int, int] | None = None
            for before in [s for s in rows if s[0] < state[0]]:
                m = state[0] - before[0]
                if self._last_matters and m != state[1]:
                    continue
                row = self._starts(rows[before], before, m, cap_s)
                start = self.cuts.previous(row, self._slot(before[0], m, count), cap_s, cut)
                if start < 0 or not np.isfinite(row[start]):
                    continue
                seed = np.full(self.cuts.size, np.inf)
                seed[start] = row[start]
                value = float(self._step(seed, before, m, count, cap_s, cheapest)[cut])
                if best is None or value < best[0]:
                    best = (value, before, start, m)
            assert best is not None
            ends.append(End(best[1][0], cut, best[3]))
            state, cut = best[1], best[2]
        return ends[::-1]
