"""Speed of parallel strategies over the number of devices, as a picture or a page."""

from __future__ import annotations

import math
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from fpgapipe.errors import counted
from fpgapipe.host.report.drawing.elements import NOTHING, Cell, Heading, share, table, text, whole
from fpgapipe.host.report.drawing.theme import LIGHT, asset, page_begins, themed
from fpgapipe.host.report.drawing.timetable import number
from fpgapipe.host.terminal.console import scaled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fpgapipe.partition.oracle.forecast import Forecast

WIDTH, HEIGHT = 760, 640
LEFT, RIGHT = 74, 590
SPEED, SHARE = (56, 380), (440, 580)
"""First and last row of the two diagrams."""

STYLES = {
    "serial": ("ink", "", "square"),
    "data": ("s1", "", "circle"),
    "pipeline": ("s2", "", "square"),
    "filter": ("s3", "", "triangle"),
    "channel": ("s4", "", "diamond"),
    "spatial": ("ink", "", "circle"),
    "data+filter": ("s3", "6 4", "triangle"),
    "data+spatial": ("ink", "6 4", "circle"),
}
"""Colour, dashes and mark of each strategy: mixtures with data parallelism are dashed."""

NEAR = 3.0
"""Points that are nearer than this lie on each other."""

MARKS = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "square": "M-3.6-3.6h7.2v7.2h-7.2z",
    "triangle": "M0-4.6L4.6 3.6H-4.6z",
    "diamond": "M0-5L5 0L0 5L-5 0z",
}

RING = 'fill="none" vector-effect="non-scaling-stroke" stroke-width="1.5" stroke='
"""Look of a mark around another one; its colour follows."""

IDEAL = "without losses"
"""Name of the line of the best strategy's speed on the fewest devices, times the devices."""

CSS = """
.oracle text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.oracle .soft { fill: var(--soft); }
.oracle .head { font-size: 15px; font-weight: 600; }
.oracle .grid { stroke: var(--grid); }
.oracle .ideal { stroke: var(--soft); stroke-dasharray: 2 4; fill: none; }
.oracle .end { text-anchor: end; } .oracle .mid { text-anchor: middle; }
"""


def plot_text(found: Sequence[Forecast], title: str, *, as_page: bool) -> str:
    """Text of a picture of forecasts, or of a page with it.

    Parameters
    ----------
    found : sequence of Forecast
    title : str
    as_page : bool
    """
    svg = draw_svg(found, title, alone=not as_page)
    return _page(svg, found, title) if as_page else svg


def draw_svg(found: Sequence[Forecast], title: str, *, alone: bool = True) -> str:
    """Draw samples per second, and the share of communication, over the number of devices.

    Parameters
    ----------
    found : sequence of Forecast
    title : str
    alone : bool
        Whether the picture has its own colours, or those of the page around it.
    """
    return "".join(_Picture(found).draw(title, alone))


class _Picture:
    def __init__(self, found: Sequence[Forecast]) -> None:
        self.lines: dict[str, list[Forecast]] = {
            name: sorted(each, key=lambda one: one.devices)
            for name, each in groupby(
                sorted(found, key=lambda one: one.name), key=lambda one: one.name
            )
        }
        self.lines = {name: self.lines[name] for name in STYLES if name in self.lines}
        self.devices = sorted({each.devices for each in found})
        speeds = [max(each.samples_per_s, 1e-12) for each in found]
        self.low = 10 ** math.floor(math.log10(min(speeds)) + 1e-9)
        self.high = 10 ** math.ceil(math.log10(max(speeds)) - 1e-9)
        if self.high == self.low:
            self.high *= 10

    def x(self, devices: int) -> float:
        first, last = math.log2(self.devices[0]), math.log2(self.devices[-1])
        part = (math.log2(devices) - first) / (last - first) if last > first else 0.5
        return LEFT + 16 + part * (RIGHT - LEFT - 32)

    def y(self, speed: float) -> float:
        part = math.log10(max(speed, 1e-12) / self.low) / math.log10(self.high / self.low)
        return SPEED[1] - part * (SPEED[1] - SPEED[0])

    def y_share(self, value: float) -> float:
        return SHARE[1] - value * (SHARE[1] - SHARE[0])

    def draw(self, title: str, alone: bool) -> Iterator[str]:
        names = {"paper", "ink", "soft", "grid", "s1", "s2", "s3", "s4"} & LIGHT.keys()
        style = f"<style>{themed('.oracle', names) if alone else ''}{CSS}</style>"
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="oracle" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" aria-label="{text(title)}">'
            f"{style}"
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="var(--paper)"/>'
            f'<text class="head" x="16" y="28">{text(title)}</text>'
        )
        yield from self.axes()
        for index, name in enumerate(self.lines):
            yield from self.key(name, index)
        for place in (self.of_speed, self.of_share):
            drawn: list[list[tuple[float, float]]] = []
            for name in self.lines:
                points = [place(each) for each in self.lines[name]]
                yield from self.line(name, points, drawn)
                drawn.append(points)
        yield from self.ideal()
        yield "</svg>\n"

    def axes(self) -> Iterator[str]:
        decade = self.low
        while decade <= self.high * 1.001:
            at = f"{self.y(decade):.1f}"
            yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at}" y2="{at}"/>'
            shown = number(decade, 1)
            yield f'<text class="soft end" x="{LEFT - 8}" y="{at}" dy="4">{shown}</text>'
            decade *= 10
        for value in (0.0, 0.5, 1.0):
            at = f"{self.y_share(value):.1f}"
            yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at}" y2="{at}"/>'
            yield f'<text class="soft end" x="{LEFT - 8}" y="{at}" dy="4">{value:.0%}</text>'
        free = -math.inf
        for devices in self.devices:
            across = self.x(devices)
            for bottom in (SPEED[1], SHARE[1]):
                yield (
                    f'<line class="grid" x1="{across:.1f}" x2="{across:.1f}" y1="{bottom}" '
                    f'y2="{bottom + 5}"/>'
                )
                if across - free >= 34:
                    below = f'x="{across:.1f}" y="{bottom + 18}"'
                    yield f'<text class="soft mid" {below}>{devices:,}</text>'
            if across - free >= 34:
                free = across
        middle = (LEFT + RIGHT) / 2
        yield f'<text class="mid" x="{middle}" y="{HEIGHT - 16}">devices</text>'
        for (top, bottom), words in ((SPEED, "samples/s"), (SHARE, "communication")):
            yield (
                f'<text class="mid" transform="translate(18 {(top + bottom) / 2}) rotate(-90)">'
                f"{words}</text>"
            )

    def ideal(self) -> Iterator[str]:
        """The speed of as many devices as of the best strategy on the fewest, without losses."""
        fewest = self.devices[0]
        best = max(
            (line[0].samples_per_s for line in self.lines.values() if line[0].devices == fewest),
            default=0.0,
        )
        points = [
            (self.x(each), self.y(best * each / fewest))
            for each in self.devices
            if best and best * each / fewest <= self.high
        ]
        if len(points) > 1:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            yield f'<path class="ideal" d="M{path}"><title>{IDEAL}</title></path>'
            y = SPEED[0] + 10 + 24 * len(self.lines)
            yield f'<path class="ideal" d="M{RIGHT + 16} {y}h28"/>'
            yield f'<text x="{RIGHT + 52}" y="{y + 4}">{IDEAL}</text>'

    def of_speed(self, each: Forecast) -> tuple[float, float]:
        """Where a forecast is in the diagram of speeds."""
        return self.x(each.devices), self.y(each.samples_per_s)

    def of_share(self, each: Forecast) -> tuple[float, float]:
        """Where a forecast is in the diagram of communication."""
        return self.x(each.devices), self.y_share(_moved(each))

    def key(self, name: str, index: int) -> Iterator[str]:
        """A curve's line of the legend, which names the first curve that it lies on."""
        stroke, mark = _style(name)
        y = SPEED[0] + 10 + 24 * index
        yield f'<path d="M{RIGHT + 16} {y}h28" {stroke}/>'
        yield f'<path transform="translate({RIGHT + 30} {y})" {mark}/>'
        yield f'<text x="{RIGHT + 52}" y="{y + 4}">{text(name)}</text>'
        if same := self.lies_on(name):
            yield f'<text class="soft" x="{RIGHT + 52}" y="{y + 16}">as {text(same)}</text>'

    def lies_on(self, name: str) -> str | None:
        """The first curve of speeds on all of whose points a curve has its own."""
        points = [self.of_speed(each) for each in self.lines[name]]
        for other, line in self.lines.items():
            others = [self.of_speed(each) for each in line]
            if other == name:
                break
            if len(others) == len(points) > 1 and all(map(_near, points, others)):
                return other
        return None

    def line(
        self,
        name: str,
        points: Sequence[tuple[float, float]],
        drawn: Sequence[Sequence[tuple[float, float]]],
    ) -> Iterator[str]:
        """A curve: dashed where it lies on one that is drawn, with marks around those there."""
        stroke, mark = _style(name)
        for begin, end in pairwise(points):
            is_shared = any(
                _near(begin, one) and _near(end, other)
                for line in drawn
                for one, other in pairwise(line)
            )
            shown = (
                f'{stroke} stroke-dasharray="7 7"' if is_shared and "dash" not in stroke else stroke
            )
            yield f'<path d="M{begin[0]:.1f} {begin[1]:.1f}L{end[0]:.1f} {end[1]:.1f}" {shown}/>'
        for (x, at), each in zip(points, self.lines[name], strict=True):
            below = sum(any(_near((x, at), one) for one in line) for line in drawn)
            words = (
                f"{name}, {counted(each.devices, 'device')}: "
                f"{number(each.samples_per_s, 4)} samples/s, "
                f"{_moved(each):.0%} communication"
            )
            where = f"translate({x:.1f} {at:.1f})"
            ring = f" scale({1 + 0.4 * below:.1f})" if below else ""
            look = mark.replace("fill=", RING) if below else mark
            yield (f'<path transform="{where}{ring}" {look}><title>{text(words)}</title></path>')


def _style(name: str) -> tuple[str, str]:
    """Attributes of a curve's line, and of its marks."""
    colour, dashes, mark = STYLES[name]
    stroke = f'stroke="var(--{colour})" stroke-width="2" fill="none"'
    if dashes:
        stroke += f' stroke-dasharray="{dashes}"'
    return stroke, f'd="{MARKS[mark]}" fill="var(--{colour})"'


def _near(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether two points lie on each other."""
    return math.dist(one, other) < NEAR


def _moved(each: Forecast) -> float:
    """Share of communication."""
    total = each.compute_s + each.communication_s
    return each.communication_s / total if total else 0.0


def _page(svg: str, found: Sequence[Forecast], title: str) -> str:
    headings = [
        Heading("Strategy", number=False),
        *(
            Heading(words)
            for words in (
                "Devices", "Samples", "Mini-batch", "Samples/s", "Communication", "Efficiency",
                "Memory", "At most",
            )
        ),
        Heading("By", number=False),
        Heading("Limited by", number=False),
    ]  # fmt: skip
    rows = [
        [
            Cell(text(each.name)),
            whole(each.devices),
            whole(each.batch),
            Cell(scaled(each.minibatch_s or 0.0, "s"), each.minibatch_s),
            whole(each.samples_per_s),
            share(_moved(each)),
            NOTHING if each.efficiency is None else share(each.efficiency),
            Cell(scaled(each.memory_bytes, "B", 1024), each.memory_bytes),
            whole(each.max_devices),
            Cell(text(each.level)),
            Cell(text(each.limiter)),
        ]
        for each in found
    ]
    last = {each.name: each for each in found}
    sentences = "".join(f"<li>{text(each.sentence)}</li>" for each in last.values())
    return f"""{page_begins(text(title), asset("report.css"))}<body>
<main>
<h1>{text(title)}</h1>
<section>{svg}</section>
<ul>{sentences}</ul>
{table("Strategies over numbers of devices", headings, rows)}
</main>
<script>{asset("report.js")}</script>
</body>
</html>
"""
