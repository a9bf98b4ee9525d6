"""Pictures of a timetable, by the kind of file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fpgapipe.host.report.drawing.perfetto import chrome_trace
from fpgapipe.host.report.drawing.timetable_html import draw_html
from fpgapipe.host.report.drawing.timetable_svg import draw_svg

if TYPE_CHECKING:
    from fpgapipe.partition.timeline.timeline import Timeline


def picture(kind: str, timeline: Timeline, title: str, **more: Any) -> str:
    """Text of a picture's file.

    Parameters
    ----------
    kind : str
        ``svg``, ``html``, or ``trace`` for Perfetto.
    timeline : Timeline
    title : str
        Title of a page.
    more
        Arguments of all drawing functions: names of devices, and bytes of transfers.
    """
    if kind == "svg":
        return draw_svg(timeline, **more)
    if kind == "html":
        return draw_html(timeline, title=title, **more)
    return json.dumps(chrome_trace(timeline, **more)) + "\n"
