"""Exact choice of a configuration for each node of a graph, by elimination of nodes and edges.

Every node has a cost in each of its configurations, every edge one in each pair of its ends'. The
sum is to be least. Two steps keep the least sum (Jia et al., "Exploring hidden dimensions in
parallelizing convolutional neural networks", ICML 2018):

* a node with one edge in and one out is left out: the new edge between its neighbours costs, for
  each pair of their configurations, what the best configuration of the node costs with its edges;
* two edges between the same two nodes become one, whose cost is the sum.

When neither applies, all combinations of what is left are tried, and the steps are undone in
reverse. Chains, residual networks and networks of parallel branches are left with two nodes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Costs = NDArray[np.float64]
    Ends = tuple[int, int]

MOST_COMBINATIONS = 10_000_000
"""Combinations of the configurations of the nodes that are left, up to which all are tried."""


@dataclass(frozen=True)
class Choice:
    """A configuration for each node.

    Attributes
    ----------
    configurations : tuple of int
        Index of each node's configuration.
    cost : float
        Sum of the costs of all nodes and edges.
    num_left : int
        Nodes that were left when no step applied any more.
    search_s : float
        Seconds of the search.
    """

    configurations: tuple[int, ...]
    cost: float
    num_left: int
    search_s: float


def choose(nodes: Sequence[Costs], edges: Sequence[tuple[Ends, Costs]]) -> Choice:
    """Choose the configurations with the least sum of costs.

    Parameters
    ----------
    nodes : sequence of array, shape (configurations,)
        Cost of each configuration of each node; infinite where one is not allowed.
    edges : sequence of ((int, int), array)
        The two nodes of each edge, the earlier one first, and the cost of each pair of their
        configurations, shape (configurations of one, configurations of the other). There may be
        several edges between two nodes.

    Raises
    ------
    ValueError
        If no choice has a finite cost, an edge has no two nodes in order, or too many nodes are
        left for all their combinations to be tried.
    """
    begin = time.perf_counter()
    costs = [np.asarray(each, np.float64) for each in nodes]
    left: dict[Ends, Costs] = {}
    for (one, other), table in edges:
        if not 0 <= one < other < len(costs):
            raise ValueError(f"an edge must lead to a later node, not from {one} to {other}")
        known = left.get((one, other))
        left[one, other] = table if known is None else known + table  # parallel edges
    alive = dict.fromkeys(range(len(costs)))
    undo: list[tuple[int, int, int, NDArray[np.int64]]] = []
    while (node := _between(alive, left)) is not None:
        (before,) = (one for one, other in left if other == node)
        (after,) = (other for one, other in left if one == node)
        first, second = left.pop((before, node)), left.pop((node, after))
        sums = first[:, :, None] + (costs[node][:, None] + second)[None]
        undo.append((node, before, after, sums.argmin(axis=1)))
        table = sums.min(axis=1)
        known = left.get((before, after))
        left[before, after] = table if known is None else known + table
        del alive[node]
    chosen = _tried(costs, left, list(alive))
    for node, before, after, best in reversed(undo):
        chosen[node] = int(best[chosen[before], chosen[after]])
    configurations = tuple(chosen[node] for node in range(len(costs)))
    cost = total_cost(nodes, edges, configurations)
    if not np.isfinite(cost):
        raise ValueError("no configurations of all nodes are allowed together")
    return Choice(configurations, cost, len(alive), time.perf_counter() - begin)


def total_cost(
    nodes: Sequence[Costs], edges: Sequence[tuple[Ends, Costs]], configurations: Sequence[int]
) -> float:
    """Sum of the costs of all nodes and edges in given configurations."""
    own = sum(float(costs[at]) for costs, at in zip(nodes, configurations, strict=True))
    return own + sum(
        float(table[configurations[one], configurations[other]]) for (one, other), table in edges
    )


def _between(alive: Mapping[int, None], edges: Mapping[Ends, Costs]) -> int | None:
    """A node with one edge in and one out, if there is any."""
    ins, outs = dict.fromkeys(alive, 0), dict.fromkeys(alive, 0)
    for one, other in edges:
        outs[one] += 1
        ins[other] += 1
    return next((node for node in alive if ins[node] == outs[node] == 1), None)


def _tried(costs: Sequence[Costs], edges: Mapping[Ends, Costs], nodes: list[int]) -> dict[int, int]:
    """The best of all combinations of some nodes' configurations."""
    sizes = [len(costs[node]) for node in nodes]
    count = float(np.prod([float(size) for size in sizes]))
    if count > MOST_COMBINATIONS:
        raise ValueError(
            f"{len(nodes)} nodes with {count:.3g} combinations of configurations are left, and at "
            f"most {MOST_COMBINATIONS:,} are tried"
        )
    place = {node: at for at, node in enumerate(nodes)}
    sums = np.zeros(sizes)
    for node in nodes:
        sums = sums + _spread(costs[node], (place[node],), len(nodes))
    for (one, other), table in edges.items():
        sums = sums + _spread(table, (place[one], place[other]), len(nodes))
    best = np.unravel_index(int(sums.argmin()), sizes) if nodes else ()
    return {node: int(at) for node, at in zip(nodes, best, strict=True)}


def _spread(table: Costs, axes: tuple[int, ...], num_axes: int) -> Costs:
    """A table over some axes of all, which must rise, as one that can be added to the others."""
    shape = [1] * num_axes
    for axis, size in zip(axes, table.shape, strict=True):
        shape[axis] = size
    return table.reshape(shape)
