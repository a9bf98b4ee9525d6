"""Work and waits of the engines of each device in the mini-batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fpgapipe.host.report.drawing.elements import (
    NOTHING,
    Cell,
    Heading,
    Section,
    fault,
    missing,
    share,
    stacked,
    swatches,
    table,
    term,
    text,
    whole,
)
from fpgapipe.host.report.pages.subject import Subject
from fpgapipe.host.terminal.console import scaled

MAX_BARS = 32
"""Most devices that are drawn; the table has all."""

CAUSES = {
    "c1": "works",
    "c2": "waits for operands",
    "c4": "waits for weights or the second operand",
    "c3": "waits for results to leave",
    "c5": "fills or drains",
    "c6": "waits for another engine or device",
    "idle": "has nothing to do",
}
"""Causes by the CSS class of their colour, in the order in which they are drawn."""

SHORT = {
    "c1": "Works",
    "c2": "Operands",
    "c4": "Weights",
    "c3": "Results",
    "c5": "Fills",
    "c6": "Others",
    "idle": "Idle",
}
"""The causes as headings."""

_WAITS = {
    "WAIT_A": "c2",
    "WAIT_X": "c2",
    "WAIT_B": "c4",
    "WAIT_Y": "c4",
    "WAIT_RESULT": "c3",
    "WAIT_LINK": "c6",
}
_BUSY = re.compile(r"(.*)_BUSY")


@dataclass(frozen=True)
class Engine:
    """Times of an engine by its counters.

    Attributes
    ----------
    name : str
    busy, works : int
        Cycles with an instruction under way, and cycles among them in which it worked.
    semaphores : int
        Cycles in which an instruction waited for others to end.
    causes : dict of str to int
        Cycles by cause, which add up to all cycles.
    """

    name: str
    busy: int
    works: int
    semaphores: int
    causes: dict[str, int]


def engines_of(counters: Mapping[str, int], cycles: int) -> Iterator[Engine]:
    """Sort the counters of a device by engine and cause.

    A wait for semaphores counts only for cycles in which the engine was not busy: while an
    instruction is under way, the next one may well wait.

    Parameters
    ----------
    counters : mapping of str to int
        Counters by name, as in the register map.
    cycles : int
        Cycles of the mini-batch.
    """
    for counter, busy in counters.items():
        match = _BUSY.fullmatch(counter)
        if not match:
            continue
        prefix = match[1]

        def of(name: str, prefix: str = prefix) -> int:
            return counters.get(f"{prefix}_{name}", 0)

        causes = dict.fromkeys(CAUSES, 0)
        # A cycle of waiting may have two causes; the sum is limited to the cycles of being busy.
        left = busy
        if prefix.startswith("GEMM"):
            # One vector a cycle; the counts of other engines are no cycles.
            causes["c1"] = min(of("VECTORS"), left)
            left -= causes["c1"]
        for name, css in _WAITS.items():
            taken = min(of(name), left)
            causes[css] += taken
            left -= taken
        causes["c5" if prefix.startswith("GEMM") else "c1"] += left
        rest = max(cycles - sum(causes.values()), 0)
        semaphores = of("WAIT_SEMAPHORE")
        idle_waits = min(semaphores, rest)
        causes["c6"] += idle_waits
        causes["idle"] = rest - idle_waits
        yield Engine(_named(prefix), busy, causes["c1"], semaphores, causes)


def _named(prefix: str) -> str:
    words = {"LOAD": "loads", "STORE": "stores", "VECTOR": "vector engine"}
    if prefix in words:
        return words[prefix]
    if match := re.fullmatch(r"GEMM(\d+)", prefix):
        return f"GEMM engine {match[1]}"
    if match := re.fullmatch(r"LINK(\d+)_(SEND|RECEIVE)", prefix):
        return f"link {match[1]} {match[2].lower()}s"
    return prefix.replace("_", " ").lower()


def utilisation_section(subject: Subject) -> Section:
    """Make the section with bars by cause, and the counters behind them."""
    lead = (
        "Each engine of a device works beside the others and counts what it does in every cycle "
        f"({term('counters', 'counter')} of the simulated hardware). A long blue bar is good; "
        "the other colours say why it is not longer."
    )
    measured = subject.measured
    devices = measured.devices if measured else ()
    if not any(device.counters for device in devices):
        body = fault(subject.measured_fault) if subject.measured_fault else ""
        body += missing("Counters: not measured.", subject.measure_command)
        return Section("utilisation", "Utilisation and stalls", lead, body)
    assert measured is not None
    bars, rows = [], []
    for index, device in enumerate(devices):
        total = round(measured.minibatch_cycles.rtl or device.counters.get("CYCLES", 0))
        if not total:
            continue
        engines = list(engines_of(device.counters, total))
        if index < MAX_BARS:
            bars.append(f'<h3>{text(subject.names[index])}</h3>\n<div class="engines">')
            for engine in engines:
                parts = [
                    (css, CAUSES[css], value / total)
                    for css, value in engine.causes.items()
                    if value
                ]
                name = f"{text(engine.name)} of {text(subject.names[index])}"
                bars.append(f"<span>{text(engine.name)}</span>{stacked(parts, name)}")
                bars.append(f'<span class="n">{100 * engine.causes["c1"] / total:.1f} %</span>\n')
            bars.append("</div>\n")
        for engine in engines:
            rows.append(_row(subject, index, engine, total))
    body = swatches(list(CAUSES.items())) + "".join(bars)
    if len(devices) > MAX_BARS:
        body += f'<p class="note">The first {MAX_BARS} of {len(devices):,} devices.</p>'
    headings = [
        Heading("Engine", False),
        Heading("Device", False),
        Heading("Busy", hint="Share of the mini-batch with an instruction under way"),
        *(Heading(words, hint=f"Cycles in which it {CAUSES[css]}") for css, words in SHORT.items()),
        Heading(
            "Semaphores",
            hint="All cycles in which an instruction waited for others, also while one was busy",
        ),
    ]
    body += table("Cycles of each engine by what it did", headings, rows)
    body += _other_counters(subject)
    return Section("utilisation", "Utilisation and stalls", lead, body)


def _row(subject: Subject, device: int, engine: Engine, total: int) -> list[Cell]:
    return [
        Cell(text(engine.name)),
        Cell(text(subject.names[device]), device),
        share(engine.busy / total),
        *(whole(engine.causes[css]) for css in CAUSES),
        whole(engine.semaphores),
    ]


_OTHERS = {
    "INSTRUCTIONS": ("Instructions", "Taken from the program"),
    "LOAD_BYTES": ("Read", "Bytes that loads read from the board's memory"),
    "STORE_BYTES": ("Written", "Bytes that stores wrote to the board's memory"),
    "SCRATCHPAD_WAIT": ("Scratchpad waits", "Cycles in which one access waited for another"),
    "REPLAYS": ("Frames sent again", "Of all links, since a wire had damaged them"),
    "CREDIT_WAIT": ("Credit waits", "Cycles in which a word waited for room at the other end"),
}


def _other_counters(subject: Subject) -> str:
    assert subject.measured
    rows = []
    for index, device in enumerate(subject.measured.devices):
        cells = [Cell(text(subject.names[index]), index)]
        for name in _OTHERS:
            found = [
                value
                for key, value in device.counters.items()
                if key == name or re.fullmatch(rf"LINK\d+_{name}", key)
            ]
            if not found:
                cells.append(NOTHING)
            elif name.endswith("_BYTES"):
                cells.append(Cell(scaled(sum(found), "B"), sum(found)))
            else:
                cells.append(whole(sum(found)))
        rows.append(cells)
    headings = [Heading("Device", False)]
    headings += [Heading(words, hint=hint) for words, hint in _OTHERS.values()]
    return table("What else each device counted in the mini-batch", headings, rows)
