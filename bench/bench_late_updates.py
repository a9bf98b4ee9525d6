"""Trains digits-cnn over four devices with late updates, and with one update a mini-batch.

The devices are bit-exact models of cores. Under pipedream each micro-batch updates the weights, and
backward passes use the weights of their forward passes; under pipedream-newest they use the newest.
Epochs, samples, learning rate per sample and weight decay per sample are those of the training with
one update. Prints one JSON object; exits with 1 if the mean accuracy is more than a point lower.
"""

import argparse
import json
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
from bench_training import (
    FIRST_LAYERS,
    MOMENTUM,
    NETWORK,
    WEIGHT_DECAY,
    accuracy,
    learning_rate,
)

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.data.data import load_data
from fpgapipe.host.data.samples import Dataset
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.schedule.weight_versions import LateWeights
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.load import load_network
from fpgapipe.partition.pricing.prediction import PipelineTiming
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

DEVICES = 4
BATCH = 32
SCHEDULES = ("1f1b-as", "pipedream", "pipedream-newest")
MOST_BELOW = 0.01


def trained(
    graph: Graph, core: CoreSpec, kind: str, count: int, data: Dataset, seed: int, epochs: int
) -> dict[str, Any]:
    """Train under a schedule; returns losses, accuracies and how late the weights were."""
    names = list(graph.layers)
    bounds = [0, *(names.index(first) for first in FIRST_LAYERS[DEVICES]), len(names)]
    layers = [names[begin:end] for begin, end in pairwise(bounds)]
    schedule = make_schedule(kind, DEVICES, count)
    programs = build_pipeline(graph, [core] * DEVICES, layers, schedule)
    per_epoch = len(data.train.labels) // BATCH
    losses: list[float] = []
    begin = time.process_time()
    with ModelBackend(programs, initial_parameters(graph, seed)) as backend:
        for epoch in range(epochs):
            for batch in data.train.batches(BATCH, seed, epoch):
                scalars = scalar_bits(
                    learning_rate=learning_rate(len(losses) / (epochs * per_epoch)),
                    momentum=MOMENTUM,
                    weight_decay=WEIGHT_DECAY / backend.num_updates,
                    seed=seed,
                    step=len(losses),
                )
                losses.append(backend.step({"input": batch.images}, batch.labels, scalars).loss)
            mean = float(np.mean(losses[-per_epoch:]))
            print(f"{kind} seed {seed} epoch {epoch} loss {mean:.4f}", file=sys.stderr)
        found = backend.parameters()
    late = 0 if schedule.synchronous else LateWeights.of(schedule, layers).most_late
    return {
        "updates_per_minibatch": backend.num_updates,
        "most_updates_late": late,
        "last_epoch_loss": float(np.mean(losses[-per_epoch:])),
        "accuracy": accuracy(core, DEVICES, found, data.validation),
        "minibatch_cycles": PipelineTiming.of(programs).cluster.cycles,
        "memory_bytes": [part.memory_bytes for part in programs.parts],
        "weight_bytes": [part.account["weights"] for part in programs.parts],
        "cpu_s": time.process_time() - begin,
    }


def main() -> int:
    """Print the figures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--micro-batches", type=int, default=8)
    given = parser.parse_args()
    core = CoreSpec(
        32,
        32,
        scratchpad=ScratchpadSpec(8, 1 << 18),
        vector=VectorSpec(),
        links=(LinkEngineSpec(), LinkEngineSpec()),
    )
    graph = load_network(NETWORK, BATCH // given.micro_batches)
    data = load_data("digits", graph)
    found = {
        kind: [
            trained(graph, core, kind, given.micro_batches, data, seed, given.epochs)
            for seed in range(given.seeds)
        ]
        for kind in SCHEDULES
    }
    means = {
        kind: float(np.mean([each["accuracy"] for each in runs])) for kind, runs in found.items()
    }
    below = max(means[SCHEDULES[0]] - mean for mean in means.values())
    result = {
        "network": NETWORK,
        "devices": DEVICES,
        "batch": BATCH,
        "micro_batches": given.micro_batches,
        "epochs": given.epochs,
        "seeds": found,
        "mean_accuracy": means,
        "most_below": below,
        "reached": below <= MOST_BELOW,
    }
    print(json.dumps(result, indent=2))
    return 0 if result["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
