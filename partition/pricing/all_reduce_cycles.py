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
    LAG,
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
    from fpgapipe.lowering.tiling.kernel import Kernel
    from fpgapipe.partition.plan import Plan

NAME = "values"

MANY_CHUNKS = 512
"""Chunks whose times tell those of all further ones."""

FILLED = 2
"""Multiple of the chunks by which the sums of a chain's first device come back later than those of
its last one (`fpgapipe.lowering.sums.all_reduce.LAG`), from which on periods are equally long."""

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
    cycles = all_reduce_cycles(
        elements, plan.cores, memory_specs(plan), wire_timings(plan, cluster)
    )
    return cycles / plan.clk_hz


def all_reduce_cycles(
    elements: Sequence[int],
    cores: Sequence[CoreSpec],
    memories: Sequence[MemorySpec],
    wires: Sequence[WireTiming],
) -> int:
    """Cycles from the start of all devices to the end of the last, kept on disk.

    Parameters
    ----------
    elements : sequence of int
        FP32 elements that each device of a group has. Groups follow one another in the chain, and
        devices at the same place in their groups add up.
    cores, memories
        Core and memory of each device.
    wires : sequence of WireTiming
        The wire from each device but the last to the next.
    """
    if len(cores) <= len(elements) or not any(elements):
        return 0
    sizes = [[chunk.elements for chunk in chunks_of(NAME, count)] for count in elements]
    alike = all(len(set(each)) == 1 for each in (cores, memories, wires))
    if len(cores) <= MANY_DEVICES or len(elements) > 1 or not alike:
        return round(_cycles(sizes, cores, memories, wires))
    whole, half = (
        _cycles(sizes, cores[:count], memories[:count], wires[: len(Placement.chain(count).wires)])
        for count in (MANY_DEVICES, MANY_DEVICES // 2)
    )
    hop = (whole - half) / (MANY_DEVICES - MANY_DEVICES // 2)
    return round(whole + (len(cores) - MANY_DEVICES) * hop)


def _cycles(
    sizes: Sequence[Sequence[int]],
    cores: Sequence[CoreSpec],
    memories: Sequence[MemorySpec],
    wires: Sequence[WireTiming],
) -> float:
    """Cycles for chunks of some elements each; of many, for some of them, and in proportion."""
    # The first chunks fill the chain; from then on, periods of many chunks are equally long.
    filled = FILLED * LAG * len(cores)
    most = max(MANY_CHUNKS // len(sizes), 2 * filled)
    if sum(map(len, sizes)) > MANY_CHUNKS and any(len(each) > most for each in sizes):
        some = [each if len(each) <= most else most * [each[0]] for each in sizes]
        found = _cycles(some, cores, memories, wires)
        for lane, each in enumerate(sizes):
            if len(each) > most:
                fewer = max(most // 4, filled)
                more, less = (
                    _cycles(_only(lane, len(sizes), count * [each[0]]), cores, memories, wires)
                    for count in (most, fewer)
                )
                found += (sum(each) / each[0] - most) * (more - less) / (most - fewer)
        return found
    question = {
        "what": "all-reduce",
        "chunks": [list(each) for each in sizes],
        "cores": [asdict(core) for core in cores],
        "memories": [asdict(memory) for memory in memories],
        "wires": [asdict(wire) for wire in wires],
    }

    def find() -> int:
        placement = Placement.chain(len(cores))
        programs = [
            _program(Member.of(placement, number), sizes, core) for number, core in enumerate(cores)
        ]
        found = predict_cluster(programs, cores, placement.wires, memories=memories, wires=wires)
        return found.cycles

    return float(remembered(question, find))


def _only(lane: int, lanes: int, sizes: Sequence[int]) -> list[Sequence[int]]:
    """Chunks of one lane, and none of the others."""
    return [sizes if each == lane else [] for each in range(lanes)]


def _program(member: Member, sizes: Sequence[Sequence[int]], core: CoreSpec) -> Program:
    """The program of a device that does nothing else; its values lie at the beginning."""
    region = lanes_of(core.scratchpad, 1)[0].vectors
    chunks = [
        [Tensor(f"{NAME}{lane}.{number}", (size,)) for number, size in enumerate(own)]
        for lane, own in enumerate(sizes)
    ]
    every = [chunk for own in chunks for chunk in own]
    coming, passing = (buffers_of(f"{NAME}.{each}", every) for each in ("coming", "passing"))
    places = {}
    at = 0
    for tensor in dict.fromkeys([*every, *coming, *passing]):
        places[tensor.name] = Placed(at, at + tensor.size_bytes)
        at = page(at + tensor.size_bytes)
    on_chip = adds_on_chip(core, region, every)
    kernels: list[Kernel] = []
    for lane, own in enumerate(chunks):
        adders = tuple(range(lane, member.num_devices, len(sizes)))
        kernels += all_reduce(
            NAME, member, own, coming, region, Team(adders, adders), passing, on_chip=on_chip
        )
    return assemble(kernels, places).instructions
