"""Throughput of choices of cores over their LUTs, as a picture or a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fpgapipe.errors import counted
from fpgapipe.host.report.drawing.elements import text
from fpgapipe.host.report.drawing.theme import LIGHT, asset, page_begins, themed
from fpgapipe.host.report.drawing.timetable import tick_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 74, 620, 56, 380

SERIES = ("s1", "s2", "s3", "s4", "ink")
"""Colours of numbers of nodes, the last one that of all further ones."""

CSS = """
.front text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.front .soft { fill: var(--soft); }
.front .head { font-size: 15px; font-weight: 600; }
.front .grid { stroke: var(--grid); }
.front .step { stroke: var(--soft); stroke-dasharray: 2 4; fill: none; }
.front .end { text-anchor: end; } .front .mid { text-anchor: middle; }
"""


class Point(NamedTuple):
    """A choice of cores.

    Attributes
    ----------
    lut : int
        LUTs of all cores.
    samples_per_s : float
    nodes : int
        Nodes of each board.
    on_front : bool
        Whether no other choice is better in everything.
    told : str
        What is said of it under the pointer.
    """

    lut: int
    samples_per_s: float
    nodes: int
    on_front: bool
    told: str


def plot_text(points: Sequence[Point], title: str, *, as_page: bool) -> str:
    """Text of a picture of choices, or of a page with it.

    Parameters
    ----------
    points : sequence of Point
    title : str
    as_page : bool
    """
    svg = "".join(_drawn(points, title, alone=not as_page))
    if not as_page:
        return svg
    begin = page_begins(text(title), asset("report.css"))
    return f"{begin}<body>\n<main>\n<section>{svg}</section>\n</main>\n</body>\n</html>\n"


def _drawn(points: Sequence[Point], title: str, *, alone: bool) -> Iterator[str]:
    most_lut = max(each.lut for each in points) * 1.05
    most_per_s = max(each.samples_per_s for each in points) * 1.05

    def x(lut: float) -> float:
        return LEFT + lut / most_lut * (RIGHT - LEFT)

    def y(per_s: float) -> float:
        return BOTTOM - per_s / most_per_s * (BOTTOM - TOP)

    names = {"paper", "ink", "soft", "grid", *SERIES} & LIGHT.keys()
    style = f"<style>{themed('.front', names) if alone else ''}{CSS}</style>"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="front" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="100%" role="img" aria-label="{text(title)}">{style}'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="var(--paper)"/>'
        f'<text class="head" x="16" y="28">{text(title)}</text>'
    )
    for value in _ticks(most_per_s):
        level = f"{y(value):.1f}"
        yield f'<path class="grid" d="M{LEFT} {level}H{RIGHT}"/>'
        yield f'<text class="soft end" x="{LEFT - 8}" y="{level}" dy="4">{value:,.5g}</text>'
    for value in _ticks(most_lut):
        column = f"{x(value):.1f}"
        yield f'<text class="soft mid" x="{column}" y="{BOTTOM + 18}">{value:,.0f}</text>'
    yield f'<text class="soft" x="{LEFT}" y="{TOP - 8}">samples/s, by formulas</text>'
    yield f'<text class="soft end" x="{RIGHT}" y="{BOTTOM + 38}">LUTs of all cores</text>'
    front = sorted((each.lut, each.samples_per_s) for each in points if each.on_front)
    steps = [
        (lut, per_s)
        for at, (lut, per_s) in enumerate(front)
        if all(before < per_s for _, before in front[:at])
    ]
    path = "".join(
        f"{'H' if at else 'M'}{x(lut):.1f}{f'V{y(per_s):.1f}' if at else f' {y(per_s):.1f}'}"
        for at, (lut, per_s) in enumerate(steps)
    )
    yield f'<path class="step" d="{path}H{RIGHT}"/>'
    kinds = sorted({each.nodes for each in points})
    colours = {nodes: SERIES[min(at, len(SERIES) - 1)] for at, nodes in enumerate(kinds)}
    for each in points:
        colour = f"var(--{colours[each.nodes]})"
        look = f'fill="{colour}"' if each.on_front else f'fill="none" stroke="{colour}"'
        yield (
            f'<circle cx="{x(each.lut):.1f}" cy="{y(each.samples_per_s):.1f}" r="3.6" {look}>'
            f"<title>{text(each.told)}</title></circle>"
        )
    for at, nodes in enumerate(kinds):
        row = TOP + 8 + 20 * at
        yield f'<circle cx="{RIGHT + 20}" cy="{row}" r="3.6" fill="var(--{colours[nodes]})"/>'
        yield f'<text x="{RIGHT + 32}" y="{row}" dy="4">{counted(nodes, "node")}</text>'
    yield "</svg>"


def _ticks(most: float) -> list[float]:
    step = tick_step(most, 6)
    return [step * number for number in range(int(most / step) + 1)]
