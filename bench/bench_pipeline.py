"""Mini-batches of whole pipelines: closed form, event simulation, cycle model, simulated devices.

Prints one JSON object: for each network, number of devices and schedule the cycles of a mini-batch
by every level, with differences from the simulated hardware; then the throughput of a balanced
pipeline of four devices relative to the ideal, four times that of one device. Cores are 16 x 16,
under fbp-as two engines of 8 x 16, which have as many cells; wires carry 16 bytes a cycle and take
128 cycles. ``--predict`` leaves the simulated devices out; ``--case``, ``--devices`` and
``--schedule`` choose some; ``--measure`` adds tasks and layers.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from fpgapipe.host.runtime.measure import measure
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.load import load_network
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.pricing.closed_form import layer_cycles
from fpgapipe.partition.pricing.prediction import PipelineTiming
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.native.phy import WireSpec

CORE = CoreSpec(
    16,
    16,
    scratchpad=ScratchpadSpec(8, 1 << 18),
    vector=VectorSpec(),
    links=(LinkEngineSpec(), LinkEngineSpec()),
)
TWO_ENGINES = replace(CORE, rows=8, num_engines=2)
WIRE = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
SCHEDULES = ("gpipe", "1f1b-as", "zb-h1", "fbp-as")
IDEAL_MICROBATCHES = 32
LEAST_EFFICIENCY = 0.90
MOST_DIFFERENCE = 0.02
"""Largest difference of the event simulation from the simulated cycles."""


def vgg_like(batch: int) -> Graph:
    """Four blocks of two 3x3 convolutions, with poolings between them; each takes about as long."""
    net = Network("vgg-like", batch)
    x = net.image(3, 32, 32)
    for block, channels in enumerate((16, 32, 64, 64)):
        if block:
            x = net.max_pool(x, 2)
        for _ in range(2):
            x = net.relu(net.conv(x, channels, 3, padding=1))
    net.linear(net.flatten(net.global_average_pool(x)), 10)
    return net.build()


CASES = {
    "vgg-like": (lambda: vgg_like(1), ("conv1", "max_pool1", "max_pool2", "max_pool3"), 4),
    "digits-cnn": (lambda: load_network("digits-cnn", 8), None, 4),
}
"""Network, first layers of four stages (None for equally many layers each), micro-batches."""


def stages(graph: Graph, firsts: Sequence[str] | None, num_devices: int) -> list[list[str]]:
    """Layers of each stage; each of two stages joins two of the four."""
    names = list(graph.layers)
    if num_devices == 1:
        return [names]
    if firsts is None:
        ends = [round(index * len(names) / num_devices) for index in range(num_devices + 1)]
    else:
        ends = [names.index(name) for name in firsts[:: 4 // num_devices]] + [len(names)]
    return [names[begin:end] for begin, end in pairwise(ends)]


def pipeline_of(case: str, num_devices: int, kind: str, count: int) -> PipelineProgram:
    """Programs of a case."""
    make, firsts, _ = CASES[case]
    graph = make()
    layers = stages(graph, firsts, num_devices)
    schedule = make_schedule(kind, num_devices, count)
    core = TWO_ENGINES if schedule.splits_engines else CORE
    return build_pipeline(graph, [core] * num_devices, layers, schedule)


def levels(
    pipeline: PipelineProgram, kind: str, *, simulate: bool, details: bool = False
) -> dict[str, Any]:
    """Cycles of a mini-batch by all levels."""
    num_devices = len(pipeline.parts)
    begin = time.perf_counter()
    if not simulate:
        timing = PipelineTiming.of(pipeline)
        formula = timing.closed_form(kind)
        found: dict[str, Any] = {
            "closed_form": formula and round(formula),
            "event": round(timing.event_cycles),
            "cycle_model": timing.cluster.cycles,
            "rtl": None,
        }
        return found | {"wall_s": time.perf_counter() - begin}
    parameters = initial_parameters(pipeline.graph, 0)
    memories, wires = [MemorySpec()] * num_devices, [WIRE] * (num_devices - 1)
    measured = measure(pipeline, kind, parameters, memories, wires).to_dict()
    found = dict(measured["minibatch_cycles"])
    rtl = found["rtl"]
    found["error"] = {
        level: (cycles - rtl) / rtl for level, cycles in found.items() if level != "rtl"
    }
    found["within"] = abs(found["error"]["event"]) <= MOST_DIFFERENCE
    found["wall_s"] = time.perf_counter() - begin
    return found | ({"details": measured} if details else {})


def efficiency(*, simulate: bool, count: int, kind: str) -> dict[str, Any]:
    """Throughput of the balanced pipeline relative to that of four devices that never wait."""
    alone = pipeline_of("vgg-like", 1, "1f1b-as", count)
    whole = predict(alone.parts[0].instructions, CORE).cycles
    pipeline = pipeline_of("vgg-like", 4, kind, count)
    found = levels(pipeline, kind, simulate=simulate)
    cycles = found["rtl"] or found["cycle_model"]
    costs = [sum(own.values()) for own in layer_cycles(pipeline, [MemorySpec()] * 4)]
    return found | {
        "microbatches": count,
        "one_device": whole,
        "ideal": whole / 4,
        "efficiency": whole / 4 / cycles,
        "least": LEAST_EFFICIENCY,
        "balance_of_cost_model": sum(costs) / 4 / max(costs),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--case", choices=[*CASES, "efficiency"], action="append")
    parser.add_argument("--devices", type=int, choices=(2, 4), action="append")
    parser.add_argument("--schedule", choices=SCHEDULES, action="append")
    parser.add_argument("--micro-batches", type=int)
    given = parser.parse_args()
    result: dict[str, Any] = {}
    for case in given.case or [*CASES, "efficiency"]:
        if case == "efficiency":
            count = given.micro_batches or IDEAL_MICROBATCHES
            for kind in given.schedule or ["zb-h1"]:
                found = efficiency(simulate=not given.predict, count=count, kind=kind)
                result[f"efficiency, {kind}"] = found
            continue
        for num_devices in given.devices or (2, 4):
            for kind in given.schedule or SCHEDULES:
                count = given.micro_batches or CASES[case][2]
                name = f"{case}, {num_devices} devices, {kind}"
                pipeline = pipeline_of(case, num_devices, kind, count)
                found = levels(pipeline, kind, simulate=not given.predict, details=given.measure)
                result[name] = {"microbatches": count, **found}
                print(f"{name}: {found['event']} {found['rtl']}", file=sys.stderr, flush=True)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
