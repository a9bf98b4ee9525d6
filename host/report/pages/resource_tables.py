"""Resources that the cores take, compared with the limits of devices and dies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fpgapipe.errors import UserError
from fpgapipe.host.report.drawing.elements import (
    NOTHING,
    Cell,
    Heading,
    Section,
    devices_named,
    fault,
    meter,
    table,
    term,
    text,
)
from fpgapipe.host.report.drawing.timetable import percent
from fpgapipe.host.report.pages.subject import Subject, array_words
from fpgapipe.json_faults import faults_of

MAX_KINDS = 16
"""Most kinds of devices that are shown."""

NAMES = {"lut": "LUT", "ff": "FF", "bram36": "BRAM", "uram": "URAM", "dsp": "DSP"}
"""Names of the resources of a device in words."""

Amount = Annotated[float, Field(ge=0)]


class Amounts(BaseModel):
    """Amounts of each resource."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    lut: Amount = 0
    ff: Amount = 0
    bram36: Amount = 0
    uram: Amount = 0
    dsp: Amount = 0

    def of(self, resource: str) -> float:
        """The amount of one resource."""
        return float(getattr(self, resource))


class DieReport(BaseModel):
    """Resources of a die: those that the core takes, and those that a design may take."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    die: str
    used: Amounts
    limits: Amounts


class BoardReport(BaseModel):
    """Resources that a core takes of a board, by block and by die, and how they are known."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    basis: str = ""
    blocks: dict[str, Amounts]
    used: Amounts
    limits: Amounts
    dies: tuple[DieReport, ...] = ()


def resources_section(subject: Subject) -> Section:
    """Make the section with bars and tables, once for all equal devices."""
    lead = (
        "What the generated hardware takes of each FPGA: "
        f"{term('LUT, FF, BRAM, URAM, DSP', 'resources')}. A bar is full at the limit, from which "
        "the board's shell and a reserve for routing are already taken off; "
        f"{term('dies', 'die')} have limits of their own."
    )
    try:
        kinds = _kinds(subject)
    except UserError as error:
        return Section("resources", "Resources", lead, fault(str(error)))
    except ValidationError as error:
        unread = fault(f"Resources cannot be read: {faults_of(error)[0]}.")
        return Section("resources", "Resources", lead, unread)
    body = ""
    for names, title, found in kinds[:MAX_KINDS]:
        body += f"<h3>{devices_named(names)}: {title}</h3>\n"
        body += _limits_table(found) + _block_table(found)
    for basis in dict.fromkeys(found.basis for _, _, found in kinds):
        body += f'<p class="note">Numbers are {text(basis)}.</p>\n' if basis else ""
    if len(kinds) > MAX_KINDS:
        body += f'<p class="note">The first {MAX_KINDS} of {len(kinds):,} kinds of devices.</p>'
    return Section("resources", "Resources", lead, body)


def fullest(subject: Subject) -> tuple[str, float]:
    """Return the resource with the largest share in use, and that share; "" if none is known."""
    shares = [
        (found.used.of(resource) / found.limits.of(resource), name)
        for _, _, found in _kinds(subject)
        for resource, name in NAMES.items()
        if found.limits.of(resource)
    ]
    used, name = max(shares, default=(0.0, ""))
    return name, used


def _kinds(subject: Subject) -> list[tuple[list[str], str, BoardReport]]:
    """Group equal devices: their names, a description, and their resources."""
    kinds: dict[tuple[str, str], tuple[list[str], str, BoardReport]] = {}
    for index, each in enumerate(subject.build.resources):
        node = subject.plan.nodes[index]
        key = (node.board, json.dumps(each, sort_keys=True))
        device = subject.placed.devices[index]
        share = f", {device.dies[0].name}" if device.is_share else ""
        title = f"{array_words(node.core)} array on {text(node.board + share)}"
        if key not in kinds:
            kinds[key] = ([], title, BoardReport.model_validate(each))
        kinds[key][0].append(node.device)
    return list(kinds.values())


def _limits_table(found: BoardReport) -> str:
    """A table of bars: a row for each resource, columns for the device and for each die."""
    places = [("Whole device", found.used, found.limits)]
    if len(found.dies) > 1:
        places += [(f"Die {text(die.die)}", die.used, die.limits) for die in found.dies]
    parts = [
        '<div class="scroll" tabindex="0" role="group" aria-label="Used, of what a design may use">'
        '<table class="limits">'
        "<caption><span>Used, of what a design may use</span></caption>"
        '<thead><tr><th scope="col">Resource</th>',
        *(f'<th scope="col">{title}</th>' for title, _, _ in places),
        "</tr></thead>\n<tbody>",
    ]
    for resource, name in NAMES.items():
        cells = [_gauge(used.of(resource), limits.of(resource)) for _, used, limits in places]
        if any(limits.of(resource) or used.of(resource) for _, used, limits in places):
            parts.append(f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>\n')
    return "".join([*parts, "</tbody></table></div>\n"])


def _gauge(used: float, limit: float) -> str:
    """A bar with used amount and limit."""
    share = used / limit if limit else 2.0 if used else 0.0
    ratio = percent(share) if limit else "none there"
    if share > 1:
        ratio = f'<span class="over-words">{ratio}, over the limit</span>'
    words = f"{_amount(used)} of {limit:,.0f}"
    return f"<td><b>{ratio}</b> <span>{words}</span>{meter(share)}</td>"


def _amount(value: float) -> str:
    """Write a count; block RAMs may be halves."""
    return f"{value:,.1f}".removesuffix(".0")


def _block_table(found: BoardReport) -> str:
    headings: list[Heading] = [Heading("Block", False)]
    shown = [
        each
        for each in NAMES
        if found.limits.of(each) or any(b.of(each) for b in found.blocks.values())
    ]
    for resource in shown:
        headings.append(Heading(NAMES[resource]))
        headings.append(Heading("%", hint=f"Of the device's {NAMES[resource]}"))
    rows = [
        _block_row(name, amounts, found.limits, shown) for name, amounts in found.blocks.items()
    ]
    foot = _block_row("all", found.used, found.limits, shown)
    return table("By block of the core", headings, rows, foot=foot)


def _block_row(name: str, amounts: Amounts, limits: Amounts, shown: Sequence[str]) -> list[Cell]:
    cells = [Cell(text(name[0].upper() + name[1:]) if name else "")]
    for resource in shown:
        amount, limit = amounts.of(resource), limits.of(resource)
        if not amount:
            cells += [Cell('<span class="none">0</span>', 0), Cell("", 0)]
            continue
        cells.append(Cell(_amount(amount), amount))
        share = amount / limit if limit else 0.0
        cells.append(Cell(percent(share) if limit else NOTHING.shown, share))
    return cells
