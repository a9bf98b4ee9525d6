"""Search for the smallest core with which a network trains nearly as fast as with the best one.

A larger array is seldom worth its area for a small network, and a simulator has to carry all of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from fpgapipe.partition.cost.cores import scratchpad_floor
from fpgapipe.partition.explore.candidate import Candidate
from fpgapipe.partition.explore.explorer import Exploration, by_simulation, explore
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.search.problem import PlanError

THROUGHPUT = 0.99
"""Share of the best core's throughput that a smaller core has to reach."""

SPLITS = 2
"""How many numbers of micro-batches are tried with a smaller core: the best ones of the best core.
"""

ROWS = (4, 8, 16, 32)
"""Numbers of array rows that are tried."""

Progress = Callable[[int, int], object]


def explore_smallest(
    request: Request,
    on_step: Progress = lambda done, total: None,
    *,
    known: Exploration | None = None,
) -> Exploration:
    """Find the smallest array, the same for all devices, that is nearly as fast as the best.

    Among the arrays that reach `THROUGHPUT` of the best core's samples per second, this takes the
    one with the fewest cells, and then the smallest scratchpad with which it still reaches that
    throughput. If `Request.array` is given, only the scratchpad is made smaller.

    Parameters
    ----------
    request : Request
    on_step : callable
        Called with the number of steps done and their total, as far as it is known.
    known : Exploration, optional
        What `explore_by_models` finds for the request, if that is there already.

    Raises
    ------
    PlanError
        If nothing fits.
    """
    found = by_simulation(request, known) if known else explore(request, on_step)
    limit_s = found.best.steady_s / THROUGHPUT
    asked = dataclasses.replace(request, schedules=(found.best.kind,))
    counts = [each.num_microbatches for each in found.tried if each.kind == found.best.kind]

    def reaches(candidate: Request) -> Exploration | None:
        for count in counts[:SPLITS]:
            try:
                smaller = explore(dataclasses.replace(candidate, num_microbatches=count))
            except PlanError:
                continue
            if smaller.best.steady_s <= limit_s:
                return smaller
        return None

    if request.array is None:
        widest = max(_cores(found.best), key=lambda shape: shape[0] * shape[1])
        best = _smallest_array(asked, widest, reaches)
        if best is None:  # on unlike devices, each may need an array of its own
            return found
        found, shape = best
        asked = dataclasses.replace(asked, array=shape)
    return _smallest_scratchpad(asked, found, reaches)


def _cores(candidate: Candidate) -> Iterator[tuple[int, int]]:
    for stage in candidate.stages:
        assert stage.node is not None
        yield stage.node.core.rows, stage.node.core.cols


def _smallest_array(
    asked: Request,
    largest: tuple[int, int],
    reaches: Callable[[Request], Exploration | None],
) -> tuple[Exploration, tuple[int, int]] | None:
    """The smallest of the arrays that are, for each number of rows, the narrowest fast enough."""
    found: tuple[Exploration, tuple[int, int]] | None = None
    most = largest[0] * largest[1]
    for rows in ROWS:
        widths = [cols for cols in _widths(largest) if rows * cols <= most]
        low, high = 0, len(widths)  # the widths before `low` are too slow
        while low < high:
            middle = (low + high) // 2
            shape = rows, widths[middle]
            faster = reaches(dataclasses.replace(asked, array=shape))
            if faster is None:
                low = middle + 1
            else:
                high = middle
                cells = rows * widths[middle]
                if found is None or cells <= found[1][0] * found[1][1]:
                    found = faster, shape
                    most = cells
    return found


def _widths(largest: tuple[int, int]) -> list[int]:
    """Numbers of columns to try: powers of two, and the width of the largest array."""
    cells = largest[0] * largest[1]
    powers = [1 << n for n in range(2, 12) if 1 << n <= cells // ROWS[0]]
    return sorted({*powers, largest[1]})


def _smallest_scratchpad(
    asked: Request, found: Exploration, reaches: Callable[[Request], Exploration | None]
) -> Exploration:
    """Halve the scratchpads as long as the throughput stays high enough."""
    nodes = [stage.node for stage in found.best.stages if stage.node is not None]
    devices = set(asked.cluster.devices)
    floor = max(scratchpad_floor(device) for device in devices)
    size = max(node.core.scratchpad.size_bytes for node in nodes) // 2
    while size >= floor:
        smaller = reaches(dataclasses.replace(asked, scratchpad_bytes=size))
        if smaller is None:
            break
        found, size = smaller, size // 2
    return found
