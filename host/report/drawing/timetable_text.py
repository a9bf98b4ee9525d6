"""A timetable as text: a row for each engine, time from left to right, as wide as the terminal."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import counted
from fpgapipe.host.report.drawing.timetable import (
    KIND_WORDS,
    Row,
    busy_shares,
    duration,
    label,
    number,
    rows_of,
    sampled,
    span_of,
    stage_marks,
    summary,
    tick_step,
    unit_of,
)
from fpgapipe.lowering.schedule.schedule import TaskKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.partition.timeline.timeline import Timeline

MIN_WIDTH = 40
MAX_ROWS = 64
"""Most rows that are drawn; of more engines an even selection is drawn."""

_IN_FULL = (TaskKind.F, TaskKind.B, TaskKind.DX, TaskKind.DW)
_SILENT = (TaskKind.U, TaskKind.RF, TaskKind.RB)  # often take no time, which needs no note


@dataclass(frozen=True)
class _Style:
    """Characters of a drawing."""

    bar: str
    fill: str
    idle: str
    gap: str
    kinds: dict[TaskKind, str]
    shades: str
    """Five characters, from idle to wholly busy."""


_SEND, _RECEIVE = (TaskKind.SF, TaskKind.SB), (TaskKind.RF, TaskKind.RB)
_TRANSFERS = (*_SEND, *_RECEIVE)
_ASCII = _Style(
    "|",
    " ",
    ".",
    " ~ ",
    {
        TaskKind.F: "F",
        TaskKind.B: "B",
        TaskKind.DX: "X",
        TaskKind.DW: "W",
        TaskKind.U: "U",
        **dict.fromkeys(_SEND, ">"),
        **dict.fromkeys(_RECEIVE, "<"),
    },
    ".-+*#",
)
_UNICODE = _Style(
    "│",
    " ",
    "·",
    " ⋯ ",
    {
        TaskKind.F: "░",
        TaskKind.B: "▓",
        TaskKind.DX: "▓",
        TaskKind.DW: "▒",
        TaskKind.U: "█",
        **dict.fromkeys(_SEND, "»"),
        **dict.fromkeys(_RECEIVE, "«"),
    },
    "·░▒▓█",
)


def draw_text(
    timeline: Timeline, *, width: int, unicode: bool, names: Sequence[str] | None = None
) -> str:
    """Draw a timetable as text.

    If columns can be in exact proportion to time, tasks have their names (``F0``, ``B0``, ``dX``
    and ``dW``). If a timetable is too long for that, its middle is left out; if not even its
    beginning and its end fit, it is drawn as shades. Notes below say what is left out.

    Parameters
    ----------
    timeline : Timeline
    width : int
        Columns of the terminal; fewer than 40 count as 40.
    unicode : bool
        Whether the terminal shows more than ASCII.
    names : sequence of str, optional
        Names of the devices.

    Returns
    -------
    str
        Lines, each with a line end. None is wider than `width`, unless a name has unusual wide
        characters.
    """
    style = _UNICODE if unicode else _ASCII
    width = max(width, MIN_WIDTH)
    rows = [row for row in rows_of(timeline, names) if not row.is_link]
    notes = []
    kept = sampled(len(rows), MAX_ROWS)
    if len(kept) < len(rows):
        notes.append(f"{len(kept)} of {len(rows):,} engines are shown, evenly chosen.")
    total = len(rows)
    rows = [rows[i] for i in kept]
    gutter = min(max((_columns(row.name) for row in rows), default=0), width // 4)
    heads = [_fit(row.name, gutter) for row in rows]
    span = span_of(rows)
    if span <= 0:
        body, more = ["" for _ in rows], ["No task takes any time."]
        scale = ""
    else:
        drawing = _Drawing(timeline, rows, span, width - gutter - 1, style)
        scale, body, more = drawing.draw()
    lines = _wrapped(summary(timeline), width)
    if span > 0:
        lines.append(f"{_fit(unit_of(span)[1], gutter)} {scale}".rstrip())
    lines += [f"{head} {line}".rstrip() for head, line in zip(heads, body, strict=True)]
    if total == 0:
        more = ["No device has a task."]
    for note in [*more, *notes]:
        lines += _wrapped(note, width)
    text = "\n".join(lines) + "\n"
    return text if unicode else _to_ascii(text)


class _Drawing:
    """The bodies of the rows, in a form that fits the width."""

    def __init__(
        self, timeline: Timeline, rows: list[Row], span: float, room: int, style: _Style
    ) -> None:
        self.rows, self.span, self.room, self.style = rows, span, room, style
        self.marks = stage_marks(timeline.schedule)
        self.kinds = [
            TaskKind(kind)
            for kind in range(len(TaskKind))
            if any((row.end_s > row.start_s)[row.kinds == kind].any() for row in rows)
        ]
        self.skipped = sum(
            int(((row.end_s <= row.start_s) & ~np.isin(row.kinds, _SILENT)).sum()) for row in rows
        )

    def draw(self) -> tuple[str, list[str], list[str]]:
        """Return the scale, a line for each row, and notes."""
        skipped = []
        if self.skipped:
            skipped = [f"{counted(self.skipped, 'task')} that take no time are not shown."]
        scales = []
        unit = self.exact_unit()
        if unit is not None:
            # With a bar before each task, or else without.
            scales = [(unit / each, bars) for bars, each in self.columns_per_unit(unit)]
        for draw in (self.whole, self.elided):
            for column_s, bars in scales:
                drawn = draw(column_s, bars)
                if drawn is not None:
                    scale, lines, notes = drawn
                    return scale, lines, [self.names_legend(), *notes, *skipped]
        scale, lines, notes = self.shaded()
        return scale, lines, [*notes, *skipped]

    def exact_unit(self) -> float | None:
        """Longest time of which all starts and ends are multiples; None if it is tiny."""
        pairs = [(row.start_s, row.end_s - row.start_s) for row in self.rows]
        times = np.unique(np.concatenate([each for pair in pairs for each in pair]))
        tolerance = 1e-9 * self.span
        times = times[times > tolerance]
        longest = max(float(length.max(initial=0.0)) for _, length in pairs)
        unit = float(times[0])
        while unit >= longest / self.room:
            steps = np.rint(times / unit)
            off = np.abs(times - steps * unit)
            worst = int(np.argmax(off))
            if off[worst] <= tolerance:
                # The last time has the most units, and so determines the unit most exactly.
                return float(times[-1] / steps[-1])
            unit = float(off[worst])
        return None

    def columns_per_unit(self, unit: float) -> list[tuple[bool, int]]:
        """Fewest columns for a unit in which names fit, with bars between tasks and without."""
        needs = [0, 0]
        for row in self.rows:
            units = np.rint((row.end_s - row.start_s) / unit).astype(np.int64)
            lengths = self.label_lengths(row)
            drawn = units > 0
            for bars in (0, 1):
                columns = -(-(lengths[drawn] + bars) // units[drawn])
                needs[bars] = max(needs[bars], int(columns.max(initial=1)))
        return [(True, needs[1]), (False, needs[0])]

    def label_lengths(self, row: Row) -> NDArray[np.int64]:
        """Columns of the names of a row's tasks; names of minor tasks may be cut to one column."""
        token = np.array([len(kind.token) for kind in TaskKind])[row.kinds]
        digits = np.ones(len(row.kinds), np.int64)
        for power in range(1, 9):
            digits += row.microbatches >= 10**power
        marks = np.array([len(mark) for mark in self.marks])[row.stages]
        lengths = token + np.where(row.microbatches < 0, 0, digits) + marks
        return np.where(np.isin(row.kinds, _IN_FULL), lengths, 1)

    def whole(self, column_s: float, bars: bool) -> tuple[str, list[str], list[str]] | None:
        """Draw every task with its name; None if there is no room."""
        needed = round(self.span / column_s) + bars
        if needed > self.room:
            return None
        lines = [self.exact(row, column_s, bars, 0, needed) for row in self.rows]
        return self.scale(0, needed, column_s), lines, []

    def elided(self, column_s: float, bars: bool) -> tuple[str, list[str], list[str]] | None:
        """Draw the beginning and the end.

        Returns None unless every row begins in the part shown first, and ends in the other.
        """
        half = (self.room - len(self.style.gap)) // 2
        tail = round(self.span / column_s) + bars - half
        left, right = half * column_s, tail * column_s
        used = [row for row in self.rows if len(row.start_s)]
        if max(row.start_s[0] for row in used) > 0.8 * left:
            return None
        if min(row.end_s[-1] for row in used) < right + 0.2 * left:
            return None
        parts = [(0, half), (tail, tail + half)]
        join = self.style.gap.join
        lines = [
            join(self.exact(row, column_s, bars, *part) for part in parts) for row in self.rows
        ]
        hidden = sum(int(((row.start_s >= left) & (row.end_s <= right)).sum()) for row in self.rows)
        note = (
            f"Not shown: {duration(left)} to {duration(right)}, with {counted(hidden, 'task')} of "
            f"{sum(len(row.kinds) for row in self.rows):,}."
        )
        return join(self.scale(*part, column_s) for part in parts), lines, [note]

    def exact(self, row: Row, column_s: float, bars: bool, first: int, last: int) -> str:
        """Draw the columns `first..last - 1` of a row."""
        style = self.style
        canvas = [style.idle] * (last - first)
        begin = np.rint(row.start_s / column_s).astype(np.int64)
        end = np.rint(row.end_s / column_s).astype(np.int64)
        for i in np.flatnonzero((end >= first) & (begin < last) & (end > begin)).tolist():
            a, b = int(begin[i]), int(end[i])
            kind = TaskKind(int(row.kinds[i]))
            word = label(kind, int(row.microbatches[i]), self.marks[row.stages[i]])
            if kind in _TRANSFERS:
                word = style.kinds[kind] * (b - a)
            if a < first:
                word = ""  # A part of a name would be mistaken for another name.
            if bars:
                # The bar behind the task is overwritten by the one before the next.
                cell = style.bar + word[: b - a - 1].ljust(b - a - 1, style.fill) + style.bar
            else:
                cell = word[: b - a].ljust(b - a, style.fill)
            skip = max(0, first - a)
            cell = cell[skip : last - a]
            at = max(a, first) - first
            canvas[at : at + len(cell)] = cell
        return "".join(canvas)

    def shaded(self) -> tuple[str, list[str], list[str]]:
        """Draw everything: each column shows the kind that fills most of it, or how busy it is."""
        style = self.style
        column_s = self.span / self.room
        lengths = np.concatenate([row.end_s - row.start_s for row in self.rows])
        by_kind = float(np.median(lengths[lengths > 0])) >= column_s
        edges = np.linspace(0.0, self.span, self.room + 1)
        lines = []
        for row in self.rows:
            shares = busy_shares(row, edges)
            idle = 1.0 - np.sum([np.zeros(self.room), *shares.values()], axis=0)
            if by_kind:
                marks = style.idle + "".join(style.kinds[kind] for kind in shares)
                # A column is idle where no kind has more of it than idleness.
                best = np.argmax([np.maximum(idle, 1e-9), *shares.values()], axis=0)
            else:
                marks = style.shades
                best = np.ceil(np.clip(1.0 - idle - 1e-6, 0.0, 1.0) * 4).astype(int)
            lines.append("".join(marks[i] for i in best.tolist()))
        column = f"A column is {duration(column_s, digits=3)}"
        if by_kind:
            words = ", ".join(self.words(lambda _: True))
            note = f"{column}: {words}, {style.idle} idle."
        else:
            steps = ("idle", "to 25 %", "to 50 %", "to 75 %", "to 100 %")
            legend = [f"{mark} {step}" for mark, step in zip(style.shades, steps, strict=True)]
            count = counted(sum(len(row.kinds) for row in self.rows), "task")
            note = f"{column}, shaded by how busy: {', '.join(legend)}; {count} in all."
        return self.scale(0, self.room, column_s), lines, [note]

    def names_legend(self) -> str:
        """Explain the names of the tasks."""
        words = self.words(lambda kind: kind in _TRANSFERS)
        marks = " a, b...: the device's first, second stage;" if any(self.marks) else ""
        return f"{', '.join(words)}, {self.style.idle} idle;{marks} the number is the micro-batch."

    def words(self, marked: Callable[[TaskKind], bool]) -> list[str]:
        """Return for each kind its mark or its name, and what that means."""
        words: dict[str, list[str]] = {}
        for kind in self.kinds:
            sign = self.style.kinds[kind] if marked(kind) else kind.token
            words.setdefault(sign, []).append(KIND_WORDS[kind])
        return [f"{sign} {' or '.join(each)}" for sign, each in words.items()]

    def scale(self, first: int, last: int, column_s: float) -> str:
        """Draw ticks above the columns `first..last - 1`, each number at the column of its time."""
        factor, _ = unit_of(self.span)
        begin, end = first * column_s / factor, last * column_s / factor
        widest = len(number(end, 4)) + 3
        step = tick_step(end - begin, max(1, (last - first) // max(widest, 9)))
        canvas = [" "] * (last - first)
        tick = int(np.ceil(begin / step - 1e-9))
        while tick * step <= end * (1 + 1e-9):
            word = self.style.bar + number(tick * step, 6)
            at = round(tick * step * factor / column_s) - first
            if at >= 0 and at + len(word) <= last - first:
                canvas[at : at + len(word)] = word
            tick += 1
        return "".join(canvas)


def _columns(text: str) -> int:
    """Number of columns that a text takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)


def _fit(text: str, columns: int) -> str:
    """Fill a text up to some columns, or cut it and end it with an ellipsis."""
    if _columns(text) > columns:
        while text and _columns(text) > columns - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (columns - _columns(text))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _to_ascii(text: str) -> str:
    """Replace characters that are not ASCII by ASCII of the same width."""
    for mark, plain in (("µ", "u"), ("…", "~")):
        text = text.replace(mark, plain)
    return "".join(c if c.isascii() else "?" * max(0, _columns(c)) for c in text)
