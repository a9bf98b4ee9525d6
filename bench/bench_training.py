"""Trains digits-cnn to the end over several devices, and in PyTorch with the same samples.

The devices are bit-exact models of cores, or with ``--simulate`` their gateware cycle by cycle,
compared with the model on one device. All must end with the same weights, and with an accuracy near
FP32's. Prints one JSON object; exits with 1 if a bound is missed.
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

from fpgapipe.host.backends.base import StepRunner
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.backends.torch_backend import PRECISIONS, TorchBackend
from fpgapipe.host.bench.step_bench import relative_error
from fpgapipe.host.data.data import load_data
from fpgapipe.host.data.samples import Dataset, Samples
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.load import load_network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.native.phy import WireSpec

NETWORK = "digits-cnn"
MICROBATCHES, SAMPLES = 4, 8
VALIDATION_SAMPLES = 60
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 1e-4
FIRST_LAYERS = {1: (), 2: ("conv3",), 4: ("conv2", "conv3", "fc1")}
"""First layers of each stage but the first, by number of devices."""

WIRE = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
LEAST_ACCURACY, MOST_BELOW_TORCH = 0.97, 0.01


def learning_rate(done: float) -> float:
    """Learning rate after a share of the training: half a cosine, down to 0."""
    return LEARNING_RATE * (1 + math.cos(math.pi * done)) / 2


def pipeline(graph: Graph, core: CoreSpec, num_devices: int, *, train: bool) -> PipelineProgram:
    """Programs of a step, or of inference."""
    names = list(graph.layers)
    bounds = [0, *(names.index(first) for first in FIRST_LAYERS[num_devices]), len(names)]
    layers = [names[begin:end] for begin, end in pairwise(bounds)]
    count = MICROBATCHES if train else 1
    schedule = make_schedule("1f1b-as" if train else "gpipe", num_devices, count)
    cores = [core] * num_devices
    return build_pipeline(graph, cores, layers, schedule, options=StepOptions(train=train))


def trained(backend: StepRunner, data: Dataset, seed: int, epochs: int) -> dict[str, Any]:
    """Train; returns the loss of each step and the seconds of an epoch."""
    losses, seconds = [], []
    cycles: int | None = None
    per_epoch = len(data.train.labels) // (MICROBATCHES * SAMPLES)
    for epoch in range(epochs):
        begin = time.process_time()
        for batch in data.train.batches(MICROBATCHES * SAMPLES, seed, epoch):
            scalars = scalar_bits(
                learning_rate=learning_rate(len(losses) / (epochs * per_epoch)),
                momentum=MOMENTUM,
                weight_decay=WEIGHT_DECAY,
                seed=seed,
                step=len(losses),
            )
            result = backend.step({"input": batch.images}, batch.labels, scalars)
            losses.append(result.loss)
            cycles = result.cycles
        seconds.append(time.process_time() - begin)
        mean = float(np.mean(losses[-per_epoch:]))
        print(f"epoch {epoch} loss {mean:.4f} {seconds[-1]:.1f} s", file=sys.stderr)
    return {"losses": losses, "epoch_cpu_s": min(seconds), "cycles_of_last_step": cycles}


def accuracy(core: CoreSpec, num_devices: int, parameters: Any, samples: Samples) -> float:
    """Share of samples whose class the devices' inference finds."""
    graph = load_network(NETWORK, VALIDATION_SAMPLES)
    found = 0
    with ModelBackend(pipeline(graph, core, num_devices, train=False), parameters) as backend:
        for batch in samples.batches(VALIDATION_SAMPLES):
            results, _ = backend.infer({"input": batch.images}, scalar_bits())
            logits = results[graph.outputs[0]]
            found += int((logits.argmax(axis=1) == batch.labels).sum())
    return found / len(samples.labels)


def gradient_errors(backend: StepRunner, exact: StepRunner) -> dict[str, float]:
    """Norm of the difference over the norm, for each parameter's gradient."""
    expected = exact.parameters(".gradient")
    return {
        name: relative_error(value, expected[name])
        for name, value in backend.parameters(".gradient").items()
    }


def first_step(graph: Graph, core: CoreSpec, data: Dataset, seed: int) -> dict[str, Any]:
    """Differences of gradients of one step between PyTorch and the devices, in each precision."""
    parameters = initial_parameters(graph, seed)
    batch = next(data.train.batches(MICROBATCHES * SAMPLES, seed))
    step = {"input": batch.images}, batch.labels, scalar_bits(seed=seed)
    exact = ModelBackend(pipeline(graph, core, 1, train=True), parameters)
    exact.step(*step)
    found = {}
    for precision in PRECISIONS:
        backend = TorchBackend(
            graph, parameters, num_microbatches=MICROBATCHES, precision=precision, device="cpu"
        )
        backend.step(*step)
        errors = gradient_errors(backend, exact)
        found[precision] = {"largest": max(errors.values()), **errors}
    return found


def run(
    graph: Graph, core: CoreSpec, devices: list[int], seed: int, epochs: int, *, simulates: bool
) -> dict[str, Any]:
    """Train with one seed on each number of devices, and in PyTorch."""
    data = load_data("digits", graph)
    parameters = initial_parameters(graph, seed)
    result: dict[str, Any] = {"seed": seed, "gradient_errors": first_step(graph, core, data, seed)}
    weights: list[dict[str, Any]] = []
    for number in devices:
        programs = pipeline(graph, core, number, train=True)
        # Any number of devices gives the bits of the model on one.
        is_model = not simulates or number == 1
        opened = (
            ModelBackend(programs, parameters)
            if is_model
            else SimulatorBackend(programs, parameters, MemorySpec(), [WIRE] * (number - 1))
        )
        with opened as backend:
            found = trained(backend, data, seed, epochs)
            weights.append(
                {
                    name + suffix: value
                    for suffix in ("", ".momentum")
                    for name, value in backend.parameters(suffix).items()
                }
            )
        found["accuracy"] = accuracy(core, number, backend.parameters(), data.validation)
        result[f"devices_{number}"] = found
    result["same_weights"] = all(
        np.array_equal(value, each[name]) for each in weights for name, value in weights[0].items()
    )
    for precision in PRECISIONS:
        with TorchBackend(
            graph, parameters, num_microbatches=MICROBATCHES, precision=precision, device="cpu"
        ) as backend:
            found = trained(backend, data, seed, epochs)
            outcome = backend.evaluate({"input": data.validation.images}, data.validation.labels)
        found["accuracy"] = outcome.correct / len(data.validation.labels)
        exact = np.array(result[f"devices_{devices[0]}"]["losses"])
        difference = np.abs(np.array(found["losses"]) - exact) / exact
        found["loss_difference_first_epoch"] = float(difference[: len(exact) // epochs].max())
        result[f"torch_{precision}"] = found
    return result


def main() -> int:
    """Print the figures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--devices", type=int, nargs="+", choices=FIRST_LAYERS, default=[2, 4])
    parser.add_argument("--simulate", action="store_true", help="in Verilator: slow")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--cols", type=int, default=32)
    parser.add_argument("--losses", action="store_true", help="print the loss of every step")
    given = parser.parse_args()
    core = CoreSpec(
        given.rows,
        given.cols,
        scratchpad=ScratchpadSpec(8, 1 << 18),
        vector=VectorSpec(),
        links=(LinkEngineSpec(), LinkEngineSpec()),
    )
    graph = load_network(NETWORK, SAMPLES)
    devices = sorted({1, *given.devices}) if given.simulate else given.devices
    runs = [
        run(graph, core, devices, seed, given.epochs, simulates=given.simulate)
        for seed in range(given.seeds)
    ]
    worst = min(each[f"devices_{number}"]["accuracy"] for each in runs for number in given.devices)
    below = max(
        each["torch_fp32"]["accuracy"] - each[f"devices_{number}"]["accuracy"]
        for each in runs
        for number in given.devices
    )
    reached = (
        worst >= LEAST_ACCURACY
        and below <= MOST_BELOW_TORCH
        and all(each["same_weights"] for each in runs)
    )
    if not given.losses:
        for each in runs:
            for found in each.values():
                if isinstance(found, dict) and "losses" in found:
                    losses = found.pop("losses")
                    found["first_loss"], found["last_loss"] = losses[0], losses[-1]
    result = {
        "network": NETWORK,
        "epochs": given.epochs,
        "devices": given.devices,
        "simulated": given.simulate,
        "seeds": runs,
        "worst_accuracy": worst,
        "most_below_torch_fp32": below,
        "reached": reached,
    }
    print(json.dumps(result, indent=2))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
