"""Elements of pages: sections, tables that can be sorted, meters, links to the glossary.

`text` escapes whatever comes from a file; the other functions return HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fpgapipe.errors import counted
from fpgapipe.host.report.drawing.timetable import percent, printable

MAX_TABLE_ROWS = 1500
"""Most rows that are shown of a table, the first ones."""

TALL_TABLE_ROWS = 24
"""Most rows of a table that does not scroll; a larger one scrolls below its headings."""


def text(value: object) -> str:
    """Escape plain text for HTML, and remove control characters."""
    return escape(printable(str(value)))


@dataclass(frozen=True)
class Heading:
    """A heading of a column.

    Parameters
    ----------
    words : str
        HTML.
    number : bool
        Whether the column holds numbers, which are aligned to the right.
    hint : str
        HTML that appears when a reader points at the heading.
    """

    words: str
    number: bool = True
    hint: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Parameters
    ----------
    shown : str
        HTML.
    key : float or str, optional
        Key by which the cell is sorted; the shown text if not given. Cells without a value have
        the key "" and are sorted last in either direction.
    css : str
        CSS class.
    """

    shown: str
    key: float | str | None = None
    css: str = ""


NOTHING = Cell('<span class="none" title="not known">&ndash;</span>', "")
"""Cell of a value that is not known."""


def whole(value: float | None) -> Cell:
    """Cell of a whole number with thousands separators, or of nothing."""
    return NOTHING if value is None else Cell(f"{value:,.0f}", value)


def share(value: float | None) -> Cell:
    """Cell of a share in per cent, or of nothing."""
    return NOTHING if value is None else Cell(percent(value), value)


def signed(value: float) -> str:
    """Write a difference in per cent with its sign, as HTML."""
    return "0 %" if not value else f"{100 * value:+.2f} %".replace("-", "&minus;")


def missed(gap: float) -> str:
    """Write how far a prediction is off, ``0.06 % too low``, by the difference as a share."""
    return f"{100 * abs(gap):.2g} % too {'low' if gap < 0 else 'high'}" if gap else "exact"


def difference(value: float | None, reference: float | None, *, limit: float) -> Cell:
    """Cell of the difference between a value and a reference, in per cent of the reference.

    Parameters
    ----------
    value, reference : float or None
    limit : float
        Share from which on the difference is marked.
    """
    if value is None or not reference:
        return NOTHING
    found = (value - reference) / reference
    shown = signed(found)
    if abs(found) > limit:
        return Cell(f'<b title="over {percent(limit)}">{shown} ▲</b>', abs(found), "off")
    return Cell(shown, abs(found))


def meter(value: float, *, css: str = "") -> str:
    """A bar that is filled to a share of its length; a share over 1 is marked."""
    over = " over" if value > 1 else ""
    width = 100 * min(max(value, 0.0), 1.0)
    return f'<i class="meter{over} {css}"><b style="width:{width:.2f}%"></b></i>'


def table(
    caption: str,
    headings: Sequence[Heading],
    rows: Sequence[Sequence[Cell]],
    *,
    foot: Sequence[Cell] = (),
    css: str = "",
) -> str:
    """A table that its headings sort; the first cell of a row is the name of the row.

    Parameters
    ----------
    caption : str
        HTML without elements; says what the rows are.
    headings : sequence of Heading
    rows : sequence of sequence of Cell
        As long as the headings.
    foot : sequence of Cell
        Last row, which is not sorted.
    css : str
        CSS class of the table.
    """
    tall = " tall" if len(rows) > TALL_TABLE_ROWS else ""
    parts = [
        f'<div class="scroll{tall}" tabindex="0" role="group" aria-label="{caption}">',
        f'<table class="sortable {css}"><caption><span>{caption}</span></caption><thead><tr>',
    ]
    for heading in headings:
        hint = f' title="{heading.hint}"' if heading.hint else ""
        number = ' class="n"' if heading.number else ""
        parts.append(
            f'<th scope="col" aria-sort="none"{number}>'
            f'<button type="button"{hint}>{heading.words}</button></th>'
        )
    parts.append("</tr></thead>\n<tbody>")
    parts += [_row(headings, row) for row in rows[:MAX_TABLE_ROWS]]
    parts.append("</tbody>")
    if foot:
        parts.append(f"<tfoot>{_row(headings, foot)}</tfoot>")
    parts.append("</table></div>\n")
    if len(rows) > MAX_TABLE_ROWS:
        parts.append(f'<p class="note">The first {MAX_TABLE_ROWS:,} of {len(rows):,} rows.</p>')
    return "".join(parts)


def _row(headings: Sequence[Heading], cells: Sequence[Cell]) -> str:
    parts = []
    for index, (heading, cell) in enumerate(zip(headings, cells, strict=True)):
        tag, scope = ("th", ' scope="row"') if index == 0 else ("td", "")
        classes = " ".join(filter(None, ["n" if heading.number else "", cell.css]))
        css = f' class="{classes}"' if classes else ""
        key = "" if cell.key is None else f' data-k="{text(cell.key)}"'
        parts.append(f"<{tag}{scope}{css}{key}>{cell.shown}</{tag}>")
    return f"<tr>{''.join(parts)}</tr>\n"


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Parameters
    ----------
    ident : str
        Identifier that links to the section name.
    heading : str
        HTML.
    lead : str
        HTML that tells a newcomer what the section shows.
    body : str
        HTML.
    """

    ident: str
    heading: str
    lead: str
    body: str

    def html(self) -> str:
        """The section."""
        return (
            f'<section id="{self.ident}" aria-labelledby="{self.ident}-h">\n'
            f'<h2 id="{self.ident}-h">{self.heading}</h2>\n'
            f'<p class="lead">{self.lead}</p>\n{self.body}</section>\n'
        )


def missing(what: str, command: str = "") -> str:
    """A notice in place of something missing, with the command line that makes it."""
    how = f" This makes it:<br><code>{text(command)}</code>" if command else ""
    return f'<p class="missing">{what}{how}</p>\n'


def fault(words: str) -> str:
    """A notice about a file that cannot be used; the words are plain text."""
    return f'<p class="missing fault">{text(words)}</p>\n'


def term(words: str, ident: str) -> str:
    """Words that link to the glossary."""
    return f'<a class="term" href="#g-{ident}">{words}</a>'


def swatches(parts: Sequence[tuple[str, str]]) -> str:
    """A legend of colours, from pairs of a CSS class and words."""
    items = "".join(f'<li><span class="swatch {css}"></span>{words}</li>' for css, words in parts)
    return f'<ul class="legend">{items}</ul>\n'


def stacked(parts: Sequence[tuple[str, str, float]], label: str) -> str:
    """A bar of shares of one whole, from triples of a CSS class, words and a share.

    Parameters
    ----------
    parts : sequence of (str, str, float)
        The words appear when a reader points at the part.
    label : str
        HTML that screen readers read out before the parts.
    """
    said = f"{label}: " + ", ".join(f"{words} {percent(value)}" for _, words, value in parts)
    inner = "".join(
        f'<b class="{css}" style="width:{100 * value:.3f}%" title="{words} {percent(value)}"></b>'
        for css, words, value in parts
        if value > 0
    )
    return f'<div class="stack" role="img" aria-label="{said}">{inner}</div>'


def devices_named(names: Sequence[str]) -> str:
    """Write names of devices; of many devices only the first and the last."""
    if len(names) <= 4:
        return ", ".join(text(name) for name in names)
    return f"{text(names[0])} to {text(names[-1])} ({counted(len(names), 'device')})"
