"""Prices of plans whose groups of nodes share the samples, from a group's and those of the sums.

A group is a node that has the whole network, or a replica of a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe.lowering.placement import Placement
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.partition.explore.plan_timeline import timeline_of_plan
from fpgapipe.partition.pricing.all_reduce_cycles import all_reduce_s
from fpgapipe.partition.pricing.plan_facts import with_prices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.partition.plan import NodePlan, Plan
    from fpgapipe.partition.timeline.timeline import Timeline


def alone(plan: Plan, index: int) -> Plan:
    """The plan of one group that does its share of the micro-batches and nobody else's.

    Its nodes have no links to those of other groups.
    """
    count = plan.independent
    size, placement = len(plan.nodes) // count, Placement.chain(len(plan.nodes))
    own = range(index * size, (index + 1) * size)
    nodes = []
    for number in own:
        beside = [placement.before(number), placement.after(number)]
        kept = [placement.link(number, each) for each in beside if each is not None and each in own]
        nodes.append(_with_links(plan.nodes[number], kept))
    stages = [
        stage.model_copy(update={"nodes": (node,), "degrees": {}})
        for stage, node in zip(plan.stages, nodes, strict=True)
    ]
    return plan.model_copy(
        update={
            "batch": plan.batch // count,
            "num_microbatches": plan.num_microbatches // count,
            "stages": tuple(stages),
            "replicas": 1,
        }
    )


def _with_links(node: NodePlan, kept: Sequence[int]) -> NodePlan:
    core = replace(node.core, links=tuple(node.core.links[link] for link in kept))
    return node.model_copy(update={"spec": replace(node.spec, core=core)})


@dataclass(frozen=True)
class Group:
    """A group with the prices of the machine that it has alone.

    Attributes
    ----------
    plan : Plan
    ready_s : float
        Seconds until the last of its passes ends.
    """

    plan: Plan
    ready_s: float

    @classmethod
    def of(cls, plan: Plan, timeline: Timeline) -> Group:
        """The group of a plan that is priced."""
        passes = [
            ends[lane.kinds != TaskKind.U]
            for lane, ends in zip(timeline.schedule.lanes, timeline.end_s, strict=True)
        ]
        last = max((float(each.max()) for each in passes if each.size), default=0.0)
        return cls(plan, plan.predicted.minibatch_s - (timeline.makespan_s - last))

    @property
    def update_s(self) -> float:
        """Seconds of the longest update."""
        return max(node.update_s for node in self.plan.nodes)


def shared_batch_s(
    plan: Plan, own: Sequence[Group], cluster: ClusterSpec, elements: Sequence[int]
) -> float:
    """Seconds of a mini-batch, from those of each group alone and of the sums.

    The groups do their passes independently. Their gradients are added up when the last of them is
    ready, and then all update their weights. Running averages, which the first group passes on to
    the others, are not counted: they take some thousand cycles.

    Parameters
    ----------
    plan : Plan
    own : sequence of Group
    cluster : ClusterSpec
    elements : sequence of int
        Elements of the gradients of each node of a group.
    """
    sum_s = all_reduce_s(plan, cluster, elements) if plan.trains else 0.0
    return max(each.ready_s for each in own) + sum_s + max(each.update_s for each in own)


def price_shared_batch(
    plan: Plan,
    own: Sequence[Group],
    cluster: ClusterSpec,
    memory_bytes: Sequence[int],
    seconds: float,
) -> tuple[Plan, Timeline]:
    """Put the prices of its groups together to those of a plan.

    Parameters
    ----------
    plan, own, cluster
        As for `shared_batch_s`.
    memory_bytes : sequence of int
        Bytes of each node's program and tensors.
    seconds : float
        Seconds of a mini-batch.

    Returns
    -------
    plan : Plan
        An update takes as long as the sums of the gradients and the update, and in a faster group
        the time in which it waits for the others.
    timeline : Timeline
        The event simulation of the nodes' times.
    """
    ready_s = max(each.ready_s for each in own)
    sums_end_s = max(seconds - max(each.update_s for each in own), ready_s)
    nodes, sizes = [], iter(memory_bytes)
    for group, begin in enumerate(range(0, len(plan.nodes), len(plan.nodes) // len(own))):
        for before, found in zip(plan.nodes[begin:], own[group].plan.nodes, strict=False):
            waits_s = sums_end_s - own[group].ready_s if plan.trains else 0.0
            update = {
                "device": before.device,
                "spec": before.spec,
                "update_s": waits_s + found.update_s,
                "memory_bytes": next(sizes),
            }
            nodes.append(found.model_copy(update=update))
    timeline = timeline_of_plan(plan.with_nodes(nodes), cluster)
    period_s = max(each.plan.predicted.period_s for each in own) / len(own)
    return with_prices(plan, nodes, seconds, period_s, timeline)
