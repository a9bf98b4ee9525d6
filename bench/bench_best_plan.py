"""The choice of `plan` without options against the best of all options; prints one JSON object.

For each network, on one and on two U280, `plan` chooses array, micro-batches and schedule. Then all
combinations of these are planned one by one and priced by their programs: 16 and 32 rows, 32, 64
and so on up to the most columns that fit, all divisors of the batch, and the schedules that can be
built and whose updates are not late; of larger networks, a random sample of combinations. With
--boards, the clusters are chains of these in all orders for which the boards have ports.

The best combination of each case is kept in docs/figures/choices.json, with the commit on which all
were compared. Where it is there, it alone is planned again, to be compared with the choice of
today; --anew compares all. So a bench that was stopped goes on where it was. With --bound, programs
are not made of combinations that would have to be faster, by formulas, than any program has been:
those of language models take minutes. Progress goes to standard error, a line for each case.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

from figure import ROOT, commit, write_figure
from small_networks import SHORT

import fpgapipe
from fpgapipe.boards.cluster import chain_of, load_cluster
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.make.networks import loader
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.partition.cost.cores import candidate_cores, wider_cores
from fpgapipe.partition.explore.explorer import counts_tried, explore
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.pricing.climb import least_of
from fpgapipe.partition.schedule.built_schedules import built_schedules
from fpgapipe.partition.schedule.schedule_kinds import make_schedule, num_engines_of

SMALL = (
    *("digits-cnn", "lenet5", "vgg-mini", "resnet-mini"),
    *("mobilenet", "unet-resize", "gpt-short", "vit-small", "lstm-short"),
)
LARGE = ("resnet18", "resnet50", "vgg16", "gpt2-small")
FIGURES = "docs/figures/choices.json"
NOTE = (
    "For each case, what `plan` without options chooses, and the best of so many combinations of "
    "an array for all devices, micro-batches and a schedule, found at `compared_at` and planned "
    "again with today's prices; `refused` are those that have no programs on these devices, or "
    "programs of too many cycles to be timed; of those that are `slower_by_formulas`, at the least "
    "ratio of a program to its formula that has been seen, no programs were made. The "
    "ratio is that of their samples per second; 1 where the choice is the faster one, null where "
    "all are refused."
)
KEPT = ("combinations", "refused", "slower_by_formulas", "best", "compared_at")
"""What stays of a case that was compared."""

LEAST = 0.99
"""Share of the best combination's samples per second that the choice has to reach."""


def combinations(request: Request) -> Iterator[Request]:
    """The request with every array, number of micro-batches and schedule."""
    devices = request.cluster.devices
    num_links = min(len(devices) - 1, 2)
    for kind in built_schedules():
        if not make_schedule(kind, 2, 2).synchronous:
            continue
        engines = num_engines_of(kind)
        cores = {
            device: [
                node.core
                for cores_of in (candidate_cores, wider_cores)
                for node in cores_of(device, engines, num_links)
            ]
            for device in devices
        }
        for rows, count in product((16, 32), counts_tried(request.batch)):
            most = min(
                max((core.cols for core in each if core.rows == rows), default=0)
                for each in cores.values()
            )
            for cols in sorted({most, *(32 << n for n in range(most.bit_length() - 5))}):
                yield replace(
                    request, schedules=(kind,), num_microbatches=count, array=(rows, cols)
                )


def chain_of_unlike(boards: tuple[str, ...]) -> ClusterSpec:
    """A chain of boards in this order."""
    devices = [{"name": f"{each}-{place}", "board": each} for place, each in enumerate(boards)]
    cluster = {"format": 1, "name": "-".join(boards), "devices": devices, "topology": "chain"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cluster.yaml")
        path.write_text(json.dumps(cluster))  # JSON is YAML
        return load_cluster(path).spec


def facts_of(plan: Plan) -> dict[str, Any]:
    """Rate and options of a plan."""
    core = plan.nodes[0].core
    return {
        "samples_per_s": plan.predicted.samples_per_s,
        "array": [core.rows, core.cols],
        "num_microbatches": plan.num_microbatches,
        "schedule": plan.schedule,
    }


def best_of(name: str, request: Request, given: argparse.Namespace) -> dict[str, Any]:
    """The best of all combinations of a case, or of a sample of them."""
    asked = list(combinations(request))
    if name not in SMALL or given.sample:
        asked = random.Random(0).sample(asked, min(given.sample or 50, len(asked)))
    best: Plan | None = None
    refused = slower = 0
    for each in asked:
        try:
            if given.bound and best and _least_s(each) >= best.predicted.minibatch_s:
                slower += 1
                continue
            plan = best_plan(each, request.load.name).plan  # type: ignore[attr-defined]
        except UserError:
            refused += 1
            continue
        if plan.predicted.level != "machine":
            refused += 1
        elif best is None or plan.predicted.samples_per_s > best.predicted.samples_per_s:
            best = plan
    return {
        "combinations": len(asked),
        "refused": refused,
        "slower_by_formulas": slower,
        "best": None if best is None else facts_of(best),
    }


def _least_s(request: Request) -> float:
    """Seconds below which no program of a request has been seen."""
    found = explore(request).best
    return least_of(found.steady_s, num_engines_of(found.kind))


def measure(
    name: str, cluster: ClusterSpec, given: argparse.Namespace, kept: dict[str, Any] | None
) -> dict[str, Any]:
    """The choice and the best of one case."""
    load = loader(SHORT.get(name, name))
    chosen = fpgapipe.plan(SHORT.get(name, name), cluster, batch=given.batch).plan
    request = Request(load, given.batch, cluster)
    if kept is None:
        found = best_of(name, request, given) | {"compared_at": commit()}
    else:
        found = {key: kept[key] for key in KEPT if key in kept}
        if best := found["best"]:
            again = replace(
                request,
                schedules=(best["schedule"],),
                num_microbatches=best["num_microbatches"],
                array=tuple(best["array"]),
            )
            found["best"] = facts_of(best_plan(again, load.name).plan) | {"array": best["array"]}
    rate, best = chosen.predicted.samples_per_s, found["best"]
    return {
        **key_of(name, cluster, given.batch),
        **found,
        "chosen": facts_of(chosen),
        "ratio": rate / max(rate, best["samples_per_s"]) if best else None,
    }


def key_of(name: str, cluster: ClusterSpec, batch: int) -> dict[str, Any]:
    """Entries that tell a case from others."""
    return {
        "network": name,
        "devices": " ".join(device.name for device in cluster.devices),
        "batch": batch,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=(*SMALL, *LARGE), action="append")
    parser.add_argument("--devices", type=int, action="append")
    parser.add_argument("--board", default="u280")
    parser.add_argument("--boards", help="unlike boards, with commas between their names")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--anew", action="store_true", help="compare all combinations again")
    parser.add_argument(
        "--bound", action="store_true", help="leave out what formulas show to be slower"
    )
    parser.add_argument("-o", "--output", type=Path, default=ROOT / FIGURES)
    parser.add_argument(
        "--sample", type=int, help="combinations of each case; by default 50 of larger networks"
    )
    given = parser.parse_args()
    if given.boards:
        clusters = []
        for order in permutations(given.boards.split(",")):
            try:
                clusters.append(chain_of_unlike(order))
            except UserError as error:
                print(f"left out: {error}", file=sys.stderr)
    else:
        board, counts = load_board(given.board), given.devices or (1, 2)
        clusters = [chain_of(board, count).spec for count in counts]
    rows: list[dict[str, Any]] = []
    if given.output.exists():
        rows = json.loads(given.output.read_text())["rows"]
    cases = []
    for name, cluster in product(given.network or (*SMALL, *LARGE), clusters):
        key = key_of(name, cluster, given.batch)
        kept = next((row for row in rows if key.items() <= row.items()), None)
        case = measure(name, cluster, given, None if given.anew else kept)
        print(
            f"{name}, {key['devices']}: "
            + (f"{case['ratio']:.4f} of the best" if case["ratio"] else "no program")
            + f" of {case['combinations'] - case['refused']} combinations, "
            f"{case.get('slower_by_formulas', 0)} by formulas",
            file=sys.stderr,
            flush=True,
        )
        cases.append(case)
        rows = [row for row in rows if row is not kept] + [case]
        write_figure(given.output, "bench/bench_best_plan.py", NOTE, {"rows": rows})
    least = min(case["ratio"] or 0.0 for case in cases)  # a case without programs meets nothing
    print(
        json.dumps({"least": LEAST, "met": least >= LEAST, "ratio": least, "all": cases}, indent=1)
    )


if __name__ == "__main__":
    main()
