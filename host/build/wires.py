"""The cables of a plan, as they are simulated."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from fpgapipe.partition.placed_nodes import PlacedNodes
from fpgapipe.partition.pricing.plan_cores import MAX_RATE_DENOMINATOR, wire_timings
from fpgapipe.sim_tb.native.phy import WireSpec

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.partition.plan import Plan


def wire_specs(plan: Plan, cluster: ClusterSpec) -> list[WireSpec]:
    """The cable that each wire of a plan's placement is, for simulation."""
    wires = PlacedNodes.of(plan, cluster).placement.wires
    return [
        WireSpec(
            plan.nodes[node].core.links[link].phy_bytes,
            Fraction(wire.bytes_per_cycle).limit_denominator(MAX_RATE_DENOMINATOR),
            wire.latency_cycles,
        )
        for ((node, link), _), wire in zip(wires, wire_timings(plan, cluster), strict=True)
    ]
