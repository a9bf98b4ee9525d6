"""Cycles in which a chain of devices adds up its gradients, by the cycle model of all of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.memory.placed import Placed, page
from fpgapipe.lowering.program.all_reduce import Member, all_reduce, chunks_of, coming_chunks
from fpgapipe.lowering.program.assemble import assemble
from fpgapipe.lowering.program.lanes import lanes_of
from fpgapipe.lowering.program.pipeline import link_after, wiring_of
from fpgapipe.partition.pricing.plan_cores import core_specs, memory_specs, wire_timings
from fpgapipe.partition.pricing.price_cache import remembered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
    from fpgapipe.hw.hls_models.isa.instructions import Instruction
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.partition.plan import Plan

NAME = "values"

MANY_CHUNKS = 256
"""Chunks from which on all take equally long."""


def all_reduce_s(plan: Plan, cluster: ClusterSpec, elements: int) -> float:
    """Seconds in which the devices of a data-parallel plan add up their gradients."""
    cycles = all_reduce_cycles(
        elements, core_specs(plan), memory_specs(plan), wire_timings(plan, cluster)
    )
    return cycles / min(stage.core.clk_hz for stage in plan.stages)


def all_reduce_cycles(
    elements: int,
    cores: Sequence[CoreSpec],
    memories: Sequence[MemorySpec],
    wires: Sequence[WireTiming],
) -> int:
    """Cycles from the start of all devices to the end of the last, kept on disk.

    Parameters
    ----------
    elements : int
        FP32 elements that each device has.
    cores, memories
        Core and memory of each device.
    wires : sequence of WireTiming
        The wire from each device but the last to the next.
    """
    if len(cores) < 2 or not elements:
        return 0
    count = len(chunks_of(NAME, elements))
    if count > MANY_CHUNKS:  # every further chunk takes as long as the last ones of these
        size = elements // count
        known = [
            all_reduce_cycles(size * some, cores, memories, wires)
            for some in (3 * MANY_CHUNKS // 4, MANY_CHUNKS)
        ]
        chunk_cycles = 4 * (known[1] - known[0]) / MANY_CHUNKS
        return round(known[1] + (elements / size - MANY_CHUNKS) * chunk_cycles)
    question = {
        "what": "all-reduce",
        "elements": elements,
        "cores": [asdict(core) for core in cores],
        "memories": [asdict(memory) for memory in memories],
        "wires": [asdict(wire) for wire in wires],
    }

    def find() -> int:
        programs = [
            _program(Member(number, len(cores), 0, link_after(number)), elements, core)
            for number, core in enumerate(cores)
        ]
        found = predict_cluster(
            programs, cores, wiring_of(len(cores)), memories=memories, wires=wires
        )
        return found.cycles

    return int(remembered(question, find))


def _program(member: Member, elements: int, core: CoreSpec) -> list[Instruction]:
    """The program of a device that does nothing else; its values lie at the beginning."""
    chunks = chunks_of(NAME, elements)
    coming = coming_chunks(NAME, chunks)
    region = lanes_of(core.scratchpad, 1)[0].vectors
    places = {}
    at = 0
    for chunk in chunks:
        places[chunk.name] = Placed(at, at + chunk.size_bytes)
        at += chunk.size_bytes
    for buffer in dict.fromkeys(coming):
        at = page(at)
        places[buffer.name] = Placed(at, at + buffer.size_bytes)
        at += buffer.size_bytes
    return assemble(list(all_reduce(NAME, member, chunks, coming, region)), places).instructions
