"""Programs of ResNet-50 and VGG-16 over four devices: time to make them, and their size.

Prints one JSON object: for each network wall time and processor time of all programs, and for each
device the instructions, the bytes of its program and those of its memory. Layers are
cut evenly by their multiply-accumulates; devices have an array of 32 x 128. ``--images`` makes the
first images of their memories as well.
"""

import argparse
import json
import time
from typing import Any

from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.load import load_network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

NETWORKS = ("resnet50", "vgg16")
STAGES = 4


def even_cut(graph: Graph, num_stages: int) -> list[list[str]]:
    """Layers of stages that have about equally many multiply-accumulates."""
    total = sum(layer.macs for layer in graph.layers.values())
    stages: list[list[str]] = [[] for _ in range(num_stages)]
    done = 0
    for layer in graph.layers.values():
        middle = done + layer.macs / 2
        stages[min(int(middle * num_stages / total), num_stages - 1)].append(layer.name)
        done += layer.macs
    return stages


def lower(network: str, given: argparse.Namespace) -> dict[str, Any]:
    """Make the programs of a network; returns times and sizes."""
    graph = load_network(network, given.batch // given.micro_batches)
    core = CoreSpec(
        32,
        given.cols,
        scratchpad=ScratchpadSpec(8, 1 << 20),
        vector=VectorSpec(16),
        links=(LinkEngineSpec(64),) * 2,
    )
    schedule = make_schedule(given.schedule, STAGES, given.micro_batches)
    begin, cpu_begin = time.perf_counter(), time.process_time()
    pipeline = build_pipeline(graph, [core] * STAGES, even_cut(graph, STAGES), schedule)
    found: dict[str, Any] = {
        "seconds": round(time.perf_counter() - begin, 2),
        "cpu_seconds": round(time.process_time() - cpu_begin, 2),
        "devices": [
            {
                "instructions": len(part.instructions),
                "program_bytes": part.memory_bytes - part.entry,
                "memory_bytes": part.memory_bytes,
            }
            for part in pipeline.parts
        ],
    }
    if given.images:
        parameters = initial_parameters(graph, 0)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        for part in pipeline.parts:
            part.image(parameters)
        found["image_seconds"] = round(time.perf_counter() - begin, 2)
        found["image_cpu_seconds"] = round(time.process_time() - cpu_begin, 2)
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--cols", type=int, default=128)
    parser.add_argument("--schedule", default="1f1b-as")
    parser.add_argument("--images", action="store_true")
    given = parser.parse_args()
    print(json.dumps({name: lower(name, given) for name in given.network or NETWORKS}, indent=1))


if __name__ == "__main__":
    main()
