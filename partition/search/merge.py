"""Partition by merging: layers become groups by the communication that each merge saves.

A re-implementation from the abstract of Akintoye et al., "Layer-wise partitioning and merging for
efficient and scalable deep learning" (Future Generation Computer Systems, 2023). Each layer is a
group at first. Of all pairs of groups that follow one another, the pair is merged whose boundary
tensors take longest to transfer, as long as the merged group takes less than ``T* (1 + epsilon)``
and fits the memory of a device, until as many groups as devices are left. T* is the time that each
device would take if the network could be cut anywhere. Of pairs that save as much, the one that
takes the least time is merged first. Rules that the abstract does not give are our own.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fpgapipe.partition.search.cuts import Row
from fpgapipe.partition.search.problem import TOLERANCE, PartitionProblem, PlanError

EPSILON = 0.1
"""Share by which a group may exceed the time of a perfectly balanced one."""

RELAXED = 0.05, 1.1
"""Summand and factor, whichever gives more, by which the share grows if merging gets stuck."""


@dataclass(frozen=True)
class Merged:
    """The groups that merging has left.

    Attributes
    ----------
    groups : tuple of tuple of str
        Names of the layers of each group, in the order of the network.
    epsilon : float
        Share by which a group was allowed to exceed the balanced time.
    asked : float
        The share to begin with.
    """

    groups: tuple[tuple[str, ...], ...]
    epsilon: float
    asked: float

    @property
    def reason(self) -> str:
        """How the groups were found, in words."""
        told = (
            "layers merged where that saves the most communication, into groups of at most "
            f"{1 + self.epsilon:.3g} times the balanced time"
        )
        if self.epsilon > self.asked:
            told += f" ({1 + self.asked:.3g} times left too many groups)"
        return told


def merge_layers(
    problem: PartitionProblem,
    may_begin: Sequence[bool],
    *,
    epsilon: float = EPSILON,
    all_devices: bool = False,
) -> Merged:
    """Merge the layers of a network into as many groups as there are devices in the chain.

    The devices are those up to the first that has no link to the next. If they differ, the time of
    a layer is its share of the whole network's time, averaged over them.

    Parameters
    ----------
    problem : PartitionProblem
    may_begin : sequence of bool
        For each layer, whether a group may begin with it.
    epsilon : float
        Share by which a group may exceed the balanced time. It is raised in steps until there are
        as few groups as devices.
    all_devices : bool
        Whether every device needs a group.

    Raises
    ------
    PlanError
        If the memory of the devices ends the merging too early, or if every device needs a group
        and there are too few layers or links.
    """
    rates = problem.link_bytes_per_s
    linked = 1 + int(np.argmin(rates > 0)) if (rates == 0).any() else problem.num_devices
    starts = [0, *(at for at in range(1, problem.num_layers) if may_begin[at])]
    if all_devices and linked < problem.num_devices:
        raise PlanError("the network cannot be cut where all devices are joined by links")
    if all_devices and len(starts) < linked:
        raise PlanError(
            f"the network has {len(starts)} runs of layers that can stand alone, too few for "
            f"{linked} devices; use at most {len(starts)}"
        )
    merging = _Merging(problem, np.array([*starts, problem.num_layers]), linked)
    allowed = epsilon
    while len(ends := merging.ends(allowed)) > linked:
        if allowed > linked:  # a group of all layers would take no longer
            raise PlanError(
                f"merging leaves {len(ends)} groups of layers for {linked} devices: a device has "
                "no memory for more in one group; use smaller micro-batches or more devices"
            )
        allowed = max(allowed + RELAXED[0], allowed * RELAXED[1])
    bounds = [0, *ends]
    groups = tuple(problem.names[a:b] for a, b in zip(bounds, ends, strict=False))
    return Merged(groups, allowed, epsilon)


class _Merging:
    """The runs of layers that merging begins with, and what their groups take.

    Parameters
    ----------
    problem : PartitionProblem
    bounds : int array
        Position of the first layer of each run, and the number of layers.
    num_devices : int
        Number of devices, the first ones of the problem.
    """

    def __init__(
        self, problem: PartitionProblem, bounds: NDArray[np.int64], num_devices: int
    ) -> None:
        row = Row(problem)
        times = problem.device_compute_s[:, :num_devices]
        totals = times.sum(axis=0)
        shares = (times / np.where(totals > 0, totals, 1)).mean(axis=1)
        self.problem = problem
        self.bounds = bounds
        self.num_devices = num_devices
        before = np.concatenate([[0.0], np.cumsum(shares)])
        self.before: list[float] = before[bounds].tolist()
        self.state = row.state_bytes[bounds]
        self.weights = row.weight_bytes[bounds]
        self.activations = row.activation_bytes[bounds]
        links = [row.transfer_s(link) for link in range(num_devices - 1)]
        wire = np.max(links, axis=0) if links else np.zeros(row.size)
        self.saved: list[float] = (2 * wire[bounds]).tolist()  # activations, and their gradients
        self.room = float(problem.memory_bytes[:num_devices].min())

    def ends(self, epsilon: float) -> list[int]:
        """Number of layers up to the end of each group."""
        count = len(self.bounds) - 1
        begin_of = list(range(-1, count))  # for each cut, where the group before it begins
        end_of = list(range(1, count + 2))  # for each cut, where the group behind it ends
        merged = [False] * (count + 1)
        heap = [self._entry(cut, cut - 1, cut + 1) for cut in range(1, count)]
        heapq.heapify(heap)
        groups = count
        limit = (1 + epsilon) / self.num_devices * (1 + TOLERANCE)
        while heap and groups > self.num_devices:
            entry = heapq.heappop(heap)
            cut = entry[2]
            begin, end = begin_of[cut], end_of[cut]
            if merged[cut] or entry != self._entry(cut, begin, end):
                continue  # there is another entry, with the groups as they are now
            if entry[1] > limit or not self._fits(begin, end):
                continue
            merged[cut] = True
            groups -= 1
            begin_of[end], end_of[begin] = begin, end
            for other in (begin, end):
                if 0 < other < count:
                    heapq.heappush(heap, self._entry(other, begin_of[other], end_of[other]))
        return [int(self.bounds[cut]) for cut in range(1, count + 1) if not merged[cut]]

    def _entry(self, cut: int, begin: int, end: int) -> tuple[float, float, int]:
        """Key of a cut: what its merge saves, negated; the share of the merged group; the cut."""
        return -self.saved[cut], self.before[end] - self.before[begin], cut

    def _fits(self, begin: int, end: int) -> bool:
        """Whether a device has the memory for a group, if the layers behind it are balanced."""
        behind = (self.before[-1] - self.before[end]) * self.num_devices
        after = min(int(np.ceil(behind - TOLERANCE)), self.num_devices - 1)
        needed = self.problem.kept_bytes(
            self.state[end] - self.state[begin],
            self.weights[end] - self.weights[begin],
            self.activations[end] - self.activations[begin],
            after,
        )
        return bool(needed <= self.room)
