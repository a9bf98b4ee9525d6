"""The event simulation of a plan with the times that its nodes have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.lowering.schedule.schedule import forward_only
from fpgapipe.partition.explore.candidate import device_chain, make_candidate_schedule, times_of
from fpgapipe.partition.plan import DATA_PARALLEL
from fpgapipe.partition.schedule.replicated import side_by_side
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.partition.timeline.timeline import simulate

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.lowering.schedule.schedule import Schedule
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.timeline.timeline import Timeline


def timeline_of_plan(plan: Plan, cluster: ClusterSpec, order: Schedule | None = None) -> Timeline:
    """The event simulation of a plan's schedule, with a device for each node.

    Parameters
    ----------
    plan : Plan
        With the seconds of each node's passes, and the bytes of its transfers.
    cluster : ClusterSpec
    order : Schedule, optional
        The schedule, if it is no named one.
    """
    nodes = plan.nodes
    places = [cluster.device_names.index(node.device) for node in nodes]
    times = times_of(
        [
            (each.forward_s, each.input_gradient_s, each.weight_gradient_s, each.update_s)
            for each in nodes
        ],
        [node.sends_bytes for node in nodes],
        [node.returns_bytes for node in nodes],
        device_chain(cluster, places),
    )
    if len(nodes) > 1 == len(plan.stages):
        schedule = make_schedule(DATA_PARALLEL, len(nodes), plan.rounds * len(nodes))
    elif order is None:
        size = len(nodes) // plan.replicas
        own = times.changed(lambda values: values[:size] if values.ndim else values)
        schedule = side_by_side(
            make_candidate_schedule(plan.schedule, size, plan.rounds, own), plan.replicas
        )
    else:
        schedule = order
    return simulate(schedule if plan.trains else forward_only(schedule), times)
