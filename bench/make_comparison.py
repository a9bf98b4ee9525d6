"""Regenerates docs/comparison.md: training times of several ways, as they are predicted.

Every number follows from programs and their cycle model, or from formulas where the core does not
run a network, and from the event simulation; so equal code gives equal text. Takes half an hour on
two cores with an empty cache; progress goes to standard error. ``--networks``, ``--clusters``,
``--batches`` and ``--rates`` restrict it to a part; write a part elsewhere with ``-o``.
"""

import argparse
import dataclasses
import functools
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from fpgapipe.boards.cluster import chain_of, load_cluster
from fpgapipe.boards.library import load_board
from fpgapipe.host.cli.options.planning import loader
from fpgapipe.host.terminal.console import scaled
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.partition.explore import comparison
from fpgapipe.partition.explore.comparison import Comparison, Entry
from fpgapipe.partition.explore.explorer import AUTO_SCHEDULES, Request, explore
from fpgapipe.partition.pricing.machine_comparison import entry_on_machine, priced_choices

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = {"vgg16": "VGG-16", "resnet50": "ResNet-50", "gnmt8": "GNMT-8"}
CLUSTERS = {
    "vcu118-x4": "4x VCU118",
    "vcu118-vcu129": "2x VCU118 + 2x VCU129",
    "u280-x4": "4x U280",
    "u280-x8": "8x U280",
}
BATCHES = (32, 256)
RATES = (0.0, 25.0, 10.0, 1.0)
"""Line rates of all links in Gb/s; 0 leaves those of the boards."""

BALANCED = AUTO_SCHEDULES
"""Schedules of the search: those that the planner tries by default. fbp-as has estimates only, and
is left out where the others have prices of the machine."""

SPEEDUP = 3.2
MEMORY = 4.0


@dataclasses.dataclass(frozen=True)
class Cell:
    """One configuration of the search; each pipeline is named by its schedule."""

    network: str
    cluster: str
    batch: int
    gbits: float
    alone: Entry | None
    parallel: Entry | None
    overlapped: Entry | None
    frugal: Entry | None
    pipelines: tuple[Entry, ...]
    parameters: int

    @property
    def best(self) -> Entry:
        """The fastest pipeline."""
        return min(self.pipelines, key=lambda entry: entry.minibatch_s)

    @property
    def title(self) -> list[str]:
        """First cells of the row of a table."""
        rate = f"{self.gbits:g} Gb/s" if self.gbits else "as wired"
        return [NETWORKS[self.network], CLUSTERS[self.cluster], str(self.batch), rate]


@functools.cache
def cluster_of(name: str, gbits: float = 0.0) -> ClusterSpec:
    """A chain whose links have the given line rate, if there is one."""
    if name == "vcu118-vcu129":
        spec = load_cluster(ROOT / "examples/clusters/vcu118-vcu129-chain.yaml").spec
    else:
        board, _, count = name.rpartition("-x")
        spec = chain_of(load_board(board), int(count)).spec
    if not gbits:
        return spec
    links = (dataclasses.replace(link, line_rate_bits_per_s=gbits * 1e9) for link in spec.links)
    return dataclasses.replace(spec, links=tuple(links))


def measure(job: tuple[str, str, int, tuple[float, ...]]) -> tuple[Comparison, list[Cell]]:
    """The table of a network, cluster and batch, and the cells of the search for them."""
    network, name, batch, rates = job
    load = loader(network)
    formulas = comparison.compare(load, batch, cluster_of(name))
    choices = priced_choices(formulas, load, batch, cluster_of(name))

    def priced(way: str, cluster: ClusterSpec, *, frugal: bool = False) -> Entry | None:
        return entry_on_machine(way, load, batch, cluster, choices, frugal=frugal)

    entries = [priced(each.name, cluster_of(name)) or each for each in formulas.entries]
    table = Comparison(tuple(entries), formulas.refused)
    alone = table.find("one device")  # a single device has no links
    cells = []
    for gbits in rates:
        cluster = cluster_of(name, gbits)
        parallel = priced("data parallel", cluster)
        overlapped = priced("data parallel, overlapped", cluster)
        frugal = priced("data parallel", cluster, frugal=True)
        pipelines = [found for kind in BALANCED if (found := priced(kind, cluster))]
        if pipelines:
            parameters = load(1).totals.parameters
            pipelines = [entry for entry in pipelines if entry.num_devices > 1]
            if pipelines:
                ways = alone, parallel, overlapped, frugal, tuple(pipelines)
                cells.append(Cell(network, name, batch, gbits, *ways, parameters))
            continue
        if table.find("data parallel") is not None:
            parallel = comparison.data_parallel(load, batch, cluster)
            overlapped = comparison.data_parallel(load, batch, cluster, overlapped=True)
            frugal = comparison.data_parallel(load, batch, cluster, frugal=True)
        tried = explore(Request(load, batch, cluster, BALANCED)).tried
        pipelines = [comparison.entry_of(each.kind, each) for each in tried]
        pipelines = [entry for entry in pipelines if entry.num_devices > 1]
        if pipelines:
            parameters = load(1).totals.parameters
            ways = alone, parallel, overlapped, frugal, tuple(pipelines)
            cells.append(Cell(network, name, batch, gbits, *ways, parameters))
    return table, cells


def gibibytes(count: float) -> str:
    """Write bytes for a table, in GiB."""
    return scaled(count, "B", 1024)


def times(over: Entry | None, entry: Entry) -> str:
    """Write the speed-up over another way."""
    return "-" if over is None else f"{over.minibatch_s / entry.minibatch_s:.2f}x"


def table_of(headings: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    headings = list(headings)
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""


def ways(job: tuple[str, str, int, tuple[float, ...]], found: Comparison) -> Iterator[str]:
    """Write one of the tables."""
    network, name, batch, _ = job
    yield f"### {NETWORKS[network]}, {CLUSTERS[name]}, batch {batch}"
    yield ""
    parallel, alone = found.find("data parallel"), found.find("one device")
    headings = ["way", "devices", "micro-batches", "time", "over data parallel"]
    headings += ["over one device", "bubble", "peak memory a device", "link load", "prices"]
    yield from table_of(
        headings,
        (
            (
                entry.name,
                entry.num_devices,
                entry.num_microbatches,
                scaled(entry.minibatch_s, "s"),
                times(parallel, entry),
                times(alone, entry),
                f"{entry.bubble_rate:.1%}",
                gibibytes(entry.memory_bytes),
                f"{entry.link_load:.1%}",
                entry.level,
            )
            for entry in found.entries
        ),
    )
    for reason in found.refused:
        yield f"Left out: {reason}."
        yield ""


def faster(cells: list[Cell]) -> Iterator[str]:
    """Write where pipelining reaches `SPEEDUP` over data parallel."""
    yield f"## Where balanced pipelining reaches {SPEEDUP}x over data parallel"
    yield ""
    rows = [
        cell
        for cell in cells
        if cell.parallel and cell.parallel.minibatch_s >= SPEEDUP * cell.best.minibatch_s
    ]
    yield (
        f"In {len(rows)} of {len(cells)} configurations. The cause is the same in all: data "
        "parallel adds up every gradient over all devices and waits for that, a pipeline sends "
        "activations of a few layers. The cause column says what part of data parallel's time is "
        "all-reduce. Where one device alone beats data parallel, the large ratio says more about "
        "the sum than about the pipeline. The last ratio is against the bound of a data parallel "
        "that hides its all-reduce behind the backward pass."
    )
    yield ""
    headings = ["network", "cluster", "batch", "links", "schedule", "stages", "micro-batches"]
    headings += ["time", "over data parallel", "over one device", "over overlapped", "cause"]
    yield from table_of(
        headings,
        (
            (
                *cell.title,
                cell.best.name,
                cell.best.num_devices,
                cell.best.num_microbatches,
                scaled(cell.best.minibatch_s, "s"),
                times(cell.parallel, cell.best),
                times(cell.alone, cell.best),
                times(cell.overlapped, cell.best),
                f"all-reduce of {scaled(4 * cell.parameters, 'B')} is "
                f"{cell.parallel.link_load:.0%} of {scaled(cell.parallel.minibatch_s, 's')}",
            )
            for cell in rows
            if cell.parallel
        ),
    )
    wired = max(
        (cell for cell in cells if cell.parallel and not cell.gbits),
        key=lambda cell: cell.parallel.minibatch_s / cell.best.minibatch_s if cell.parallel else 0,
        default=None,
    )
    if wired is not None:
        yield (
            f"On links as wired, the most is {times(wired.parallel, wired.best)}: "
            f"{wired.title[0]} on {wired.title[1]}, batch {wired.batch}, under {wired.best.name}."
        )
        yield ""


def smaller(cells: list[Cell]) -> Iterator[str]:
    """Write where the memory is only a part of data parallel's."""
    yield f"## Where memory falls {MEMORY:g}x"
    yield ""
    rows: list[tuple[Cell, Entry, Entry, Entry]] = []
    for cell in cells:
        if cell.parallel is None or cell.frugal is None:
            continue
        limit = cell.parallel.memory_bytes / MEMORY
        fits = [entry for entry in cell.pipelines if entry.memory_bytes <= limit]
        if fits:
            fastest = min(fits, key=lambda entry: entry.minibatch_s)
            rows.append((cell, fastest, cell.parallel, cell.frugal))
    yield (
        f"In {len(rows)} of {len(cells)} configurations some pipeline takes at most a quarter of "
        "data parallel's memory on its fullest device; the fastest of them is listed. A pipeline "
        "spreads weights and optimiser state over the devices and has few micro-batches in flight, "
        "data parallel has all state on each device and, when it is fastest, its whole share of "
        "the batch in flight. The last ratio is against a data parallel that cuts its share into "
        "the micro-batches with the least memory, at the price of time: what it leaves is due to "
        "the state alone. VGG-16 stays far from 4x because one layer, fc6, has three quarters of "
        "all weights and lies on one device. Time is not free: read the speed column with it."
    )
    yield ""
    headings = ["network", "cluster", "batch", "links", "schedule", "micro-batches", "memory"]
    headings += ["data parallel", "less by", "speed over data parallel", "less than its least by"]
    yield from table_of(
        headings,
        (
            (
                *cell.title,
                entry.name,
                entry.num_microbatches,
                gibibytes(entry.memory_bytes),
                gibibytes(parallel.memory_bytes),
                f"{parallel.memory_bytes / entry.memory_bytes:.1f}x",
                times(parallel, entry),
                f"{frugal.memory_bytes / entry.memory_bytes:.1f}x",
            )
            for cell, entry, parallel, frugal in rows
        ),
    )


def slower(cells: list[Cell]) -> Iterator[str]:
    """Write where data parallel is faster than every pipeline."""
    yield "## Where data parallel wins"
    yield ""
    rows = [
        (cell, cell.parallel)
        for cell in cells
        if cell.parallel and cell.parallel.minibatch_s < cell.best.minibatch_s
    ]
    hidden = [
        cell
        for cell in cells
        if cell.overlapped and cell.overlapped.minibatch_s < cell.best.minibatch_s
    ]
    yield (
        f"In {len(rows)} of {len(cells)} configurations, and in {len(hidden)} if the all-reduce "
        "is hidden behind the backward pass as far as it can be. Data parallel wins where links "
        "are fast for the number of weights or the batch is large, so that the all-reduce costs "
        "less than what the pipeline loses: the bubble of filling and draining, stages that cannot "
        "be cut evenly (a layer is never split), and micro-batches too small to fill the array. "
        "The first two are the bubble column."
    )
    yield ""
    headings = ["network", "cluster", "batch", "links", "data parallel", "best pipeline"]
    headings += ["time", "pipeline over data parallel", "cause"]
    yield from table_of(
        headings,
        (
            (
                *cell.title,
                scaled(parallel.minibatch_s, "s"),
                f"{cell.best.name}, {cell.best.num_microbatches} micro-batches",
                scaled(cell.best.minibatch_s, "s"),
                times(parallel, cell.best),
                f"all-reduce {parallel.link_load:.1%} of the time, "
                f"pipeline's bubble {cell.best.bubble_rate:.1%}",
            )
            for cell, parallel in rows
        ),
    )


INTRODUCTION = """\
# Comparison of ways to train

<!-- Made by bench/make_comparison.py; do not edit. -->

**Everything here is predicted; nothing was measured on a board.** Where the column *prices* says
*machine*, times of layers come from the programs that are built and their cycle model, and the
event simulation puts them together: such plans are within 2 % of the simulated hardware
([prediction](prediction.md#measured)). *estimate* stands for the formulas of the
[cost model](cost-model.md), which know nothing of the overhead of instructions: they are for
networks that the core does not run (GNMT-8 has LSTM layers), and for fbp-as, whose two engines are
taken to share a device's arithmetic without loss.

The schedules 1f1b-as, fbp-as, 1f1b-sno and 1f1b-so are a re-implementation from the abstract of
BaPipe (Zhao et al., arXiv 2012.12544), and no table reproduces one of that paper: its boards'
cores, batch sizes and base lines are not known here. The factors 3.2 and 4 that are looked for
below are the ones its abstract names.

`python bench/make_comparison.py` writes this page anew. `fpgapipe compare NETWORK --cluster C
--batch B` prints one of the tables.

## What is compared

* **One device**: the whole network on the device that is fastest at it.
* **Data parallel**: every device has the whole network and a share of the batch, equal or, of
  estimates on unequal boards, in proportion to speed where that is faster; it cuts its share into
  the micro-batches that are fastest. After the last, all devices add up their gradients, and then
  every device updates all weights. With prices of the machine, the sum is the one that is built:
  it goes along the chain and back, in chunks ([pipeline](pipeline.md#data-parallelism)).
  Estimates have a ring all-reduce, which moves 2 (N-1)/N of the gradients over the slowest link.
* **Data parallel, overlapped**: a bound. The sum is concurrent with the last micro-batch's
  backward pass, as if all gradients were there from its beginning.
* **Even split**: stages with equal numbers of layers in the order of the file, under 1f1b-as.
* **Pipelines**: the fastest cut, micro-batch size and array shapes that the planner finds for a
  schedule. It may leave devices unused, and runs a chain of unequal boards in either direction.
* **pipedream** is asynchronous: its time is its share of the steady state, with an update after
  each micro-batch as in PipeDream; one micro-batch means that whole mini-batches follow one
  another. Its weights are stale, so that equal time is not equal progress.

Time is that of a mini-batch, forward, backward and optimiser's step. Speed-up over X is X's time
by this one. The bubble is the share of the time in which the average engine computes neither
forward nor backward pass, so that updates and all-reduce count as bubble. Link load is the share
of the time in which the busiest direction of a link sends. Peak memory is that of the fullest
device, by formulas: weights, gradients, momentum, copies for the array, activations in flight.

Prices of the machine are found for two sizes of a micro-batch, which suit most ways by formulas.
What would change the numbers: further sizes, and other ways than these ([planning](planning.md)):
in this comparison stages are neither replicated nor layers split.
"""


def page(
    jobs: list[tuple[str, str, int, tuple[float, ...]]],
    results: list[tuple[Comparison, list[Cell]]],
) -> str:
    """The whole page."""
    lines = [INTRODUCTION, "## Tables", ""]
    for job, (found, _) in zip(jobs, results, strict=True):
        lines += ways(job, found)
    cells = [cell for _, row in results for cell in row]
    rates = jobs[0][3]
    lines += [
        "## The search",
        "",
        "Every network, cluster and batch of the tables, on links as wired "
        "and with the line rate of every link set to "
        f"{', '.join(f'{rate:g}' for rate in rates if rate)} Gb/s (the rest as it is), "
        f"under {', '.join(BALANCED)} with at least two stages: {len(cells)} configurations. "
        "As wired, VCU118 and U280 have links of 103 Gb/s, two VCU129 one of 212 Gb/s.",
        "",
    ]
    lines += [*faster(cells), *smaller(cells), *slower(cells)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Measure everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--clusters", nargs="+", choices=CLUSTERS, default=list(CLUSTERS))
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES), help="Gb/s")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs/comparison.md")
    options = parser.parse_args()
    rates = tuple(options.rates)
    jobs = [
        (n, c, b, rates)
        for n in options.networks
        for c in options.clusters
        for b in options.batches
    ]
    begin = time.perf_counter()
    results = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool:
        for job, result in zip(jobs, pool.map(measure, jobs), strict=True):
            results.append(result)
            seconds = time.perf_counter() - begin
            print(f"{seconds:4.0f} s: {' '.join(map(str, job[:3]))}", file=sys.stderr)
    options.output.write_text(page(jobs, results), encoding="utf-8")
    print(f"wrote {options.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
