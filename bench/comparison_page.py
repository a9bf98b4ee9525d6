"""The page docs/comparison.md, from the file of figures that `make_comparison.py` writes."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from fpgapipe.host.terminal.console import scaled

FIGURES = "docs/figures/comparison.json"

NAMES = {
    "pipeline": "pipeline",
    "data": "data parallel",
    "layerwise": "layer-wise",
    "hybrid": "hybrid",
}
KEYS = {name: way for way, name in NAMES.items()}

SPEEDUP = 3.2
MEMORY = 4.0

Row = dict[str, Any]

INTRODUCTION = """\
# Comparison of ways to train

<!-- Made by bench/make_comparison.py; do not edit. -->

**Everything here is predicted; nothing was measured on a board.** Times are those of the plans' own
programs by the cycle model, which is within 2 % of the simulated hardware
([prediction](prediction.md#measured)), or (*estimate*) those of formulas
([cost model](cost-model.md)).

* **Pipeline**: the fastest of 1f1b-as, zb-h1 and zb-h2 with two stages or more.
* **Data parallel**: every device has the whole network and an equal share of the batch; the sum of
  gradients follows the last backward pass.
* **Layer-wise**: each layer is cut by samples, channels or rows, or whole
  ([strategies](strategies.md)). Layers of GNMT-8 whose first axis is time stay whole.
* **Hybrid**: a pipeline with a stage of
  [several devices](strategies.md#stages-of-several-devices).

`fpgapipe plan NETWORK --cluster C --batch B --strategy auto` takes the fastest. Times are those of
mini-batches. A search tries some plans of each way, so one for faster links may be slower:
by {lag:.1%} at most ({where}).
`{figures}` has time, memory and schedule of each configuration;
`python bench/make_comparison.py` writes both anew.
"""


def page(figure: dict[str, Any]) -> str:
    """The whole page."""
    rows: list[Row] = figure["rows"]
    lag, where = largest_lag(rows)
    lines = [INTRODUCTION.format(figures=FIGURES, lag=lag, where=where)]
    lines += [*fastest_ways(rows), *wins(rows), *claims(rows)]
    if figure["left_out"]:
        lines += ["## Left out", "", *(f"* {reason}" for reason in figure["left_out"])]
    return "\n".join(lines).rstrip() + "\n"


def fastest_ways(rows: Sequence[Row]) -> list[str]:
    """The table of the fastest way for each network, cluster and batch, by the rate of links."""
    table = []
    for alike in by_rate(rows):
        rates: dict[str, list[str]] = {}
        for row in alike:
            rates.setdefault(row["fastest"], []).append(f"{row['gbits']:g}")
        ways = [f"{way} ({', '.join(those)} Gb/s)" for way, those in rates.items()]
        times = sorted(row[f"{KEYS[row['fastest']]}_s"] for row in alike)
        ends = dict.fromkeys(scaled(time, "s") for time in (times[0], times[-1]))
        ratios = (spread(row[f"over_{way}"] for row in alike) for way in ("data", "pipeline"))
        fastest = ", ".join(ways) if len(ways) > 1 else next(iter(rates))
        configuration = (alike[0][name] for name in ("network", "cluster", "batch"))
        level = " (estimate)" if any(row["prices"] == "estimate" for row in alike) else ""
        table.append([*configuration, fastest, " to ".join(ends) + level, *ratios])
    rates_of_all = ", ".join(f"{rate:g}" for rate in sorted({row["gbits"] for row in rows}))
    headings = ["network", "cluster", "batch", "fastest", "time", "over data parallel"]
    return [
        "## The fastest ways",
        "",
        f"Links have {rates_of_all} Gb/s; times and ratios are the least and the most over these.",
        "",
        *table_of([*headings, "over pipeline"], table),
    ]


def spread(values: Iterable[float | None]) -> str:
    """The least and the most of some ratios."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    ends = [f"{end:.2f}" for end in (min(known), max(known))]
    return f"{ends[0]}x" if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}x"


def title(row: Row) -> str:
    """The configuration of a row."""
    return f"{row['network']}, {row['cluster']}, {row['batch']}, {row['gbits']:g} Gb/s"


WHY = {
    "pipeline": (
        "Links carry the activations of a few layers, not all gradients, and a device reads its "
        "own weights alone. Filling, draining and the fullest stage cost the more, the more "
        "devices there are."
    ),
    "data": (
        "Devices wait for each other in the sum of gradients alone, and read weights less often "
        "than the smaller micro-batches of a pipeline."
    ),
    "layerwise": (
        "Layers with many weights are cut by channels: their gradients are not summed, and each "
        "device updates its own part. Cut by samples alone, it is data parallelism with cores that "
        "its own search has found."
    ),
    "hybrid": (
        "Groups balance a network that no cut divides evenly, at the cost of filling a pipeline "
        "and of the sum of a group."
    ),
}


def wins(rows: Sequence[Row]) -> list[str]:
    """Where each way is the fastest, by how much, and why."""
    lines = ["## Where each way wins, and why", ""]
    for way, name in NAMES.items():
        won = [row for row in rows if row["fastest"] == name]
        text = f"* **{name[0].upper()}{name[1:]}** is the fastest in {len(won)} of {len(rows)}"
        if won:
            sizes: dict[str, dict[int, None]] = {}
            for row in won:
                sizes.setdefault(row["network"], {})[row["batch"]] = None
            places = (
                f"{network}, {' and '.join(map(str, batches))} samples"
                for network, batches in sizes.items()
            )
            ahead = spread(row["over_next"] for row in won)
            text += f" ({'; '.join(places)})"
            text += f", {ahead} as fast as the next way" if ahead != "-" else ""
            shares = [row["sum_share"] for row in won if row.get("sum_share") is not None]
            if shares:
                ends = dict.fromkeys(f"{end:.0%}" for end in (min(shares), max(shares)))
                text += f"; the sum of gradients takes {' to '.join(ends)} of data parallelism"
        why = WHY[way]
        if way == "data" and (gbits := least_rate_of_sums(rows)):
            why += f" From {gbits:g} Gb/s on, memory bounds the sum, not links."
        lines += textwrap.wrap(f"{text}. {why}", 100, subsequent_indent="  ")
    return [*lines, ""]


def by_rate(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows that differ in the rate of links alone, the slowest links first."""
    for _, group in groupby(rows, lambda row: (row["network"], row["cluster"], row["batch"])):
        yield sorted(group, key=lambda row: float(row["gbits"]))


def largest_lag(rows: Iterable[Row]) -> tuple[float, str]:
    """The most by which a way is slower than with slower links, as a share, and where."""
    found = [(0.0, "nowhere")]
    for alike in by_rate(rows):
        for way, name in NAMES.items():
            known = [row for row in alike if row[f"{way}_s"] is not None]
            for number, row in enumerate(known[1:], 1):
                least = min(each[f"{way}_s"] for each in known[:number])
                found.append((row[f"{way}_s"] / least - 1, f"{title(row)}, {name}"))
    return max(found)


def least_rate_of_sums(rows: Iterable[Row]) -> float | None:
    """Rate of links, Gb/s, from which on no data parallelism is faster by more than 0.1 %."""
    rates: set[float] = set()
    for alike in by_rate(rows):
        known = [row for row in alike if row["data_s"] is not None]
        if known:
            limit = 1.001 * min(row["data_s"] for row in known)
            rates.add(next(row["gbits"] for row in known if row["data_s"] <= limit))
    return max(rates, default=None)


def claims(rows: Sequence[Row]) -> list[str]:
    """Where pipelines gain what BaPipe's abstract names, and where they lose."""
    pairs = [row for row in rows if row["pipeline_over_data"] is not None]
    quick = [row for row in pairs if row["pipeline_over_data"] >= SPEEDUP]
    small = [row for row in pairs if row["less_memory"] >= MEMORY]
    slow = [row for row in pairs if row["data_s"] < row["pipeline_s"]]
    hidden = [row for row in pairs if row["hidden_sum_is_faster"]]
    most = max(pairs, key=lambda row: row["pipeline_over_data"])
    least = max(pairs, key=lambda row: row["less_memory"])
    text = (
        f"BaPipe's abstract names {SPEEDUP}x the speed of data parallelism, and {MEMORY:g} times "
        f"less memory. Of {len(pairs)} configurations, a pipeline of single devices is {SPEEDUP} "
        f"times as fast in {len(quick)}, and takes a quarter of the memory in {len(small)}. The "
        f"most is {most['pipeline_over_data']:.2f}x the speed ({title(most)}) and "
        f"{least['less_memory']:.1f} times less memory ({title(least)}). Data parallelism is "
        f"faster in {len(slow)}, and in {len(hidden)} if its last backward pass hid the sum as "
        "far as possible."
    )
    return ["## Pipelines and data parallelism", "", *textwrap.wrap(text, 100), ""]


def table_of(headings: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    headings = list(headings)
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""
