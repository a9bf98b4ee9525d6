"""Regenerates docs/comparison.md: training times of several ways, as they are predicted.

For each network, cluster, batch and line rate of the links, the fastest pipeline, data-parallel and
layer-wise plans are found as `fpgapipe plan` finds them, and timed by their programs. Takes two
hours on two cores with an empty cache. Each answer is written to a file in the folder `--cells`,
and taken from there if it is there; so what was interrupted goes on. Progress goes to standard
error. Prints one JSON object: for each cell the ways, and whether `auto` is the slower of any.
``--networks``, ``--clusters``, ``--batches`` and ``--rates`` restrict it to a part; write a part
elsewhere with ``-o``.
"""

import argparse
import contextlib
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from comparison_cells import BATCHES, CLUSTERS, NETWORKS, ROOT, WAYS, Question, measured, table_of

from fpgapipe.files import write_output
from fpgapipe.host.terminal.console import scaled
from fpgapipe.jobs import local_processes, results, sharing

RATES = (10.0, 25.0, 100.0)
"""Line rates of all links, Gb/s."""

COMPARED = ("u280-x4", "vcu118-vcu129", "u280-x8")
"""Clusters of the page."""

NAMES = {"pipeline": "pipeline", "data": "data parallel", "layerwise": "layer-wise"}

SPEEDUP = 3.2
MEMORY = 4.0

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
    """Choice of ``--strategy auto``: the fastest, of those with prices of the machine if any."""
    return min(
        ways_of(cell).items(), key=lambda each: (each[1]["level"] != "machine", each[1]["seconds"])
    )


def title(question: Question) -> list[str]:
    """First columns of a row."""
    rate = f"{question.gbits:g} Gb/s"
    return [NETWORKS[question.network], CLUSTERS[question.cluster], str(question.batch), rate]


def seconds_of(way: dict[str, Any] | None) -> str:
    """Time of a way for a table."""
    return "-" if way is None else scaled(way["seconds"], "s")


def gibibytes(way: dict[str, Any] | None) -> str:
    """Memory of a way for a table."""
    return "-" if way is None else scaled(way["memory_bytes"], "B", 1024)


def ratio(one: dict[str, Any] | None, other: dict[str, Any] | None) -> str:
    """How much faster the other way is; none if their prices are of different levels."""
    if one is None or other is None or one["level"] != other["level"]:
        return "-"
    return f"{one['seconds'] / other['seconds']:.2f}x"


def all_ways(cells: list[Cell]) -> list[str]:
    """The table of everything."""
    rows = []
    for cell in cells:
        ways = ways_of(cell)
        name, best = fastest(cell)
        rows.append(
            [
                *title(cell[0]),
                *(seconds_of(ways.get(way)) for way in NAMES),
                NAMES[name],
                *(ratio(ways.get(way), best) for way in ("data", "pipeline")),
                *(gibibytes(ways.get(way)) for way in NAMES),
                best["level"],
            ]
        )
    headings = ["network", "cluster", "batch", "links", *NAMES.values(), "fastest"]
    headings += ["over data parallel", "over pipeline"]
    headings += [f"memory, {name}" for name in NAMES.values()]
    return ["## All ways", "", *table_of([*headings, "prices"], rows)]


def _pairs(cells: list[Cell]) -> list[tuple[Question, dict[str, Any], dict[str, Any]]]:
    """Cells with a pipeline and data parallelism of the same level, as (question, p, d)."""
    found = []
    for cell in cells:
        pipeline, data = (ways_of(cell).get(name) for name in ("pipeline", "data"))
        if pipeline and data and pipeline["level"] == data["level"]:
            found.append((cell[0], pipeline, data))
    return found


def claims(cells: list[Cell]) -> list[str]:
    """Where pipelines gain what BaPipe's abstract names, and where they lose."""
    pairs = _pairs(cells)
    quick = [each for each in pairs if each[2]["seconds"] >= SPEEDUP * each[1]["seconds"]]
    small = [each for each in pairs if each[2]["memory_bytes"] >= MEMORY * each[1]["memory_bytes"]]
    slow = [each for each in pairs if each[2]["seconds"] < each[1]["seconds"]]
    hidden = [each for each in pairs if each[2]["bound_s"] < each[1]["seconds"]]
    most = max(pairs, key=lambda each: each[2]["seconds"] / each[1]["seconds"])
    least = max(pairs, key=lambda each: each[2]["memory_bytes"] / each[1]["memory_bytes"])
    times = most[2]["seconds"] / most[1]["seconds"]
    bytes_ = least[2]["memory_bytes"] / least[1]["memory_bytes"]
    lines = [
        "## Pipelines and data parallelism",
        "",
        f"BaPipe's abstract names {SPEEDUP}x the speed of data parallelism, and {MEMORY:g} times "
        f"less memory. Of {len(pairs)} configurations, a plain pipeline is {SPEEDUP} times as "
        f"fast in {len(quick)}, and takes a quarter of the memory in {len(small)}. The most is "
        f"{times:.2f}x the speed ({', '.join(title(most[0]))}) and {bytes_:.1f} times less memory "
        f"({', '.join(title(least[0]))}). A pipeline gains where the sum of gradients takes long: "
        "data parallelism adds up every gradient over all devices, a pipeline sends activations of "
        f"a few layers. Data parallelism is faster in {len(slow)}, and in {len(hidden)} if its "
        "last backward pass hid the sum as far as possible. It wins where "
        "links are fast for the number of weights or the batch is large: a pipeline fills and "
        "drains, its stages are not equal, since a layer is in one of them, and its micro-batches "
        "are smaller.",
        "",
    ]
    rows = [
        [
            *title(question),
            f"{pipeline['schedule']}, {pipeline['num_devices']} stages",
            pipeline["num_microbatches"],
            seconds_of(pipeline),
            ratio(data, pipeline),
            f"{data['sum_s'] / data['seconds']:.0%}",
            f"{data['bound_s'] / pipeline['seconds']:.2f}x",
            f"{data['memory_bytes'] / pipeline['memory_bytes']:.1f}x",
        ]
        for question, pipeline, data in pairs
    ]
    headings = ["network", "cluster", "batch", "links", "pipeline", "micro-batches", "time"]
    headings += ["over data parallel", "its sum's share", "over data parallel with a hidden sum"]
    return [*lines, *table_of([*headings, "less memory by"], rows)]


INTRODUCTION = """\
# Comparison of ways to train

<!-- Made by bench/make_comparison.py; do not edit. -->

**Everything here is predicted; nothing was measured on a board.** Where the column *prices* says
*machine*, each time is that of the plan's own programs, by the cycle model, which is within 2 % of
the simulated hardware ([prediction](prediction.md#measured)), and memory is that of these programs.
*estimate* stands for the formulas of the [cost model](cost-model.md), which know nothing of the
overhead of instructions: they are for networks that the core does not run (GNMT-8 has LSTM layers).

* **Pipeline**: the fastest of 1f1b-as, zb-h1 and zb-h2 with two stages or more; a layer is in one
  stage. The planner chooses the cut by prices of single layers, and the plan is then timed.
* **Data parallel**: every device has the whole network and an equal share of the batch; the sum of
  gradients follows the last backward pass.
* **Layer-wise**: each layer is cut by samples, channels or rows, or whole, also within groups of
  devices ([strategies](strategies.md)). Layers of GNMT-8 whose first axis is time stay whole.

`fpgapipe plan NETWORK --cluster C --batch B --strategy auto` takes the fastest of these, or a
pipeline of [groups of devices](strategies.md#stages-of-several-devices) if that is faster still,
which this page leaves out; so `auto` is never slower than the column *fastest*. Time is that of a
mini-batch: forward, backward, and the optimiser's step. Memory is that of the fullest device. All
links have the line rate of the row; by themselves, those of U280 and VCU118 have 103 Gb/s, and that
of two VCU129 has 212 Gb/s. `fpgapipe compare` has tables of all schedules of a network and a
cluster. `python bench/make_comparison.py` writes this page anew.
"""


def page(cells: list[Cell]) -> str:
    """The whole page."""
    lines = [INTRODUCTION, *all_ways(cells), *claims(cells)]
    refused = {
        f"{NETWORKS[question.network]} on {CLUSTERS[question.cluster]}, {NAMES[name]}: {way}"
        for question, ways in cells
        for name, way in ways.items()
        if isinstance(way, str)
    }
    if refused:
        lines += ["## Left out", "", *(f"* {reason}" for reason in sorted(refused))]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Measure everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--clusters", nargs="+", choices=CLUSTERS, default=list(COMPARED))
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES), help="Gb/s")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--cells", type=Path, default=ROOT / "build/comparison")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs/comparison.md")
    options = parser.parse_args()
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
    options.output.write_text(page(cells), encoding="utf-8")
    print(f"wrote {options.output}", file=sys.stderr)
    answers = []
    for cell in cells:
        name, best = fastest(cell)
        others = [way for way in ways_of(cell).values() if way["level"] == best["level"]]
        slower = any(way["seconds"] < best["seconds"] for way in others)
        answers.append({"cell": cell[0].name, "auto": name, "auto_is_slower": slower, **cell[1]})
    print(json.dumps(answers, indent=1))


if __name__ == "__main__":
    main()
