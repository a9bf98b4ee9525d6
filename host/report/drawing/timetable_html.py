"""A page around the picture of a timetable: zoom, pan, hover text, and tables of load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from fpgapipe.errors import counted
from fpgapipe.host.report.drawing.theme import asset, page_begins
from fpgapipe.host.report.drawing.timetable import (
    Row,
    TransferBytes,
    bytes_of,
    device_names,
    duration,
    percent,
    printable,
    rows_of,
    span_of,
)
from fpgapipe.host.report.drawing.timetable_svg import MAX_RECTANGLES, draw_svg
from fpgapipe.host.terminal.console import scaled
from fpgapipe.lowering.schedule.schedule import TaskKind

if TYPE_CHECKING:
    from fpgapipe.partition.timeline.timeline import Timeline

MAX_TABLE_ROWS = 256


def draw_html(
    timeline: Timeline,
    *,
    title: str,
    names: Sequence[str] | None = None,
    transfer_bytes: TransferBytes = None,
    max_rectangles: int = MAX_RECTANGLES,
) -> str:
    """Draw a timetable as one page that needs nothing else and can be read offline or printed.

    Parameters
    ----------
    timeline : Timeline
    title : str
        Heading of the page.
    names : sequence of str, optional
        Names of the devices.
    transfer_bytes : mapping or callable, optional
        Bytes of one transfer by its kind (``SF``, ``SB``) and stage.
    max_rectangles : int
        Approximate largest number of tasks that are drawn one by one.
    """
    svg = draw_svg(
        timeline,
        names=names,
        transfer_bytes=transfer_bytes,
        heading=False,
        max_rectangles=max_rectangles,
    )
    rows = rows_of(timeline, names)
    heading = escape(printable(title))
    facts = "".join(f"<div><dt>{dt}</dt><dd>{dd}</dd></div>" for dt, dd in _facts(timeline, rows))
    links = [row for row in rows if row.is_link]
    tables = "".join(_engine_table(timeline, [row for row in rows if not row.is_link]))
    if links:
        tables += "".join(_link_table(timeline, links, names, transfer_bytes))
    return f"""{page_begins(heading)}<body>
<main>
<h1>{heading}</h1>
<dl class="facts">{facts}</dl>
<section>
<div class="bar"><h2>Timetable</h2>
<small>Drag to move, Ctrl+wheel to zoom, click a task to follow its micro-batch</small>
<button type="button" data-act="out" aria-label="Zoom out">&minus;</button>
<button type="button" data-act="in" aria-label="Zoom in">+</button>
<button type="button" data-act="all">Whole</button></div>
<div class="view" tabindex="0" aria-label="Timetable; + and - zoom, arrows move, 0 shows all">
{svg}</div>
</section>
<div class="tables">{tables}</div>
</main>
<script>{asset("timetable.js")}</script>
</body>
</html>
"""


def _facts(timeline: Timeline, rows: list[Row]) -> Iterator[tuple[str, str]]:
    schedule = timeline.schedule
    yield "Schedule", escape(printable(schedule.kind))
    yield "Makespan", duration(timeline.makespan_s)
    yield "Bubble", percent(timeline.bubble_rate)
    yield "Devices", f"{schedule.num_devices:,}"
    yield "Micro-batches", f"{schedule.num_microbatches:,}"
    yield "Most activations kept", counted(max(timeline.peak_microbatches()), "micro-batch", "es")
    span = span_of(rows)
    loads = [row.busy_s / span for row in rows if row.is_link and span > 0]
    if loads:
        yield "Busiest link", percent(max(loads))


def _engine_table(timeline: Timeline, rows: list[Row]) -> Iterator[str]:
    peaks = timeline.peak_microbatches()
    span = span_of(rows)
    head = ("Engine", "Tasks", "Busy", "Idle", "Share", "", "Features kept")
    body = []
    for row in rows:
        idle = max(0.0, span - row.busy_s)
        cells = [row.name, f"{len(row.kinds):,}", duration(row.busy_s), duration(idle)]
        kept = counted(peaks[row.device], "micro-batch", "es") if row.device < len(peaks) else ""
        body.append((cells, row.busy_s / span if span > 0 else 0.0, [kept]))
    yield from _table("Engines", "engines", head, body)


def _link_table(
    timeline: Timeline, rows: list[Row], names: Sequence[str] | None, transfer_bytes: TransferBytes
) -> Iterator[str]:
    span = max(timeline.makespan_s, span_of(rows))
    named = device_names(timeline.schedule, names)
    head = ["Link", "Transfers", "Busy", "Load", ""]
    if transfer_bytes is not None:
        head += ["Bytes", "Rate"]
    body = []
    for row in rows:
        name = f"{named[row.device]} → {named[row.destination]}"
        cells = [name, f"{len(row.kinds):,}", duration(row.busy_s)]
        tail = []
        if transfer_bytes is not None:
            pairs = zip(row.kinds.tolist(), row.stages.tolist(), strict=True)
            sizes = [bytes_of(transfer_bytes, TaskKind(kind), stage) for kind, stage in pairs]
            total = sum(size for size in sizes if size is not None)
            rate = scaled(total / span, "B/s") if span > 0 else "-"
            tail = [scaled(total, "B"), rate]
        body.append((cells, row.busy_s / span if span > 0 else 0.0, tail))
    yield from _table("Links", "links", head, body)


def _table(
    title: str,
    css: str,
    head: Sequence[str],
    body: Sequence[tuple[list[str], float, list[str]]],
) -> Iterator[str]:
    """Write a table; a row has cells, a share with its meter, and further cells."""
    yield f'<section class="{css}"><h2>{title}</h2><table><thead><tr>'
    yield "".join(f'<th scope="col">{each}</th>' for each in head)
    yield "</tr></thead>\n<tbody>"
    for cells, share, tail in body[:MAX_TABLE_ROWS]:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f"<td>{percent(share)}</td>"
        yield f'<td class="meter"><i><b style="width:{100 * min(share, 1.0):.2f}%"></b></i></td>'
        yield "".join(f"<td>{escape(cell)}</td>" for cell in tail) + "</tr>\n"
    yield "</tbody></table>"
    if len(body) > MAX_TABLE_ROWS:
        yield f'<p class="dim">The first {MAX_TABLE_ROWS} of {len(body):,}.</p>'
    yield "</section>"
