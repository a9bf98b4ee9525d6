"""Lines over steps as an SVG with axes: few points are marked, many are thinned, gaps stay open."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fpgapipe.host.report.drawing.elements import text
from fpgapipe.host.report.drawing.timetable import number, tick_step

WIDTH, HEIGHT = 720, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 18, 16, 46
MAX_POINTS = 400
"""Most points of a line; a longer line is drawn by means of neighbouring points."""

MARKED = 40
"""Most points of a line whose points are all marked."""

STYLES = 4
"""Number of lines that look different: by colour, dashes and marks."""


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Parameters
    ----------
    name : str
    x, y : float array
        Points from left to right; one whose `y` is not finite leaves a gap.
    """

    name: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]


def line_chart(
    lines: Sequence[Line], *, title: str, x_words: str, y_words: str, per_cent: bool = False
) -> str:
    """Draw lines.

    Parameters
    ----------
    lines : sequence of Line
        At most `STYLES` look different.
    title : str
        Text that screen readers read out instead of the picture.
    x_words, y_words : str
        Labels of the axes.
    per_cent : bool
        Whether values are shares, shown in per cent.

    Returns
    -------
    str
        An ``<svg>`` element in the page's colours, with hover text at the points.
    """
    return "".join(_Chart(lines, per_cent).draw(title, x_words, y_words))


class _Chart:
    def __init__(self, lines: Sequence[Line], per_cent: bool) -> None:
        factor = 100.0 if per_cent else 1.0
        self.lines = [_thinned(Line(each.name, each.x, each.y * factor)) for each in lines]
        self.unit = " %" if per_cent else ""
        values = np.concatenate([np.empty(0), *(e.y[np.isfinite(e.y)] for e in self.lines)])
        places = np.concatenate([np.empty(0), *(each.x for each in self.lines)])
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
        if not per_cent and low > 0 and low < 0.5 * high:
            low = 0.0
        self.low, self.high, self.y_step = _axis(low, high, 6)
        if per_cent and self.high > 100 >= high:
            self.high = 100.0
        self.first = float(places.min()) if len(places) else 0.0
        self.last = max(float(places.max()) if len(places) else 1.0, self.first + 1)

    def x(self, value: float) -> float:
        share = (value - self.first) / (self.last - self.first)
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)

    def draw(self, title: str, x_words: str, y_words: str) -> Iterator[str]:
        yield (
            f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{text(title)}">'
        )
        yield from self.axes(x_words, y_words)
        for index, line in enumerate(self.lines):
            yield from self.line(line, index % STYLES + 1)
        yield "</svg>"

    def axes(self, x_words: str, y_words: str) -> Iterator[str]:
        bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        for i in range(round((self.high - self.low) / self.y_step) + 1):
            value = self.low + i * self.y_step
            if value > self.high * (1 + 1e-9) + 1e-12:
                break
            at = f"{self.y(value):.1f}"
            yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at}" y2="{at}"/>'
            shown = number(round(value, 10), 4)
            yield f'<text class="tick y" x="{_LEFT - 8}" y="{at}" dy="4">{shown}{self.unit}</text>'
        step = max(tick_step(self.last - self.first, 8), 1.0)
        tick = math.ceil(self.first / step) * step
        while tick <= self.last * (1 + 1e-9):
            at = f"{self.x(tick):.1f}"
            yield f'<line class="grid" x1="{at}" x2="{at}" y1="{bottom}" y2="{bottom + 5}"/>'
            yield f'<text class="tick" x="{at}" y="{bottom + 19}">{tick:,.0f}</text>'
            tick += step
        half = (_LEFT + right) / 2
        yield f'<text class="axis" x="{half}" y="{HEIGHT - 6}">{text(x_words)}</text>'
        middle = (_TOP + bottom) / 2
        yield (
            f'<text class="axis" transform="translate(13 {middle}) rotate(-90)">{text(y_words)}'
            "</text>"
        )

    def line(self, line: Line, style: int) -> Iterator[str]:
        pieces, pen = [], "M"
        points = []
        for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
            if not math.isfinite(y):
                pen = "M"
                continue
            pieces.append(f"{pen}{self.x(x):.1f} {self.y(y):.1f}")
            pen = "L"
            points.append((x, y))
        yield f'<path class="line s{style}" d="{"".join(pieces)}"/>'
        marked = len(points) <= MARKED
        for x, y in points:
            words = f"{text(line.name)}, {x:,.0f}: {number(y, 4)}{self.unit}"
            css = f"mark s{style}" if marked else "spot"
            yield (
                f'<circle class="{css}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" '
                f'r="{3.4 if marked else 5}"><title>{words}</title></circle>'
            )


def _axis(low: float, high: float, most: int) -> tuple[float, float, float]:
    """Return round ends of an axis, and the step of its ticks."""
    if high <= low:
        low, high = low - 0.5 * max(abs(low), 1.0), high + 0.5 * max(abs(high), 1.0)
    step = tick_step(high - low, most)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def _thinned(line: Line) -> Line:
    """A line of at most `MAX_POINTS` points, which are means of equally many neighbours."""
    size = -(-len(line.x) // MAX_POINTS)
    if size <= 1:
        return line
    cuts = np.arange(0, len(line.x), size)
    lengths = np.diff([*cuts, len(line.x)])
    return Line(
        line.name, np.add.reduceat(line.x, cuts) / lengths, np.add.reduceat(line.y, cuts) / lengths
    )
