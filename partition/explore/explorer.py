"""Exploration: the fastest combination of schedule, micro-batch size, array shape and partition.

For every schedule, every division of the batch into micro-batches and every core worth trying, the
cost model gives the layers' costs, the partitioner cuts the network by the model of the schedule,
and the event simulation times the result. Of what came near the best, the cut that the simulation
finds fastest is then searched (`fpgapipe.partition.explore.fastest_cut`). Combinations that do not
fit on the devices are dropped. If none is left, the error says which limit is exceeded and by how
much.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from fpgapipe.errors import counted
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.jobs import results
from fpgapipe.lowering.schedule.schedule import ScheduleError
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.network.graph import Graph
from fpgapipe.partition.cost.cost import (
    CostModel,
    LayerCost,
)
from fpgapipe.partition.explore.candidate import (
    Candidate,
    Choice,
    DeviceChain,
    Stage,
    device_chain,
    time_candidate,
)
from fpgapipe.partition.explore.core_choices import choices_of, ranked_cores
from fpgapipe.partition.explore.cut_problem import cut_bytes, memory_fault, on_one_device
from fpgapipe.partition.explore.fastest_cut import Parts, Question, find_fastest
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.explore.unit_problem import make_problem, reads_of, units_of
from fpgapipe.partition.schedule.schedule_kinds import model_of, num_engines_of
from fpgapipe.partition.search import dag
from fpgapipe.partition.search.every_device import over_all_devices
from fpgapipe.partition.search.merge import Merged, merge_layers
from fpgapipe.partition.search.problem import Objective, PlanError, ScheduleModel

Found = TypeVar("Found")
MAX_SPLITS = 9
"""Most numbers of micro-batches that are tried for a batch."""
ENOUGH_TRIED, ENOUGH_OF_DEVICE = 512, 64
"""Most micro-batches that a batch is divided into if they fit the memory, and most of a device:
the larger number counts. With as many, filling and draining the pipeline hardly matter."""

MOST_TRIED = 4096
"""Most that a batch is divided into unless the user asks for more; they take minutes to time."""

NEAR = 1.1
"""Schedules and numbers of micro-batches whose best cut under the schedule's model takes at most
this many times the least are searched for the cut that the simulation finds fastest."""


@dataclass(frozen=True)
class Group:
    """The best of the cores for one schedule and number of micro-batches."""

    best: Candidate
    graph: Graph
    choice: Choice


@dataclass(frozen=True)
class Exploration:
    """The result of an exploration.

    Attributes
    ----------
    tried : tuple of Candidate
        The best candidate for each schedule and micro-batch size, fastest first.
    refused : tuple of str
        Reasons why other combinations are impossible.
    others : tuple of Candidate
        The best candidates with other cores, by the model of the schedule, not by simulation.
    groups : tuple of Group
        What `tried` has by models, with the network and the cores.
    """

    tried: tuple[Candidate, ...]
    refused: tuple[str, ...]
    others: tuple[Candidate, ...] = ()
    groups: tuple[Group, ...] = ()

    @property
    def best(self) -> Candidate:
        """The fastest candidate."""
        return self.tried[0]


@dataclass(frozen=True)
class KnownGraphs:
    """Graphs of a network, in the place of what loads it: fit for pickle."""

    graphs: tuple[Graph, ...]

    def __call__(self, samples: int) -> Graph:
        """Return the graph for a number of samples."""
        return next(graph for graph in self.graphs if graph.batch == samples)


def explore(
    request: Request, on_step: Callable[[int, int], object] = lambda done, total: None
) -> Exploration:
    """Find the fastest way to train a network on a cluster.

    Parameters
    ----------
    request : Request
    on_step : function
        Called with the number of steps done and their total.

    Raises
    ------
    PlanError
        If nothing fits. The message names the limit, by how much and where it is exceeded, and
        what would help.
    """
    return by_simulation(request, explore_by_models(request, on_step))


def explore_by_models(
    request: Request, on_step: Callable[[int, int], object] = lambda done, total: None
) -> Exploration:
    """Find the fastest way by the models of schedules, which takes less time; see `explore`.

    It is for who cuts the network anew by other prices.
    """
    return with_enough_splits(request, lambda asked: _explore(asked, on_step))


def with_enough_splits(request: Request, find: Callable[[Request], Found]) -> Found:
    """Find something for a request, with more micro-batches than do any good if it must be."""
    try:
        return find(request)
    except PlanError:
        more = dataclasses.replace(request, most_microbatches=MOST_TRIED)
        if request.num_microbatches is not None or [*splits_of(more)] == [*splits_of(request)]:
            raise
        return find(more)


def _explore(request: Request, on_step: Callable[[int, int], object]) -> Exploration:
    """The fastest way by models with any of the numbers of micro-batches that are to be tried."""
    jobs = []
    for count in splits_of(request):
        graph = request.load(request.batch // count)
        jobs.append((dataclasses.replace(request, load=KnownGraphs((graph,))), count))
    parts = results(_explored, jobs, on_step)
    found = [group for part in parts for group in part.found]
    refused = [reason for part in parts for reason in part.refused]
    errors = [error for part in parts for error in part.errors]
    if not found:
        if errors:
            # The smallest micro-batches came nearest to fitting.
            raise max(errors, key=lambda each: each[0])[1]
        raise PlanError(refused[0] if refused else "nothing to try")
    return Exploration(
        tuple(sorted((each.best for each in found), key=lambda each: each.steady_s)),
        tuple(dict.fromkeys(refused)),
        tuple(candidate for part in parts for candidate in part.others),
        tuple(found),
    )


def by_simulation(request: Request, found: Exploration) -> Exploration:
    """What was found by models, with the cuts that the event simulation finds fastest."""
    if request.objective is not Objective.MINIBATCH or request.merges:
        return found
    near = [each.best.steady_s <= NEAR * found.best.steady_s for each in found.groups]
    asked = [
        (dataclasses.replace(request, load=KnownGraphs((each.graph,))), each)
        for each in itertools.compress(found.groups, near)
    ]
    searched = iter(results(_searched, asked))
    tried = [
        next(searched) if is_near else each.best
        for each, is_near in zip(found.groups, near, strict=True)
    ]
    return dataclasses.replace(found, tried=tuple(sorted(tried, key=lambda each: each.steady_s)))


@dataclass
class _Split:
    """Findings for a number of micro-batches.

    Attributes
    ----------
    found : list of Group
        One for each schedule.
    others : list of Candidate
        The best ones with other cores.
    refused : list of str
    errors : list of (int, PlanError)
        Reasons why something does not fit, and how near it came to fitting.
    """

    found: list[Group] = field(default_factory=list)
    others: list[Candidate] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    errors: list[tuple[int, PlanError]] = field(default_factory=list)


def _explored(request: Request, count: int) -> _Split:
    """The best candidates of all schedules for a number of micro-batches, by their models."""
    graph = request.load(request.batch // count)
    model = CostModel(graph, accumulates=count > 1)
    part = _Split()
    cores = {}
    too_large: dict[int, PlanError] = {}
    for number in {num_engines_of(kind) for kind in request.schedules}:
        try:
            cores[number] = ranked_cores(request, model, number)
        except PlanError as error:  # a core with one engine may fit where one with two does not
            too_large[number] = error
            part.errors.append((0, error))
    for kind in request.schedules:
        if reason := too_large.get(num_engines_of(kind)):
            part.refused.append(f"{kind}: {reason}")
            continue
        options: list[Group] = []
        chains, ranked = device_chains(request.cluster), cores[num_engines_of(kind)]
        for choice, chain in itertools.product(choices_of(ranked), chains):
            group = functools.partial(Group, graph=graph, choice=choice)
            try:
                first = plan_one(request, graph, choice, chain, kind, count, simulate=False)
                options.append(group(first))
            except PlanError as error:
                part.errors.append((count, error))
            except ScheduleError as error:
                part.refused.append(str(error))
        if not (request.all_devices or request.merges or len(request.cluster.devices) == 1):
            for one in ({device: each} for device, most in ranked.items() for each in most):
                with contextlib.suppress(ScheduleError):
                    alone = on_one_device(
                        request.cluster, one, kind, request.batch, count, request.train
                    )
                    options += (Group(each, graph, choice | one) for each in alone)
        if options:
            options.sort(key=lambda each: each.best.steady_s)
            part.found.append(options[0])
            part.others += (each.best for each in options[1:])
        elif part.errors:
            part.refused.append(
                f"{kind}, {counted(count, 'micro-batch', 'es')}: {part.errors[-1][1]}"
            )
    return part


def _searched(request: Request, group: Group) -> Candidate:
    """The cut that the event simulation finds fastest, over either order of the devices."""
    kind, count = group.best.kind, group.best.num_microbatches
    options = []
    for row in device_chains(request.cluster):
        try:
            options.append(plan_one(request, group.graph, group.choice, row, kind, count))
        except PlanError:
            continue
    bound_s = min((each.lower_bound_s for each in options), default=0.0)
    options.append(group.best)  # it may be on one device that is not the first
    best = min(options, key=lambda each: each.steady_s)
    reason = best.reason if best is not group.best else f"{best.reason}; {options[0].reason}"
    return best.judged(best.steady_s, bound_s, reason)


def splits_of(request: Request) -> Iterator[int]:
    """Numbers of micro-batches to try: divisors of the batch, evenly sampled if they are many."""
    if request.num_microbatches is not None:
        if request.batch % request.num_microbatches:
            raise PlanError(
                f"a batch of {request.batch} cannot be cut into {request.num_microbatches} equal "
                "micro-batches"
            )
        yield request.num_microbatches
        return
    least = len(request.cluster.devices)
    enough = min(max(ENOUGH_TRIED, ENOUGH_OF_DEVICE * least), MOST_TRIED)
    divisors = counts_tried(request.batch, request.most_microbatches or enough)
    # Fewer micro-batches than devices leave most devices idle. Of those numbers, only the largest
    # is tried, and 1, for which a single device may be best.
    few = [n for n in divisors if n < least]
    few = sorted({*few[:1], *few[-1:]})
    many = [n for n in divisors if n >= least]
    if len(many) > MAX_SPLITS - len(few):
        picks = np.unique(np.linspace(0, len(many) - 1, MAX_SPLITS - len(few)).round().astype(int))
        many = [many[i] for i in picks]
    yield from few + many


def counts_tried(batch: int, most: int = ENOUGH_TRIED) -> list[int]:
    """Numbers of equal micro-batches into which a batch can be divided, up to `most`."""
    return [n for n in range(1, min(batch, most) + 1) if batch % n == 0]


def device_chains(cluster: ClusterSpec) -> list[DeviceChain]:
    """The device chain in the order given and, where it makes a difference, also reversed.

    Links are equally fast in both directions.
    """
    row = device_chain(cluster)
    back = device_chain(cluster, range(len(cluster.devices))[::-1])
    there = ([cluster.devices[i] for i in each.devices] for each in (row, back))
    same = len({tuple(devices) for devices in there}) == 1
    if same and row.link_bytes_per_s == back.link_bytes_per_s:
        return [row]
    return [row, back]


def plan_one(
    request: Request,
    graph: Graph,
    choice: Choice,
    row: DeviceChain,
    kind: str,
    count: int,
    *,
    simulate: bool = True,
) -> Candidate:
    """The best partition for one schedule, number of micro-batches and choice of cores.

    Parameters
    ----------
    simulate : bool
        For the mini-batch objective, whether to search for the partition that the event simulation
        finds fastest. If false, it is the best under the model of the schedule, which takes less
        time to find.

    Raises
    ------
    PlanError
        If no partition keeps the limits.
    """
    devices = [request.cluster.devices[i] for i in row.devices]
    kinds = list(choice)
    columns = [choice[device][1] for device in kinds]
    groups = layers_together(graph)
    try:
        problem = make_problem(
            graph,
            groups,
            columns,
            [kinds.index(device) for device in devices],
            [request.cluster.device_names[i] for i in row.devices],
            [float(device.memory_bytes) or np.inf for device in devices],
            row,
            _model_of(request, kind, count, _ratio(columns)),
            free_order=request.free_order,
        )
        may_begin = (problem.device_compute_s.max(axis=1) > 0).tolist()
        start: Parts = []
        error: PlanError | None = None
        try:
            found = None
            merged: Merged | None = None
            if request.merges:
                merged = merge_layers(problem, may_begin, all_devices=request.all_devices)
                start = list(enumerate(merged.groups))
            elif request.order is None:
                found = dag.plan(problem, request.objective)
                start = [(stage.devices[0], stage.layers) for stage in found.stages]
        except PlanError as reason:
            error = reason
        if request.all_devices and not request.merges and len(start) < len(devices):
            start = list(enumerate(over_all_devices(problem, may_begin)))
            found = found and dataclasses.replace(
                found, optimal=False, reason="over all devices, though fewer would be faster"
            )
    except ValueError as reason:  # free order with unequal links, or too many sets of devices
        raise PlanError(str(reason)) from None
    units = units_of(groups, columns)
    index = {name: number for number, name in enumerate(problem.names)}

    def candidate(parts: Parts) -> Candidate:
        stages = []
        done: list[LayerCost] = []
        for position, layers in parts:
            device = devices[position]
            members = units[kinds.index(device)]
            own = tuple(cost for name in layers for cost in members[index[name]])
            done += own
            sends, returns = cut_bytes(graph, done)
            stages.append(Stage(row.devices[position], choice[device][0], own, sends, returns))
        run = functools.partial(time_candidate, train=request.train, order=request.order)
        return run(kind, request.batch // count, count, stages, row)

    timed = candidate(start) if start else None
    if timed is not None:
        error = memory_fault(timed, request.cluster)
    if request.merges:
        if error is not None or timed is None or merged is None:
            raise error or PlanError("no cut keeps the limits")
        return timed.judged(timed.steady_s, count * problem.bound_s, merged.reason)
    if request.objective is Objective.MINIBATCH and (simulate or error or not found):
        begins = may_begin if request.all_devices else None
        question = Question(
            problem, units, kind, request.train, begins, reads_of(graph, units[0]), request.order
        )
        better = find_fastest(
            question,
            start,
            all_devices=request.all_devices,
            fits=lambda parts: memory_fault(candidate(parts), request.cluster) is None,
        )
        if better is not None:
            faster = candidate(better.parts)
            faster = faster.judged(faster.steady_s, better.lower_bound_s, better.reason)
            if timed is None or error is not None or faster.steady_s <= timed.steady_s:
                return faster
    if error is not None or timed is None or found is None:
        raise error or PlanError("no cut keeps the limits")
    if request.objective is Objective.BOTTLENECK:
        gap = 1 - found.lower_bound_s / found.period_s if not found.optimal else 0.0
        return dataclasses.replace(
            timed,
            optimal=found.optimal,
            reason=found.reason,
            lower_bound_s=found.lower_bound_s,
            gap=gap,
        )
    # The simulation may be faster than the model of the schedule. In every schedule, some device
    # works on each micro-batch for as long as the smallest possible bottleneck.
    why = f"not searched in the event simulation; by a formula, {found.reason}"
    return timed.judged(timed.steady_s, count * problem.bound_s, why)


def _model_of(request: Request, kind: str, count: int, ratio: float) -> ScheduleModel:
    """The model of a schedule; in inference, activations are dropped as soon as they were used."""
    # What a schedule from a file keeps is not known; that under gpipe is the most.
    name = "gpipe" if request.order else kind
    model = model_of(name, count, len(request.cluster.devices), ratio)
    if request.train:
        return model
    return dataclasses.replace(model, in_flight=lambda after: 1, weight_versions=lambda after: 1)


def _ratio(columns: Sequence[Sequence[LayerCost]]) -> float:
    """Ratio of backward to forward time of the whole network on the first kind of device."""
    forward = sum(cost.forward.seconds for cost in columns[0])
    backward = sum(cost.backward_s for cost in columns[0])
    return backward / forward if forward > 0 else 2.0
