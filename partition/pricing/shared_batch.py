"""Prices of a data-parallel plan, from those of its devices alone and of the sum of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.cycles.engine_cycles import SIGNAL_CYCLES
from fpgapipe.lowering.schedule.schedule import forward_only
from fpgapipe.partition.plan import DATA_PARALLEL, Prediction, StagePlan
from fpgapipe.partition.pricing.all_reduce_cycles import all_reduce_s
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.partition.timeline.timeline import StageTimes, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.partition.plan import NodePlan, Plan
    from fpgapipe.partition.timeline.timeline import Timeline


def alone(plan: Plan, index: int) -> Plan:
    """The plan of one device that does its share of the micro-batches and nobody else's."""
    count = len(plan.nodes)
    stage = StagePlan(layers=plan.stages[0].layers, nodes=(plan.nodes[index],))
    return plan.model_copy(
        update={
            "batch": plan.batch // count,
            "num_microbatches": plan.num_microbatches // count,
            "stages": (stage,),
        }
    )


def price_shared_batch(
    plan: Plan,
    own: Sequence[NodePlan],
    cluster: ClusterSpec,
    memory_bytes: Sequence[int],
    elements: int,
) -> tuple[Plan, Timeline]:
    """Put the prices of its devices together to those of a data-parallel plan.

    The devices do their passes independently. Their gradients are added up when the last of them is
    ready, and then all update their weights.

    Parameters
    ----------
    plan : Plan
    own : sequence of NodePlan
        Each device with the prices of the machine that it has `alone`.
    cluster : ClusterSpec
    memory_bytes : sequence of int
        Bytes of each device's program and tensors.
    elements : int
        Elements of all gradients.

    Returns
    -------
    plan : Plan
        An update takes as long as the sum of the gradients and the update, and on a faster device
        the time in which it waits for the others.
    timeline : Timeline
    """
    clk_hz = plan.clk_hz
    sum_s = all_reduce_s(plan, cluster, elements) if plan.trains else 0.0
    count = plan.num_microbatches // len(own)
    passes = [
        count * (each.forward_s + each.input_gradient_s + each.weight_gradient_s) for each in own
    ]
    updates = [
        max(passes) - before + sum_s + each.update_s
        for before, each in zip(passes, own, strict=True)
    ]
    times = StageTimes(
        np.array([each.forward_s for each in own]),
        np.array([each.input_gradient_s for each in own]),
        np.array([each.weight_gradient_s for each in own]),
        np.array(updates if plan.trains else [0.0] * len(own)),
        np.zeros(len(own)),
        np.zeros(len(own)),
    )
    schedule = make_schedule(DATA_PARALLEL, len(own), plan.num_microbatches)
    timeline = simulate(schedule if plan.trains else forward_only(schedule), times)
    nodes = [
        each.model_copy(update={"update_s": update, "memory_bytes": size})
        for each, update, size in zip(own, times.update_s.tolist(), memory_bytes, strict=True)
    ]
    seconds = timeline.makespan_s + SIGNAL_CYCLES / clk_hz
    predicted = Prediction(
        minibatch_s=seconds,
        period_s=max(passes) / plan.num_microbatches,
        bubble_rate=min(max(timeline.bubble_rate, 0.0), 1.0),
        samples_per_s=plan.batch / seconds,
        level="machine",
    )
    return plan.with_nodes(nodes).model_copy(update={"predicted": predicted}), timeline
