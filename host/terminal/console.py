"""Tables, progress and log lines: drawn with rich on a terminal, plain text elsewhere.

The library rich is imported only when something is drawn, so that ``fpgapipe --help`` stays quick.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.host.terminal.escapes import escaped, escaping, unescaped
from fpgapipe.output import beside_output

if TYPE_CHECKING:
    from fpgapipe.host.terminal.progress import Display


@dataclass(frozen=True)
class Table:
    """Rows of cells below headings; ``str`` gives aligned plain text, which has no line wrapped.

    The plain form never wraps or shortens a cell, so that programs such as grep and cut can read
    it.

    Attributes
    ----------
    headings : str
        Headings of the columns, with ``|`` between; ``>`` in front of one says that the column is
        aligned to the right, as numbers are.
    rows : sequence of sequence
    title : str
    """

    headings: str
    rows: Sequence[Sequence[object]]
    title: str = ""

    @property
    def _columns(self) -> Iterator[tuple[bool, list[str]]]:
        """Whether each column is aligned to the right, and its heading and cells."""
        cells = [[escaped(str(cell), is_cell=True) for cell in row] for row in self.rows]
        headings = escaped(self.headings, is_cell=True).split("|")
        for heading, *texts in zip(headings, *cells, strict=True):
            yield heading.startswith(">"), [heading.removeprefix(">"), *texts]

    def __str__(self) -> str:
        columns = []
        for is_number, texts in self._columns:
            align = ">" if is_number else "<"
            columns.append([f"{each:{align}{max(map(len, texts))}}" for each in texts])
        lines = [escaped(self.title)] if self.title else []
        lines += ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
        return "\n".join(lines)

    def print(self) -> None:
        """Print to standard output: drawn on a terminal, aligned plain text elsewhere.

        The drawn form wraps cells only between words, since half a number or half a name would
        mislead. If the terminal is too narrow even then, the terminal wraps whole lines.
        """
        if not sys.stdout.isatty():
            print(self)
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table as Drawn
        from rich.text import Text

        # A text, unlike a string, has no markup of rich's, such as links.
        title = Text(escaped(self.title)) if self.title else None
        table = Drawn(title=title, box=box.SIMPLE_HEAD, title_justify="left")
        columns = list(self._columns)
        for is_number, texts in columns:
            table.add_column(
                Text(texts[0]),
                justify="right" if is_number else "left",
                no_wrap=is_number,
                min_width=max(map(len, " ".join(texts).split()), default=0),
            )
        for row in list(zip(*(texts for _, texts in columns), strict=True))[1:]:
            table.add_row(*map(Text, row))
        console = Console(file=unescaped(sys.stdout))
        needed = console.measure(table).minimum
        console.print(table, width=max(console.width, needed), crop=False)


def print_json(value: object) -> None:
    """Print one JSON object to standard output; within `json_alone`, at its end."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    if _held:
        _held[-1].append(text)
    else:
        sys.stdout.write(text)


_held: list[list[str]] = []
"""Texts that `print_json` was given, for each `json_alone` that has not ended."""


@contextlib.contextmanager
def json_alone() -> Iterator[None]:
    """Keep standard output free of all but the objects that `print_json` is given.

    All that a user's module, libraries in C, and programs that they start may print goes to
    standard error.
    """
    texts: list[str] = []
    _held.append(texts)
    try:
        with beside_output():
            yield
    finally:
        _held.remove(texts)
    sys.stdout.write("".join(texts))


@contextlib.contextmanager
def progress(kind: str = "auto") -> Iterator[Display]:
    """Show progress on standard error.

    Parameters
    ----------
    kind : str
        ``auto`` for a bar on a terminal and else a line now and then, ``lines`` for such lines on a
        terminal as well, ``json`` for lines of JSON, or ``none``.
    """
    from rich.console import Console

    from fpgapipe.host.terminal.progress import Display, lines_of

    console = Console(file=unescaped(sys.stderr), stderr=True)
    is_quiet = logging.getLogger("fpgapipe").getEffectiveLevel() > logging.INFO
    if kind == "none" or (is_quiet and kind != "json"):
        yield Display()
    elif kind != "auto" or not console.is_terminal:
        display = Display()
        with lines_of(display, as_json=kind == "json"):
            yield display
    else:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        with bar, escaping():  # as the bar draws all that is printed meanwhile
            yield Display(bar)


def count(value: float) -> str:
    """Write a count with thousands separators: ``1,304,000``."""
    return f"{value:,.0f}"


def scaled(value: float, unit: str, base: int = 1000) -> str:
    """Write a quantity with a prefix, to three digits: ``460 GB/s``, ``8 GiB``, ``2.16 ms``."""
    if base == 1000 and 0 < abs(value) < 0.9995:
        small = ["", "m", "u", "n", "p"]
        step = 0
        while abs(value) < 0.9995 and step < len(small) - 1:
            value *= 1000
            step += 1
        return f"{value:.3g} {small[step]}{unit}"
    large = ["", "K", "M", "G", "T", "P"] if base == 1024 else ["", "k", "M", "G", "T", "P"]
    step = 0
    while abs(value) >= (999.5 if base == 1000 else base) and step < len(large) - 1:
        value /= base
        step += 1
    infix = "i" if base == 1024 and step else ""
    number = f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
    return f"{number} {large[step]}{infix}{unit}"


class _StandardError(logging.Handler):
    """Writes to the present `sys.stderr`, since a progress display replaces it while it runs."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(escaped(self.format(record)), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def set_up_logging(verbosity: int) -> None:
    """Send log lines to standard error; verbosity -1 shows errors, 0 also notes, 1 all lines."""
    handler = _StandardError()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("fpgapipe")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel({-1: logging.ERROR, 0: logging.INFO}.get(verbosity, logging.DEBUG))
