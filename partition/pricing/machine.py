"""A plan's prices on the machine that is built.

The programs of a plan are lowered, the cycle model of each device alone times their tasks, and the
event simulation puts these together. What `plan` and `build` say of a plan and what `report` says
of its build are the same numbers, because both come from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.program.pipeline import build_pipeline, link_after
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.partition.plan import Plan, Prediction
from fpgapipe.partition.pricing.plan_cores import (
    core_specs,
    devices_of,
    memory_specs,
    wire_timings,
)
from fpgapipe.partition.pricing.prediction import PipelineTiming
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.plan import StagePlan
    from fpgapipe.partition.pricing.task_times import TaskTimes

WORD_BYTES = 64
"""Bytes of a word of a packet."""


def lower_plan(
    plan: Plan, graph: Graph, cluster: ClusterSpec, options: StepOptions | None = None
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

    Raises
    ------
    UserError
        If a layer does not fit its core, a program does not fit the memory of its board, or no
        programs are made for the plan's schedule.
    """
    options = options or StepOptions(train=plan.trains)
    layers = [stage.layers for stage in plan.stages]
    schedule = make_schedule(plan.schedule, len(layers), plan.num_microbatches)
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


def timing_of(plan: Plan, pipeline: PipelineProgram, cluster: ClusterSpec) -> PipelineTiming:
    """Timing of a plan's programs behind its memories and over its cables."""
    return PipelineTiming.of(pipeline, memory_specs(plan), wire_timings(plan, cluster))


def price_plan(plan: Plan, pipeline: PipelineProgram, cluster: ClusterSpec) -> Plan:
    """Put what a plan's programs take in the place of what the closed form estimated.

    Parameters
    ----------
    plan : Plan
        Its seconds, and its bytes of memory and links, are replaced; all else stays.
    pipeline : PipelineProgram
        As `lower_plan` makes it.
    cluster : ClusterSpec

    Returns
    -------
    Plan
        The seconds of a pass are the mean over all micro-batches. Where both gradients of a
        micro-batch are one task, its time is shared among them as the estimate had it. Simulated
        devices have one clock, the slowest of the plan's.
    """
    timing = timing_of(plan, pipeline, cluster)
    clk_hz = min(stage.core.clk_hz for stage in plan.stages)
    stages = tuple(
        _priced_stage(stage, times, clk_hz)
        for stage, times in zip(plan.stages, timing.tasks, strict=True)
    )
    seconds = timing.event_cycles / clk_hz
    busy = [_repeated_cycles(times) for times in timing.tasks]
    busy += [link.busy_s for link in timing.timeline.links]
    predicted = Prediction(
        minibatch_s=seconds,
        period_s=max(busy) / plan.num_microbatches / clk_hz,
        bubble_rate=min(max(timing.timeline.bubble_rate, 0.0), 1.0),
        samples_per_s=plan.batch / seconds,
        level="machine",
    )
    return plan.model_copy(update={"stages": stages, "predicted": predicted})


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
            "memory_bytes": program.memory_bytes,
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
