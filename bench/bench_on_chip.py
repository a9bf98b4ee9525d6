"""On-chip links between simulated cores: bytes a cycle of packets, and what an end costs.

One core sends a packet from its memory, the other one puts it into its own, with memories that give
a word a cycle and more (ideal) and with those of one and of two ports of a U280's HBM. Then packets
of 16 KiB go from scratchpad to scratchpad, as sums of gradients do. Prints one JSON object: for
each of these the cycles of the hardware and of the cycle model, the bytes a cycle from the first
word to the last (two sizes tell them), their share of the memory's rate, and whether that is
enough. A byte that is lost or changed stops the bench. LUTs are the resource model's: Yosys counted
those of an end (``bench_resources.py``). Cores have 4x4 cells.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from fpgapipe.boards.library import load_board
from fpgapipe.host.bench.cluster_bench import bring_up_links
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.model.core_protocol import check_program, prepare_program
from fpgapipe.hw.hls_models.model.dma import transfer
from fpgapipe.hw.hls_models.model.link_dma import packet
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.resources.core_counts import COEFFICIENTS
from fpgapipe.hw.hls_models.resources.core_counts import links as link_resources
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP_BYTES, OnChipSpec
from fpgapipe.lowering.memory.placed import page
from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.cluster_nodes import Node, cable
from fpgapipe.sim_tb.native.core_device import build_device
from fpgapipe.sim_tb.native.native import NativeDevice
from fpgapipe.sim_tb.native.phy import WireSpec

CORE = CoreSpec(4, 4, scratchpad=ScratchpadSpec(4, 1 << 14), links=(OnChipSpec(),), outstanding=64)

PACKET_BYTES, PAD_BYTES = 1 << 14, CORE.scratchpad.size_bytes

LATENCY_CYCLES = 5
"""Latency of wires that cross two boundaries of dies."""

LEAST_BYTES, LEAST_SHARE, MOST_LUTS = 62, 0.95, 3_000
"""What is wanted: bytes a cycle with an ideal memory, share of a port, LUTs of a link's end."""


END = Instruction(Opcode.END)


def through_memory(size_bytes: int) -> list[list[Instruction]]:
    """Programs that send a packet and receive it."""
    body = packet(0, size_bytes)
    return [[Instruction(each, body=body), END] for each in (Opcode.SEND, Opcode.RECEIVE)]


def through_scratchpad(size_bytes: int) -> list[list[Instruction]]:
    """Programs that load words, send packets from scratchpad to scratchpad, and store words."""
    moves, sends, receives = (
        [
            Instruction(opcode, body=make(at % PAD_BYTES, min(PACKET_BYTES, size_bytes - at)))
            for at in range(0, size_bytes, PACKET_BYTES)
        ]
        for opcode, make in (
            (Opcode.LOAD, lambda at, size: transfer(at, at, size)),
            (Opcode.SEND, partial(packet, in_scratchpad=True)),
            (Opcode.RECEIVE, partial(packet, in_scratchpad=True)),
        )
    )
    moves = moves[: PAD_BYTES // PACKET_BYTES]
    stores = [replace(each, opcode=Opcode.STORE) for each in moves]
    moves[-1], receives[-1] = (replace(each[-1], signal=(0,)) for each in (moves, receives))
    sends[0], stores[0] = (replace(each[0], wait=(0,)) for each in (sends, stores))
    return [[*moves, *sends, END], [*receives, *stores, END]]


def packet_cycles(
    core: CoreSpec,
    memory: MemorySpec,
    size_bytes: int,
    make: Callable[[int], list[list[Instruction]]],
) -> tuple[int, int]:
    """Cycles of so many bytes on simulated cores and by the model; asserts that they arrived."""
    registers = RegisterMap(core)
    programs = [Program.of(each) for each in make(size_bytes)]
    if make is through_scratchpad:  # which goes round
        size_bytes = min(size_bytes, PAD_BYTES)
    values = np.random.default_rng(size_bytes).integers(0, 256, size_bytes, np.uint8)
    entry = page(size_bytes)
    library, _, _ = build_device(core)
    nodes = []
    for number, program in enumerate(programs):
        device = NativeDevice(
            library,
            memory_bytes=page(entry + program.num_bytes),
            bytes_per_cycle=Fraction(memory.bytes_per_cycle).limit_denominator(1000),
            latency_cycles=memory.latency_cycles,
        )
        if number == 0:
            device.memory[:size_bytes] = values
        code = np.frombuffer(program.encode(), np.uint8)
        device.memory[entry : entry + code.size] = code
        nodes.append(Node(f"node {number}", device, registers))
    wire = WireSpec(ON_CHIP_BYTES, ON_CHIP_BYTES, LATENCY_CYCLES)
    with Cluster(nodes, cable((0, 0), (1, 0), wire), threads=1) as cluster:
        bring_up_links(cluster)
        for number, node in enumerate(nodes):
            write = partial(cluster.write_register, number)
            prepare_program(write, registers, entry, len(node.device.memory))
        begin = cluster.cycle
        for number in range(len(nodes)):
            control = registers["CONTROL"]
            cluster.write_register(number, control.offset, control.field("start").mask)
        cluster.run()
        for number in range(len(nodes)):
            check_program(partial(cluster.read_register, number), registers)
        assert np.array_equal(nodes[1].device.memory[:size_bytes], values), "bytes were lost"
        rtl = max(node.device.statistics.irq_cycle for node in nodes) - begin
    found = predict_cluster(
        programs,
        [core] * 2,
        [((0, 0), (1, 0))],
        memories=[memory] * 2,
        wires=[WireTiming(ON_CHIP_BYTES, LATENCY_CYCLES)],
    )
    return rtl, found.cycles


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=1 << 20)
    size_bytes = parser.parse_args().bytes
    board = load_board("u280").device_spec()
    port = board.memory_bytes_per_s / board.clk_hz
    latency = math.ceil(board.memories[0].latency_s * board.clk_hz)
    cases: dict[str, tuple[int, MemorySpec, Callable[[int], list[list[Instruction]]]]] = {
        "ideal": (1, MemorySpec(128, latency), through_memory),
        "one port": (1, MemorySpec(port, latency), through_memory),
        "two ports": (2, MemorySpec(2 * port, latency), through_memory),
        "scratchpad": (1, MemorySpec(port, latency), through_scratchpad),
    }
    found: dict[str, Any] = {}
    for name, (ports, memory, make) in cases.items():
        core = replace(CORE, memory_ports=ports)
        (small, small_model), (large, large_model) = (
            packet_cycles(core, memory, size, make) for size in (size_bytes // 4, size_bytes)
        )
        moved = size_bytes - size_bytes // 4
        rate = moved / (large - small)
        found[name] = {
            "bytes": size_bytes,
            "memory_bytes_per_cycle": memory.bytes_per_cycle,
            "rtl_cycles": large,
            "model_cycles": large_model,
            "bytes_per_cycle": rate,
            "model_bytes_per_cycle": moved / (large_model - small_model),
            "share_of_memory": rate / memory.bytes_per_cycle,
        }
    lut = COEFFICIENTS["on-chip end"].resources.lut
    within = {
        "ideal": found["ideal"]["bytes_per_cycle"] >= LEAST_BYTES,
        "one port": found["one port"]["share_of_memory"] >= LEAST_SHARE,
        "lut": lut <= MOST_LUTS,
    }
    luts = {"end": lut, "end_and_packets": link_resources(CORE.links, CORE.bus_bytes).lut}
    print(json.dumps({"packets": found, "luts": luts, "within": within}, indent=1))


if __name__ == "__main__":
    main()
