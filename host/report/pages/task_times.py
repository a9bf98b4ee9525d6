"""Timetables of the tasks by each level, one above the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fpgapipe.host.report.drawing.elements import Section, fault, missing, term, text
from fpgapipe.host.report.drawing.timetable import Row, rows_of
from fpgapipe.host.report.drawing.timetable_svg import draw_rows
from fpgapipe.host.report.pages.inputs import TaskTimes
from fpgapipe.host.report.pages.subject import Subject
from fpgapipe.host.terminal.console import count
from fpgapipe.lowering.schedule.schedule import TaskKind

LEVELS = {"event": "Event simulation", "cycle_model": "Cycle model", "rtl": "RTL simulation"}
"""Names of the levels that have times of tasks, the fastest first."""

_KINDS = {kind.token: kind for kind in TaskKind}
_TASK = re.compile(r"([A-Za-z]+?)(\d*)@(\d+)")


def measured_rows(subject: Subject) -> list[Row]:
    """Rows of all levels that were run: a group for each level, in it rows for each device."""
    measured = subject.measured
    rows = []
    for level, words in LEVELS.items() if measured else ():
        for device, each in enumerate(measured.devices if measured else ()):
            found = [(task, getattr(task, level)) for task in each.tasks]
            timed = [(task, times) for task, times in found if times is not None]
            if timed:
                rows += _rows(timed, device, subject, words)
    return rows


def _rows(
    timed: list[tuple[TaskTimes, tuple[float, float]]], device: int, subject: Subject, group: str
) -> list[Row]:
    """Rows of one device: one, or as many as needed if tasks overlap, as with two engines."""
    assert subject.measured
    lanes: list[list[tuple[TaskTimes, tuple[float, float]]]] = []
    for entry in sorted(timed, key=lambda entry: entry[1]):
        free = next((lane for lane in lanes if lane[-1][1][1] <= entry[1][0]), None)
        if free is None:
            lanes.append([entry])
        else:
            free.append(entry)
    rows = []
    for lane in lanes:
        times = np.array([each for _, each in lane], np.float64) / subject.measured.clk_hz
        rows.append(
            Row(
                subject.names[device],
                device,
                -1,
                np.array([kind_of(task) for task, _ in lane], np.int8),
                np.full(len(lane), device, np.int32),
                np.array([max(task.microbatch, -1) for task, _ in lane], np.int32),
                times[:, 0],
                np.maximum(times[:, 1], times[:, 0]),
                group,
            )
        )
    return rows


def working_share(subject: Subject, level: str) -> float | None:
    """Share of the mini-batch in which the average device works on some task, by a level."""
    measured = subject.measured
    total: float | None = getattr(measured.minibatch_cycles, level) if measured else None
    if not measured or not measured.devices or not total:
        return None
    worked = 0.0
    for device in measured.devices:
        last = 0.0
        spans = [getattr(task, level) for task in device.tasks]
        for begin, end in sorted(span for span in spans if span is not None):
            worked += max(end - max(begin, last), 0.0)  # tasks of two engines overlap
            last = max(last, end)
        if not last:
            return None
    return worked / total / len(measured.devices)


def kind_of(task: TaskTimes) -> TaskKind:
    """Kind of a task; an unknown name counts as an update."""
    name = _TASK.fullmatch(task.task)
    written = task.kind if task.kind in _KINDS else name[1] if name else ""
    return _KINDS.get(written, TaskKind.U)


def timetable_section(subject: Subject) -> Section:
    """Make the section with timetables of the plan or of all levels that were measured."""
    rows = measured_rows(subject)
    groups = {row.group for row in rows}
    body = ""
    if LEVELS["event"] not in groups:
        planned = [
            replace(row, group="Event simulation of the plan")
            for row in rows_of(subject.planned, subject.names)
        ]
        rows = planned + rows
    lacking = [words for level, words in LEVELS.items() if words not in groups and level != "event"]
    body += (
        '<div class="bar"><p class="how">Point at a task to see its cycles. Drag to move, '
        "Ctrl and wheel to zoom, click a task to follow its micro-batch.</p>"
        '<button type="button" data-act="regroup" hidden>By device</button>'
        '<button type="button" data-act="out" aria-label="Zoom out">&minus;</button>'
        '<button type="button" data-act="in" aria-label="Zoom in">+</button>'
        '<button type="button" data-act="all">Whole</button></div>\n'
        '<div class="view" tabindex="0" role="group" aria-label="Timetables; plus and minus zoom, '
        'arrows move, 0 shows all">\n'
    )
    title = f"Timetables of a mini-batch: {', '.join(dict.fromkeys(row.group for row in rows))}"
    body += draw_rows(rows, names=subject.names, title=title, remark=_remarks(subject))
    body += "</div>\n"
    if subject.trace:
        body += (
            f'<p class="note">All times as a trace: <a href="{text(subject.trace)}" download>'
            "trace.json</a>, which ui.perfetto.dev and chrome://tracing open.</p>\n"
        )
    if subject.measured_fault:
        body += fault(subject.measured_fault)
    if lacking:
        body += missing(f"{' and '.join(lacking)}: not measured.", subject.measure_command)
    lead = (
        "One mini-batch, task by task, as each level sees it, on one axis of time. The "
        f"{term('levels', 'levels')} go from quick to exact: where bars of one device stand "
        "below one another, the prediction holds. Gaps are "
        f"{term('bubbles', 'bubble')}: the device waits for another."
    )
    return Section("timetable", "Timetable, predicted and measured", lead, body)


def _remarks(subject: Subject) -> Callable[[Row, int], str]:
    """Return a function for hover text: cycles of a task, and differences between the levels."""
    tasks = {
        (device, kind_of(task), task.microbatch): task
        for device, each in enumerate(subject.measured.devices if subject.measured else ())
        for task in each.tasks
    }

    def remark(row: Row, index: int) -> str:
        begin, end = (
            round(float(times[index]) * subject.clk_hz) for times in (row.start_s, row.end_s)
        )
        words = f"{count(end - begin)} cycles, from {count(begin)} to {count(end)}"
        key = (row.device, TaskKind(int(row.kinds[index])), int(row.microbatches[index]))
        task = None if row.is_link else tasks.get(key)
        return words if task is None else "\n".join([words, *_compared(task)])

    return remark


def _compared(task: TaskTimes) -> list[str]:
    """Cycles of a task by each level, and the difference from the last of them, in words."""
    spans = {words: getattr(task, level) for level, words in LEVELS.items()}
    lengths = {words: span[1] - span[0] for words, span in spans.items() if span is not None}
    if len(lengths) < 2:
        return []
    reference = list(lengths.values())[-1]
    lines = []
    for words, length in lengths.items():
        gap = f" ({100 * (length - reference) / reference:+.2f} %)" if reference else ""
        lines.append(f"{words}: {count(length)}{gap if length != reference else ''}")
    return lines
