"""Translates a plan's cores to specs of generated cores and of their simulated surroundings."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.partition.plan import outstanding

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.partition.plan import CorePlan, Plan

MAX_RATE_DENOMINATOR = 1 << 16
"""Largest denominator of the fraction that is a simulated wire's rate, in bytes per cycle."""


def core_spec(core: CorePlan) -> CoreSpec:
    """Spec of the core that is generated for a core of a plan.

    Raises
    ------
    UserError
        If no such core can be generated.
    """
    try:
        return CoreSpec(
            core.rows,
            core.cols,
            core.num_engines,
            core.acc_depth,
            ScratchpadSpec(
                core.scratchpad_banks, core.scratchpad_bank_bytes, core.scratchpad_port_bytes
            ),
            core.bus_bytes,
            outstanding=outstanding(core.scratchpad_port_bytes),
            vector=VectorSpec(core.vector_lanes, core.function_lanes, random=core.random),
            links=tuple(LinkEngineSpec(**link.model_dump()) for link in core.links),
            counters=core.counters,
        )
    except ValueError as error:
        raise UserError(f"no core is generated from the plan: {error}") from None


def core_specs(plan: Plan) -> list[CoreSpec]:
    """Cores of all stages; equal ones are one object."""
    known: dict[CoreSpec, CoreSpec] = {}
    found = []
    for stage in plan.stages:
        core = core_spec(stage.core)
        found.append(known.setdefault(core, core))
    return found


def devices_of(plan: Plan, cluster: ClusterSpec) -> list[int]:
    """Index in the cluster of each stage's device.

    Raises
    ------
    UserError
        If the cluster has no device of that name, or two successive stages have no link.
    """
    places = {name: place for place, name in enumerate(cluster.device_names)}
    found = []
    for stage in plan.stages:
        if stage.device not in places:
            raise UserError(f"cluster {cluster.name} has no device {stage.device!r}")
        found.append(places[stage.device])
    for one, other in pairwise(found):
        if not cluster.links_between(one, other):
            names = " and ".join(cluster.device_names[each] for each in (one, other))
            raise UserError(f"cluster {cluster.name} has no link between {names}")
    return found


def memory_specs(plan: Plan) -> list[MemorySpec]:
    """Memory of each stage's device, in cycles of the core's clock, for simulation.

    Raises
    ------
    UserError
        If a device has no memory.
    """
    for stage in plan.stages:
        if not stage.core.memory_bytes_per_cycle:
            raise UserError(
                f"{stage.device} has no memory beside its fabric; a core needs one for its program"
            )
    return [
        MemorySpec(stage.core.memory_bytes_per_cycle, stage.core.memory_latency_cycles)
        for stage in plan.stages
    ]


def wire_timings(plan: Plan, cluster: ClusterSpec) -> list[WireTiming]:
    """Cable from each stage but the last to the next.

    Rate and latency are those of the cluster's fastest link between the two devices, in cycles of
    the slower of their clocks; simulated devices all have one clock. The rate is a fraction that
    the simulated wire can count.
    """
    places = devices_of(plan, cluster)
    found = []
    for index in range(len(places) - 1):
        link = cluster.fastest_link(places[index], places[index + 1])
        assert link is not None, "devices_of refuses plans without links"
        clk_hz = min(each.core.clk_hz for each in plan.stages[index : index + 2])
        rate = Fraction(link.payload_bytes_per_s / clk_hz)
        found.append(
            WireTiming(
                float(rate.limit_denominator(MAX_RATE_DENOMINATOR)),
                max(math.ceil(link.latency_s * clk_hz), 1),
            )
        )
    return found
