"""The cut that the event simulation finds fastest, for one schedule and number of micro-batches.

This module states the question for `fpgapipe.partition.search.simulated`: which cuts there are,
what the layers between two of them take and keep, and which devices may take the stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from fpgapipe.lowering.schedule.schedule import Schedule, ScheduleError, forward_only
from fpgapipe.partition.cost.cost import LayerCost
from fpgapipe.partition.schedule.schedule_kind import MakeFor
from fpgapipe.partition.schedule.schedule_kinds import make_schedule, schedule_kind
from fpgapipe.partition.schedule.schedule_rules import kept_microbatches
from fpgapipe.partition.search.dag import cut_structure, list_downsets
from fpgapipe.partition.search.path_bounds import Bools, Cut, CutTimes, Floats
from fpgapipe.partition.search.problem import TOLERANCE, PartitionProblem, Transfer
from fpgapipe.partition.search.simulated import (
    MAX_SIMULATIONS,
    Fastest,
    Limits,
    Lineup,
    fastest,
)
from fpgapipe.partition.timeline.event_graph import StageTimes
from fpgapipe.partition.timeline.replay import Path, Replay
from fpgapipe.partition.timeline.timeline import simulate

MAX_CUTS = 400
"""Most downsets of a network that are considered as cuts. Where there are more, or the devices are
many, only the cuts along the network's order are."""
MAX_CELLS = 3_000_000
"""Most pairs of cuts, for all stages of a lineup, that are bounded."""
MAX_LINEUPS = 64
"""Most sequences of kinds of devices that are tried in free order."""
MAX_TASKS = 15_000_000
"""Most tasks of all simulations of a search."""
MAX_AUTO = 60
"""Most cuts for which an order is looked for, of schedules that are made for given times."""

Parts = list[tuple[int, tuple[str, ...]]]
"""Device, as its position in the chain, and layers of each stage."""


@dataclass(frozen=True)
class Question:
    """The cuts of a problem, and what the event simulation needs to time them.

    Parameters
    ----------
    problem : PartitionProblem
    units : sequence
        For each kind of device, the costs of each layer of the problem: a sequence of LayerCost,
        several where layers of the network run together.
    kind : str
        Name of the schedule.
    train : bool
        Whether there are backward passes.
    may_begin : sequence of bool, optional
        For each layer, whether a stage may begin with it, where every device is to have a stage.
        The cuts are then those along the network's order.
    reads : sequence of (int, int), optional
        Pairs of a layer of the network and a layer that reads its result, as their numbers within
        all units. They are the edges of the problem if each unit has one layer.
    order : Schedule, optional
        A schedule with an order of its own, with a stage on each device, instead of one by name.
    """

    problem: PartitionProblem
    units: Sequence[Sequence[Sequence[LayerCost]]]
    kind: str
    train: bool = True
    may_begin: Sequence[bool] | None = None
    reads: Sequence[tuple[int, int]] | None = None
    order: Schedule | None = None

    @cached_property
    def complete(self) -> bool:
        """Whether all cuts of the network are considered."""
        return self.problem.is_chain or (self.may_begin is None and self._downsets is not None)

    @cached_property
    def _downsets(self) -> list[int] | None:
        return list_downsets(self.problem, MAX_CUTS)

    @cached_property
    def masks(self) -> tuple[int, ...]:
        """The cuts as bit masks of the layers before them."""
        if self.may_begin is None and self._downsets is not None:
            return tuple(self._downsets)
        count = self.problem.num_layers
        begins = self.may_begin or [True] * count
        places = [0, *(at for at in range(1, count) if begins[at]), count]
        return tuple((1 << place) - 1 for place in places)

    @cached_property
    def _structure(self) -> tuple[Bools, Bools, Floats]:
        return cut_structure(self.masks, self.problem.num_layers, self.problem.edges)

    @cached_property
    def _layers(self) -> list[list[LayerCost]]:
        """Costs of all layers of the network, for each kind of device."""
        return [[cost for unit in units for cost in unit] for units in self.units]

    @cached_property
    def _inside(self) -> Bools:
        """For each cut, whether each layer of the network lies before it."""
        unit = [number for number, costs in enumerate(self.units[0]) for _ in costs]
        inside: Bools = self._structure[0][:, unit]
        return inside

    @cached_property
    def times(self) -> CutTimes:
        """Times of the stages between two cuts, and bytes that pass each cut."""
        inside = self._inside
        member = inside.astype(np.float64)
        passes = (
            [[getattr(cost, name).seconds for cost in layers] for layers in self._layers]
            for name in ("forward", "input_gradient", "weight_gradient", "update")
        )
        seconds = np.array([np.array(table, np.float64) @ member.T for table in passes])
        crossing = np.zeros(inside.shape, bool)
        for source, reader in self.problem.edges if self.reads is None else self.reads:
            crossing[:, source] |= inside[:, source] & ~inside[:, reader]
        first = self._layers[0]
        sends = crossing @ np.array([float(cost.output_bytes) for cost in first])
        returns = crossing @ np.array([float(cost.gradient_bytes) for cost in first])
        if self.problem.schedule.transfer is Transfer.NONE:
            sends, returns = np.zeros_like(sends), np.zeros_like(returns)
        return CutTimes(seconds, sends, returns, self._structure[1])

    @cached_property
    def _kept_bytes(self) -> Floats:
        """Bytes of activations of a micro-batch, for the layers between each pair of cuts."""
        inside = self._inside
        sizes: dict[str, int] = {}
        keepers: dict[str, list[int]] = {}
        for layer, cost in enumerate(self._layers[0]):
            for name, size in cost.kept:
                sizes[name] = size
                keepers.setdefault(name, []).append(layer)
        result = np.zeros((len(inside), len(inside)))
        for name, size in sizes.items():
            count = inside[:, keepers[name]].sum(axis=1)
            result += size * (count[None, :] > count[:, None])
        return result

    def _spans(self, values: Sequence[float]) -> Floats:
        before = self._inside @ np.array(values, np.float64)
        spans: Floats = before[None, :] - before[:, None]
        return spans

    def fits(self, schedule: Schedule, devices: Sequence[int]) -> Bools | None:
        """Whether each stage's device has the memory for the layers between two cuts.

        Where the number of micro-batches kept depends on the simulated times, one is assumed. None
        means that there is room for the whole network on every device.
        """
        room = self.problem.memory_bytes[list(devices)]
        if np.isinf(room).all():
            return None
        kept = kept_microbatches(schedule)
        tables = []
        for stage, device in enumerate(devices):
            costs = self._layers[int(self.problem.device_kinds[device])]
            needed = self._kept_bytes * kept[stage]
            needed += self._spans([float(c.state_bytes) for c in costs])
            if not schedule.synchronous and schedule.keeps_weights:
                versions = len(devices) - 1 - stage
                needed += versions * self._spans([float(c.weight_bytes) for c in costs])
            tables.append(needed <= room[stage])
        found = np.array(tables)
        whole = found[:, 0, -1].all() and not schedule.splits_engines
        return None if whole else found

    @property
    def make_for(self) -> MakeFor | None:
        """Makes the schedule for given times, if it has no order of its own."""
        return schedule_kind(self.kind).make_for if self.order is None else None

    def schedule_for(self, num_stages: int, times: StageTimes | None = None) -> Schedule:
        """The schedule for a number of stages, and for their times if it is made for them."""
        count = self.problem.schedule.num_microbatches
        if self.order is not None:
            return self.order
        if self.make_for is None:
            schedule = make_schedule(self.kind, num_stages, count)
        elif times is not None:
            schedule = self.make_for(num_stages, count, times, None)
        else:
            schedule = schedule_kind(self.kind).make(num_stages, count)
        return schedule if self.train else forward_only(schedule)

    def layers(self, fastest_cut: Fastest) -> Parts:
        """Devices and layers of the stages of a cut."""
        inside = self._structure[0]
        parts: Parts = []
        begin = 0
        for device, end in zip(fastest_cut.lineup.devices, fastest_cut.cut, strict=True):
            members = np.flatnonzero(inside[end] & ~inside[begin]).tolist()
            parts.append((device, tuple(self.problem.names[i] for i in members)))
            begin = end
        return parts

    def cut_of(self, parts: Parts) -> Cut | None:
        """The numbers of the cuts that end stages; None if they are not among the cuts."""
        numbers = {mask: number for number, mask in enumerate(self.masks)}
        index = {name: i for i, name in enumerate(self.problem.names)}
        found, mask = [], 0
        for _, layers in parts:
            mask |= sum(1 << index[name] for name in layers)
            if mask not in numbers:
                return None
            found.append(numbers[mask])
        return tuple(found)


@dataclass(frozen=True)
class Answer:
    """The fastest stages found.

    Attributes
    ----------
    parts : Parts
    minibatch_s : float
        Simulated time of a mini-batch; of an asynchronous schedule, in the steady state.
    lower_bound_s : float
        Time below which no cut can be.
    simulations : int
        Number of simulations of the search.
    reason : str
        How the search went.
    """

    parts: Parts
    minibatch_s: float
    lower_bound_s: float
    simulations: int
    reason: str

    @property
    def optimal(self) -> bool:
        """Whether the time equals the bound, apart from rounding."""
        return self.minibatch_s - self.lower_bound_s <= TOLERANCE * self.minibatch_s


class _AutoReplay(Replay):
    """Simulation of a schedule that is made for given times: each cut has another order of tasks.

    What holds for every order is a bound: a device works for all micro-batches, after the first has
    passed the stages before.
    """

    def __init__(self, question: Question, num_stages: int, latency_s: float) -> None:
        super().__init__(question.schedule_for(num_stages), latency_s)
        self.question = question
        self.latency_s = latency_s
        self.fixed_order = False

    def longest(self, durations: Floats) -> tuple[float, Path]:
        """Seconds of a mini-batch, and the longest path that every order has."""
        paths = self.lane_paths()
        longest = max(paths, key=lambda path: path.seconds(durations))
        return self.minibatch_s(durations), longest

    def minibatch_s(self, durations: Floats) -> float:
        """Seconds of a mini-batch in the best order found."""
        forward, input_gradient, weight_gradient, update, activations, gradients = durations
        times = StageTimes(
            forward,
            input_gradient,
            weight_gradient,
            update,
            activations,
            gradients,
            self.latency_s,
        )
        schedule = self.question.schedule_for(self.stages, times)
        return simulate(schedule, times).makespan_s


def find_fastest(
    question: Question,
    start: Parts,
    *,
    all_devices: bool = False,
    fits: Callable[[Parts], bool] = lambda parts: True,
    max_simulations: int = MAX_SIMULATIONS,
) -> Answer | None:
    """Find the cut with the least simulated time of a mini-batch.

    Parameters
    ----------
    question : Question
    start : Parts
        Stages to begin with.
    all_devices : bool
        Whether every device gets a stage.
    fits : callable
        Whether stages keep the limits of memory in the simulation.
    max_simulations : int
        Limit of simulations.

    Returns
    -------
    Answer or None
        None if no cut keeps the limits, or there are too many cuts and devices.
    """
    problem = question.problem
    most = min(problem.num_devices, len(question.masks) - 1)
    counts: Sequence[int] = [problem.num_devices] if all_devices else range(1, most + 1)
    size = len(question.masks) ** 2
    tried = [count for count in counts if count * size <= MAX_CELLS]
    made = list(itertools.islice(_lineups(question, tried), MAX_LINEUPS + 1))
    lineups = made[:MAX_LINEUPS]
    if not lineups:
        return None
    whole = len(lineups) == len(made) and len(tried) == len(counts)
    found = _search(question, lineups, start, fits, max_simulations)
    if found is None:
        return None
    bound = found.lower_bound_s
    if not whole or not (question.complete or all_devices):
        bound = min(bound, problem.schedule.num_microbatches * problem.bound_s)
    reason = _reason(question, found, bound, counts, all_devices)
    return Answer(question.layers(found), found.minibatch_s, bound, found.simulations, reason)


def _search(
    question: Question,
    lineups: list[Lineup],
    start: Parts,
    fits: Callable[[Parts], bool],
    max_simulations: int,
) -> Fastest | None:
    largest = max(len(each.replay.which) for each in lineups)
    allowed = min(max_simulations, MAX_TASKS // largest)
    if question.make_for:
        allowed = min(allowed, MAX_AUTO)
    devices = tuple(device for device, _ in start)
    begun = question.cut_of(start)
    starts = [
        (number, begun)
        for number, each in enumerate(lineups)
        if begun is not None and each.devices == devices
    ]

    def admits(lineup: Lineup, cut: Cut) -> bool:
        return fits(question.layers(Fastest(lineup, cut, 0.0, 0.0, 0)))

    checked = any(each.fits is not None for each in lineups)
    limits = Limits(simulations=max(allowed, len(starts)))
    return fastest(
        question.times, lineups, start=starts, admits=admits if checked else None, limits=limits
    )


def _reason(
    question: Question, found: Fastest, bound_s: float, counts: Sequence[int], all_devices: bool
) -> str:
    places = f"{len(question.masks) - 2:,} places"
    cuts = f"all {places} to cut" if question.complete else f"{places} to cut, in one order"
    over = f"all {counts[-1]} devices" if all_devices else f"up to {counts[-1]} devices"
    tried = f"{found.simulations:,} event simulations"
    gap = 1 - bound_s / found.minibatch_s if found.minibatch_s else 0.0
    if gap <= TOLERANCE:
        return f"{cuts} over {over} in {tried}, the others ruled out by bounds"
    return f"at most {gap:.2%} above the least possible, after {tried}; {cuts} over {over}"


def _lineups(question: Question, counts: Sequence[int]) -> Iterator[Lineup]:
    problem = question.problem

    @cache
    def replay(num_stages: int) -> Replay:
        latency_s = max(problem.link_latency_s[: num_stages - 1], default=0.0)
        if question.make_for:
            return _AutoReplay(question, num_stages, latency_s)
        return Replay(question.schedule_for(num_stages), latency_s)

    rates = tuple(problem.link_bytes_per_s.tolist())
    for count in reversed(counts):
        try:
            one = replay(count)
        except ScheduleError:
            continue
        for devices in _sequences(problem, count):
            kinds = tuple(int(problem.device_kinds[device]) for device in devices)
            fits = question.fits(one.schedule, devices)
            yield Lineup(devices, kinds, rates[: count - 1], one, fits)


def _sequences(problem: PartitionProblem, count: int) -> Iterator[tuple[int, ...]]:
    """Devices that may take the stages, in order; in free order, one of each class at a time."""
    if not problem.free_order or len(problem.device_classes) == 1:
        yield tuple(range(count))
        return
    classes = problem.device_classes

    def chosen(left: int, used: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if not left:
            yield ()
            return
        for number, group in enumerate(classes):
            if used[number] < len(group):
                more = (*used[:number], used[number] + 1, *used[number + 1 :])
                for rest in chosen(left - 1, more):
                    yield (group[used[number]], *rest)

    yield from chosen(count, (0,) * len(classes))
