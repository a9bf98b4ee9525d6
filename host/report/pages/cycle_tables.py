"""Cycles of the mini-batch, of layers and of links, compared by level."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fpgapipe.host.report.drawing.elements import (
    NOTHING,
    Cell,
    Heading,
    Section,
    difference,
    fault,
    missing,
    table,
    term,
    text,
    whole,
)
from fpgapipe.host.report.drawing.timetable import KIND_WORDS
from fpgapipe.host.report.pages.inputs import Levels
from fpgapipe.host.report.pages.subject import Subject
from fpgapipe.host.terminal.console import scaled

WORDS = {
    "closed_form": "Closed form",
    "event": "Event simulation",
    "cycle_model": "Cycle model",
    "rtl": "RTL",
}
"""Names of the levels, the quickest first."""

PASSES = {kind.token: words for kind, words in KIND_WORDS.items()}

LIMIT = 0.02
"""Share of the RTL's cycles from which on a difference is marked."""


def cycles_section(subject: Subject) -> Section:
    """Make the section with tables of everything whose cycles several levels know."""
    lead = (
        f"The same work counted by every {term('level', 'levels')}, in cycles: from a formula "
        "that takes no time to the simulated hardware itself. Differences are from the RTL; "
        f"those over {100 * LIMIT:g} % are marked ▲. Click a heading to sort."
    )
    measured = subject.measured
    if measured is None:
        body = fault(subject.measured_fault) if subject.measured_fault else ""
        body += missing("Not measured.", subject.measure_command)
        return Section("cycles", "Cycles, level by level", lead, body)
    body = _level_table(
        "The mini-batch, from the start of the first device to the end of the last",
        [Heading("What", False)],
        [([Cell("mini-batch")], measured.minibatch_cycles)],
    )
    links = [
        (
            [
                Cell(
                    f"{text(subject.names[each.source])} → {text(subject.names[each.destination])}"
                ),
                NOTHING
                if each.num_bytes is None
                else Cell(scaled(each.num_bytes, "B"), each.num_bytes),
            ],
            each.busy_cycles,
        )
        for each in measured.links
    ]
    if links:
        body += _level_table(
            "Links: cycles in which each direction carries a mini-batch's bytes",
            [Heading("Link", False), Heading("Bytes")],
            links,
        )
    layers = [
        (
            [
                *_unit(subject, each.layer),
                Cell(text(PASSES.get(each.direction, each.direction))),
                Cell(text(subject.names[device]), device),
            ],
            each,
        )
        for device, found in enumerate(measured.devices)
        for each in found.layers
    ]
    if layers:
        headings = [Heading(words, False) for words in ("Layer", "Operator", "Pass", "Device")]
        body += _level_table("Layers, by pass, in all micro-batches", headings, layers)
        body += '<p class="note">Layers of one row run together.'
        if measured.resolution_cycles:
            body += (
                " RTL cycles of a row in one micro-batch are exact to "
                f"{measured.resolution_cycles:,.0f}, so that those of short rows may be off by "
                "some per cent."
            )
        body += "</p>\n"
    else:
        body += missing("Cycles of layers: not measured.", subject.measure_command)
    return Section("cycles", "Cycles, level by level", lead, body)


def _unit(subject: Subject, last: str) -> tuple[Cell, Cell]:
    """Cells with names and operators of layers that run together."""
    names = subject.units.get(last, (last,))
    operators = [subject.operators[name] for name in names if name in subject.operators]
    return Cell(text(", ".join(names))), Cell(text(", ".join(operators)))


def _level_table(
    caption: str, headings: Sequence[Heading], rows: Sequence[tuple[list[Cell], Levels]]
) -> str:
    """A table with columns for each level that has any cycles, and for its difference."""
    levels = [
        level
        for level in WORDS
        if level == "rtl" or any(getattr(found, level) is not None for _, found in rows)
    ]
    columns: list[tuple[Heading, Callable[[Levels], Cell]]] = []
    for level in levels:
        columns.append((Heading(WORDS[level]), _value(level)))
        if level != "rtl":
            hint = f"{WORDS[level]} against RTL, in per cent of the RTL's cycles"
            words = f'Δ<span class="hidden"> of {WORDS[level].lower()}</span>'
            columns.append((Heading(words, hint=hint), _gap(level)))
    body = [[*cells, *(made(found) for _, made in columns)] for cells, found in rows]
    return table(caption, [*headings, *(heading for heading, _ in columns)], body)


def _value(level: str) -> Callable[[Levels], Cell]:
    return lambda found: whole(getattr(found, level))


def _gap(level: str) -> Callable[[Levels], Cell]:
    return lambda found: difference(getattr(found, level), found.rtl, limit=LIMIT)
