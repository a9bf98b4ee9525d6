"""Compares training steps on the simulated core with their targets.

Prints one JSON object: a step of digits-cnn (16 x 16, batch 32) and one of a ResNet-18 basic block
(32 x 32, 56 x 56 pixels, 64 channels, batch 4) with a first layer in front and a classifier behind;
both in hardware, compared with the bit-exact model byte for byte. Then it measures how much the
vector engine slows simulation down. ``--predict`` leaves the hardware out.
"""

import argparse
import json
from dataclasses import replace
from typing import Any

from fpgapipe.host.bench.core_bench import bench_layer, parse_layer
from fpgapipe.host.bench.step_bench import bench_step
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.rtl.core_verilog import device_verilog
from fpgapipe.lowering.program.step import build_step
from fpgapipe.network.graph import Graph
from fpgapipe.network.load import load_network
from fpgapipe.network.zoo.layers import Network
from fpgapipe.sim_tb.native.native import native_speed

SCRATCHPAD = ScratchpadSpec(8, 1 << 18)
IDLE_CYCLES = 200_000


def basic_block(batch: int, size: int = 56, channels: int = 64) -> Graph:
    """A ResNet-18 basic block; the layer in front makes it compute the gradient of its input."""
    net = Network("ResNet-18 basic block", batch)
    x = net.conv(net.image(3, size, size), channels, 1, bias=False)
    y = net.relu(net.batch_norm(net.conv(x, channels, 3, padding=1, bias=False)))
    y = net.batch_norm(net.conv(y, channels, 3, padding=1, bias=False))
    x = net.relu(net.plus(y, x))
    net.linear(net.flatten(net.global_average_pool(x)), 10)
    return net.build()


CASES = {
    "digits-cnn": (lambda: load_network("digits-cnn", 32), 16, 0.70),
    "basic block": (lambda: basic_block(4), 32, 0.80),
}
"""Network, rows and columns of the array, least share of cycles with a busy GEMM engine."""


def predicted(graph: Graph, core: CoreSpec) -> dict[str, Any]:
    """Figures of a step by the cycle model."""
    program = build_step(graph, core)
    found = predict(program.instructions, core, MemorySpec())
    return {"predicted_cycles": found.cycles, "gemm_streaming": found.gemm_cycles / found.cycles}


def speeds(rows: int) -> dict[str, float]:
    """Cycles a second of the core with and without vector engine, idle and at work."""
    layer = parse_layer("conv:cin=64,cout=64,k=3,stride=1,pad=1,h=28,w=28")
    found = {}
    with_vector = CoreSpec(rows, rows, scratchpad=SCRATCHPAD, vector=VectorSpec())
    for name, core in (("gemm", replace(with_vector, vector=None)), ("vector", with_vector)):
        best = 0.0
        for _ in range(3):
            run = bench_layer(layer, "forward", core)
            best = max(best, run.cycles / run.cpu_s)
        found[f"{name}_cycles_per_s"] = best
        found[f"{name}_idle_cycles_per_s"] = native_speed(device_verilog(core), IDLE_CYCLES)
    found["ratio"] = found["vector_cycles_per_s"] / found["gemm_cycles_per_s"]
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--case", choices=list(CASES), action="append")
    given = parser.parse_args()
    result: dict[str, Any] = {}
    for name in given.case or CASES:
        make, rows, least = CASES[name]
        core = CoreSpec(rows, rows, scratchpad=SCRATCHPAD, vector=VectorSpec())
        if given.predict:
            result[name] = predicted(make(), core)
            continue
        result[name] = bench_step(make(), core).to_dict() | {"least_gemm_busy": least}
    if not given.predict and not given.case:
        result["speed"] = speeds(32)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
