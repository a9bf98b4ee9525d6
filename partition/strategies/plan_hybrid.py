"""The hybrid plan of a request: a pipeline whose stages are groups of devices, and its prices."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError, counted
from fpgapipe.lowering.units.network_units import check_network
from fpgapipe.partition.cost.cost import CostModel
from fpgapipe.partition.explore.candidate import device_chain, on_every_device
from fpgapipe.partition.explore.core_choices import core_choices
from fpgapipe.partition.explore.explorer import splits_of
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.plan import StagePlan, above_one
from fpgapipe.partition.schedule.built_schedules import check_schedule_kind
from fpgapipe.partition.search.problem import PlanError, Refusals
from fpgapipe.partition.strategies.data_parallel import priced_best
from fpgapipe.partition.strategies.group_stages import GroupPlan, GroupProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.hw.hls_models.spec.device import DeviceSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import Candidate, Stage
    from fpgapipe.partition.explore.request import Request
    from fpgapipe.partition.plan import NodePlan, Plan
    from fpgapipe.partition.strategies.strategy_file import StrategyFile
    from fpgapipe.partition.timeline.timeline import Timeline

SCHEDULE = "1f1b-as"
"""Schedule of hybrid plans, if none is named."""

MOST_SPLITS = 4
"""Numbers of micro-batches that are tried."""

EACH = 2
"""Plans of each number of micro-batches that are kept."""


def plan_hybrid(
    request: Request,
    network: str,
    on_step: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[Plan, Timeline]:
    """Find the fastest pipeline with two stages or more, one of them on several devices.

    For some numbers of micro-batches, the best stages by formulas are found; the programs of some
    of these plans are timed.

    Parameters
    ----------
    request, network, on_step
        As for `plan_data_parallel`.

    Raises
    ------
    UserError
        If there are fewer than 3 devices, or no such plan is possible.
    """
    if not request.train:
        raise PlanError("hybrid plans are for training; take --strategy data or pipeline")
    chain = device_chain(request.cluster)
    counts = [number for number in splits_of(request) if number > 1 or request.num_microbatches]
    if len(counts) > MOST_SPLITS:
        counts = counts[-MOST_SPLITS:]
    found: list[tuple[GroupPlan, Candidate]] = []
    refusals = Refusals()
    for step, count in enumerate(counts):
        on_step(step, len(counts))
        try:
            graph = request.load(request.batch // count)
            candidate, cores = _candidate(request, graph, count)
            problem = GroupProblem(graph, request.cluster, chain, cores, count)
            found += [(each, candidate) for each in problem.solve(EACH)]
        except UserError as error:
            refusals.add(f"with {counted(count, 'micro-batch', 'es')}", error)
    if not found:
        if not counts:
            refusals.add("", "it needs two micro-batches or more")
        raise refusals.error("hybrid plan")
    found.sort(key=lambda each: each[0].seconds)
    reason = "the best stages and degrees by formulas, of some numbers of micro-batches"
    made = [
        (
            candidate,
            partial(_planned, stages=stages, network=network, reason=reason),
        )
        for stages, candidate in found
    ]
    plan, timeline, _ = priced_best(request, made, on_step, "hybrid plan")
    return plan, timeline


def plan_given_stages(
    request: Request,
    network: str,
    strategy: StrategyFile,
    on_step: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[Plan, Timeline]:
    """Find cores and micro-batches for stages that are given, and price the plan.

    Parameters
    ----------
    request, network, on_step
        As for `plan_data_parallel`.
    strategy : StrategyFile
        A strategy with stages.

    Raises
    ------
    UserError
        If the stages do not fit the network or the devices.
    """
    devices = len(request.cluster.devices)
    check_schedule_kind(strategy.schedule or SCHEDULE)
    number = strategy.micro_batches or request.num_microbatches
    wanted = replace(request, num_microbatches=number)
    largest = request.load(wanted.batch // (wanted.num_microbatches or 1))
    check_network(largest, train=request.train, loss=request.step_options.loss)
    made = []
    counts = list(splits_of(wanted))
    for step, count in enumerate(counts):
        on_step(step, len(counts))
        graph = request.load(request.batch // count)
        layers, sizes, degrees = strategy.stages_of(graph)
        if sum(sizes) != devices:
            raise PlanError(
                f"the strategy has stages for {sum(sizes)} devices, and there are {devices}"
            )
        candidate, _ = _candidate(request, graph, count)
        stages = GroupPlan(layers, sizes, degrees, candidate.minibatch_s / devices)
        planned = partial(
            _planned,
            stages=stages,
            network=network,
            reason="stages and degrees were given",
            schedule=strategy.schedule or SCHEDULE,
        )
        made.append((candidate, planned))
    made.sort(key=lambda each: each[0].minibatch_s)
    plan, timeline, _ = priced_best(
        request, made, on_step, "plan of this strategy", has_formulas=False
    )
    return plan, timeline


def _candidate(
    request: Request, graph: Graph, count: int
) -> tuple[Candidate, dict[DeviceSpec, NodeSpec]]:
    """The whole network on each device, with the core that runs it fastest, by formulas.

    Its micro-batches are those of the pipeline, and as many of them as all devices can share.
    """
    model = CostModel(graph, accumulates=count > 1)
    choice = next(iter(core_choices(request, model, 1)))
    devices = len(request.cluster.devices)
    timed = on_every_device(
        request.cluster,
        choice,
        request.batch // count,
        -(-count // devices) * devices,
        train=request.train,
    )
    return timed, {device: core for device, (core, _) in choice.items()}


def _planned(
    candidate: Candidate,
    *,
    stages: GroupPlan,
    request: Request,
    network: str,
    reason: str,
    schedule: str = SCHEDULE,
) -> Plan:
    """The plan of stages, and the seconds that formulas have for it."""
    assert candidate.microbatch is not None
    graph = request.load(candidate.microbatch)
    shared = candidate.num_microbatches * candidate.microbatch
    plan = as_plan(candidate, graph, network, shared, request.cluster, train=request.train)
    rest = zip(plan.nodes, candidate.stages, strict=True)
    cut = above_one(stages.degrees)
    found = [
        StagePlan(
            layers=names,
            nodes=tuple(_share(*each, graph, names, size) for each in islice(rest, size)),
            degrees={name: cut[name] for name in names if name in cut} if size > 1 else {},
        )
        for names, size in zip(stages.layers, stages.sizes, strict=True)
    ]
    changed = {
        "schedule": schedule,
        "batch": request.batch,
        "num_microbatches": request.batch // candidate.microbatch,
        "stages": tuple(found),
    }
    return plan.model_copy(update=changed).estimated(stages.seconds, reason)


def _share(
    node: NodePlan, stage: Stage, graph: Graph, names: tuple[str, ...], size: int
) -> NodePlan:
    """A node's share of a stage, by formulas."""
    own = replace(stage, costs=tuple(each for each in stage.costs if each.name in set(names)))
    forward_s, input_gradient_s, weight_gradient_s, update_s = own.pass_s
    return node.model_copy(
        update={
            "macs": sum(graph.layers[name].macs for name in names) // size,
            "forward_s": float(forward_s) / size,
            "input_gradient_s": float(input_gradient_s) / size,
            "weight_gradient_s": float(weight_gradient_s) / size,
            "update_s": float(update_s) / size,
        }
    )
