"""The cores of a plan, their places in the cluster, and what surrounds them in simulation."""

from __future__ import annotations

import math
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.network.graph_json import to_json
from fpgapipe.partition.placed_nodes import PlacedNodes

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.plan import Plan

MAX_RATE_DENOMINATOR = 1 << 16
"""Largest denominator of the fraction that is a simulated wire's rate, in bytes per cycle."""


def asked_of(
    plan: Plan, graph: Graph, cluster: ClusterSpec, options: StepOptions
) -> dict[str, Any]:
    """Causes of the cycles of a plan's programs, as values of JSON."""
    division = plan.division
    return {
        "graph": to_json(graph),
        "cores": [asdict(core) for core in plan.cores],
        "memories": [asdict(memory) for memory in memory_specs(plan)],
        "wires": [asdict(wire) for wire in wire_timings(plan, cluster)],
        "options": repr(options),
        "layers": division.layers,
        "sizes": division.sizes,
        "degrees": {name: asdict(each) for name, each in division.degrees.items()},
        "schedule": [plan.schedule, plan.num_microbatches, plan.replicas],
    }


def memory_specs(plan: Plan) -> list[MemorySpec]:
    """Memory of each node, in cycles of the core's clock, for simulation.

    Raises
    ------
    UserError
        If a node has no memory.
    """
    for node in plan.nodes:
        if not node.spec.memory_bytes_per_cycle:
            raise UserError(
                f"{node.device} has no memory beside its fabric; a core needs one for its program"
            )
    specs = (node.spec for node in plan.nodes)
    return [MemorySpec(each.memory_bytes_per_cycle, each.memory_latency_cycles) for each in specs]


def wire_timings(plan: Plan, cluster: ClusterSpec) -> list[WireTiming]:
    """The cable that each wire of a plan's placement is.

    Rate and latency are those of its link, in cycles of the slower clock of the two ends;
    simulated devices all have one clock. The rate is a fraction that the simulated wire can count.
    """
    nodes, placed = plan.nodes, PlacedNodes.of(plan, cluster)
    found = []
    for pair, link in zip(placed.placement.pairs, placed.links, strict=True):
        clk_hz = min(nodes[node].spec.clk_hz for node in pair)
        rate = Fraction(link.payload_bytes_per_s / clk_hz)
        found.append(
            WireTiming(
                float(rate.limit_denominator(MAX_RATE_DENOMINATOR)),
                max(math.ceil(link.latency_s * clk_hz), 1),
            )
        )
    return found
