"""Plans of large networks against the cycle model of all their devices.

Prints one JSON object: for ResNet-50 and VGG-16 on chains of U280, with arrays of 32x32 and those
that the planner chooses, the cycles of a mini-batch that the plan says, those of the cycle model of
the whole cluster, and the plan's error; then the worst error. Progress goes to standard error.
"""

import argparse
import json
import sys
import time
from itertools import product
from typing import Any

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.network.load import load_network
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.pricing.machine import lower_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings
from fpgapipe.partition.pricing.prediction import PipelineTiming

NETWORKS = ("resnet50", "vgg16")
ARRAYS = {"32x32": (32, 32), "default": None}
MOST_ERROR = 0.02
"""Largest error that is wanted."""


def compare(name: str, devices: int, array: str, given: argparse.Namespace) -> dict[str, Any]:
    """Plan one case, and lower and time all of it."""
    begin = time.perf_counter()
    cluster = chain_of(load_board("u280"), devices).spec
    count = given.micro_batches or devices
    request = Request(
        lambda samples: load_network(name, samples),
        count,
        cluster,
        (given.schedule,),
        count,
        array=ARRAYS[array],
        all_devices=True,
    )
    graph = load_network(name, 1)
    plan = best_plan(request, name).plan
    planned = time.perf_counter()
    pipeline = lower_plan(plan, graph, cluster)
    timing = PipelineTiming.of(pipeline, memory_specs(plan), wire_timings(plan, cluster))
    cycles = timing.cluster.cycles
    clk_hz = plan.clk_hz
    predicted = plan.predicted.minibatch_s * clk_hz
    return {
        "network": name,
        "devices": devices,
        "array": [plan.nodes[0].core.rows, plan.nodes[0].core.cols],
        "schedule": given.schedule,
        "micro_batches": count,
        "level": plan.predicted.level,
        "plan_cycles": round(predicted),
        "cycle_model_cycles": cycles,
        "error": predicted / cycles - 1,
        "plan_s": planned - begin,
        "check_s": time.perf_counter() - planned,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--devices", type=int, action="append")
    parser.add_argument("--array", choices=ARRAYS, action="append")
    parser.add_argument("--schedule", default="1f1b-as")
    parser.add_argument("--micro-batches", type=int, help="as many as devices by default")
    given = parser.parse_args()
    cases = []
    for name, devices, array in product(
        given.network or NETWORKS, given.devices or (4, 8), given.array or ARRAYS
    ):
        case = compare(name, devices, array, given)
        print(
            f"{name}, {devices} devices, {array}: {case['error']:+.2%} of "
            f"{case['cycle_model_cycles']:,} cycles, {case['plan_s']:.0f} s and "
            f"{case['check_s']:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        cases.append(case)
    worst = max(abs(case["error"]) for case in cases)
    found = {"worst_error": worst, "most_error": MOST_ERROR, "within": worst <= MOST_ERROR}
    print(json.dumps({**found, "all": cases}, indent=1))


if __name__ == "__main__":
    main()
