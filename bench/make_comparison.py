"""Regenerates docs/comparison.md and its figures: predicted training times of several ways.

For each network, cluster, batch and line rate of the links, the fastest pipeline, data-parallel and
layer-wise plans are found as `fpgapipe plan` finds them, and timed by their programs. Takes two
hours on two cores with an empty cache. Each answer is written to a file in the folder `--cells`,
and taken from there if it is there; so what was interrupted goes on. Progress goes to standard
error. Prints one JSON object: for each cell the ways, and whether `auto` is the slower of any. The
figures go to docs/figures/comparison.json, from which the page is made; ``--page`` makes the page
from the file that is there. ``--networks``, ``--clusters``, ``--batches`` and ``--rates`` restrict
it to a part; write a part elsewhere with ``--figures`` and ``-o``.
"""

import argparse
import contextlib
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from comparison_cells import BATCHES, CLUSTERS, NETWORKS, ROOT, WAYS, Question, measured
from comparison_page import FIGURES, NAMES, page
from figure import write_figure

from fpgapipe.files import write_output
from fpgapipe.host.make.planning import most_seconds
from fpgapipe.jobs import local_processes, results, sharing

RATES = (10.0, 25.0, 100.0)
"""Line rates of all links, Gb/s."""

COMPARED = ("u280-x4", "vcu118-vcu129", "u280-x8")
"""Clusters of the page."""

NOTE = (
    "Times of a mini-batch and memory of the fullest device, of the fastest plans of each way; "
    "docs/comparison.md says what they are. Ratios say how many times as fast the fastest way is "
    "(over_data, over_pipeline; over_next: than the next way that is slower, where all have prices "
    "of one level) or the pipeline is (pipeline_over_data; over_hidden_sum if the last backward "
    "pass of data parallelism hid its sum of gradients, which hidden_sum_is_faster compares before "
    "rounding), and how many times less memory the pipeline takes; sum_share is the sum's share of "
    "data parallelism's time."
)

Cell = tuple[Question, dict[str, Any]]


def answer(question: Question, folder: Path) -> dict[str, Any]:
    """The ways of a question, from the folder if they are there."""
    path = folder / f"{question.name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    missing = [name for name in WAYS if name not in found]
    if not missing:
        return found
    found |= measured(question, missing)
    write_output(path, json.dumps(found, indent=1) + "\n")
    return found


def ways_of(cell: Cell) -> dict[str, dict[str, Any]]:
    """The ways that are possible."""
    return {name: way for name, way in cell[1].items() if isinstance(way, dict)}


def fastest(cell: Cell) -> tuple[str, dict[str, Any]]:
    """Choice of ``--strategy auto``, which allows for what formulas leave out."""
    return min(
        ways_of(cell).items(), key=lambda each: most_seconds(each[1]["seconds"], each[1]["level"])
    )


def ratio(one: dict[str, Any] | None, other: dict[str, Any] | None) -> float | None:
    """How much faster the other way is; none if their prices are of different levels."""
    if one is None or other is None or one["level"] != other["level"]:
        return None
    return round(float(one["seconds"] / other["seconds"]), 4)


def row_of(cell: Cell) -> dict[str, Any]:
    """Figures of a cell."""
    question, ways = cell[0], ways_of(cell)
    name, best = fastest(cell)
    pipeline, data = ways.get("pipeline"), ways.get("data")
    slower = [each for way in ways.values() if (each := ratio(way, best)) is None or each > 1]
    row: dict[str, Any] = {
        "network": NETWORKS[question.network],
        "cluster": CLUSTERS[question.cluster],
        "batch": question.batch,
        "gbits": question.gbits,
        "prices": best["level"],
        "fastest": NAMES[name],
        "over_data": ratio(data, best),
        "over_pipeline": ratio(pipeline, best),
        "over_next": min((each for each in slower if each), default=None) if all(slower) else None,
    }
    for way in NAMES:
        found = ways.get(way)
        row[f"{way}_s"] = found and float(f"{found['seconds']:.6g}")
        row[f"{way}_gib"] = found and round(found["memory_bytes"] / 2**30, 3)
    if pipeline:
        row["schedule"] = pipeline["schedule"]
        row["stages"], row["micro_batches"] = pipeline["num_devices"], pipeline["num_microbatches"]
    row["pipeline_over_data"] = ratio(data, pipeline)
    if data:
        row["sum_share"] = round(data["sum_s"] / data["seconds"], 3)
    if pipeline and data and row["pipeline_over_data"] is not None:
        row["over_hidden_sum"] = round(data["bound_s"] / pipeline["seconds"], 4)
        row["hidden_sum_is_faster"] = data["bound_s"] < pipeline["seconds"]
        row["less_memory"] = round(data["memory_bytes"] / pipeline["memory_bytes"], 2)
    return row


def left_out(cells: list[Cell]) -> list[str]:
    """Reasons why ways are impossible, the first of each network, cluster and way."""
    found: dict[str, str] = {}
    for question, ways in cells:
        for name, way in ways.items():
            if isinstance(way, str):
                place = f"{NETWORKS[question.network]} on {CLUSTERS[question.cluster]}"
                reason = way.partition("; ")[0]
                found.setdefault(f"{place}, {NAMES[name]}", f"batch of {question.batch}: {reason}")
    return [f"{place}, {reason}" for place, reason in sorted(found.items())]


def main() -> None:
    """Measure everything, and write figures and page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--clusters", nargs="+", choices=CLUSTERS, default=list(COMPARED))
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES), help="Gb/s")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--cells", type=Path, default=ROOT / "build/comparison")
    parser.add_argument("--figures", type=Path, default=ROOT / FIGURES)
    parser.add_argument("--page", action="store_true", help="make the page from the figures")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs/comparison.md")
    options = parser.parse_args()
    if not options.page:
        answers = measure(options)
        print(json.dumps(answers, indent=1))
    text = page(json.loads(options.figures.read_text()))
    options.output.write_text(text, encoding="utf-8")
    print(f"wrote {options.output}", file=sys.stderr)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Answer all questions and write the figures."""
    questions = [
        Question(network, cluster, batch, rate)
        for network in options.networks
        for cluster in options.clusters
        for batch in options.batches
        for rate in options.rates
    ]
    options.cells.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()

    def tell(done: int, total: int) -> None:
        print(f"{time.perf_counter() - begin:4.0f} s: {done} of {total} cells", file=sys.stderr)

    processes = partial(local_processes, options.jobs - 1)
    with sharing(processes) if options.jobs > 1 else contextlib.nullcontext():
        asked = [(question,) for question in questions]
        found = results(partial(answer, folder=options.cells), asked, tell)
    cells: list[Cell] = list(zip(questions, found, strict=True))
    figures = {"rows": [row_of(cell) for cell in cells], "left_out": left_out(cells)}
    write_figure(options.figures, "bench/make_comparison.py", NOTE, figures)
    answers = []
    for cell in cells:
        name, best = fastest(cell)
        others = [way for way in ways_of(cell).values() if way["level"] == best["level"]]
        slower = any(way["seconds"] < best["seconds"] for way in others)
        answers.append({"cell": cell[0].name, "auto": name, "auto_is_slower": slower, **cell[1]})
    return answers


if __name__ == "__main__":
    main()
