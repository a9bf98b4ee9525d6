"""Exact partition of a network that is no chain: every downset is a possible cut.

The downsets are listed from the empty one on, by adding one layer at a time. If there are more than
a limit, only the prefixes of several orders of the layers are used. The answer is then a valid
partition with a lower bound that holds for all cuts, and its reason says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from fpgapipe.partition.search.chain import plan_chain
from fpgapipe.partition.search.cuts import STEP_WORK, Bools, Cuts, Ints, Slot
from fpgapipe.partition.search.limits import explain
from fpgapipe.partition.search.problem import (
    Floats,
    Objective,
    Partition,
    PartitionProblem,
    StageAssignment,
)
from fpgapipe.partition.search.search import (
    MAX_WORK,
    Bounds,
    Evaluate,
    Search,
    assignments,
    least_minibatch,
    least_period,
    partition,
)

MAX_CUTS = 3000
"""Most downsets for which all pairs of them are considered."""


def plan(
    problem: PartitionProblem,
    objective: Objective = Objective.BOTTLENECK,
    *,
    evaluate: Evaluate | None = None,
    max_cuts: int = MAX_CUTS,
    max_work: float = MAX_WORK,
) -> Partition:
    """The best partition of a network.

    Parameters
    ----------
    problem : PartitionProblem
    objective : Objective
        Time to minimise.
    evaluate : callable, optional
        Function that returns the mini-batch time of stages. If it is given, the best few partitions
        for the mini-batch objective are ranked again by it.
    max_cuts : int
        Most downsets for which the answer is exact; see the module's docstring.
    max_work : float
        Number of table cells after which the search for the mini-batch time stops and gives a
        bound.

    Raises
    ------
    PlanError
        If no partition keeps the limits.
    """
    if problem.is_chain:
        return plan_chain(problem, objective, evaluate=evaluate, max_work=max_work)
    downsets = list_downsets(problem, max_cuts)
    complete = downsets is not None
    if downsets is None:
        downsets = _prefixes(problem, max_cuts)
        if len(downsets) > max_cuts:
            found = plan_chain(problem, objective, evaluate=evaluate, max_work=max_work)
            return replace(found, lower_bound_s=min(_bound(problem, objective), found.value_s))
    cuts = Downsets(problem, downsets)
    search = Search(cuts)
    bounds = least_period(search, lambda cap_s: search.best(cap_s, cheapest=False))
    if bounds is None:
        raise explain(problem, lambda p: fit(p, downsets))
    reason = f"all {cuts.size:,} downsets as cuts"
    if objective is Objective.MINIBATCH:
        bounds = least_minibatch(search, bounds, max_work)
    if not complete:
        reason = f"{cuts.size:,} of more than {max_cuts:,} downsets as cuts"
        bounds = Bounds(bounds.ends, bounds.value_s, _bound(problem, objective), bounds.candidates)
    return partition(cuts, bounds, objective, reason, evaluate)


def fit(problem: PartitionProblem, downsets: list[int]) -> tuple[StageAssignment, ...] | None:
    """Any stages that keep within the limits; None if there are none."""
    cuts = Downsets(problem, downsets)
    ends = Search(cuts).best(np.inf, cheapest=False)
    return None if ends is None else assignments(cuts, ends)


def list_downsets(problem: PartitionProblem, limit: int) -> list[int] | None:
    """All downsets as bit masks of layers, small ones first; None if they exceed the limit."""
    needs = [0] * problem.num_layers
    for source, target in problem.edges:
        needs[target] |= 1 << source
    found = [0]
    level = {0: _ready(0, needs, range(problem.num_layers))}
    followers: list[list[int]] = [[] for _ in needs]
    for source, target in problem.edges:
        followers[source].append(target)
    while level:
        following: dict[int, frozenset[int]] = {}
        for mask, ready in level.items():
            for layer in ready:
                new = mask | 1 << layer
                if new not in following:
                    freed = _ready(new, needs, followers[layer])
                    following[new] = (ready - {layer}) | freed
            if len(found) + len(following) > limit:
                return None
        found += following
        level = following
    return found


def _ready(mask: int, needs: list[int], layers: Iterable[int]) -> frozenset[int]:
    return frozenset(
        layer for layer in layers if not mask >> layer & 1 and needs[layer] & ~mask == 0
    )


def _prefixes(problem: PartitionProblem, limit: int) -> list[int]:
    """The downsets that are prefixes of several orders of the layers."""
    import networkx as nx  # which takes a while, and most networks have few downsets

    graph = problem.to_networkx()
    depth: dict[int, int] = {}
    for layer in nx.topological_sort(graph):
        depth[layer] = 1 + max((depth[p] for p in graph.predecessors(layer)), default=0)
    time = problem.compute_s.min(axis=1)
    keys = (
        lambda layer: layer,
        lambda layer: -layer,
        lambda layer: (depth[layer], layer),
        lambda layer: (depth[layer], -layer),
        lambda layer: (time[layer], layer),
        lambda layer: (-time[layer], layer),
        lambda layer: (problem.output_bytes[layer], layer),
        lambda layer: (-problem.output_bytes[layer], layer),
    )
    found: set[int] = {0}
    for key in keys:
        mask, prefixes = 0, set()
        for layer in nx.lexicographical_topological_sort(graph, key=key):
            mask |= 1 << layer
            prefixes.add(mask)
        if found == {0} or len(found | prefixes) <= limit:
            found |= prefixes
    return sorted(found, key=lambda mask: (mask.bit_count(), mask))


def _bound(problem: PartitionProblem, objective: Objective) -> float:
    if objective is Objective.BOTTLENECK:
        return problem.bound_s
    schedule = problem.schedule
    least = float(problem.device_compute_s.min(axis=1).sum())
    return schedule.fill_factor * least + schedule.steady_periods * problem.bound_s


@lru_cache(maxsize=2)
def cut_structure(
    masks: tuple[int, ...], count: int, edges: tuple[tuple[int, int], ...]
) -> tuple[Bools, Bools, Floats]:
    """Tables of cuts that depend only on the graph, not on times, bytes or devices.

    They are cached, since the search for a limit (`explain`) solves many variants of a problem.

    Returns
    -------
    inside : bool array, shape (downsets, layers)
        Whether a layer belongs to a downset.
    within : bool array, shape (downsets, downsets)
        Whether the downset of the row is a proper subset of that of the column.
    crossing : float array, shape (downsets, layers)
        1 where the layer's output is a boundary tensor of the cut, else 0.
    """
    width = (count + 7) // 8
    packed = np.frombuffer(
        b"".join(mask.to_bytes(width, "little") for mask in masks), np.uint8
    ).reshape(len(masks), width)
    inside = np.unpackbits(packed, axis=1, count=count, bitorder="little").astype(bool)
    small = inside.astype(np.float32)
    within = np.equal(small @ (1 - small).T, 0)
    np.fill_diagonal(within, False)
    crossing = np.zeros(inside.shape)
    for source, target in edges:
        crossing[:, source] = np.maximum(
            crossing[:, source], inside[:, source] & ~inside[:, target]
        )
    return inside, within, crossing


class Downsets(Cuts):
    """The cuts that are given by downsets of a graph of layers.

    Parameters
    ----------
    problem : PartitionProblem
    masks : list of int
        Downsets as bit masks of layers; the empty one first, that of all layers last.
    """

    def __init__(self, problem: PartitionProblem, masks: list[int]) -> None:
        self.inside, self.within, crossing = cut_structure(
            tuple(masks), problem.num_layers, problem.edges
        )
        member = self.inside.astype(np.float64)
        super().__init__(
            problem,
            (member @ problem.compute_s).T,
            member @ problem.state,
            member @ problem.weight_bytes,
            member @ problem.activation_bytes,
            crossing @ problem.output_bytes,
        )
        self.work = float(self.size) ** 2 / 4 + STEP_WORK

    def layers_between(self, start: int, end: int) -> list[int]:
        """Layers after one cut and before another, in the network's order."""
        layers: list[int] = np.flatnonzero(self.inside[end] & ~self.inside[start]).tolist()
        return layers

    def _allowed(self, starts: Ints, slot: Slot, cap_s: float, ends: Ints | slice) -> Bools:
        """For each pair of a start and an end, whether a stage may lie between them."""
        allowed: Bools = np.asarray(self.within[starts][:, ends])
        for before in self.loads_s(slot):
            with np.errstate(invalid="ignore"):
                floor = (before + self.charge_s(slot) / slot.replicas - cap_s)[ends]
            allowed = allowed & (before[starts, None] >= np.where(np.isnan(floor), np.inf, floor))
        if self.problem.has_memory_limit:
            kept = self.memory_before(slot.stages_after)
            limit = float(self.memory_limit[slot.device])
            allowed = allowed & (kept[starts, None] >= kept[ends] - limit)
        result: Bools = allowed & self.is_open(slot, cap_s)[ends]
        return result

    def reach(self, before: Bools, slot: Slot, cap_s: float) -> Bools:
        """Cuts at which a non-empty stage that begins at one of `before` may end."""
        starts = np.flatnonzero(before)
        ends: Bools = np.asarray(self._allowed(starts, slot, cap_s, slice(None)).any(axis=0))
        return ends

    def extend(self, cost: Floats, slot: Slot, cap_s: float) -> Floats:
        """Least cost up to each cut after another stage; inf where no stage may end."""
        rate = self.problem.schedule.fill_factor
        before = rate * self.seconds[self.kind(slot)]
        starts = np.flatnonzero(np.isfinite(cost))
        allowed = self._allowed(starts, slot, cap_s, slice(None))
        values = np.where(allowed, (cost - before)[starts, None], np.inf)
        added = rate * self.charge_s(slot) + self.fill_s(slot)
        result: Floats = values.min(axis=0, initial=np.inf) + before + added
        return np.where(np.isnan(result), np.inf, result)

    def previous(self, cost: Floats, slot: Slot, cap_s: float, end: int) -> int:
        """Cut at which the cheapest stage that ends at `end` begins; negative if there is none."""
        starts = np.flatnonzero(np.isfinite(cost))
        allowed = self._allowed(starts, slot, cap_s, np.array([end]))[:, 0]
        if not allowed.any():
            return -1
        starts = starts[allowed]
        before = self.problem.schedule.fill_factor * self.seconds[self.kind(slot), starts]
        return int(starts[np.argmin(cost[starts] - before)])
