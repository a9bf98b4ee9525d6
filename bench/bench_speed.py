"""Multiply-accumulates a second of wall time in a simulated pipeline of 32x32 devices.

Prints one JSON object. Two devices on two threads train a chain of 3x3 convolutions whose products
fill the array. The multiply-accumulates of all three passes count, as PyTorch counts them.
"""

import argparse
import json
import time
from fractions import Fraction
from typing import Any

from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.native.phy import WireSpec
from fpgapipe.sim_tb.substitutes.simulation import Simulation

MICROBATCHES = 4

CORE = CoreSpec(
    32,
    32,
    scratchpad=ScratchpadSpec(8, 1 << 18),
    vector=VectorSpec(),
    links=(LinkEngineSpec(16),),
)


def chain(batch: int, channels: int, size: int) -> Graph:
    """Five convolutions and a classifier; all but the first are equal."""
    net = Network("chain of convolutions", batch)
    x = net.relu(net.conv(net.image(3, size, size), channels, 3, padding=1))
    for _ in range(4):
        x = net.relu(net.conv(x, channels, 3, padding=1))
    net.linear(net.flatten(net.global_average_pool(x)), 10)
    return net.build()


def simulated_step(
    size: int, channels: int, threads: int, simulation: Simulation | None = None
) -> dict[str, Any]:
    """Run a training step of a chain of convolutions on two devices; return its figures."""
    graph = chain(1, channels, size)
    names = list(graph.layers)
    cut = 6  # cut before the fourth convolution
    pipeline = build_pipeline(
        graph,
        [CORE, CORE],
        [names[:cut], names[cut:]],
        make_schedule("1f1b-as", 2, MICROBATCHES),
    )
    inputs, labels = random_batch(chain(MICROBATCHES, channels, size), 0)
    macs = MICROBATCHES * sum(
        gemm.macs
        for layer in graph.layers
        for gemms in graph.passes(layer).values()
        for gemm in gemms
    )
    wire = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
    with SimulatorBackend(
        pipeline,
        initial_parameters(graph, 0),
        MemorySpec(),
        [wire],
        threads=threads,
        simulation=simulation,
    ) as backend:
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        cycles = backend.step(inputs, labels, scalar_bits()).cycles
        wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
        used = backend.simulation
    assert cycles is not None
    return {
        "simulation": used,
        "threads": threads,
        "macs": macs,
        "cycles": cycles,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "utilisation": macs / (cycles * 2 * CORE.rows * CORE.cols),
        "device_cycles_per_s": 2 * cycles / wall_s,
        "device_cycles_per_cpu_s": 2 * cycles / cpu_s,
        "macs_per_s": macs / wall_s,
        "goal_macs_per_s": 1e8,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=20, help="rows and columns of the images")
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    print(json.dumps(simulated_step(given.size, given.channels, given.threads), indent=2))


if __name__ == "__main__":
    main()
