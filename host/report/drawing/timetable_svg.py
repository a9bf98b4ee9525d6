"""A timetable as a self-contained SVG: rows, links, hover text, light and dark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import counted
from fpgapipe.host.report.drawing.theme import themed
from fpgapipe.host.report.drawing.timetable import (
    KIND_WORDS,
    Row,
    TransferBytes,
    busy_shares,
    bytes_of,
    device_names,
    duration,
    label,
    number,
    percent,
    rows_of,
    sampled,
    span_of,
    stage_marks,
    summary,
    tick_step,
    unit_of,
)
from fpgapipe.host.terminal.console import scaled
from fpgapipe.lowering.schedule.schedule import TaskKind

if TYPE_CHECKING:
    from fpgapipe.partition.timeline.timeline import Timeline

WIDTH = 1200
RIGHT = 64
"""Width of the share of time to the right of a row."""
LANE_HEIGHT, LINK_HEIGHT, GAP = 30, 13, 4
MAX_DEVICES = 64
MAX_RECTANGLES = 8_000

RULES = """
.tt { font-family:system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif; background:var(--paper); }
@media print { .tt { print-color-adjust:exact; -webkit-print-color-adjust:exact; } }
.tt text { fill:var(--ink); font-size:12px; }
.tt .head { font-size:17px; font-weight:600; }
.tt .group { font-size:13px; font-weight:600; }
.tt .soft, .tt .tick, .tt .share { fill:var(--soft); font-variant-numeric:tabular-nums; }
.tt .link text { fill:var(--soft); font-size:10.5px; }
.tt .lane { fill:var(--track); }
.tt .grid { stroke:var(--grid); stroke-width:1; }
.tt .t text { text-anchor:middle; font-size:11.5px; pointer-events:none; }
.tt .wide rect { stroke:var(--paper); stroke-width:.8; }
.tt .part rect { stroke:none; }
.tt .F rect, .tt rect.F { fill:var(--F); } .tt .B rect, .tt rect.B { fill:var(--B); }
.tt .dX rect, .tt rect.dX { fill:var(--dX); } .tt .dW rect, .tt rect.dW { fill:var(--dW); }
.tt .U rect, .tt rect.U { fill:var(--U); } .tt .SF rect, .tt rect.SF { fill:var(--SF); }
.tt .SB rect, .tt rect.SB { fill:var(--SB); }
.tt .RF rect, .tt rect.RF, .tt .RB rect, .tt rect.RB { fill:var(--wait); }
.tt .odd rect { fill-opacity:.62; }
"""
"""CSS rules of a picture in a page that has the variables of `themed`."""

STYLE = themed(".tt", set(re.findall(r"--(\w+)", RULES))) + RULES
"""CSS rules and variables of a picture by itself."""


def draw_svg(
    timeline: Timeline,
    *,
    names: Sequence[str] | None = None,
    transfer_bytes: TransferBytes = None,
    heading: bool = True,
    max_rectangles: int = MAX_RECTANGLES,
) -> str:
    """Draw a timetable as SVG.

    Hover text says what a task is, where and when it runs, how long it takes, and how many bytes a
    transfer has. If there are more than 64 devices, only some are drawn; rows with too many tasks
    are drawn as shares of time. The picture says both below.

    Parameters
    ----------
    timeline : Timeline
    names : sequence of str, optional
        Names of the devices.
    transfer_bytes : mapping or callable, optional
        Bytes of one transfer by its kind (``SF``, ``SB``) and stage.
    heading : bool
        Whether the picture has a heading that says what it shows.
    max_rectangles : int
        Approximate largest number of rectangles that are drawn.

    Returns
    -------
    str
        An ``<svg>`` element that needs nothing else.
    """
    schedule = timeline.schedule
    named, marks = device_names(schedule, names), stage_marks(schedule)
    rows = rows_of(timeline, names)
    picture = _Picture(rows, named, marks, transfer_bytes, max_rectangles)
    return picture.draw(summary(timeline), heading, STYLE)


def draw_rows(
    rows: Sequence[Row],
    *,
    names: Sequence[str],
    title: str,
    remark: Callable[[Row, int], str] = lambda row, index: "",
    max_rectangles: int = MAX_RECTANGLES,
) -> str:
    """Draw rows of several groups one above the other, on one axis.

    The page that takes the picture has `RULES` and the variables of `themed`.

    Parameters
    ----------
    rows : sequence of Row
        Rows, those of a group one after the other; each group gets its name above.
    names : sequence of str
        Names of the devices.
    title : str
        Text that screen readers read out instead of the picture.
    remark : function
        Function of a row and the index of a task in it; returns a further line of hover text, or
        "".
    max_rectangles : int
        Approximate largest number of rectangles that are drawn.

    Returns
    -------
    str
        An ``<svg>`` element.
    """
    stages = max((int(row.stages.max()) + 1 for row in rows if len(row.stages)), default=1)
    picture = _Picture(rows, names, [""] * stages, None, max_rectangles, remark)
    return picture.draw(title, False, "")


class _Picture:
    def __init__(
        self,
        rows: Sequence[Row],
        names: Sequence[str],
        marks: list[str],
        transfer_bytes: TransferBytes,
        max_rectangles: int,
        remark: Callable[[Row, int], str] = lambda row, index: "",
    ) -> None:
        self.transfer_bytes = transfer_bytes
        self.names = names
        self.marks = marks
        self.remark = remark
        self.notes: list[str] = []
        self.rows = self.rows_to_draw(rows)
        self.span = span_of(self.rows)
        # A page may name rows by their group, too.
        longest = max(
            (len(words) for row in self.rows for words in (row.name, row.group)), default=0
        )
        self.gutter = min(max(64, 16 + round(7.0 * longest)), 260)
        self.plot = WIDTH - self.gutter - RIGHT
        num_tasks = sum(len(row.kinds) for row in self.rows)
        # Lanes with more tasks than this are drawn as shares of time.
        self.columns = max(16, max_rectangles // (2 * max(1, len(self.rows))))
        self.merges = num_tasks > max_rectangles
        self.kinds: set[TaskKind] = set()

    def rows_to_draw(self, rows: Sequence[Row]) -> list[Row]:
        """Leave out links without transfer times and devices beyond `MAX_DEVICES`, and note it."""
        busy = [row for row in rows if not row.is_link or row.busy_s > 0]
        if len(busy) < len(rows):
            self.notes.append(
                f"{counted(len(rows) - len(busy), 'link')} whose transfers take no time: not drawn."
            )
        devices = sorted({row.device for row in busy})
        if len(devices) > MAX_DEVICES:
            kept = {devices[i] for i in sampled(len(devices), MAX_DEVICES)}
            busy = [row for row in busy if row.device in kept and not row.is_link]
            self.notes.append(
                f"{MAX_DEVICES} of {len(devices):,} devices are drawn, evenly chosen, no links."
            )
        return busy

    def draw(self, title: str, heading: bool, style: str) -> str:
        """Draw the whole picture."""
        top = 66 if heading else 28
        many = len({row.device for row in self.rows}) > 16
        y = top + 26.0
        body: list[str] = []
        group = ""
        for row in self.rows:
            if row.group != group:
                group = row.group
                y += 4 if group == self.rows[0].group else 14
                body.append(
                    f'<text class="group" x="{self.gutter}" y="{y + 8:g}">{escape(group)}</text>'
                )
                y += 16
            height = LINK_HEIGHT if row.is_link else LANE_HEIGHT
            if many:
                height = 6 if row.is_link else 18
            body += self.lane(row, y, height)
            y += height + (2 if many else GAP)
        bottom = y + 2
        if self.span <= 0:
            self.notes.insert(0, "No task takes any time.")
        tail = []
        y = bottom + 18
        for note in self.notes:
            tail.append(f'<text class="soft" x="{self.gutter}" y="{y:g}">{escape(note)}</text>')
            y += 17
        tall = y if self.notes else bottom + 6
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="tt" viewBox="0 0 {WIDTH} {tall:g}" '
            f'width="100%" role="img" aria-label="Timetable: {escape(title)}" '
            f'data-left="{self.gutter}" data-right="{RIGHT}" data-span="{self.span!r}" '
            f'data-top="{top + 18}" data-bottom="{bottom:g}">',
            f"<style>{style}</style>" if style else "",
            f'<rect class="paper" width="{WIDTH}" height="{tall:g}" fill="var(--paper)"/>',
        ]
        if heading:
            parts.append(f'<text class="head" x="16" y="30">{escape(title)}</text>')
        parts += self.legend(top - 12)
        parts += self.axis(top + 12, top + 18, bottom)
        return "\n".join([*parts, *body, *tail, "</svg>"]) + "\n"

    def legend(self, y: float) -> Iterator[str]:
        """Draw a swatch and a word for each kind of task in the picture."""
        x = float(self.gutter)
        yield '<g class="legend">'
        for kind in sorted(self.kinds):
            words = KIND_WORDS[kind]
            if kind <= TaskKind.U:
                words = f"{kind.token} {words}"
            yield _swatch(kind.token, x, y, words)
            x += 20 + 6.6 * len(words) + 22
        yield _swatch("lane", x, y, "idle")
        if any(self.marks):
            word = "a, b…: stages of one device"
            yield f'<text class="soft" x="{x + 66:g}" y="{y}">{word}</text>'
        yield "</g>"

    def axis(self, y: float, top: float, bottom: float) -> Iterator[str]:
        """Draw ticks, their times, and the heading of the numbers at the rows."""
        factor, unit = unit_of(self.span)
        for word, css, x in ((unit, "unit", self.gutter - 10), ("busy", "share", WIDTH - 10)):
            yield f'<text class="soft {css}" x="{x}" y="{y}" text-anchor="end">{word}</text>'
        yield '<g class="axis">'
        step = tick_step(self.span / factor, 12)
        count = int(self.span / factor / step * (1 + 1e-9)) if self.span > 0 else 0
        for i in range(count + 1):
            at = self.x(i * step * factor)
            word = number(i * step, 6)
            yield f'<line class="grid" x1="{at}" x2="{at}" y1="{top}" y2="{bottom:g}"/>'
            yield f'<text class="tick" x="{at}" y="{y}" text-anchor="middle">{word}</text>'
        yield "</g>"

    def x(self, time_s: float) -> str:
        """Horizontal coordinate of a time."""
        share = time_s / self.span if self.span > 0 else 0.0
        return _short(self.gutter + self.plot * share)

    def width(self, time_s: float) -> str:
        """Width of a span of time in the picture."""
        return _short(self.plot * time_s / self.span if self.span > 0 else 0.0)

    def lane(self, row: Row, y: float, height: float) -> Iterator[str]:
        """Draw a row: its name, its tasks, and how busy it is."""
        middle = y + height / 2 + 4
        visible = height > 10
        name = row.name
        most = int((self.gutter - 16) / (6.0 if row.is_link else 6.6))
        cut = name if len(name) <= most else name[: most - 1] + "…"
        share = percent(row.busy_s / self.span) if self.span > 0 else "0 %"
        right = WIDTH - 10
        group = f' data-group="{escape(row.group)}"' if row.group else ""
        yield f'<g class="row{" link" if row.is_link else ""}"{group}>'
        if visible:
            yield (
                f'<text class="name" x="{self.gutter - 10}" y="{middle:g}" text-anchor="end">'
                f"{escape(cut)}<title>{escape(name)}</title></text>"
            )
        yield (
            f'<rect class="lane" x="{self.gutter}" y="{y:g}" width="{self.plot}" '
            f'height="{height}"><title>{escape(name)}</title></rect>'
        )
        if self.merges and len(row.kinds) > self.columns:
            yield from self.parts(row, y, height)
        else:
            yield from self.tasks(row, y, height)
        if visible:
            yield f'<text class="share" x="{right}" y="{middle:g}" text-anchor="end">{share}</text>'
        yield "</g>"

    def tasks(self, row: Row, y: float, height: float) -> Iterator[str]:
        """Draw a rectangle for each task, with its name where there is room."""
        columns = (row.kinds, row.stages, row.microbatches, row.start_s, row.end_s)
        for index, (number_, stage, microbatch, start, end) in enumerate(
            zip(*(each.tolist() for each in columns), strict=True)
        ):
            if end <= start:
                continue
            kind = TaskKind(number_)
            self.kinds.add(kind)
            word = str(microbatch) if row.is_link else label(kind, microbatch, self.marks[stage])
            mark = self.marks[stage]
            odd = " odd" if mark and (ord(mark[-1]) - ord("a")) % 2 else ""
            wide = " wide" if self.plot * (end - start) / self.span >= 4 else ""
            text = ""
            room = (self.plot * (end - start) / self.span - 2.5) / (6.0 if row.is_link else 6.8)
            shown = word if len(word) <= room else str(microbatch)  # The colour shows the kind.
            if len(shown) <= room and height > 10 and (microbatch >= 0 or shown == word):
                middle = y + height / 2 + (3.5 if row.is_link else 4)
                text = f'<text x="{self.x((start + end) / 2)}" y="{middle:g}">{shown}</text>'
            words = self.hover(row, kind, stage, microbatch, start, end)
            remark = self.remark(row, index)
            words += f"\n{remark}" if remark else ""
            yield (
                f'<g class="t {kind.token}{odd}{wide}" data-m="{microbatch}" data-n="{word}">'
                f"<title>{escape(words)}</title>"
                f'<rect x="{self.x(start)}" y="{y:g}" width="{self.width(end - start)}" '
                f'height="{height}" rx="{2 if row.is_link else 3}"/>{text}</g>'
            )

    def hover(
        self, row: Row, kind: TaskKind, stage: int, microbatch: int, start: float, end: float
    ) -> str:
        """Describe a task in words: name, place, times and bytes."""
        which = f"micro-batch {microbatch}" if microbatch >= 0 else "all micro-batches"
        words = KIND_WORDS[kind]
        if row.is_link:
            words = "activations" if kind == TaskKind.SF else "gradient"
            lines = [f"{words} of {which}, from stage {stage}"]
            lines.append(f"{self.names[row.device]} → {self.names[row.destination]}")
        else:
            lines = [f"{label(kind, microbatch)}: {words}, {which}", f"{row.name}, stage {stage}"]
        lines.append(f"{duration(start, digits=6)} to {duration(end, digits=6)}")
        lines.append(f"takes {duration(end - start)}")
        size = bytes_of(self.transfer_bytes, kind, stage)
        if size is not None and kind in (TaskKind.SF, TaskKind.SB):
            lines.append(f"{scaled(size, 'B')}, {scaled(size / (end - start), 'B/s')}")
        if row.group:
            lines[1] = f"{row.group}: {lines[1]}"
        return "\n".join(lines)

    def parts(self, row: Row, y: float, height: float) -> Iterator[str]:
        """Draw a row with too many tasks: the share of each slice of time that each kind takes."""
        if not any("too many" in note for note in self.notes):
            slice_s = duration(self.span / self.columns, digits=3)
            self.notes.append(
                f"Lanes with too many tasks to draw each: a slice is {slice_s}; the height of a "
                "colour is its share of the slice."
            )
        edges = np.linspace(0.0, self.span, self.columns + 1)
        shares = busy_shares(row, edges)
        self.kinds.update(shares)
        for i in range(self.columns):
            here = [(kind, float(values[i])) for kind, values in shares.items()]
            here = [(kind, share) for kind, share in here if share > 1e-6]
            if not here:
                continue
            begin, end = float(edges[i]), float(edges[i + 1])
            words = [f"{KIND_WORDS[kind]} {percent(share)}" for kind, share in here]
            idle = max(0.0, 1 - sum(share for _, share in here))
            lines = [row.name, f"{duration(begin)} to {duration(end)}", *words]
            lines.append(f"idle {percent(idle)}")
            yield f'<g class="t part"><title>{escape(chr(10).join(lines))}</title>'
            base = y + height
            for kind, share in here:
                tall = height * min(share, 1.0)
                base -= tall
                yield (
                    f'<rect class="{kind.token}" x="{self.x(begin)}" y="{_short(base)}" '
                    f'width="{self.width(end - begin)}" height="{_short(tall)}"/>'
                )
            yield "</g>"


def _swatch(css: str, x: float, y: float, words: str) -> str:
    return (
        f'<rect class="{css}" x="{x:g}" y="{y - 11:g}" width="14" height="14" rx="3"/>'
        f'<text x="{x + 20:g}" y="{y:g}">{words}</text>'
    )


def _short(value: float) -> str:
    """Write a coordinate to a thousandth."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return text if text != "-0" else "0"
