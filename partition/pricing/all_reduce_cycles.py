"""Cycles in which a chain of devices adds up its gradients, by the cycle model of all of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.memory.placed import Placed, page
from fpgapipe.lowering.placement import Placement
from fpgapipe.lowering.program.assemble import assemble
from fpgapipe.lowering.program.lanes import lanes_of
from fpgapipe.lowering.sums.all_reduce import (
    Member,
    Team,
    all_reduce,
    buffers_of,
    chunks_of,
)
from fpgapipe.lowering.sums.on_chip_sum import adds_on_chip
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings
from fpgapipe.partition.pricing.price_cache import remembered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
    from fpgapipe.hw.hls_models.isa.program import Program
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.partition.plan import Plan

NAME = "values"

MANY_CHUNKS = 512
"""Chunks whose times tell those of all further ones."""

MANY_DEVICES = 32
"""Equal devices from which on each further one costs as much as each of the second half of these.

48 small devices are at most 0.5 % off at nine rates of memory from 40 to 64 bytes a cycle; with 24
in its place they are up to 1.2 % off, with 16 up to 3.0 %.
"""


def all_reduce_s(plan: Plan, cluster: ClusterSpec, elements: Sequence[int]) -> float:
    """Seconds in which independent groups of devices add up their gradients.

    Parameters
    ----------
    plan : Plan
    cluster : ClusterSpec
    elements : sequence of int
        Elements that each device of a group has.
    """
    around = plan.cores, memory_specs(plan), wire_timings(plan, cluster)
    every = range(len(plan.nodes))
    cycles = sum(
        all_reduce_cycles(count, *around, every[lane :: len(elements)])
        for lane, count in enumerate(elements)
    )
    return cycles / plan.clk_hz


def all_reduce_cycles(
    elements: int,
    cores: Sequence[CoreSpec],
    memories: Sequence[MemorySpec],
    wires: Sequence[WireTiming],
    adders: Sequence[int] | None = None,
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
    adders : sequence of int, optional
        The devices that add up, if others between them pass the sums on.
    """
    adders = tuple(range(len(cores))) if adders is None else tuple(adders)
    if len(adders) < 2 or not elements:
        return 0
    sizes = [chunk.elements for chunk in chunks_of(NAME, elements)]
    alike = all(len(set(each)) == 1 for each in (cores, memories, wires))
    if len(cores) <= MANY_DEVICES or len(adders) < len(cores) or not alike:
        return round(_cycles(sizes, cores, memories, wires, adders))
    whole, half = (
        _cycles(
            sizes,
            cores[:count],
            memories[:count],
            wires[: len(Placement.chain(count).wires)],
            adders[:count],
        )
        for count in (MANY_DEVICES, MANY_DEVICES // 2)
    )
    hop = (whole - half) / (MANY_DEVICES - MANY_DEVICES // 2)
    return round(whole + (len(cores) - MANY_DEVICES) * hop)


def _cycles(
    sizes: Sequence[int],
    cores: Sequence[CoreSpec],
    memories: Sequence[MemorySpec],
    wires: Sequence[WireTiming],
    adders: tuple[int, ...],
) -> float:
    """Cycles for chunks of some elements each; of many, for some of them, and in proportion."""
    if len(sizes) > MANY_CHUNKS:
        # The first chunks fill the chain; from then on, periods of many chunks are equally long.
        filled, most = (
            _cycles(some * [sizes[0]], cores, memories, wires, adders)
            for some in (MANY_CHUNKS // 4, MANY_CHUNKS)
        )
        chunk_cycles = (most - filled) / (MANY_CHUNKS - MANY_CHUNKS // 4)
        return most + (sum(sizes) / sizes[0] - MANY_CHUNKS) * chunk_cycles
    question = {
        "what": "all-reduce",
        "chunks": list(sizes),
        "cores": [asdict(core) for core in cores],
        "memories": [asdict(memory) for memory in memories],
        "wires": [asdict(wire) for wire in wires],
    }
    if len(adders) < len(cores):
        question["adders"] = adders

    def find() -> int:
        placement = Placement.chain(len(cores))
        programs = [
            _program(Member.of(placement, number), sizes, core, Team(adders, adders))
            for number, core in enumerate(cores)
        ]
        found = predict_cluster(programs, cores, placement.wires, memories=memories, wires=wires)
        return found.cycles

    return float(remembered(question, find))


def _program(member: Member, sizes: Sequence[int], core: CoreSpec, team: Team) -> Program:
    """The program of a device that does nothing else; its values lie at the beginning."""
    chunks = [Tensor(f"{NAME}{number}", (size,)) for number, size in enumerate(sizes)]
    coming, passing = (buffers_of(f"{NAME}.{each}", chunks) for each in ("coming", "passing"))
    region = lanes_of(core.scratchpad, 1)[0].vectors
    places = {}
    at = 0
    for chunk in chunks:
        places[chunk.name] = Placed(at, at + chunk.size_bytes)
        at += chunk.size_bytes
    for buffer in dict.fromkeys([*coming, *passing]):
        at = page(at)
        places[buffer.name] = Placed(at, at + buffer.size_bytes)
        at += buffer.size_bytes
    on_chip = adds_on_chip(core, region, chunks)
    kernels = all_reduce(NAME, member, chunks, coming, region, team, passing, on_chip=on_chip)
    return assemble(list(kernels), places).instructions
