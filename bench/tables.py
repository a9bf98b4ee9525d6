"""Writes the tables of docs/ that have figures, from the files in docs/figures.

``python bench/tables.py`` puts each table of `TABLES` in the place of the one with the same heading
on its page. The files are written by the benches that they name; a test compares pages with files.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parent.parent / "docs"

Figures = dict[str, Any]
Rows = Iterator[list[str]]

_NETWORKS = {
    "resnet50": "ResNet-50",
    "mobilenet_v2": "MobileNet-v2",
    "vgg16": "VGG-16",
    "gnmt8": "GNMT-8",
    "gpt2_small": "GPT-2 small",
}

_CLOCKS = {
    "receive": "receive",
    "vector.reader": "vector reader",
    "load": "load",
    "store": "store",
    "gemm.reader": "operand reader",
    "gemm.results": "results",
    "send": "send",
    "sequencer": "sequencer",
    "registers": "registers",
    "scratchpad": "scratchpad",
    "vector.writer": "vector writer",
    "vector.lanes": "vector lanes, function units",
    "gemm.datapath": "datapath",
    "gemm.writer": "result writer",
}

_CLOCKED = ("4x4, 4 lanes", "8x8, two links", "32x4, 16 lanes, two links")
"""Cores whose clocks have a column."""


class Table(NamedTuple):
    """A table of a page.

    Attributes
    ----------
    page, figures : str
        Names of the page in docs/ and of the file in docs/figures.
    heading : tuple of str
        Its columns.
    rows : callable
        Makes the cells from the figures.
    """

    page: str
    figures: str
    heading: tuple[str, ...]
    rows: Callable[[Figures], Rows]

    def text(self) -> str:
        """The table as Markdown."""
        figures = json.loads((DOCS / "figures" / self.figures).read_text())
        lines = [_line(self.heading), "|---" * len(self.heading) + "|"]
        return "\n".join([*lines, *map(_line, self.rows(figures))])


def _line(cells: Sequence[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def rate(per_s: float) -> str:
    """A number of samples a second with three digits."""
    return f"{per_s:.{max(0, 2 if per_s < 10 else 3 - len(str(int(per_s))))}f}"


def _boards(figures: Figures) -> Rows:
    for case in figures["cases"]:
        shared = case["shared"]
        cores = ", ".join(shared["cores"])
        way = "samples shared" if shared["kind"] == "data-parallel" else "pipeline"
        yield [
            *(_NETWORKS[case["network"]], case["board"], str(shared["batch"])),
            *(rate(case["one_core"]["samples_per_s"]), rate(shared["samples_per_s"])),
            f"{way}: {cores}",
        ]


def _clocks(figures: Figures) -> Rows:
    cores = [figures["cores"][name] for name in _CLOCKED]
    for block, name in _CLOCKS.items():
        clocks = [core[block]["clock_mhz"] if block in core else None for core in cores]
        yield [name, *(f"{int(clock)} MHz" if clock else "" for clock in clocks)]


def _largest(figures: Figures) -> Rows:
    for board, found in figures["largest"].items():
        takes, there = found["takes"], found["may_take"]
        kinds = ("lut", "bram36", "uram", "dsp")
        cells = [f"{takes[kind]:,} / {there[kind]:,}" for kind in kinds]
        cells[0] += " (LUT4)" if found["lut_inputs"] == 4 else ""
        yield [board, found["core"], *cells]


def _dies(figures: Figures) -> Rows:
    for name, nodes in figures["dies"].items():
        for number, sizes in nodes.items():
            dies = dict.fromkeys(at.split()[0] for each in sizes.values() for at in each)
            alike: dict[tuple[str, ...], list[str]] = {}
            for die in dies:
                cells = []
                for each in sizes.values():
                    of_die = [_held(node) for at, node in each.items() if at.split()[0] == die]
                    cells.append("; ".join(dict.fromkeys(of_die)))
                alike.setdefault(tuple(cells), []).append(die)
            for held, where in alike.items():
                yield [name, number.split()[0], ", ".join(where), *held]


def _held(found: Figures) -> str:
    """A node of a die: its cells and lanes, or what it lacks most."""
    core = found["core"]
    return f"{core['form']} {core['lanes']}" if found["fits"] else f"-{found['lacks_most']}"


def _layers(figures: Figures) -> Rows:
    training, forward = (
        figures["cases"][f"resnet50 {which} 1"] for which in ("training", "forward")
    )
    for group in dict.fromkeys(name.split(".")[0] for name in training):
        cells = [group]
        for number, case in enumerate((training, forward)):
            layers = [each for name, each in case.items() if name.split(".")[0] == group]
            macs, cycles = (sum(each[key] for each in layers) for key in ("macs", "array_cycles"))
            share = macs / cycles / (32 * 32)
            cells += [f"{macs / 1e6:,.0f} M"] if number == 0 else []
            cells += [f"{cycles:,}", f"{share:.0%}".replace("%", " %")]
        yield cells


TABLES = (
    Table(
        "boards.md", "whole-boards.json",
        ("network", "board", "samples", "one core", "nodes", "a board's cores"), _boards,
    ),
    Table(
        "clock.md", "clock-paths.json",
        ("block", *_CLOCKED), _clocks,
    ),
    Table(
        "cost-model.md", "dies.json",
        ("device", "largest core", "LUT", "BRAM36", "URAM", "DSP"), _largest,
    ),
    Table(
        "cost-model.md", "dies.json",
        ("board", "nodes a die", "die", "32x32", "32x64", "32x128"), _dies,
    ),
    Table(
        "real-networks.md", "real-networks.json",
        ("layers", "MACs of the step", "cycles of the step", "share", "forward cycles", "share"),
        _layers,
    ),
)  # fmt: skip


def written(page: str) -> str:
    """The text of a page with its tables made from their files."""
    text = (DOCS / page).read_text()
    for table in TABLES:
        if table.page == page:
            pattern = rf"^{re.escape(_line(table.heading))}\n(?:\|.*\n?)*"
            parts = re.split(pattern, text, flags=re.MULTILINE)
            if len(parts) != 2:
                raise SystemExit(f"{page} has not one table with the columns {table.heading}")
            text = f"{table.text()}\n".join(parts)
    return text


def main() -> None:
    """Write all pages that have such tables."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for page in dict.fromkeys(table.page for table in TABLES):
        (DOCS / page).write_text(written(page))


if __name__ == "__main__":
    main()
