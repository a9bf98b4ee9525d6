"""Where the cycles of the mini-batch go: what each array does in them, or what it waits for."""

from __future__ import annotations

from collections import defaultdict

from fpgapipe.host.report.drawing.elements import (
    Cell,
    Heading,
    Section,
    fault,
    missing,
    share,
    table,
    text,
    whole,
)
from fpgapipe.host.report.drawing.timetable import KIND_WORDS
from fpgapipe.host.report.pages.inputs import SpentCycles
from fpgapipe.host.report.pages.subject import Subject

PASSES = {kind.token: words for kind, words in KIND_WORDS.items()}

LEAST_SHARE = 0.005
"""Share of the mini-batch from which on a unit's cycles have a row of their own."""


def spent_section(subject: Subject) -> Section:
    """Make the section with a table of causes, and one of units, passes and causes."""
    lead = (
        "Every cycle of each array has one cause, by the cycle model: a product, or what the next "
        "product waited for. The rows of an array add up to the mini-batch."
    )
    measured = subject.measured
    devices = measured.devices if measured else ()
    if not any(device.spent for device in devices):
        body = fault(subject.measured_fault) if subject.measured_fault else ""
        body += missing("Cycles by cause: not measured.", subject.measure_command)
        return Section("spent", "Where the cycles go", lead, body)
    causes, units = [], []
    for index, device in enumerate(devices):
        by_array: dict[int, list[SpentCycles]] = defaultdict(list)
        for each in device.spent:
            by_array[each.array].append(each)
        for array, rows in by_array.items():
            total = sum(each.cycles for each in rows)
            name = subject.names[index] + (f", array {array}" if len(by_array) > 1 else "")
            totals: dict[str, int] = defaultdict(int)
            for each in rows:
                totals[each.cause] += each.cycles
            for cause, cycles in sorted(totals.items(), key=lambda item: -item[1]):
                causes.append(_row(name, [cause], cycles, total))
            for each in sorted(rows, key=lambda row: -row.cycles):
                if each.layer and each.cycles >= LEAST_SHARE * total:
                    words = [each.layer, PASSES.get(each.direction, each.direction), each.cause]
                    units.append(_row(name, words, each.cycles, total))
    ends = [Heading("Cycles"), Heading("Share")]
    body = table(
        "What each array does in the cycles of the mini-batch",
        [Heading("Device", False), Heading("The array", False), *ends],
        causes,
    )
    body += table(
        "The same by unit and pass, from half a per cent on",
        [Heading(words, False) for words in ("Device", "Layers up to", "Pass", "The array")] + ends,
        units,
    )
    return Section("spent", "Where the cycles go", lead, body)


def _row(name: str, words: list[str], cycles: int, total: int) -> list[Cell]:
    return [
        Cell(text(name)),
        *(Cell(text(each)) for each in words),
        whole(cycles),
        share(cycles / total),
    ]
