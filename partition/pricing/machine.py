"""A plan's prices on the machine that is built.

The programs of a plan are lowered, the cycle model of each device alone times their tasks, and the
event simulation puts these together. What `plan` and `build` say of a plan and what `report` says
of its build are the same numbers, because both come from here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.engine_cycles import SIGNAL_CYCLES
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.memory.placed import page
from fpgapipe.lowering.program.pipeline import build_pipeline, link_after, tasks_of_stages
from fpgapipe.lowering.schedule.schedule import Lane, Schedule, TaskKind
from fpgapipe.lowering.schedule.tasks import slots_of
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.partition.plan import Plan, Prediction
from fpgapipe.partition.pricing.cycle_account import CycleAccount, accounts
from fpgapipe.partition.pricing.plan_cores import (
    core_specs,
    devices_of,
    memory_specs,
    wire_timings,
)
from fpgapipe.partition.pricing.prediction import PipelineTiming
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.partition.timeline.timeline import simulate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.plan import StagePlan
    from fpgapipe.partition.pricing.task_times import TaskTimes
    from fpgapipe.partition.timeline.timeline import StageTimes, Timeline

ENOUGH_LAYERS = 2048
"""Layers, counted once for each micro-batch, whose programs are timed even if fewer would do."""

MOST_CYCLES = 3e8
"""Cycles of all tasks, as estimated, up to which `plan` times the programs of a plan."""


def lower_plan(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    options: StepOptions | None = None,
    num_microbatches: int | None = None,
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
    num_microbatches : int, optional
        Instead of all of the plan's.

    Raises
    ------
    UserError
        If a layer does not fit its core, a program does not fit the memory of its board, or no
        programs are made for the plan's schedule.
    """
    options = options or StepOptions(train=plan.trains)
    layers = [stage.layers for stage in plan.stages]
    count = num_microbatches or plan.num_microbatches
    schedule = make_schedule(plan.schedule, len(layers), count)
    places = devices_of(plan, cluster)
    memory = memory_specs(plan)[0]
    try:
        found = build_pipeline(graph, core_specs(plan), layers, schedule, memory, options)
    except NotImplementedError as error:
        raise UserError(str(error)) from error
    for part, place, stage in zip(found.parts, places, plan.stages, strict=True):
        room = cluster.devices[place].memory_bytes
        if part.memory_bytes > room:
            raise UserError(
                f"stage {part.index} needs {part.memory_bytes:,} bytes of memory, "
                f"{stage.device} has {room:,}; more micro-batches, a smaller batch or more "
                "devices need less"
            )
    return found


def price_plan(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    pipeline: PipelineProgram | None = None,
    options: StepOptions | None = None,
) -> tuple[Plan, Timeline]:
    """Put what a plan's programs take in the place of what formulas estimated.

    If a mini-batch has many micro-batches, only programs of a few are timed (`few_microbatches`).
    The micro-batches in the middle are all alike, and the event simulation repeats them.

    Parameters
    ----------
    plan : Plan
        Its seconds, and its bytes of memory and links, are replaced; all else stays.
    graph : Graph
        The network for the samples of one micro-batch.
    cluster : ClusterSpec
    pipeline : PipelineProgram, optional
        The programs of all micro-batches, as `lower_plan` makes them, where they are there already:
        the bytes of memory are theirs then. Without them, the memory of many micro-batches is
        extrapolated.
    options : StepOptions, optional
        Options of the programs, as for `lower_plan`.

    Returns
    -------
    plan : Plan
        The seconds of a pass are the mean over all micro-batches. Where both gradients of a
        micro-batch are one task, its time is shared among them as the estimate had it. Simulated
        devices have one clock, the slowest of the plan's.
    timeline : Timeline
        The event simulation of the mini-batch, in seconds.

    Raises
    ------
    UserError
        As `lower_plan` does.
    """
    count = min(plan.num_microbatches, few_microbatches(plan))
    timed = pipeline
    if timed is None or count < plan.num_microbatches:
        timed = lower_plan(plan, graph, cluster, options, count)
    timing = PipelineTiming.of(timed, memory_specs(plan), wire_timings(plan, cluster))
    clk_hz = min(stage.core.clk_hz for stage in plan.stages)
    if count < plan.num_microbatches:
        schedule = _programs_schedule(plan)
        times = _repeated(timing.stage_times, plan.num_microbatches)
        timeline = simulate(schedule, times.changed(lambda values: values / clk_hz))
    else:
        timeline = timing.timeline_s(clk_hz)
    bytes_of = [
        part.memory_bytes if pipeline else _memory_bytes(part, plan)
        for part in (pipeline or timed).parts
    ]
    stages = tuple(
        _priced_stage(stage, times_of, clk_hz).model_copy(update={"memory_bytes": size})
        for stage, times_of, size in zip(plan.stages, timing.tasks, bytes_of, strict=True)
    )
    seconds = timeline.makespan_s + SIGNAL_CYCLES / clk_hz
    busy = [_repeated_cycles(times_of) / count / clk_hz for times_of in timing.tasks]
    busy += [link.busy_s / plan.num_microbatches for link in timeline.links]
    predicted = Prediction(
        minibatch_s=seconds,
        period_s=max(busy),
        bubble_rate=min(max(timeline.bubble_rate, 0.0), 1.0),
        samples_per_s=plan.batch / seconds,
        level="machine",
    )
    return plan.model_copy(update={"stages": stages, "predicted": predicted}), timeline


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
    count = min(plan.num_microbatches, few_microbatches(plan))
    pipeline = lower_plan(plan, graph, cluster, num_microbatches=count)
    timing = PipelineTiming.of(pipeline, memory_specs(plan), wire_timings(plan, cluster))
    return count, accounts(pipeline, timing.cluster)


def few_microbatches(plan: Plan) -> int:
    """Number of micro-batches whose programs tell the times of any number.

    A pipeline is full after as many micro-batches as it has stages. Of small networks, more are
    timed. Devices with engines for forward and backward passes need all of them.
    """
    if plan.schedule == "fbp-as":
        return plan.num_microbatches
    layers = sum(len(stage.layers) for stage in plan.stages)
    return max(len(plan.stages) + 2, ENOUGH_LAYERS // layers)


def is_soon_priced(plan: Plan) -> bool:
    """Whether the programs of a plan are timed within a minute or two."""
    seconds = sum(
        stage.forward_s + stage.input_gradient_s + stage.weight_gradient_s for stage in plan.stages
    )
    clk_hz = max(stage.core.clk_hz for stage in plan.stages)
    count = min(plan.num_microbatches, few_microbatches(plan))
    return seconds * clk_hz * count <= MOST_CYCLES


def _programs_schedule(plan: Plan) -> Schedule:
    """The schedule that programs of all micro-batches of a plan follow."""
    stages = tuple(range(len(plan.stages)))
    count = plan.num_microbatches
    tasks = tasks_of_stages(
        make_schedule(plan.schedule, len(stages), count), len(stages), train=plan.trains
    )
    lanes = [
        Lane.of(index, "compute", [(task.kind, task.stage, task.microbatch) for task in own])
        for index, own in enumerate(tasks)
    ]
    routes = np.zeros(count, np.int32)
    return Schedule("programs", count, stages, (stages,), routes, tuple(lanes), "stream")


def _repeated(times: StageTimes, count: int) -> StageTimes:
    """Times of `count` micro-batches: the one in the middle is repeated."""

    def more(values: NDArray[np.float64]) -> NDArray[np.float64]:
        if values.ndim < 2:
            return values
        middle = values.shape[1] // 2
        repeated = np.repeat(values[:, middle : middle + 1], count - values.shape[1], axis=1)
        return np.concatenate([values[:, :middle], repeated, values[:, middle:]], axis=1)

    return times.changed(more)


def _memory_bytes(part: DeviceProgram, plan: Plan) -> int:
    """Bytes of memory of a stage for all micro-batches of a plan, from a program of some.

    Each micro-batch has tensors of its own (those with ``@`` and its number in their names), each
    slot has some (``#``), and the program grows with the micro-batches.
    """
    few, many = part.num_microbatches, plan.num_microbatches
    if few == many:
        return part.memory_bytes
    schedule = make_schedule(plan.schedule, len(plan.stages), many)
    tasks = tasks_of_stages(schedule, len(plan.stages), train=plan.trains)[part.index]
    slots, more_slots = (1 + max(slots_of(each).values()) for each in (part.tasks, tasks))
    sizes = {"#": 0, "@": 0}
    for name, place in part.places.items():
        if found := re.search(r"([#@])\d+", name):
            sizes[found[1]] += page(place.size_bytes)
    program = part.memory_bytes - part.entry
    return (
        part.memory_bytes
        + sizes["#"] * (more_slots - slots) // slots
        + (sizes["@"] + program) * (many - few) // few
    )


def _priced_stage(stage: StagePlan, times: TaskTimes, clk_hz: float) -> StagePlan:
    """A stage with the seconds and bytes of its program."""
    program = times.program
    kinds = np.array([task.kind for task in program.tasks])
    mean = {
        kind: float(times.durations[kinds == kind].mean()) / clk_hz if (kinds == kind).any() else 0
        for kind in (TaskKind.F, TaskKind.B, TaskKind.DX, TaskKind.DW, TaskKind.U)
    }
    estimated = stage.input_gradient_s + stage.weight_gradient_s
    share = stage.input_gradient_s / estimated if estimated else 1.0
    count = max(len({task.microbatch for task in program.tasks} - {-1}), 1)
    has_next = len(program.core.links) > link_after(program.index)
    sends = times.sent(link_after(program.index), Channel.ACTIVATIONS) if has_next else ()
    returns = times.sent(0, Channel.GRADIENTS) if program.index else ()
    return stage.model_copy(
        update={
            "forward_s": mean[TaskKind.F],
            "input_gradient_s": mean[TaskKind.DX] + share * mean[TaskKind.B],
            "weight_gradient_s": mean[TaskKind.DW] + (1 - share) * mean[TaskKind.B],
            "update_s": mean[TaskKind.U],
            "sends_bytes": _bytes(sent.words for sent in sends) // count,
            "returns_bytes": _bytes(sent.words for sent in returns) // count,
        }
    )


def _bytes(words: Iterable[int]) -> int:
    return WORD_BYTES * sum(words)


def _repeated_cycles(times: TaskTimes) -> float:
    """Cycles of a mini-batch that a device computes for micro-batches: all but the update."""
    return float(
        sum(
            cycles
            for task, cycles in zip(times.program.tasks, times.durations, strict=True)
            if task.kind is not TaskKind.U
        )
    )
