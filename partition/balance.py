"""Cutting a row of layers into stages of nearly equal work."""

from collections.abc import Sequence

from fpgapipe.partition.graph import Graph, NetworkError


def balanced_cuts(costs: Sequence[int], num_parts: int) -> list[range]:
    """Cut a row of costs into parts whose largest sum is as small as possible.

    The bound is found by bisection, and each part then takes as many items as fit under it while
    leaving at least one for every part to come. Time is linear in the items for each of
    ``log2(sum(costs))`` steps.

    Parameters
    ----------
    costs : sequence of int
        Non-negative.
    num_parts : int
        ``1..len(costs)``; each part gets at least one item.

    Returns
    -------
    list of range
        Positions of the items of each part, in order.

    Raises
    ------
    ValueError
        If `num_parts` is out of range or a cost is negative.
    """
    if not 1 <= num_parts <= len(costs):
        raise ValueError(f"num_parts must be in 1..{len(costs)}, not {num_parts}")
    if any(cost < 0 for cost in costs):
        raise ValueError("costs must not be negative")
    low, high = max(costs), sum(costs)
    while low < high:
        middle = (low + high) // 2
        if _parts_needed(costs, middle) <= num_parts:
            high = middle
        else:
            low = middle + 1
    parts = []
    start = 0
    for left in range(num_parts - 1, -1, -1):
        stop, total = start, 0
        while stop < len(costs) - left and (stop == start or total + costs[stop] <= high):
            total += costs[stop]
            stop += 1
        if left == 0:
            stop = len(costs)
        parts.append(range(start, stop))
        start = stop
    return parts


def _parts_needed(costs: Sequence[int], bound: int) -> int:
    parts, total = 1, 0
    for cost in costs:
        if total + cost > bound:
            parts, total = parts + 1, 0
        total += cost
    return parts


def stages_by_macs(graph: Graph, num_stages: int) -> list[list[str]]:
    """Cut a network into stages with nearly equal forward MACs, in the order of its layers.

    Raises
    ------
    NetworkError
        If there are more stages than layers.
    """
    names = list(graph.layers)
    if not 1 <= num_stages <= len(names):
        raise NetworkError(
            f"{graph.name} has {len(names)} layers, too few for {num_stages} devices with at least "
            "one each"
        )
    cuts = balanced_cuts([graph.layers[name].macs for name in names], num_stages)
    return [[names[i] for i in part] for part in cuts]
