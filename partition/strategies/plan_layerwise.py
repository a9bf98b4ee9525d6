"""The layer-wise plan of a request: its cores, micro-batches, degrees, and its prices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.lowering.shards.cuts import possible_degrees
from fpgapipe.lowering.shards.degrees import sharers_of
from fpgapipe.lowering.units.network_units import check_network
from fpgapipe.partition.cost.cost import CostModel
from fpgapipe.partition.explore.candidate import device_chain
from fpgapipe.partition.explore.core_choices import core_choices
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.plan import ONE_STAGE, above_one
from fpgapipe.partition.search.problem import PlanError, Refusals
from fpgapipe.partition.strategies.data_parallel import priced_best, shared_candidates
from fpgapipe.partition.strategies.layerwise import LayerwiseProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fpgapipe.lowering.shards.degrees import Axis, Degrees
    from fpgapipe.partition.explore.candidate import Candidate
    from fpgapipe.partition.explore.request import Request
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.strategies.layerwise import LayerwisePlan
    from fpgapipe.partition.strategies.strategy_file import StrategyFile
    from fpgapipe.partition.timeline.timeline import Timeline


PASSES = ("forward_s", "input_gradient_s", "weight_gradient_s", "update_s")
"""Seconds of a device's passes in a plan."""

FAR = 2.5
"""Times of equal shares, as multiples of the best degrees' time, from which on no degrees are
searched: of four networks' 576 pairs of a core and a number of micro-batches, degrees were at most
2.4 times as fast as equal shares of the samples."""

COPIES = 2.0
"""Vector operations on each element that devices exchange: it is copied, and summands are added."""


def plan_any_degrees(
    request: Request, on_step: Callable[[int, int], object] = lambda done, total: None
) -> LayerwisePlan:
    """Find the fastest degrees of all layers by formulas, rows and columns among them.

    The core of each kind of device is the one that runs the whole network fastest, by formulas, or
    the one that is asked for. The whole batch is one micro-batch.

    Parameters
    ----------
    request : Request
        Its schedules and its objective do not matter.
    on_step : function
        Called with the number of groups of layers that are priced and of all.

    Raises
    ------
    PlanError
        If the memories have no room in any degrees, or two devices that follow one another have no
        link.
    """
    if request.num_microbatches not in (None, 1):
        raise PlanError(
            "without programs, layer-wise plans have one micro-batch: leave out --micro-batches"
        )
    graph = request.load(request.batch)
    choice = next(iter(core_choices(request, CostModel(graph), 1)))
    cores = {device: core for device, (core, _) in choice.items()}
    chain = device_chain(request.cluster)
    return LayerwiseProblem(graph, request.cluster, chain, cores, on_step=on_step).solve()


def plan_layerwise(
    request: Request,
    network: str,
    on_step: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[Plan, Timeline, LayerwisePlan]:
    """Find the fastest plan in which layers are cut by samples, channels or rows, or are whole.

    For each number of micro-batches, the best degrees by formulas are found; the programs of some
    of these plans are timed. All devices, and groups of neighbours with samples of their own, are
    tried, and in either that devices share the samples, and that all have all.

    Parameters
    ----------
    request, network, on_step
        As for `plan_data_parallel`.

    Returns
    -------
    plan : Plan
    timeline : Timeline
    degrees : LayerwisePlan
        The search for the plan's degrees.

    Raises
    ------
    PlanError
        As `plan_data_parallel` does.
    """
    if not request.train:
        raise PlanError("layer-wise plans are for training; take --strategy data or pipeline")
    count = len(request.cluster.devices)
    chain = device_chain(request.cluster)
    found: list[_Searched] = []
    least_s = inf
    refusals = Refusals()
    candidates: dict[int, list[Candidate]] = {}
    groups = [number for number in range(1, count) if count % number == 0] or [1]
    for num_groups, sharers in ((each, all_) for each in groups for all_ in (count, each)):
        way = f"with samples cut into {sharers} parts" if sharers > 1 else "with whole samples"
        try:
            if sharers not in candidates:
                shared = shared_candidates(request, on_step, sharers=sharers, whole=False)
                candidates[sharers] = [candidate for _, candidate in shared]
        except PlanError as error:
            refusals.add(way, error)
            continue
        for step, candidate in enumerate(candidates[sharers]):
            on_step(step, len(candidates[sharers]))
            if candidate.minibatch_s * sharers / count > FAR * least_s:
                continue
            assert candidate.microbatch is not None
            cores = {
                request.cluster.devices[stage.position]: stage.node
                for stage in candidate.stages
                if stage.node is not None
            }
            try:
                graph = request.load(candidate.microbatch * sharers)
                choices = partial(
                    possible_degrees,
                    graph,
                    num_devices=count,
                    sharers=sharers,
                    num_groups=num_groups,
                )
                search = LayerwiseProblem(
                    graph,
                    request.cluster,
                    chain,
                    cores,
                    choices=choices,
                    rounds=candidate.num_microbatches // count,
                    copies=COPIES,
                ).solve()
            except UserError as error:
                refusals.add(way, error)
                continue
            if count > 1 and all(each.degrees.num_devices == 1 for each in search.groups):
                refusals.add(way, f"no layer of {graph.name} is faster in parts")
                continue
            found.append(_Searched(candidate, sharers, search))
            least_s = min(least_s, search.step_s)
    if not found:
        raise refusals.error("layer-wise plan")
    found.sort(key=lambda each: each.search.step_s)
    alike: dict[tuple[int, str], _Searched] = {}
    for each in found:
        nodes = [stage.node for stage in each.candidate.stages]
        alike.setdefault((each.num_microbatches, repr((each.degrees, nodes))), each)
    found = list(alike.values())
    made = [(each.candidate, partial(_planned, searched=each, network=network)) for each in found]
    plan, timeline, number = priced_best(request, made, on_step, "layer-wise plan")
    return plan, timeline, found[number].search


def plan_given_degrees(
    request: Request,
    network: str,
    strategy: StrategyFile,
    on_step: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[Plan, Timeline]:
    """Find cores and micro-batches for degrees that are given, and price the plan.

    Parameters
    ----------
    request, network, on_step
        As for `plan_data_parallel`.
    strategy : StrategyFile

    Raises
    ------
    UserError
        If the degrees do not fit the network or the devices.
    """
    count = len(request.cluster.devices)
    number = strategy.micro_batches or request.num_microbatches
    graph = request.load(request.batch // (number or 1))
    check_network(graph, train=request.train, loss=request.step_options.loss)
    degrees = strategy.of(graph)
    if all(each.num_devices == 1 for each in degrees.values()) and count > 1:
        raise PlanError("a strategy in which all layers are whole uses one device: name one")
    sharers = sharers_of(degrees)
    wanted = replace(request, num_microbatches=number)
    candidates = shared_candidates(wanted, on_step, sharers=sharers, whole=False)
    made = [
        (candidate, partial(given_plan, degrees=degrees, network=network))
        for _, candidate in candidates
    ]
    plan, timeline, _ = priced_best(
        request, made, on_step, "plan of this strategy", has_formulas=False
    )
    return plan, timeline


def given_plan(
    candidate: Candidate, *, degrees: Mapping[str, Degrees], request: Request, network: str
) -> Plan:
    """The plan of a candidate with given degrees."""
    plan = _shared(candidate, sharers_of(degrees), request, network)
    seconds = plan.predicted.minibatch_s
    return _cut(plan, above_one(degrees)).estimated(seconds, "the degrees were given")


def _shared(candidate: Candidate, sharers: int, request: Request, network: str) -> Plan:
    """The plan of a candidate of `shared_candidates`, whose groups share their work equally."""
    assert candidate.microbatch is not None
    graph = request.load(candidate.microbatch)
    size = len(request.cluster.devices) // sharers
    done = candidate.microbatch * candidate.num_microbatches
    plan = as_plan(candidate, graph, network, done, request.cluster, train=request.train)
    nodes = [
        node.model_copy(
            update={"macs": node.macs // size}
            | {name: getattr(node, name) / size for name in PASSES}
        )
        for node in plan.nodes
    ]
    count = candidate.num_microbatches // size
    changed = {"batch": request.batch, "num_microbatches": count}
    shared = plan.with_nodes(nodes).model_copy(update=changed)
    return shared.estimated(plan.predicted.minibatch_s / size, plan.reason)


def _cut(plan: Plan, degrees: Mapping[str, Mapping[Axis, int]]) -> Plan:
    """The plan of one stage with other degrees of its layers."""
    (stage,) = plan.stages
    cut = stage.model_copy(update={"degrees": degrees})
    return plan.model_copy(update={"schedule": ONE_STAGE, "stages": (cut,)})


@dataclass(frozen=True)
class _Searched:
    """A candidate with the degrees that a search has found for it."""

    candidate: Candidate
    sharers: int
    search: LayerwisePlan

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a mini-batch; each has the samples of all devices that share none."""
        return self.candidate.num_microbatches * self.sharers // self.search.num_devices

    @property
    def degrees(self) -> dict[str, dict[Axis, int]]:
        """Degrees of each layer, those above 1."""
        return above_one(
            {name: group.degrees for group in self.search.groups for name in group.layers}
        )


def _planned(candidate: Candidate, *, searched: _Searched, request: Request, network: str) -> Plan:
    """The plan of a candidate with degrees, and the seconds that formulas have for it."""
    search = searched.search
    plan = _shared(candidate, searched.sharers, request, network)
    nodes = [node.model_copy(update={"memory_bytes": search.memory_bytes}) for node in plan.nodes]
    reason = "the degrees are the best by formulas, of some numbers of micro-batches"
    return _cut(plan.with_nodes(nodes), searched.degrees).estimated(search.step_s, reason)
