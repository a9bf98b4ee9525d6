"""One training step of every strategy on simulated devices, against the model and one device.

For each strategy and number of devices, the network is planned and built as `fpgapipe build` does;
the generated Verilog and the bit-exact model do a step with the same samples. Prints one JSON
object: for each case the cycles that are planned and simulated, the bytes of all memories and how
many differ, and the largest distance of a tensor of weights from those of one device that does the
step alone, relative to what the step changed of them. Exits with 1 if a byte differs.
``--network``, ``--strategy`` and ``--devices`` choose some. Takes 20 minutes on two cores.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.build.build import open_build, write_build
from fpgapipe.host.build.wires import wire_specs
from fpgapipe.host.make.networks import loader
from fpgapipe.host.make.planning import plan_shards
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.tasks import single_device
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import random_batch
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs

PIPELINES = {
    "pipeline": ("1f1b-as", False),
    "merge": ("1f1b-as", True),
    "pipedream": ("pipedream", False),
}
"""Schedule of each pipeline, and whether its stages are merged."""

SHARDS = (
    "data", "filter", "channel", "spatial", "data+filter", "data+channel", "data+spatial",
    "layerwise", "hybrid", "replicas",
)  # fmt: skip

RATE = 0.05
Values = dict[str, NDArray[np.float32]]


def planned(strategy: str, network: str, devices: int, array: tuple[int, int], batch: int) -> Plan:
    """The plan of a strategy."""
    cluster = chain_of(load_board("u280"), devices).spec
    schedule, merges = PIPELINES.get(strategy, ("1f1b-as", False))
    request = Request(
        loader(network), batch, cluster, (schedule,), array=array, all_devices=True, merges=merges
    )
    if strategy in PIPELINES:
        return best_plan(request, network).plan
    return plan_shards(request, network, strategy)[0]


def weights_of_one(plan: Plan, graph: Any, parameters: Values, samples: tuple[Any, Any]) -> Values:
    """Weights after the step on one device with the same micro-batches."""
    core, memory = plan.cores[0], memory_specs(plan)[0]
    count = plan.num_microbatches
    program = build_step(graph, core, memory, tasks=single_device(count, train=True))
    with ModelBackend(PipelineProgram(graph, (program,)), parameters) as backend:
        backend.step(*samples, scalar_bits(learning_rate=RATE))
        return backend.parameters()


def distance(found: Values, expected: Values, before: Values) -> tuple[float, bool]:
    """Largest distance of a trained tensor relative to its change, and whether all are equal."""
    most, equal = 0.0, True
    for name, value in expected.items():
        if ".running_" in name:
            continue
        change = float(np.linalg.norm(value - before[name]))
        gap = float(np.linalg.norm(found[name] - value))
        equal &= gap == 0
        most = max(most, gap / change if change else gap)
    return most, equal


def measured(
    strategy: str, network: str, devices: int, array: tuple[int, int], batch: int
) -> dict[str, Any]:
    """One case."""
    plan = planned(strategy, network, devices, array, batch)
    cluster = chain_of(load_board("u280"), devices).spec
    graph = loader(network)(plan.microbatch)
    with tempfile.TemporaryDirectory() as scratch:
        write_build(plan, graph, cluster, Path(scratch) / "build", seed=1)
        build = open_build(Path(scratch) / "build")
        program, parameters = build.pipeline, build.parameters
    samples = random_batch(graph, 0, plan.num_microbatches)
    scalars = scalar_bits(learning_rate=RATE)
    with (
        ModelBackend(program, parameters) as model,
        SimulatorBackend(
            program, parameters, memory_specs(plan), wire_specs(plan, cluster)
        ) as hardware,
    ):
        expected = model.step(*samples, scalars)
        found = hardware.step(*samples, scalars)
        pairs = list(zip(hardware.memories, model.memories, strict=True))
        differ = sum(int(np.count_nonzero(one != other)) for one, other in pairs)
        weights = hardware.parameters()
    alone = weights_of_one(plan, graph, parameters, samples)
    far, equal = distance(weights, alone, parameters)
    clk_hz = plan.clk_hz
    return {
        "network": network,
        "strategy": strategy,
        "devices": len(plan.nodes),
        "micro_batches": plan.num_microbatches,
        "planned_cycles": round(plan.predicted.minibatch_s * clk_hz),
        "simulated_cycles": found.cycles,
        "bytes": sum(one.size for one, _ in pairs),
        "bytes_that_differ": differ,
        "same_loss": (found.loss, found.correct) == (expected.loss, expected.correct),
        "weights_of_one_device": equal,
        "distance_from_one_device": far,
    }


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", action="append")
    parser.add_argument("--strategy", choices=[*PIPELINES, *SHARDS], action="append")
    parser.add_argument("--devices", type=int, action="append")
    parser.add_argument("--array", type=int, default=8, help="rows and columns")
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    refused: list[str] = []
    array = given.array, given.array
    for network in given.network or ["digits-cnn"]:
        for devices in given.devices or (2, 4):
            for strategy in given.strategy or [*PIPELINES, *SHARDS]:
                try:
                    rows.append(measured(strategy, network, devices, array, given.batch))
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                except UserError as error:
                    refused.append(f"{network}, {strategy} on {devices}: {error}")
                    print(refused[-1], file=sys.stderr, flush=True)
    right = bool(rows) and all(row["bytes_that_differ"] == 0 and row["same_loss"] for row in rows)
    print(json.dumps({"rows": rows, "refused": refused, "all_equal": right}, indent=1))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
