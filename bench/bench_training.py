"""Training digits-cnn in the bit-exact model, beside PyTorch with the same samples and order.

Prints one JSON object: validation accuracy of both for each seed, and the seconds of an epoch.
"""

import argparse
import json
import math
import sys
import time
from typing import Any

import numpy as np
import torch

from fpgapipe.host.backends.torch_reference import forward
from fpgapipe.host.digits import Samples, load_digits
from fpgapipe.host.step import build_step
from fpgapipe.host.step_bench import initial_parameters
from fpgapipe.host.step_program import StepOptions, scalar_bits
from fpgapipe.hw.hls_models.core import CoreModel
from fpgapipe.hw.hls_models.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.partition.load import load_network

BATCH = 32
VALIDATION_BATCH = 60
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 1e-4


def learning_rate(done: float) -> float:
    """Learning rate when a share of the training is done: half a cosine, down to 0."""
    return LEARNING_RATE * (1 + math.cos(math.pi * done)) / 2


def in_model(core: CoreSpec, seed: int, epochs: int) -> dict[str, Any]:
    """Train in the bit-exact model."""
    train, held_out = load_digits()
    program = build_step(load_network("digits-cnn", BATCH), core)
    parameters = initial_parameters(program.graph, seed)
    model = CoreModel(core, program.image(parameters))
    losses, seconds = [], []
    for epoch in range(epochs):
        begin = time.process_time()
        total = []
        batches = list(train.batches(BATCH, seed=1000 * seed + epoch))
        for step, batch in enumerate(batches, epoch * len(batches)):
            model.scalars[:] = scalar_bits(
                learning_rate=learning_rate(step / (epochs * len(batches))),
                momentum=MOMENTUM,
                weight_decay=WEIGHT_DECAY,
                seed=seed,
                step=step,
            )
            program.set_batch(model.memory, {"input": batch.images}, batch.labels)
            model.run(program.instructions)
            total.append(program.outcome(model.memory)[0])
        seconds.append(time.process_time() - begin)
        losses.append(float(np.mean(total)))
        print(
            f"seed {seed} epoch {epoch} loss {losses[-1]:.4f} {seconds[-1]:.1f} s", file=sys.stderr
        )
    accuracy = in_model_accuracy(core, program.parameters(model.memory), held_out)
    return {"accuracy": accuracy, "losses": losses, "epoch_cpu_s": min(seconds)}


def in_model_accuracy(core: CoreSpec, parameters: dict[str, Any], samples: Samples) -> float:
    """Share of samples whose digit the model's inference finds."""
    graph = load_network("digits-cnn", VALIDATION_BATCH)
    program = build_step(graph, core, options=StepOptions(train=False))
    model = CoreModel(core, program.image(parameters))
    found = 0
    for batch in samples.batches(VALIDATION_BATCH):
        program.set_batch(model.memory, {"input": batch.images})
        model.run(program.instructions)
        logits = program.read(model.memory, graph.outputs[0])
        found += int((logits.argmax(axis=1) == batch.labels).sum())
    return found / len(samples.labels)


def in_torch(seed: int, epochs: int) -> float:
    """Accuracy of the same training in PyTorch, FP32."""
    train, held_out = load_digits()
    graph = load_network("digits-cnn", BATCH)
    weights = {
        name: torch.tensor(value, requires_grad=True)
        for name, value in initial_parameters(graph, seed).items()
    }
    optimiser = torch.optim.SGD(
        weights.values(), LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
    )
    output = graph.outputs[0]
    for epoch in range(epochs):
        batches = list(train.batches(BATCH, seed=1000 * seed + epoch))
        for step, batch in enumerate(batches, epoch * len(batches)):
            optimiser.param_groups[0]["lr"] = learning_rate(step / (epochs * len(batches)))
            optimiser.zero_grad()
            images = {"input": torch.from_numpy(batch.images)}
            logits = forward(graph, weights, images, training=True)[output]
            torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.labels)).backward()
            optimiser.step()
    with torch.no_grad():
        wide = load_network("digits-cnn", len(held_out.labels))
        logits = forward(wide, weights, {"input": torch.from_numpy(held_out.images)})[output]
    return float((logits.argmax(dim=1).numpy() == held_out.labels).mean())


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--cols", type=int, default=32)
    given = parser.parse_args()
    core = CoreSpec(
        given.rows, given.cols, scratchpad=ScratchpadSpec(8, 1 << 18), vector=VectorSpec()
    )
    runs = []
    for seed in range(given.seeds):
        run = in_model(core, seed, given.epochs) | {"torch_accuracy": in_torch(seed, given.epochs)}
        runs.append(run)
    result = {
        "epochs": given.epochs,
        "seeds": runs,
        "worst_accuracy": min(run["accuracy"] for run in runs),
        "mean_accuracy": float(np.mean([run["accuracy"] for run in runs])),
        "mean_torch_accuracy": float(np.mean([run["torch_accuracy"] for run in runs])),
        "epoch_cpu_s": min(run["epoch_cpu_s"] for run in runs),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
