"""A plan's mini-batch against the simulated hardware's.

Builds networks for chains of devices and runs one mini-batch of each in Verilator. Prints one JSON
object: for each case the cycles that ``plan.json`` predicts, those of the cycle model and those of
the hardware, and the plan's error; then the mean and the worst error of all.
"""

import argparse
import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.host.build.build import open_build, write_build
from fpgapipe.host.runtime.measure import measure_build
from fpgapipe.network.graph import Graph
from fpgapipe.network.load import load_network
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.explore.explorer import Request, explore
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.pricing.machine_search import explore_on_machine

NETWORKS = ("digits-cnn", "mlp", "vgg-mini", "resnet-mini")
SCHEDULES = ("gpipe", "1f1b-as", "zb-h1", "fbp-as")


def mlp(batch: int) -> Graph:
    """A small perceptron with odd widths."""
    net = Network("mlp", batch)
    x = net.flatten(net.image(1, 7, 5))
    for width in (37, 22, 50):
        x = net.relu(net.linear(x, width))
    net.linear(x, 11)
    return net.build()


def compare(name: str, devices: int, schedule: str, given: argparse.Namespace) -> dict[str, Any]:
    """Plan, build and run one case."""

    def load(samples: int) -> Graph:
        return mlp(samples) if name == "mlp" else load_network(name, samples)

    cluster = chain_of(load_board("u280"), devices).spec
    request = Request(
        load,
        given.batch,
        cluster,
        (schedule,),
        given.micro_batches,
        array=(8, 8),
        train=not given.infer,
        all_devices=True,
    )
    best = explore_on_machine(request, explore(request)).best
    graph = load(given.batch // given.micro_batches)
    plan = as_plan(best, graph, name, given.batch, cluster, train=request.train)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "build"
        write_build(plan, graph, cluster, path)
        build = open_build(path)
        cycles = measure_build(build).to_dict()["minibatch_cycles"]
        clk_hz = min(stage.core.clk_hz for stage in build.plan.stages)
        planned = build.plan.predicted.minibatch_s * clk_hz
        memory = [
            stage.memory_bytes - part.memory_bytes
            for stage, part in zip(build.plan.stages, build.pipeline.parts, strict=True)
        ]
    return {
        "network": name,
        "devices": devices,
        "schedule": schedule,
        "plan_cycles": round(planned),
        "cycle_model_cycles": cycles["cycle_model"],
        "rtl_cycles": cycles["rtl"],
        "error": planned / cycles["rtl"] - 1,
        "memory_difference_bytes": memory,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--devices", type=int, action="append")
    parser.add_argument("--schedule", choices=SCHEDULES, action="append")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--infer", action="store_true")
    given = parser.parse_args()
    cases = []
    for name, devices, schedule in product(
        given.network or NETWORKS, given.devices or (1, 2, 4), given.schedule or SCHEDULES
    ):
        if schedule == "fbp-as" and given.infer:
            continue
        cases.append(compare(name, devices, schedule, given))
    errors = [abs(case["error"]) for case in cases]
    found = {"cases": cases, "mean_error": sum(errors) / len(errors), "worst_error": max(errors)}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
