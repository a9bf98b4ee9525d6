"""Compares weights after a number of steps on simulated devices with one model, bit for bit.

Prints one JSON object: for each number of devices and each schedule the digest of weights,
statistics and momentum, with cycles of a mini-batch and seconds, and whether all equal those of
the bit-exact model on one device. ``--devices 2 --schedules gpipe`` runs a part of it.
"""

import argparse
import hashlib
import json
import sys
import time
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from fpgapipe.host.backends.base import StepRunner
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.data.data import load_data
from fpgapipe.host.data.samples import Samples
from fpgapipe.host.runtime.runtime import macs_of
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.native.phy import WireSpec

CORE = CoreSpec(
    8,
    8,
    acc_depth=256,
    scratchpad=ScratchpadSpec(8, 1 << 14),
    vector=VectorSpec(4, 2),
    links=(LinkEngineSpec(), LinkEngineSpec()),
)
MICROBATCH, COUNT = 2, 4
WIRE = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
SCHEDULES = ("gpipe", "1f1b-as", "zb-h1", "fbp-as")


def small_cnn(batch: int) -> Graph:
    """Two convolutions with batch normalisation and a residual sum, for the digits."""
    net = Network("small cnn", batch)
    x = net.relu(net.batch_norm(net.conv(net.image(1, 8, 8), 8, 3, padding=1, bias=False)))
    x = net.max_pool(x, 2)
    y = net.batch_norm(net.conv(x, 8, 3, padding=1, bias=False))
    x = net.relu(net.plus(y, x))
    net.linear(net.flatten(x), 10)
    return net.build()


def pipeline_of(graph: Graph, devices: int, kind: str) -> PipelineProgram:
    """Programs of stages that have about equally many layers."""
    names = list(graph.layers)
    ends = [round(index * len(names) / devices) for index in range(devices + 1)]
    layers = [names[begin:end] for begin, end in pairwise(ends)]
    schedule = make_schedule(kind, devices, COUNT)
    core = replace(CORE, num_engines=2) if schedule.splits_engines else CORE
    return build_pipeline(graph, [core] * devices, layers, schedule)


def run(backend: StepRunner, samples: Samples, steps: int) -> dict[str, Any]:
    """Train; returns the results."""
    begin = time.perf_counter()
    cycles, losses = [], []
    for step, batch in zip(range(steps), samples.batches(MICROBATCH * COUNT, 0), strict=False):
        scalars = scalar_bits(learning_rate=0.05, momentum=0.9, weight_decay=1e-4, step=step)
        result = backend.step({"input": batch.images}, batch.labels, scalars)
        losses.append(result.loss)
        cycles.append(result.cycles)
    digest = hashlib.sha256()
    for name, value in sorted(backend.state().items()):
        digest.update(name.encode() + value.tobytes())
    return {
        "sha256": digest.hexdigest(),
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "minibatch_cycles": cycles[-1],
        "wall_s": time.perf_counter() - begin,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    graph = small_cnn(MICROBATCH)
    parameters = initial_parameters(graph, 0)
    samples = load_data("digits", graph).train
    with ModelBackend(pipeline_of(graph, 1, "1f1b-as"), parameters) as backend:
        model = run(backend, samples, given.steps)
    print(f"model: {model['sha256'][:12]} {model['wall_s']:.1f} s", file=sys.stderr)
    macs = COUNT * macs_of(graph, train=True)
    runs = []
    for devices in given.devices:
        for kind in given.schedules:
            pipeline = pipeline_of(graph, devices, kind)
            wires = [replace(WIRE, seed=10 * index) for index in range(devices - 1)]
            with SimulatorBackend(
                pipeline, parameters, MemorySpec(), wires, threads=given.threads
            ) as simulated:
                found = run(simulated, samples, given.steps)
            found |= {
                "devices": devices,
                "schedule": kind,
                "same": found["sha256"] == model["sha256"],
                "macs_per_s": macs * given.steps / found["wall_s"],
            }
            runs.append(found)
            print(
                f"{devices} devices, {kind}: {'same' if found['same'] else 'OTHER'}, "
                f"{found['minibatch_cycles']:,} cycles, {found['wall_s']:.1f} s",
                file=sys.stderr,
            )
    result = {
        "steps": given.steps,
        "batch": MICROBATCH * COUNT,
        "model": model,
        "runs": runs,
        "all_same": all(found["same"] for found in runs),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
