"""Boards of several nodes: the simulated hardware against the bit-exact model and the plan.

Builds networks for boards of several nodes, by each strategy, and runs one mini-batch of each in
Verilator beside the bit-exact model. Prints one JSON object: for each case whether every byte of
every memory is equal, the cycles of plan and hardware, and the plan's error; then the mean and the
worst error. Progress goes to standard error, a line for each case.
"""

import argparse
import json
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from bench_plan import load

import fpgapipe
from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board

NETWORKS = ("digits-cnn", "vgg-mini", "resnet-mini", "gpt-short")
LAYOUTS = ((1, 2), (1, 3), (1, 4), (2, 2))
"""Boards, and nodes of each."""

STRATEGIES = ("pipeline", "data", "hybrid", "replicas")
MOST_MEAN_ERROR, MOST_ERROR = 0.01, 0.03
"""Largest mean and largest single error of a plan that are wanted."""


def case(name: str, boards: int, nodes: int, strategy: str, array: tuple[int, int]) -> Any:
    """Build, plan and run one case."""
    cluster = chain_of(load_board("u280"), boards, nodes)
    with tempfile.TemporaryDirectory() as folder:
        fpgapipe.build(
            lambda batch: load(name, batch),
            cluster,
            folder,
            batch=4 * boards * nodes,
            strategy=strategy,
            array=array,
            verify=False,
        )
        ran = fpgapipe.run(folder, "sim", check="model", steps=1, data="random", validates=False)
        record = ran.to_dict()
        plan = json.loads((Path(folder) / "plan.json").read_text())
    predicted = plan["predicted"]["minibatch_s"] * record["clk_hz"]
    cycles = record["cycles"]
    return {
        "network": name,
        "boards": boards,
        "nodes": nodes,
        "strategy": strategy,
        "schedule": plan["schedule"],
        "equal": record["difference"] is None,
        "plan_cycles": round(predicted),
        "rtl_cycles": cycles,
        "error": predicted / cycles - 1,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--array", type=int, nargs=2, default=(8, 8))
    names = [f"{boards}x{nodes}" for boards, nodes in LAYOUTS]
    parser.add_argument("--layouts", nargs="+", choices=names, default=names)
    given = parser.parse_args()
    cases: list[Any] = []
    layouts = [each for each, name in zip(LAYOUTS, names, strict=True) if name in given.layouts]
    for name, (boards, nodes), strategy in product(given.networks, layouts, given.strategies):
        try:
            found = case(name, boards, nodes, strategy, tuple(given.array))
        except fpgapipe.UserError as error:
            found = {"network": name, "boards": boards, "nodes": nodes, "strategy": strategy}
            found["refused"] = str(error)
        cases.append(found)
        print(json.dumps(found), file=sys.stderr, flush=True)
    errors = [abs(each["error"]) for each in cases if "error" in each]
    result = {
        "cases": cases,
        "equal": sum(bool(each.get("equal")) for each in cases),
        "refused": sum("refused" in each for each in cases),
        "mean_error": sum(errors) / len(errors),
        "worst_error": max(errors),
    }
    result["within"] = (
        all(each["equal"] for each in cases if "refused" not in each)
        and result["mean_error"] <= MOST_MEAN_ERROR
        and result["worst_error"] <= MOST_ERROR
    )
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
