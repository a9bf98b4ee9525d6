"""Trains small networks as people do, in the bit-exact model and in PyTorch in FP32.

Before, a step is simulated on several devices, and every byte of their memories is compared with
the model. Prints one JSON object; exits with 1 if a byte differs, or if what the model has learned
is more than a percentage point of accuracy, or a per cent of a language model's loss, worse than in
FP32.
"""

import argparse
import json
import math
import sys
import time
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from small_networks import TASKS, Task

from fpgapipe.host.backends.base import StepRunner
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.host.data.samples import Dataset, Samples
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.graph import Graph
from fpgapipe.network.logits import Logits
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.native.phy import WireSpec

CORE = CoreSpec(
    16, 16, acc_depth=1024, scratchpad=ScratchpadSpec(16, 1 << 15), vector=VectorSpec(4, 2),
    links=(LinkEngineSpec(), LinkEngineSpec()),
)  # fmt: skip
WIRE = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
OPTIONS = StepOptions(optimiser="adam")
SIMULATED_MICROBATCHES, SIMULATED_SAMPLES = 4, 2
WARM_UP = 20
MOST_BELOW, MOST_LOSS = 0.01, 1.01


def pipeline(graph: Graph, devices: int, micro_batches: int = 0) -> PipelineProgram:
    """Programs whose stages have about as many multiply-accumulates each.

    Without micro-batches they are those of inference.
    """
    groups = layers_together(graph)
    work = np.cumsum([sum(graph.layers[name].macs for name in names) for names in groups])
    ends = [int(np.searchsorted(work, work[-1] * n / devices)) + 1 for n in range(1, devices)]
    layers = [
        [name for names in groups[begin:end] for name in names]
        for begin, end in pairwise([0, *ends, len(groups)])
    ]
    train = micro_batches > 0
    schedule = make_schedule("1f1b-as" if train else "gpipe", devices, micro_batches or 1)
    options = OPTIONS if train else StepOptions(train=False)
    return build_pipeline(graph, [CORE] * devices, layers, schedule, options=options)


def simulated(task: Task) -> dict[str, Any]:
    """A step on simulated devices, and how many bytes differ from those of the model."""
    graph = task.make(SIMULATED_SAMPLES)
    batch = next(task.data(graph).train.batches(SIMULATED_SAMPLES * SIMULATED_MICROBATCHES, 0))
    step = batch.inputs(graph), batch.labels, scalar_bits(learning_rate=task.learning_rate)
    programs = pipeline(graph, task.devices, SIMULATED_MICROBATCHES)
    parameters = task.initial(graph)
    wires = [WIRE] * (task.devices - 1)
    begin = time.perf_counter()
    with (
        ModelBackend(programs, parameters) as model,
        SimulatorBackend(programs, parameters, MemorySpec(), wires) as hardware,
    ):
        expected, found = model.step(*step), hardware.step(*step)
        pairs = list(zip(hardware.memories, model.memories, strict=True))
        differ = sum(int((one != other).sum()) for one, other in pairs)
        size = sum(other.size for _, other in pairs)
    return {
        "devices": task.devices, "cycles": found.cycles, "bytes": size, "bytes_that_differ": differ,
        "same_outcome": (found.loss, found.correct) == (expected.loss, expected.correct),
        "wall_s": round(time.perf_counter() - begin, 1),
    }  # fmt: skip


def rate(task: Task, step: int, steps: int) -> float:
    """Learning rate: a short warm-up, then half a cosine."""
    cosine = task.learning_rate * (1 + math.cos(math.pi * step / steps)) / 2
    return min(1, (step + 1) / WARM_UP) * cosine


def trained(backend: StepRunner, graph: Graph, data: Dataset, task: Task) -> list[float]:
    """Train; returns the loss of each step."""
    size = task.micro_batches * task.samples
    steps = task.epochs * (len(data.train.labels) // size)
    losses: list[float] = []
    for epoch in range(task.epochs):
        for batch in data.train.batches(size, 0, epoch):
            scalars = scalar_bits(learning_rate=rate(task, len(losses), steps), step=len(losses))
            losses.append(backend.step(batch.inputs(graph), batch.labels, scalars).loss)
            if len(losses) % 20 == 0:
                print(f"{graph.name} {backend.name} {len(losses)} of {steps} steps, loss "
                      f"{np.mean(losses[-20:]):.4f}", file=sys.stderr)  # fmt: skip
    return losses


def validated(task: Task, parameters: Any, samples: Samples, name: str) -> dict[str, float]:
    """Loss and accuracy of inference, in the model or in PyTorch."""
    size = task.samples * task.micro_batches
    graph = task.make(size)
    logits = Logits.of(graph)
    losses, right = [], 0
    backend: Any
    if name == "torch":
        backend = TorchBackend(graph, parameters, device="cpu")
    else:
        backend = ModelBackend(pipeline(graph, 1), parameters)
    used = samples.some(slice(task.validation // size * size))
    with backend:
        for batch in used.batches(size):
            results, _ = backend.infer(batch.inputs(graph), scalar_bits())
            values = np.moveaxis(results[graph.outputs[0]].astype(np.float64), logits.axis, -1)
            own = np.take_along_axis(values, batch.labels[..., None], -1)[..., 0]
            losses.append(float(np.mean(np.logaddexp.reduce(values, -1) - own)))
            right += int((logits.predicted(results[graph.outputs[0]]) == batch.labels).sum())
    return {"loss": float(np.mean(losses)), "accuracy": right / used.labels.size}


def compared(task: Task) -> dict[str, Any]:
    """Train in the model and in PyTorch, and validate both."""
    graph = task.make(task.samples)
    data, parameters = task.data(graph), task.initial(graph)
    found: dict[str, Any] = {}
    for name in ("torch", "model"):
        begin = time.perf_counter()
        backend: Any
        if name == "torch":
            backend = TorchBackend(
                graph,
                parameters,
                num_microbatches=task.micro_batches,
                options=OPTIONS,
                device="cpu",
            )
        else:
            backend = ModelBackend(pipeline(graph, 1, task.micro_batches), parameters)
        with backend:
            losses = trained(backend, graph, data, task)
            learned = backend.parameters()
        found[name] = {
            "steps": len(losses),
            "first_loss": losses[0],
            "last_losses": float(np.mean(losses[-20:])),
            **validated(task, learned, data.validation, name),
            "wall_s": round(time.perf_counter() - begin, 1),
        }
    found["below"] = found["torch"]["accuracy"] - found["model"]["accuracy"]
    found["of_loss"] = found["model"]["loss"] / found["torch"]["loss"]
    return found


def main() -> int:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(TASKS), help="one of the networks")
    parser.add_argument("--part", choices=("simulate", "train"), help="one of the two parts")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    missed = []
    for name, task in TASKS.items():
        if given.only not in (None, name):
            continue
        found[name] = {"parameters": task.make(1).totals.parameters}
        if given.part != "train":
            found[name]["simulated"] = each = simulated(task)
            if each["bytes_that_differ"] or not each["same_outcome"]:
                missed.append(f"{name}: {each['bytes_that_differ']} bytes differ")
        if given.part != "simulate":
            found[name]["trained"] = each = compared(task)
            if not task.by_loss and each["below"] > MOST_BELOW:
                missed.append(f"{name}: accuracy {each['below']:.4f} below FP32")
            if task.by_loss and each["of_loss"] > MOST_LOSS:
                missed.append(f"{name}: loss {each['of_loss']:.4f} of that in FP32")
    print(json.dumps({"networks": found, "missed": missed}, indent=1))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
