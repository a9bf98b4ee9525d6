"""The cores of a plan, their places in the cluster, and what surrounds them in simulation."""

from __future__ import annotations

import math
from dataclasses import asdict
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.network.graph_json import to_json

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.plan import Plan

MAX_RATE_DENOMINATOR = 1 << 16
"""Largest denominator of the fraction that is a simulated wire's rate, in bytes per cycle."""


def core_specs(plan: Plan) -> list[CoreSpec]:
    """Cores of all nodes; equal ones are one object."""
    known: dict[CoreSpec, CoreSpec] = {}
    return [known.setdefault(node.core, node.core) for node in plan.nodes]


def asked_of(
    plan: Plan, graph: Graph, cluster: ClusterSpec, options: StepOptions
) -> dict[str, Any]:
    """What the cycles of any program of a plan depend on, as values of JSON."""
    return {
        "graph": to_json(graph),
        "cores": [asdict(core) for core in core_specs(plan)],
        "memories": [asdict(memory) for memory in memory_specs(plan)],
        "wires": [asdict(wire) for wire in wire_timings(plan, cluster)],
        "options": repr(options),
    }


def devices_of(plan: Plan, cluster: ClusterSpec) -> list[int]:
    """Index in the cluster of each node's device.

    Raises
    ------
    UserError
        If the cluster has no device of that name, two nodes are on one device, or two that follow
        one another have no link.
    """
    places = {name: place for place, name in enumerate(cluster.device_names)}
    found = []
    for node in plan.nodes:
        if node.device not in places:
            if node.device in cluster.device_names:
                raise UserError(
                    f"device {node.device!r} has two stages; no programs are made for such plans"
                )
            raise UserError(f"cluster {cluster.name} has no device {node.device!r}")
        found.append(places.pop(node.device))
    for one, other in pairwise(found):
        if not cluster.links_between(one, other):
            names = " and ".join(cluster.device_names[each] for each in (one, other))
            raise UserError(f"cluster {cluster.name} has no link between {names}")
    return found


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
    """Cable from each node but the last to the next.

    Rate and latency are those of the cluster's fastest link between the two devices, in cycles of
    the slower of their clocks; simulated devices all have one clock. The rate is a fraction that
    the simulated wire can count.
    """
    places = devices_of(plan, cluster)
    found = []
    nodes = plan.nodes
    for index in range(len(places) - 1):
        link = cluster.fastest_link(places[index], places[index + 1])
        assert link is not None, "devices_of refuses plans without links"
        clk_hz = min(each.spec.clk_hz for each in nodes[index : index + 2])
        rate = Fraction(link.payload_bytes_per_s / clk_hz)
        found.append(
            WireTiming(
                float(rate.limit_denominator(MAX_RATE_DENOMINATOR)),
                max(math.ceil(link.latency_s * clk_hz), 1),
            )
        )
    return found
