"""Every strategy on small networks, for some batches, micro-batches and numbers of devices.

Each plan is made, or refused by a sentence; a plan that is made trains a step in the bit-exact
model, and the changes of its weights are compared with those of one device. A refusal names the
strategy and the network, its layers or a limit; inner names and tracebacks are faults. Prints one
JSON object; exits with 1 if there is a fault.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from strategy_networks import NETWORKS

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.host.make.planning import PIPELINES, plan_shards, strategy_names
from fpgapipe.host.runtime.numeric_check import LOSS_NOISE, MX_NOISE
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.machine import lower_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

SHAPES = (
    (8, 2, 2), (8, 2, 3), (8, 4, 4), (12, 2, 2), (12, 4, 2), (12, 2, 4), (12, 12, 3), (9, 3, 3),
    (6, 2, 4),
)  # fmt: skip
"""Batches, micro-batches and devices."""

NAMES = tuple(name for name in strategy_names() if name != "auto")

INNER = (
    " gathered",
    " summand",
    "no part of",
    "changes the number",
    "Error",
    "None",
    "assert",
    "\n",
)
"""Words of messages that come from within."""

SAMPLE = (
    ("convolutions", "filter", 12, 4, 2), ("convolutions", "layerwise", 12, 2, 4),
    ("grouped", "data+filter", 12, 2, 4), ("residual", "data", 8, 4, 4),
    ("permutes", "channel", 8, 2, 2), ("permutes", "spatial", 8, 2, 2),
    ("turned", "hybrid", 8, 2, 3), ("transformer", "layerwise", 12, 2, 4),
    ("residual", "data", 6, 2, 4), ("residual", "replicas", 8, 2, 4),
)  # fmt: skip
"""Cases of the fixed sample; each kind of them was wrong once, or ended in an inner message. Six
samples in two micro-batches cannot be shared by four devices."""

ROUNDED = 0.02
"""Norm of the difference of a parameter's change, at most, for that of the change on one device,
where products have the same blocks and only sums over devices are rounded otherwise."""

REGROUPED = ("channel", "data+channel", "layerwise", "hybrid")
"""Strategies under which products may have other blocks of MXINT8: input channels that are cut, and
flattened images whose channels are."""

FLOOR = 0.1
"""Changes smaller than this part of the largest one of a network, whose gradients cancel, are
compared with as much of it."""


class Loader:
    """Loads a network for a number of samples, also in another process."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, samples: int) -> Graph:
        """The network."""
        return _loaded(self.name, samples)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loader) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


@cache
def _loaded(name: str, samples: int) -> Graph:
    return NETWORKS[name](samples)


def planned(request: Request, name: str, strategy: str) -> Plan:
    """The plan of a strategy."""
    if strategy not in PIPELINES:
        return plan_shards(request, name, strategy)[0]
    best = explore(request).best
    graph = request.load(best.microbatch or 1)
    return as_plan(best, graph, name, request.batch, request.cluster, train=True)


def changes(pipeline: PipelineProgram, graph: Graph, count: int) -> tuple[float, dict[str, Any]]:
    """Loss of a step, and what it adds to each parameter."""
    parameters = initial_parameters(graph, 3)
    inputs, labels = random_batch(graph, 0, count)
    with ModelBackend(pipeline, parameters) as backend:
        result = backend.step(inputs, labels, scalar_bits(learning_rate=0.1))
        after = backend.parameters()
    return result.loss, {name: after[name] - parameters[name] for name in parameters}


def most_of(graph: Graph, strategy: str) -> float:
    """The largest difference that rounding explains.

    Other blocks are other rounding errors in both networks' products, of which a gradient has at
    most one for each product, forward and backward.
    """
    if strategy not in REGROUPED:
        return ROUNDED
    products = sum(bool(layer.parameters) for layer in graph.layers.values())
    return float(MX_NOISE * (2 * 2 * products) ** 0.5)


def most_of_loss(graph: Graph, strategy: str, count: int) -> float:
    """The largest difference of the losses of the first step that rounding explains.

    The loss moves by its gradient times what the logits move by: at most the product of both norms.
    Other blocks are a rounding error for each product of the forward pass, in both networks. Where
    blocks are the same, a loss has the tolerance that it has in `--check torch`.
    """
    parameters = initial_parameters(graph, 3)
    inputs, labels = random_batch(graph, 0, count)
    with TorchBackend(graph, parameters, num_microbatches=count, device="cpu") as backend:
        (logits,) = backend.infer(inputs, scalar_bits())[0].values()
    logits = logits.reshape(labels.size, -1).astype(np.float64)
    likely = np.exp(logits - logits.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    own = np.arange(labels.size), labels.reshape(-1)
    if strategy not in REGROUPED:
        return float(LOSS_NOISE * -np.log(likely[own]).mean())
    likely[own] -= 1
    products = sum(bool(layer.parameters) for layer in graph.layers.values())
    noise = MX_NOISE * (2 * products) ** 0.5
    return float(noise * np.linalg.norm(logits) * np.linalg.norm(likely) / labels.size)


def in_fp32(graph: Graph, count: int) -> dict[str, Any]:
    """Change of each parameter in a step of PyTorch in FP32."""
    parameters = initial_parameters(graph, 3)
    inputs, labels = random_batch(graph, 0, count)
    with TorchBackend(
        graph, parameters, num_microbatches=count, device="cpu", precision="fp32"
    ) as backend:
        backend.step(inputs, labels, scalar_bits(learning_rate=0.1))
        after = backend.parameters()
    return {name: after[name] - parameters[name] for name in parameters}


def difference(
    plan: Plan, graph: Graph, request: Request, most: float
) -> tuple[float, float, list[str], list[str]]:
    """Differences to one device: the largest of the parameters' changes, and the loss's.

    The third result has the parameters whose changes differ by more than `most`. As a rounding that
    a maximum or a ReLU enlarges does so as well, those are wrong, and in the fourth result, that
    are also further from PyTorch in FP32 than those of one device are.
    """
    count = plan.num_microbatches
    alone = build_pipeline(
        graph,
        plan.cores[:1],
        [tuple(graph.layers)],
        make_schedule("1f1b-as", 1, count),
        memory_specs(plan)[0],
    )
    loss, expected = changes(alone, graph, count)
    other, found = changes(lower_plan(plan, graph, request.cluster), graph, count)
    norms = {name: float(np.linalg.norm(value)) for name, value in expected.items()}
    largest = max(norms.values())
    apart = {
        name: float(np.linalg.norm(found[name] - value)) / max(norms[name], FLOOR * largest)
        for name, value in expected.items()
    }
    far = [name for name, each in apart.items() if not each <= most]
    wrong = []
    if far:
        exact = in_fp32(graph, count)
        wrong = [
            name
            for name in far
            if not np.linalg.norm(found[name] - exact[name])
            <= np.linalg.norm(expected[name] - exact[name])
        ]
    return max(apart.values()), abs(other - loss), far, wrong


def outcome(
    name: str, strategy: str, batch: int, count: int, devices: int, *, trains: bool = True
) -> dict[str, Any]:
    """Outcome of a case."""
    cluster = chain_of(load_board("u280"), devices).spec
    schedules = ("1f1b-as",)
    request = Request(
        Loader(name), batch, cluster, num_microbatches=count, array=(4, 4), schedules=schedules,
        all_devices=True, merges=strategy == "merge",
    )  # fmt: skip
    case = {"network": name, "strategy": strategy, "of": [batch, count, devices]}
    begun = time.perf_counter()
    try:
        plan = planned(request, name, strategy)
        graph = request.load(plan.microbatch)
        found: dict[str, Any] = {"difference": 0.0, "fault": None}
        if trains:
            most = most_of(graph, strategy)
            worst, apart, far, wrong = difference(plan, graph, request, most)
            limit = most_of_loss(graph, strategy, plan.num_microbatches)
            found |= {"difference": round(worst, 4), "of_loss": round(apart / limit, 3)}
            if far:
                found["as_near_fp32_as_one"] = sorted(set(far) - set(wrong))
            if wrong:
                found["fault"] = f"other changes of {', '.join(wrong)}"
            elif not apart <= limit:
                found["fault"] = "another loss"
    except UserError as error:
        said = str(error)
        inner = [each for each in INNER if each in said]
        found = {"refused": said, "fault": f"inner message: {inner}" if inner else None}
    except Exception as error:  # a traceback is what this bench looks for
        found = {"fault": f"{type(error).__name__}: {error}"}
    return case | found | {"took_s": round(time.perf_counter() - begun, 1)}


def cases(part: str) -> Iterator[tuple[Any, ...]]:
    """All cases whose names have a text."""
    for name in NETWORKS:
        for strategy in NAMES:
            for shape in SHAPES:
                if part in f"{name} {strategy} {shape}":
                    yield (name, strategy, *shape)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="text that names of cases have")
    parser.add_argument("--plans", action="store_true", help="make plans, and train nothing")
    parser.add_argument("--sample", action="store_true", help="take the cases of the tests")
    parser.add_argument("--every", type=int, default=1, help="take each so many cases")
    options = parser.parse_args()
    os.environ.setdefault("FPGAPIPE_ANSWERS", "0")
    found = []
    chosen = SAMPLE if options.sample else list(cases(options.only))[:: options.every]
    for case in chosen:
        found.append(outcome(*case, trains=not options.plans))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    faults = [each for each in found if each["fault"]]
    value = {
        "networks": len({each["network"] for each in found}),
        "cases": len(found),
        "made": sum("difference" in each for each in found),
        "refused": sum("refused" in each for each in found),
        "worst": max((each.get("difference", 0.0) for each in found), default=0.0),
        "worst_share_of_loss": max((each.get("of_loss", 0.0) for each in found), default=0.0),
        "reasons": Counter(each["refused"] for each in found if "refused" in each).most_common(),
        "as_near_fp32_as_one": [each for each in found if each.get("as_near_fp32_as_one")],
        "faults": faults,
        "reached": not faults,
    }
    print(json.dumps(value, indent=1))
    sys.exit(not value["reached"])


if __name__ == "__main__":
    main()
