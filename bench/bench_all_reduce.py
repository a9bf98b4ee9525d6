"""The sum of a tensor over a chain of devices: cycles, and share of the wires' payload rate.

Prints one JSON object: for each number of devices, the cycles of the sum by the cycle model and by
the simulated devices, and the share of the least time that any all-reduce needs on these wires. In
a chain, every wire has to carry the tensor once in each direction, both at once: so the least time
is that of one transfer of the tensor at the payload rate of a link, which is the wire's rate less
frames' trailers. Every simulated device must end with the sum in the order of the devices, bit for
bit. Cores have 8 x 8 cells; wires carry 16 bytes a cycle and take 128 cycles. ``--predict`` leaves
the simulated devices out.

``--on-chip`` gives the time of nodes of a U280 instead, which on-chip links join across a boundary
of dies: by the cycle model, for one memory port a node and for two, how many times the tensor's
bytes pass through a node's memory, and the time for as many bytes as ResNet-50's gradients have.
"""

import argparse
import json
import math
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fpgapipe.boards.library import load_board
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.hw.hls_models.isa.instructions import Instruction
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.model.core_protocol import check_program, prepare_program
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec, LinkState
from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP_BYTES, OnChipSpec
from fpgapipe.lowering.memory.placed import Placed, page
from fpgapipe.lowering.placement import Placement
from fpgapipe.lowering.program.assemble import assemble
from fpgapipe.lowering.sums.all_reduce import (
    Member,
    all_reduce,
    buffers_of,
    chunks_of,
)
from fpgapipe.lowering.sums.on_chip_sum import adds_on_chip
from fpgapipe.lowering.tiling.kernel import Region
from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.cluster_nodes import Node, cable
from fpgapipe.sim_tb.native.core_device import build_device
from fpgapipe.sim_tb.native.native import NativeDevice
from fpgapipe.sim_tb.native.phy import WireSpec

CORE = CoreSpec(
    8,
    8,
    scratchpad=ScratchpadSpec(4, 1 << 16),
    vector=VectorSpec(),
    links=(LinkEngineSpec(), LinkEngineSpec()),
)
WIRE = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
LEAST_SHARE = 0.9
"""Share of the wires' payload rate that is wanted."""

NAME = "values"

RESNET50_BYTES = 4 * 25_557_032
"""Bytes of the gradients of ResNet-50's parameters in FP32."""


def program_of(member: Member, elements: int) -> tuple[list[Instruction], int]:
    """The program of a device, and the address of its first instruction; its values lie at 0."""
    chunks = chunks_of(NAME, elements)
    coming = buffers_of(f"{NAME}.coming", chunks)
    region = Region(0, CORE.scratchpad.size_bytes, CORE.scratchpad.bank_bytes)
    on_chip = adds_on_chip(CORE, region, chunks)
    kernels = list(all_reduce(NAME, member, chunks, coming, region, on_chip=on_chip))
    places = {}
    at = 0
    for chunk in chunks:
        places[chunk.name] = Placed(at, at + chunk.size_bytes)
        at += chunk.size_bytes
    for buffer in coming:
        if buffer.name not in places:
            at = page(at)
            places[buffer.name] = Placed(at, at + buffer.size_bytes)
            at += buffer.size_bytes
    return assemble(kernels, places).instructions, page(at)


def simulated(
    programs: list[tuple[list[Instruction], int]],
    values: list[np.ndarray],
    wiring: Any,
    memory: MemorySpec,
) -> int:
    """Run the programs on simulated devices, check the sums, and return the cycles."""
    library, _, _ = build_device(CORE)
    registers = RegisterMap(CORE)
    nodes = []
    for number, ((instructions, entry), own) in enumerate(zip(programs, values, strict=True)):
        code = np.frombuffer(encode(instructions), np.uint8)
        device = NativeDevice(
            library,
            memory_bytes=page(entry + code.size),
            bytes_per_cycle=Fraction(memory.bytes_per_cycle),
            latency_cycles=memory.latency_cycles,
        )
        device.memory[: own.nbytes] = own.view(np.uint8)
        device.memory[entry : entry + code.size] = code
        nodes.append(Node(f"device {number}", device, registers))
    cables = [each for one, other in wiring for each in cable(one, other, WIRE)]
    with Cluster(nodes, cables, threads=2) as cluster:

        def write(number: int, name: str, value: int) -> None:
            cluster.write_register(number, registers.offset(name), value)

        for pair in wiring:
            for number, link in pair:
                write(number, f"LINK{link}_SEED", 1 + 4 * number + link)
                write(number, f"LINK{link}_ENABLE", 1)
        for pair in wiring:
            for number, link in pair:
                status = f"LINK{link}_STATUS"
                state = registers[status].field("state")
                while (
                    state.of(cluster.read_register(number, registers.offset(status)))
                    != LinkState.UP
                ):
                    pass  # every read of a register takes some cycles
        for number, (_, entry) in enumerate(programs):
            size = len(nodes[number].device.memory)
            prepare_program(partial(cluster.write_register, number), registers, entry, size)
        begin = cluster.cycle
        for number in range(len(programs)):
            write(number, "CONTROL", registers["CONTROL"].field("start").mask)
        cluster.run()
        for number in range(len(programs)):
            check_program(partial(cluster.read_register, number), registers)
        expected = values[0]
        for own in values[1:]:
            expected = expected + own
        for node in nodes:
            found = node.device.memory[: expected.nbytes].view(np.float32)
            assert np.array_equal(found, expected), f"{node.name} has another sum"
        return max(node.device.statistics.irq_cycle for node in nodes) - begin


def measured(
    num_devices: int, elements: int, memory: MemorySpec, *, simulate: bool
) -> dict[str, Any]:
    """Figures of a number of devices."""
    placement = Placement.chain(num_devices)
    members = [Member.of(placement, n) for n in range(num_devices)]
    programs = [program_of(member, elements) for member in members]
    wiring = placement.wires
    model = predict_cluster(
        [instructions for instructions, _ in programs],
        [CORE] * num_devices,
        wiring,
        memories=[memory] * num_devices,
    )
    rng = np.random.default_rng(num_devices)
    values = [rng.standard_normal(elements).astype(np.float32) for _ in members]
    rtl = simulated(programs, values, wiring, memory) if simulate else None
    payload = float(WIRE.rate) * CORE.links[0].efficiency
    least = 4 * elements / payload
    cycles = rtl or model.cycles
    return {
        "devices": num_devices,
        "bytes": 4 * elements,
        "memory_bytes_per_cycle": memory.bytes_per_cycle,
        "least_cycles": round(least),
        "cycle_model": model.cycles,
        "rtl": rtl,
        "share": least / cycles,
        "within": least / cycles >= LEAST_SHARE,
    }


def on_chip(num_devices: int, elements: int, memory_ports: int) -> dict[str, Any]:
    """Figures of a number of nodes of a U280."""
    placement = Placement.chain(num_devices)
    device = load_board("u280").device_spec()
    rate = memory_ports * device.memory_bytes_per_s / device.clk_hz
    memory = MemorySpec(rate, math.ceil(device.memories[0].latency_s * device.clk_hz))
    core = replace(CORE, links=(OnChipSpec(), OnChipSpec()), memory_ports=memory_ports)
    programs = [
        program_of(Member.of(placement, number), elements)[0] for number in range(num_devices)
    ]
    cycles = predict_cluster(
        programs,
        [core] * num_devices,
        placement.wires,
        memories=[memory] * num_devices,
        wires=[WireTiming(ON_CHIP_BYTES, 3)] * len(placement.wires),
    ).cycles
    return {
        "nodes": num_devices,
        "memory_ports": memory_ports,
        "bytes": 4 * elements,
        "memory_bytes_per_cycle": rate,
        "cycle_model": cycles,
        "bytes_of_memory_per_byte": cycles * rate / (4 * elements),
        "resnet50_ms": 1e3 * cycles / device.clk_hz * RESNET50_BYTES / (4 * elements),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--on-chip", action="store_true")
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--bytes", type=int, default=1 << 20)
    parser.add_argument("--memory", type=int, nargs="+", default=[64, 128])
    given = parser.parse_args()
    elements = given.bytes // 4
    found = [
        on_chip(count, elements, each)
        if given.on_chip
        else measured(count, elements, MemorySpec(each), simulate=not given.predict)
        for count, each in product(given.devices, (1, 2) if given.on_chip else given.memory)
    ]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
