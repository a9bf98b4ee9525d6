"""Conversion of a candidate to a plan, with all parameters of the cores and their links."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP, LinkEndSpec, OnChipSpec
from fpgapipe.lowering.shards.degrees import Degrees
from fpgapipe.partition.cost.cores import link_of, with_larger_scratchpad, with_links
from fpgapipe.partition.placed_nodes import PlacedNodes
from fpgapipe.partition.plan import (
    DATA_PARALLEL,
    ONE_STAGE,
    NodePlan,
    Plan,
    Prediction,
    StagePlan,
    above_one,
)

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import Candidate

ANSWER_CYCLES = 40
"""Approximate number of cycles in which the far end of a link answers (docs/links.md)."""


def as_plan(
    candidate: Candidate,
    graph: Graph,
    network: str,
    batch: int,
    cluster: ClusterSpec,
    *,
    train: bool = True,
) -> Plan:
    """Convert a candidate to a plan.

    Parameters
    ----------
    candidate : Candidate
    graph : Graph
        The network for one micro-batch.
    network : str
        The name under which the network was loaded.
    batch : int
        Samples in a mini-batch.
    cluster : ClusterSpec
    train : bool
        Whether the candidate was planned for training; if false, for forward passes only.
    """
    placed = PlacedNodes.chain([stage.position for stage in candidate.stages], cluster)
    ends = link_ends(placed)
    nodes = []
    for index, (stage, needed) in enumerate(
        zip(candidate.stages, candidate.memory_bytes, strict=True)
    ):
        assert stage.node is not None
        own = [ends[wire] for wire in placed.placement.wires_of(index)]
        forward_s, input_gradient_s, weight_gradient_s, update_s = stage.pass_s
        nodes.append(
            NodePlan(
                device=cluster.device_names[stage.position],
                board=placed.devices[index].name,
                spec=with_links(stage.node, own),
                macs=sum(graph.layers[name].macs for name in stage.layers),
                forward_s=float(forward_s),
                input_gradient_s=float(input_gradient_s),
                weight_gradient_s=float(weight_gradient_s),
                update_s=float(update_s),
                sends_bytes=round(stage.sends_bytes),
                returns_bytes=round(stage.returns_bytes),
                memory_bytes=round(needed),
            )
        )
    if candidate.kind == DATA_PARALLEL:
        layers = candidate.stages[0].layers
        degrees = dict.fromkeys(layers, Degrees(sample=len(nodes)))
        stages = [StagePlan(layers=layers, nodes=tuple(nodes), degrees=above_one(degrees))]
    else:
        pairs = zip(candidate.stages, nodes, strict=True)
        stages = [StagePlan(layers=stage.layers, nodes=(node,)) for stage, node in pairs]
    seconds = candidate.minibatch_s
    return Plan(
        network=network,
        batch=batch,
        num_microbatches=candidate.num_microbatches,
        cluster=cluster.name,
        mode="train" if train else "infer",
        schedule=ONE_STAGE if candidate.kind == DATA_PARALLEL else candidate.kind,
        stages=tuple(stages),
        predicted=Prediction(
            minibatch_s=seconds,
            period_s=candidate.period_s,
            bubble_rate=max(candidate.timeline.bubble_rate, 0.0),
            samples_per_s=batch / seconds if seconds else 0.0,
        ),
        optimal=candidate.optimal,
        lower_bound_s=candidate.lower_bound_s,
        gap=candidate.gap,
        reason=candidate.reason,
    )


def with_larger_scratchpads(
    plan: Plan, cluster: ClusterSpec, limit_bytes: int | None = None
) -> Plan | None:
    """The plan with scratchpads twice as large; None if a device has no room for one."""
    nodes = []
    for node in plan.nodes:
        device = cluster.devices[cluster.device_names.index(node.device)]
        larger = with_larger_scratchpad(device, node.spec, limit_bytes)
        if larger is None:
            return None
        nodes.append(node.model_copy(update={"spec": larger}))
    return plan.with_nodes(nodes)


def one_link_each(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster with only the fastest link between any two devices, since a core uses one."""
    kept = [
        link
        for link in cluster.links
        if link is cluster.fastest_link(link.source, link.destination)
    ]
    return dataclasses.replace(cluster, links=tuple(kept))


def link_end(bytes_per_cycle: float, latency_cycles: float) -> LinkEngineSpec:
    """The link engine for a link of given rate and latency.

    Its slots hold the frames that are under way during a round trip, plus a frame at each end. The
    transmitter has no use for more than 32 slots.
    """
    end = link_of(bytes_per_cycle)
    frame_cycles = end.frame_bytes / bytes_per_cycle
    round_trip = 2 * (latency_cycles + frame_cycles) + ANSWER_CYCLES
    frames = math.ceil(round_trip / frame_cycles)
    slots = min(max(1 << (frames - 1).bit_length(), 4), 32)
    return dataclasses.replace(end, slots=(slots, slots, end.slots[-1]))


def link_ends(placed: PlacedNodes) -> list[LinkEndSpec]:
    """The link engine of each wire; both ends are equal."""
    found: list[LinkEndSpec] = []
    for pair, link in zip(placed.placement.pairs, placed.links, strict=True):
        if link.protocol == ON_CHIP:
            found.append(OnChipSpec())
            continue
        # The slower of the two clocks needs the wider stream.
        clk_hz = min(placed.devices[node].clk_hz for node in pair)
        found.append(link_end(link.payload_bytes_per_s / clk_hz, link.latency_s * clk_hz))
    return found
