"""A plan's mini-batch against the simulated hardware's.

Builds networks for chains of devices and runs one mini-batch of each in Verilator. Prints one JSON
object: for each case the cycles that ``plan.json`` predicts, those of the cycle model and those of
the hardware, and the plan's error; then the mean and the worst error, of each schedule and of all.
Progress goes to standard error, a line for each case. With --random, the networks are random ones
of all operators (`random_networks`), each on one, two or four devices and with one schedule, until
so many were trained; those that are refused are counted.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from typing import Any

import odd_networks
from random_networks.networks import draw_network
from small_networks import SHORT

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.build.build import Build, open_build, write_build
from fpgapipe.host.runtime.measure import random_samples
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.frontends.torch.torch_program import from_torch
from fpgapipe.network.graph import Graph
from fpgapipe.network.load import load_network
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.pricing.prediction import PipelineTiming
from fpgapipe.partition.schedule.schedule_kinds import num_engines_of

NETWORKS = ("digits-cnn", "mlp", "vgg-mini", "resnet-mini", *odd_networks.MODELS, *SHORT)
RANDOM = "random-"
"""Before the seed in the name of a random network."""

SCHEDULES = ("gpipe", "1f1b-as", "zb-h1", "fbp-as")
MOST_MEAN_ERROR, MOST_ERROR = 0.005, 0.03
"""Largest mean and largest single error that are wanted."""


def mlp(batch: int) -> Graph:
    """A small perceptron with odd widths."""
    net = Network("mlp", batch)
    x = net.flatten(net.image(1, 7, 5))
    for width in (37, 22, 50):
        x = net.relu(net.linear(x, width))
    net.linear(x, 11)
    return net.build()


def random_network(seed: int) -> Graph:
    """A random network for its own number of samples."""
    drawn = draw_network(seed)
    return from_torch((drawn.module, (drawn.example,)), name=f"random-{seed}")


def load(name: str, samples: int) -> Graph:
    """A network for a number of samples."""
    if name.startswith(RANDOM):
        return random_network(int(name.removeprefix(RANDOM)))
    if name == "mlp":
        return mlp(samples)
    if name in SHORT:
        return SHORT[name](samples)
    if name in odd_networks.MODELS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.onnx"
            odd_networks.MODELS[name](path)
            return load_network(str(path), samples)
    return load_network(name, samples)


def rtl_cycles(build: Build, known: dict[tuple[bytes, ...], int]) -> int:
    """Cycles of a mini-batch of random samples in the simulator; equal programs run once."""
    key = tuple(encode(part.instructions) for part in build.pipeline.parts)
    if key not in known:
        with SimulatorBackend(
            build.pipeline, build.parameters, build.memories, build.wires
        ) as backend:
            samples = random_samples(build.pipeline)
            known[key] = backend.cycles_of(*samples, scalar_bits(learning_rate=0.01))
    return known[key]


def compare(
    name: str,
    devices: int,
    schedule: str,
    train: bool,
    given: argparse.Namespace,
    known: dict[tuple[bytes, ...], int],
) -> dict[str, Any]:
    """Plan, build and run one case; `known` are the simulated cycles of programs."""
    begin = time.perf_counter()
    if name.startswith(RANDOM):
        batch = given.micro_batches * (load(name, 1).batch or 1)
    else:
        batch = given.batch or (given.micro_batches if name.endswith("-mini") else 8)
    cluster = chain_of(load_board("u280"), devices).spec
    request = Request(
        lambda samples: load(name, samples),
        batch,
        cluster,
        (schedule,),
        given.micro_batches,
        array=(given.array, given.array),
        train=train,
        all_devices=True,
    )
    graph = load(name, batch // given.micro_batches)
    plan = best_plan(request, name).plan
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "build"
        write_build(plan, graph, cluster, path)
        build = open_build(path)
        rtl = rtl_cycles(build, known)
    wires = [WireTiming(float(each.rate), each.delay_cycles) for each in build.wires]
    timing = PipelineTiming.of(build.pipeline, build.memories, wires)
    clk_hz = build.plan.clk_hz
    planned = build.plan.predicted.minibatch_s * clk_hz
    memory = [
        node.memory_bytes - part.memory_bytes
        for node, part in zip(build.plan.nodes, build.pipeline.parts, strict=True)
    ]
    return {
        "network": name,
        "devices": devices,
        "schedule": schedule,
        "train": train,
        "level": build.plan.predicted.level,
        "plan_cycles": round(planned),
        "cycle_model_cycles": timing.cluster.cycles,
        "rtl_cycles": rtl,
        "error": planned / rtl - 1,
        "cycle_model_error": timing.cluster.cycles / rtl - 1,
        "memory_difference_bytes": memory,
        "wall_s": time.perf_counter() - begin,
    }


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and worst error of some cases."""
    errors = [abs(case["error"]) for case in cases]
    return {
        "cases": len(cases),
        "mean_error": sum(errors) / len(errors),
        "worst_error": max(errors),
        "equal_memory": not any(any(case["memory_difference_bytes"]) for case in cases),
    }


def asked_of(given: argparse.Namespace) -> Iterator[tuple[str, int, bool, str]]:
    """Network, devices, whether it is trained, and schedule of each case."""
    if given.random:
        for seed in count(given.seed):
            yield f"{RANDOM}{seed}", (1, 2, 4)[seed % 3], True, SCHEDULES[seed % len(SCHEDULES)]
    trains = [each for each in (True, False) if not (given.infer if each else given.train)]
    for name, devices, train, schedule in product(
        given.network or NETWORKS, given.devices or (1, 2, 4), trains, given.schedule or SCHEDULES
    ):
        if train or num_engines_of(schedule) == 1:
            yield name, devices, train, schedule


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--devices", type=int, action="append")
    parser.add_argument("--schedule", choices=SCHEDULES, action="append")
    parser.add_argument("--batch", type=int, help="samples; by default 8, or 4 of larger networks")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--array", type=int, default=8, help="rows and columns")
    parser.add_argument("--train", action="store_true", help="training only")
    parser.add_argument("--infer", action="store_true", help="inference only")
    parser.add_argument("--random", type=int, help="so many random networks, and no others")
    parser.add_argument("--seed", type=int, default=0, help="of the first random network")
    given = parser.parse_args()
    cases: list[dict[str, Any]] = []
    refused: list[str] = []
    known: dict[tuple[bytes, ...], int] = {}
    for name, devices, train, schedule in asked_of(given):
        try:
            case = compare(name, devices, schedule, train, given, known)
        except (UserError, NotImplementedError) as error:
            if not given.random:
                raise
            refused.append(f"{name}, {devices} devices, {schedule}: {error}")
            print(refused[-1], file=sys.stderr, flush=True)
            continue
        print(
            f"{name}, {devices} devices, {schedule}, {'train' if train else 'infer'}: plan "
            f"{case['error']:+.2%}, cycle model {case['cycle_model_error']:+.2%} of "
            f"{case['rtl_cycles']:,} cycles, {case['wall_s']:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        cases.append(case)
        if len(cases) == given.random:
            break
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for case in cases:
        for key in (case["schedule"], case["network"], "train" if case["train"] else "infer"):
            groups[key].append(case)
    found = {
        **summary(cases),
        "refused": refused,
        "most_mean_error": MOST_MEAN_ERROR,
        "most_error": MOST_ERROR,
        "groups": {key: summary(group) for key, group in groups.items()},
    }
    found["within"] = found["mean_error"] <= MOST_MEAN_ERROR and found["worst_error"] <= MOST_ERROR
    print(json.dumps({**found, "all": cases}, indent=1))


if __name__ == "__main__":
    main()
