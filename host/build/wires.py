"""The cables of a plan, as they are simulated."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from fpgapipe.partition.pricing.plan_cores import MAX_RATE_DENOMINATOR, wire_timings
from fpgapipe.sim_tb.native.phy import WireSpec

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.partition.plan import Plan


def wire_specs(plan: Plan, cluster: ClusterSpec) -> list[WireSpec]:
    """Cable from each device but the last to the next, for simulation."""
    return [
        WireSpec(
            node.core.links[-1].phy_bytes,
            Fraction(wire.bytes_per_cycle).limit_denominator(MAX_RATE_DENOMINATOR),
            wire.latency_cycles,
        )
        for node, wire in zip(plan.nodes, wire_timings(plan, cluster), strict=False)
    ]
