"""A plan's prices on the machine that is built.

The programs of a plan are lowered, and the cycle model of each device alone times their tasks. The
cycle model of all devices together times the mini-batch; where only a few of many micro-batches are
lowered, the event simulation puts their tasks together. What `plan` and `build` say of a plan and
what `report` says of its build are the same numbers, because both come from here.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.engine_cycles import SIGNAL_CYCLES
from fpgapipe.lowering.lower import Lowering, build_pipeline, tasks_of_devices
from fpgapipe.lowering.memory.layout import memory_bytes
from fpgapipe.lowering.units.step_options import GRADIENTS, StepOptions
from fpgapipe.network.graph_json import to_json
from fpgapipe.partition.cost.cores import with_room
from fpgapipe.partition.explore.planned import with_larger_scratchpads
from fpgapipe.partition.placed_nodes import PlacedNodes
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.cycle_account import CycleAccount, accounts
from fpgapipe.partition.pricing.few_tasks import few_tasks
from fpgapipe.partition.pricing.joint_prices import price_together, timed_rounds
from fpgapipe.partition.pricing.plan_cores import (
    asked_of,
    memory_specs,
    wire_timings,
)
from fpgapipe.partition.pricing.plan_facts import PlanFacts, with_prices
from fpgapipe.partition.pricing.plan_memory import node_memory
from fpgapipe.partition.pricing.prediction import PipelineTiming
from fpgapipe.partition.pricing.price_cache import remembered
from fpgapipe.partition.pricing.shared_batch import Group, alone, price_shared_batch, shared_batch_s
from fpgapipe.partition.schedule.schedule_kinds import num_engines_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.lowering.schedule.schedule import Task
    from fpgapipe.lowering.units.layouts import Value
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.plan import NodePlan
    from fpgapipe.partition.timeline.timeline import Timeline

ENOUGH_LAYERS = 512
"""Layers, counted once for each micro-batch, up to which the programs of all are timed."""

LEAST_MICROBATCHES = 2
"""Micro-batches whose programs are timed even if that makes more layers. Others take as long as the
second: where tasks are long, what they overlap with at their ends hardly counts."""

MOST_CYCLES, MOST_ALONE = 2e9, 1e10
"""Cycles of all tasks, as estimated, up to which `plan` times the programs of a plan over several
devices, where searches time many plans, and of one on a single device."""

LAYER_S, CYCLE_S = 15e-3, 8e-9
"""Seconds to find the tilings of a layer of `LONG_LAYER` cycles or more, and for each cycle of it.
Like the others below, as they were found on one processor of a server."""

LONG_LAYER = 1e5
"""Cycles of a layer below which its seconds are as the root of its share of so many cycles."""

TASK_S, TIMED_S = 9e-4, 5.5e-9
"""Seconds for the layers of a micro-batch whose tilings are known, for each layer and each cycle of
a program that is timed."""

PRICES_S, PROGRAMS_S = 6.0, 3.0
"""Seconds, as they are estimated, that a search takes for the prices it goes by; and then for the
programs of pipelines, which it goes to by prices of layers."""

LONG_BATCHES = 3.3
"""Mini-batches of a single device in whose time a search may price, in any case, what promises to
be the best: the longer they take, the sooner the search has paid."""


class NoRoomError(UserError):
    """A node's program and tensors do not fit the memory of its board.

    Parameters
    ----------
    reason : str
        Text of the message.
    needed_bytes : sequence of int
        Bytes that each node of the plan needs.
    """

    def __init__(self, reason: str, needed_bytes: Sequence[int]) -> None:
        super().__init__(reason)
        self.needed_bytes = tuple(needed_bytes)


def lower_plan(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    options: StepOptions | None = None,
    *,
    few: bool = False,
) -> PipelineProgram:
    """Make the programs of all devices of a plan.

    Parameters
    ----------
    plan : Plan
    graph : Graph
        The network for the samples of one micro-batch.
    cluster : ClusterSpec
    options : StepOptions, optional
        Those of training or of inference, as the plan has it, if not given.
    few : bool
        Whether each program has only those tasks that tell the times of all
        (:mod:`fpgapipe.partition.pricing.few_tasks`).

    Raises
    ------
    UserError
        If a layer does not fit its core, a program does not fit the memory of its board, or no
        programs are made for the plan's schedule.
    """
    options = options or StepOptions(train=plan.trains)
    tasks_of = (lambda tasks: few_tasks(tasks, _most(plan))) if few else None
    try:
        found = build_pipeline(
            graph, plan.cores, plan.division, plan.order, memory_specs(plan), options,
            tasks_of, PlacedNodes.of(plan, cluster).placement,
        )  # fmt: skip
    except NotImplementedError as error:
        raise UserError(str(error)) from error
    if not few:
        _check_room(plan, cluster, [part.memory_bytes for part in found.parts])
    return found


def _check_room(plan: Plan, cluster: ClusterSpec, memory_bytes: Sequence[int]) -> None:
    """Check that each node's program and tensors fit the memory of its board."""
    devices = PlacedNodes.of(plan, cluster).devices
    for index, (device, needed) in enumerate(zip(devices, memory_bytes, strict=True)):
        if needed > device.memory_bytes:
            raise NoRoomError(
                f"device {index} needs {needed:,} bytes of memory, "
                f"{plan.nodes[index].device} has {device.memory_bytes:,}; more micro-batches, a "
                "smaller batch or more devices need less",
                memory_bytes,
            )


def price_plan(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    pipeline: PipelineProgram | None = None,
    options: StepOptions | None = None,
) -> tuple[Plan, Timeline]:
    """Put what a plan's programs take in the place of what formulas estimated.

    If a mini-batch has many micro-batches, only programs of a few are timed, and the others take as
    long as those (:mod:`fpgapipe.partition.pricing.few_tasks`).

    Parameters
    ----------
    plan : Plan
        Its seconds, and its bytes of memory and links, are replaced; all else stays.
    graph : Graph
        The network for the samples of one micro-batch.
    cluster : ClusterSpec
    pipeline : PipelineProgram, optional
        The programs of all micro-batches, as `lower_plan` makes them, where they are there already:
        the bytes of memory are theirs then. Without them, they are those that such programs would
        have (`fpgapipe.lowering.memory.layout.Demand`).
    options : StepOptions, optional
        Options of the programs, as for `lower_plan`.

    Returns
    -------
    plan : Plan
        The seconds of a pass are the mean over all micro-batches. Where both gradients of a
        micro-batch are one task, its time is shared among them as the estimate had it. Simulated
        devices have one clock, the slowest of the plan's.
    timeline : Timeline
        The event simulation of the mini-batch, in seconds. Its end is that of the plan to within a
        few per cent: see `fpgapipe.partition.pricing.task_times` for what it leaves out.

    Raises
    ------
    UserError
        As `lower_plan` does.
    """
    options = options or StepOptions(train=plan.trains)
    if plan.independent > 1:
        return _price_shared_batch(plan, graph, cluster, pipeline, options)
    if len(plan.nodes) > len(plan.stages):
        found_plan, timeline = price_together(plan, graph, cluster, options, pipeline)
        _check_room(plan, cluster, [node.memory_bytes for node in found_plan.nodes])
        return found_plan, timeline
    clk_hz = plan.clk_hz
    question = asked_of(plan, graph, cluster, options) | {"what": "plan", "timed": _most(plan)}
    answer = remembered(question, lambda: _found(plan, graph, cluster, options, pipeline).to_json())
    found = PlanFacts.from_json(answer)
    timeline = found.timeline(clk_hz)
    nodes = [each.priced(node, clk_hz) for node, each in zip(plan.nodes, found.nodes, strict=True)]
    if pipeline is not None:
        nodes = [
            node.model_copy(update={"memory_bytes": part.memory_bytes})
            for node, part in zip(nodes, pipeline.parts, strict=True)
        ]
    _check_room(plan, cluster, [node.memory_bytes for node in nodes])
    seconds = timeline.makespan_s + SIGNAL_CYCLES / clk_hz
    if found.cycles is not None:
        seconds = found.cycles / clk_hz
    busy_s = [each.busy_cycles / clk_hz for each in found.nodes]
    busy_s += [link.busy_s for link in timeline.links]
    return with_prices(plan, nodes, seconds, max(busy_s) / plan.num_microbatches, timeline)


def price_with_room(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    options: StepOptions,
    scratchpad_bytes: int | None = None,
) -> tuple[Plan, tuple[Plan, Timeline]]:
    """The plan with scratchpads that have room for each layer, and what `price_plan` says of it.

    Scratchpads are not made larger than the limit, if it is given.
    """
    larger = partial(with_larger_scratchpads, cluster=cluster, limit_bytes=scratchpad_bytes)
    price = partial(price_plan, graph=graph, cluster=cluster, options=options)
    return with_room(plan, price, larger)


def _price_shared_batch(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    pipeline: PipelineProgram | None,
    options: StepOptions,
) -> tuple[Plan, Timeline]:
    """Price a plan of independent groups; equal groups are priced once."""
    known: dict[tuple[Sequence[NodeSpec], Sequence[WireTiming]], Group] = {}
    priced = []
    for index in range(plan.independent):
        own = alone(plan, index)
        key = tuple(node.spec for node in own.nodes), tuple(wire_timings(own, cluster))
        if key not in known:
            known[key] = Group.of(*price_plan(own, graph, cluster, options=options))
        priced.append(known[key])
    if takes_few(plan):
        sizes, elements = _sizes_of_sharers(plan, graph, options)
        of_group = elements[: len(plan.nodes) // plan.independent]
        seconds = shared_batch_s(plan, priced, cluster, of_group)
    else:
        question = asked_of(plan, graph, cluster, options) | {"what": "groups together"}
        sizes, cycles = remembered(
            question, lambda: _found_together(plan, graph, cluster, options, pipeline)
        )
        seconds = cycles / plan.clk_hz
    if pipeline is not None:
        sizes = node_memory(plan, pipeline)
    _check_room(plan, cluster, sizes)
    return price_shared_batch(plan, priced, cluster, sizes, seconds)


def _found_together(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    options: StepOptions,
    pipeline: PipelineProgram | None,
) -> tuple[list[int], int]:
    """Bytes of each device of a plan, and cycles of the programs of all."""
    pipeline = pipeline or lower_plan(plan, graph, cluster, options)
    timing = PipelineTiming.of(pipeline, memory_specs(plan), wire_timings(plan, cluster))
    return node_memory(plan, pipeline), timing.cluster.cycles


def _sizes_of_sharers(
    plan: Plan, graph: Graph, options: StepOptions
) -> tuple[list[int], list[int]]:
    """Bytes of each device of a plan of independent groups, and elements of its gradients.

    Devices of a stage with equal cores and memories need as much if as many groups lie on either
    side of them, none or some, so only the first of these is lowered, as far as its memory depends
    on it.
    """
    cores, memories, count = plan.cores, memory_specs(plan), len(plan.nodes)
    size = count // plan.independent
    first: dict[Any, int] = {}
    alike = [
        first.setdefault((index % size, core, memory, index >= size, index < count - size), index)
        for index, (core, memory) in enumerate(zip(cores, memories, strict=True))
    ]
    # A stage's programs know their inputs from the stage before.
    groups = sorted({index // size for index in first.values()})
    lowered = [index for group in groups for index in range(group * size, (group + 1) * size)]
    most = _most(plan)
    question = {
        "what": "memory of devices that share a batch",
        "graph": to_json(graph),
        "cores": [[index, asdict(cores[index])] for index in lowered],
        "memories": [asdict(memories[index]) for index in lowered],
        "micro-batches": [plan.num_microbatches, count, most],
        "options": repr(options),
    }
    if size > 1:
        question |= {"layers": plan.division.layers, "schedule": plan.schedule}

    def find() -> tuple[list[int], list[int]]:
        lanes = _lanes(plan)
        sizes, elements = [], []
        lowering = Lowering.of(graph, cores, plan.division, plan.order, memories, options)
        values: Mapping[str, Value] = {}
        for index in lowered:
            try:
                builder = lowering.builder(index, values, lambda each: few_tasks(each, most))
                demand = builder.demand()
            except NotImplementedError as error:
                raise UserError(str(error)) from error
            values = builder.given
            if len(demand.tasks) < len(lanes[index]):
                demand = demand.repeated(lanes[index])
            sizes.append(memory_bytes(demand))
            elements.append(demand.own[GRADIENTS].size_bytes // 4 if GRADIENTS in demand.own else 0)
        return sizes, elements

    found = dict(zip(lowered, zip(*remembered(question, find), strict=True), strict=True))
    return [found[index][0] for index in alike], [found[index][1] for index in alike]


def _found(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    options: StepOptions,
    pipeline: PipelineProgram | None,
) -> PlanFacts:
    """Facts of the programs of a plan."""
    few = takes_few(plan)
    if few or pipeline is None:
        pipeline = lower_plan(plan, graph, cluster, options, few=few)
    is_concurrent = num_engines_of(plan.schedule) > 1 and plan.trains
    timing = PipelineTiming.of(
        pipeline,
        memory_specs(plan),
        wire_timings(plan, cluster),
        None if is_concurrent else _lanes(plan),
    )
    return PlanFacts.of(timing, node_memory(plan, pipeline))


def explain_plan(plan: Plan, graph: Graph, cluster: ClusterSpec) -> tuple[int, list[CycleAccount]]:
    """Say where the cycles of a plan's step go on each device.

    Parameters
    ----------
    plan, graph, cluster
        As for `price_plan`.

    Returns
    -------
    num_microbatches : int
        Micro-batches of the step that is explained: all of the plan's, or as many as tell the
        times of any number.
    accounts : list of CycleAccount
        Account of each stage's device.

    Raises
    ------
    UserError
        As `lower_plan` does.
    """
    count = plan.num_microbatches
    if takes_few(plan):  # a pipeline is full after as many micro-batches as it has stages
        count = min(plan.rounds, max(len(plan.stages) + 2, _most(plan))) * plan.sharers
    update = {"num_microbatches": count, "batch": count * plan.microbatch}
    pipeline = lower_plan(plan.model_copy(update=update), graph, cluster)
    timing = PipelineTiming.of(pipeline, memory_specs(plan), wire_timings(plan, cluster))
    return count, accounts(pipeline, timing.cluster)


def _most(plan: Plan) -> int:
    """Micro-batches in programs that tell the times of all; the least if these are large."""
    count = ENOUGH_LAYERS // sum(map(len, plan.node_layers))
    large = sum(map(_cycles, plan.nodes)) * count > MOST_CYCLES
    return LEAST_MICROBATCHES if large else max(LEAST_MICROBATCHES, count)


def takes_few(plan: Plan) -> bool:
    """Whether programs of a few micro-batches tell the times of all.

    Of small networks all are timed, and so they are where devices have engines for forward and
    backward passes.
    """
    return num_engines_of(plan.schedule) == 1 and plan.num_microbatches > _most(plan)


def is_soon_priced(plan: Plan) -> bool:
    """Whether the programs of a plan are timed within a minute or two."""
    return cycles_timed(plan) <= (MOST_ALONE if len(plan.nodes) == 1 else MOST_CYCLES)


def effort_of(plan: Plan, unlike_share: float = 1.0) -> float:
    """Seconds, as they are estimated, to make and to time the programs of a plan.

    A share of its layers are unlike each other; the others have the tilings of these.
    """
    if plan.independent > 1:
        return effort_of(alone(plan, 0))  # equal groups are priced once
    return unlike_share * _first_effort(plan) + effort_of_programs(plan)


def effort_of_layers(plan: Plan) -> float:
    """Seconds, as they are estimated, to price the layers of a plan for the first time."""
    return _first_effort(plan) + TIMED_S * _first_cycles(plan)


def _first_effort(plan: Plan) -> float:
    """Seconds, as they are estimated, to find the tilings of a plan's layers."""
    layers, cycles = sum(map(len, plan.node_layers)), _first_cycles(plan)
    return LAYER_S * layers * math.sqrt(min(cycles / layers / LONG_LAYER, 1.0)) + CYCLE_S * cycles


def _first_cycles(plan: Plan) -> float:
    """Cycles of the micro-batches for whose tasks all templates are made."""
    return sum(map(_cycles, plan.nodes)) * min(plan.num_microbatches, LEAST_MICROBATCHES)


def effort_of_programs(plan: Plan) -> float:
    """Seconds, as they are estimated, to time a plan's programs once its layers are priced."""
    count = min(plan.num_microbatches, _most(plan)) if takes_few(plan) else plan.num_microbatches
    layers = sum(map(len, plan.node_layers))
    return TASK_S * count * layers + TIMED_S * cycles_timed(plan)


def cycles_timed(plan: Plan) -> float:
    """Cycles of the tasks that are timed to price a plan, as they are estimated."""
    if plan.independent > 1:
        return cycles_timed(alone(plan, 0))  # equal groups are priced once
    if len(plan.nodes) > len(plan.stages):
        nodes = plan.nodes if len(plan.stages) > 1 else plan.nodes[:1]
        return sum(map(_cycles, nodes)) * timed_rounds(plan)[0]
    count = min(plan.num_microbatches, _most(plan)) if takes_few(plan) else plan.num_microbatches
    return sum(map(_cycles, plan.nodes)) * count


def _cycles(node: NodePlan) -> float:
    """Cycles of a node for a micro-batch, as they are estimated."""
    seconds = node.forward_s + node.input_gradient_s + node.weight_gradient_s
    return seconds * node.spec.clk_hz


def _lanes(plan: Plan) -> list[list[Task]]:
    """Tasks of each device for all micro-batches."""
    return tasks_of_devices(plan.division, plan.order, train=plan.trains)
