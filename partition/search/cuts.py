"""The cuts of a network, and the stages that may lie between two of them.

A `Cuts` object lists cuts: the first has no layers before it, the last has all of them. The search
extends vectors over the cuts by one stage at a time: `reach` says at which cuts a stage can end,
and `extend` what the cheapest way to each of them costs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.partition.search.problem import Floats, PartitionProblem, Transfer

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
STEP_WORK = 4000.0
"""Fixed effort of a step of the search, expressed as a number of table cells."""


class Synchronisation(StrEnum):
    """The cost model for keeping the w bytes of weights of a stage's m replicas equal.

    * ``ring``: one all-reduce per mini-batch, which takes 2 (m-1)/m * w / bandwidth and is spread
      over the M micro-batches: t = compute / m + all-reduce / M.
    * ``pipedream-max``: t = max(compute, 2 (m-1) w / bandwidth) / m, every micro-batch.
      Source: D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training",
      SOSP 2019.
    * ``pipedream-added``: t = (compute + 4 (m-1)/m * w / bandwidth) / m, as the program released
      with that paper computes it.
    """

    RING = "ring"
    PIPEDREAM_MAX = "pipedream-max"
    PIPEDREAM_ADDED = "pipedream-added"


@dataclass(frozen=True)
class Slot:
    """The place of a stage: its first device, the link behind it, and the stages after it."""

    device: int
    link: int
    stages_after: int
    replicas: int = 1
    shares: float = 1.0  # number of links that carry the stage's output concurrently


class Cuts(ABC):
    """Cuts of a network, with the sums of time and bytes of the layers before each.

    Parameters
    ----------
    problem : PartitionProblem
    seconds : array, shape (kinds, cuts)
        Compute time of all layers before the cut, on each kind of device.
    state_bytes, weight_bytes, activation_bytes : array, shape (cuts,)
        Bytes of all layers before the cut.
    cut_bytes : array, shape (cuts,)
        Bytes of the boundary tensors that pass the cut, in one direction.

    Attributes
    ----------
    synchronisation : Synchronisation
        Cost model for slots with several replicas.
    """

    synchronisation = Synchronisation.RING

    def __init__(
        self,
        problem: PartitionProblem,
        seconds: Floats,
        state_bytes: Floats,
        weight_bytes: Floats,
        activation_bytes: Floats,
        cut_bytes: Floats,
    ) -> None:
        self.problem = problem
        self.seconds = np.ascontiguousarray(seconds)
        self.state_bytes = state_bytes
        self.weight_bytes = weight_bytes
        self.activation_bytes = activation_bytes
        self.cut_bytes = cut_bytes
        self.size = len(cut_bytes)
        self.work = self.size + STEP_WORK
        self._transfers: dict[int, Floats] = {}

    @abstractmethod
    def reach(self, before: Bools, slot: Slot, cap_s: float) -> Bools:
        """Cuts at which a non-empty stage that begins at one of `before` may end."""

    @abstractmethod
    def extend(self, cost: Floats, slot: Slot, cap_s: float) -> Floats:
        """Least cost up to each cut after another stage; inf where no stage may end."""

    @abstractmethod
    def previous(self, cost: Floats, slot: Slot, cap_s: float, end: int) -> int:
        """Cut at which the cheapest stage that ends at `end` begins; negative if there is none."""

    @abstractmethod
    def layers_between(self, start: int, end: int) -> list[int]:
        """Layers after one cut and before another, in the network's order."""

    def kind(self, slot: Slot) -> int:
        """Kind of a slot's device: its row in `seconds`."""
        return int(self.problem.device_kinds[slot.device])

    def loads_s(self, slot: Slot) -> list[Floats]:
        """Arrays of seconds summed up to each cut.

        The time of a stage is the largest, over the arrays, of the differences between the values
        at its two cuts.
        """
        compute, m = self.seconds[self.kind(slot)], slot.replicas
        if m == 1:
            return [compute]
        rate = float(self.problem.link_bytes_per_s[0])
        whole = (
            (m - 1) * self.weight_bytes / rate if rate else np.where(self.weight_bytes, np.inf, 0)
        )
        if self.synchronisation is Synchronisation.PIPEDREAM_MAX:
            return [compute / m, 2 * whole / m]
        if self.synchronisation is Synchronisation.PIPEDREAM_ADDED:
            return [(compute + 4 * whole / m) / m]
        return [compute / m + 2 * whole / m / self.problem.schedule.num_microbatches]

    def shares(self, before: int, after: int, first: bool) -> float:
        """Number of links that share the transfers between two stages of given replicas.

        It is the smaller of the two numbers of replicas. PipeDream's published model counts one
        link. Its released program considers for the first stage only the receiving replicas.
        """
        if self.synchronisation is Synchronisation.PIPEDREAM_MAX:
            return 1.0
        if self.synchronisation is Synchronisation.PIPEDREAM_ADDED and first:
            return float(after)
        return float(min(before, after))

    def transfer_s(self, link: int) -> Floats:
        """For each cut, seconds of one transfer over a link."""
        if self.problem.has_equal_links and link < self.problem.num_devices - 1:
            link = 0
        if link not in self._transfers:
            self._transfers[link] = self.problem.transfer_s(self.cut_bytes, link)
        return self._transfers[link]

    def charge_s(self, slot: Slot) -> Floats:
        """For each cut, seconds that blocking transfers add to the stage before it."""
        schedule = self.problem.schedule
        if schedule.transfer is not Transfer.BLOCK:
            return np.zeros(self.size)
        return schedule.transfers_per_period * self.transfer_s(slot.link)

    def fill_s(self, slot: Slot) -> Floats:
        """For each cut, seconds that its transfers add to the mini-batch time."""
        schedule = self.problem.schedule
        if schedule.fill_transfers == 0 or schedule.transfer is Transfer.NONE:
            return np.zeros(self.size)
        return schedule.fill_transfers * self.transfer_s(slot.link)

    def is_open(self, slot: Slot, cap_s: float) -> Bools:
        """Cuts at which a stage in this slot may end, considering only the link behind it."""
        seconds = self.transfer_s(slot.link)
        if self.problem.schedule.transfer is Transfer.OVERLAP:
            cap_s *= slot.shares / self.problem.schedule.transfers_per_period
        else:
            cap_s = np.inf
        allowed: Bools = (seconds <= cap_s) & (seconds < np.inf)
        return allowed

    def memory_before(self, stages_after: int) -> Floats:
        """For each cut, bytes of memory that all layers before it would need in one stage."""
        kept: Floats = self.problem.kept_bytes(
            self.state_bytes, self.weight_bytes, self.activation_bytes, stages_after
        )
        return kept

    @cached_property
    def memory_limit(self) -> Floats:
        """Usable memory of each device, bytes."""
        return self.problem.memory_bytes


class Row(Cuts):
    """The cuts of a network along one order of its layers.

    The cuts at which a stage with a given end may begin form an interval that reaches up to its
    end, since compute time and memory grow with every layer. `window` gives the interval's start.

    Parameters
    ----------
    problem : PartitionProblem
    order : array of int, optional
        A topological order of the layers; the default is the order in the problem.
    """

    def __init__(self, problem: PartitionProblem, order: Ints | None = None) -> None:
        count = problem.num_layers
        self.order = np.arange(count) if order is None else order
        place = np.empty(count, np.int64)
        place[self.order] = np.arange(count)
        last = place.copy()
        for source, target in problem.edges:
            last[source] = max(last[source], place[target])
        steps = np.zeros(count + 2)
        np.add.at(steps, place + 1, problem.output_bytes)
        np.subtract.at(steps, last + 1, problem.output_bytes)
        cut_bytes = np.cumsum(steps)[: count + 1]
        # Sums of whole bytes are exact. Sums of fractions of bytes are not, and the rest that is
        # left by rounding must not count as a transfer.
        cut_bytes[cut_bytes < 1e-6] = cut_bytes[-1] = 0.0
        super().__init__(
            problem,
            _prefix(problem.compute_s[self.order].T),
            _prefix(problem.state[self.order]),
            _prefix(problem.weight_bytes[self.order]),
            _prefix(problem.activation_bytes[self.order]),
            cut_bytes,
        )
        self.positions = np.arange(self.size)
        self._windows: dict[Any, Ints] = {}
        self._cap_s = -1.0

    def layers_between(self, start: int, end: int) -> list[int]:
        """Layers after one cut and before another, in the network's order."""
        return sorted(self.order[start:end].tolist())

    def window(self, slot: Slot, cap_s: float) -> Ints:
        """For each cut at which a stage ends, the first cut at which the stage may begin.

        Where no stage may end at a cut, the value is that cut or a later one.
        """
        if cap_s != self._cap_s:
            self._windows.clear()
            self._cap_s = cap_s
        limited = self.problem.has_memory_limit
        last = slot.link >= self.problem.num_devices - 1
        link = "last" if last else 0 if self.problem.has_equal_links else slot.link
        memory = float(self.memory_limit[slot.device])
        kept = self._kept_key(slot) if limited else 0
        key = (self.kind(slot), memory, link, slot.replicas, kept)
        if key not in self._windows:
            if len(self._windows) >= 64:
                self._windows.clear()
            self._windows[key] = self._window(slot, cap_s, memory if limited else np.inf)
        return self._windows[key]

    def _kept_key(self, slot: Slot) -> tuple[int, int]:
        schedule = self.problem.schedule
        return schedule.in_flight(slot.stages_after), schedule.weight_versions(slot.stages_after)

    def _window(self, slot: Slot, cap_s: float, memory_bytes: float) -> Ints:
        first = np.zeros(self.size, np.int64)
        for before in self.loads_s(slot):
            with np.errstate(invalid="ignore"):
                floor = before + self.charge_s(slot) / slot.replicas - cap_s
            floor = np.where(np.isnan(floor), np.inf, floor)
            first = np.maximum(first, np.searchsorted(before, floor))
        if memory_bytes < np.inf:
            kept = self.memory_before(slot.stages_after)
            first = np.maximum(first, np.searchsorted(kept, kept - memory_bytes))
        return np.where(self.is_open(slot, cap_s), first, self.size)

    def reach(self, before: Bools, slot: Slot, cap_s: float) -> Bools:
        """Cuts at which a non-empty stage that begins at one of `before` may end."""
        nearest = np.maximum.accumulate(np.where(before, self.positions, -1))
        ends = np.zeros(self.size, bool)
        ends[1:] = nearest[:-1] >= self.window(slot, cap_s)[1:]
        return ends

    def extend(self, cost: Floats, slot: Slot, cap_s: float) -> Floats:
        """Least cost up to each cut after another stage; inf where no stage may end."""
        rate = self.problem.schedule.fill_factor
        before = rate * self.seconds[self.kind(slot)]
        least = _range_min(cost - before, self.window(slot, cap_s))
        result: Floats = least + before + self._added(slot)
        return result

    def previous(self, cost: Floats, slot: Slot, cap_s: float, end: int) -> int:
        """Cut at which the cheapest stage that ends at `end` begins; negative if there is none."""
        rate = self.problem.schedule.fill_factor
        first = int(self.window(slot, cap_s)[end])
        if first >= end:
            return -1
        before = rate * self.seconds[self.kind(slot), first:end]
        return first + int(np.argmin(cost[first:end] - before))

    def _added(self, slot: Slot) -> Floats:
        added = self.problem.schedule.fill_factor * self.charge_s(slot) + self.fill_s(slot)
        return np.where(np.isfinite(added), added, np.inf)


def _prefix(values: Floats) -> Floats:
    """Sums of the values before each position, along the last axis."""
    zeros = np.zeros((*values.shape[:-1], 1))
    return np.concatenate([zeros, np.cumsum(values, axis=-1)], axis=-1)


def _range_min(values: Floats, first: Ints) -> Floats:
    """Minimum of ``values[first[end]:end]`` for each end; inf where that slice is empty.

    This is a sparse table: every window is covered by two overlapping runs whose length is a power
    of two.
    """
    size = len(values)
    widths = np.arange(size) - first
    result = np.full(size, np.inf)
    level = 0
    table = values
    while (wide := widths >= 1 << level).any():
        if level:
            half = 1 << (level - 1)
            table = np.minimum(table[:-half], table[half:])
        ends = np.flatnonzero(wide & (widths < 2 << level))
        starts = first[ends]
        result[ends] = np.minimum(table[starts], table[ends - (1 << level)])
        level += 1
    return result
