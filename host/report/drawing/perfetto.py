"""A timeline as a trace in Chrome's JSON form, which ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fpgapipe.host.report.drawing.timetable import (
    KIND_WORDS,
    Row,
    TransferBytes,
    bytes_of,
    device_names,
    rows_of,
    stage_marks,
    summary,
)
from fpgapipe.lowering.schedule.schedule import TaskKind

if TYPE_CHECKING:
    from fpgapipe.partition.timeline.timeline import Timeline


def chrome_trace(
    timeline: Timeline,
    *,
    names: Sequence[str] | None = None,
    transfer_bytes: TransferBytes = None,
) -> dict[str, Any]:
    """Make a trace: a process a device, in it a track for each engine and each link that it sends.

    Times are microseconds, rounded to the nanosecond that Perfetto keeps, so that one task ends
    before or when the next begins: events on a track never overlap. Tasks that take no time are
    events of no length.

    Parameters
    ----------
    timeline : Timeline
    names : sequence of str, optional
        Of the devices.
    transfer_bytes : mapping or callable, optional
        From kind (``SF``, ``SB``) and stage to the bytes of one transfer.

    Returns
    -------
    dict
        For ``json.dump``; the same timeline always makes the same.
    """
    named = device_names(timeline.schedule, names)
    marks = stage_marks(timeline.schedule)
    rows = rows_of(timeline, names)
    events: list[dict[str, Any]] = []
    for device in sorted({row.device for row in rows}):
        events.append(metadata("process_name", device, None, name=named[device]))
        events.append(metadata("process_sort_index", device, None, sort_index=device))
    engines = iter(lane.engine for lane in sorted(timeline.schedule.lanes, key=lambda x: x.device))
    # Thread numbers begin at 1, as 0 is the idle thread, and are unique, as those of a machine are.
    for tid, row in enumerate(rows, 1):
        track = f"link to {named[row.destination]}" if row.is_link else next(engines)
        events.append(metadata("thread_name", row.device, tid, name=track))
        events.append(metadata("thread_sort_index", row.device, tid, sort_index=tid))
    for tid, row in enumerate(rows, 1):
        events += _events(row, row.device, tid, marks, transfer_bytes)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"schedule": timeline.schedule.kind, "summary": summary(timeline)},
    }


def rows_trace(rows: Sequence[Row], names: Sequence[str], clock_hz: float) -> dict[str, Any]:
    """Make a trace of rows in groups: a process for each device of each group, a track a row.

    Parameters
    ----------
    rows : sequence of Row
        Those of a group together.
    names : sequence of str
        Of the devices.
    clock_hz : float
        Kept with the trace, to make cycles of times.

    Returns
    -------
    dict
        For ``json.dump``; the same rows always make the same.
    """
    processes = list(dict.fromkeys((row.group, row.device) for row in rows))
    marks = [""] * max((int(row.stages.max()) + 1 for row in rows if len(row.stages)), default=1)
    events: list[dict[str, Any]] = []
    for pid, (group, device) in enumerate(processes):
        events.append(metadata("process_name", pid, None, name=f"{group}: {names[device]}"))
        events.append(metadata("process_sort_index", pid, None, sort_index=pid))
    for tid, row in enumerate(rows, 1):
        pid = processes.index((row.group, row.device))
        events.append(metadata("thread_name", pid, tid, name="tasks"))
        events.append(metadata("thread_sort_index", pid, tid, sort_index=tid))
        events += _events(row, pid, tid, marks, None)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"clock_hz": clock_hz},
    }


def metadata(what: str, pid: int, tid: int | None, **args: str | int) -> dict[str, Any]:
    """Make an event that names or sorts a process, or one of its threads."""
    event: dict[str, Any] = {"ph": "M", "name": what, "pid": pid}
    if tid is not None:
        event["tid"] = tid
    return {**event, "args": args}


def _events(
    row: Row, pid: int, tid: int, marks: list[str], transfer_bytes: TransferBytes
) -> list[dict[str, Any]]:
    columns = (row.kinds, row.stages, row.microbatches, row.start_s, row.end_s)
    events = []
    for number, stage, microbatch, start, end in zip(
        *(each.tolist() for each in columns), strict=True
    ):
        kind = TaskKind(number)
        begin_ns, end_ns = round(start * 1e9), round(end * 1e9)
        args: dict[str, Any] = {"stage": stage}
        if microbatch >= 0:
            args["micro-batch"] = microbatch
        if row.is_link:
            size = bytes_of(transfer_bytes, kind, stage)
            if size is not None:
                args["bytes"] = size
        word = f"{kind.token}{microbatch if microbatch >= 0 else ''}{marks[stage]}"
        events.append(
            {
                "ph": "X",
                "name": word,
                "cat": KIND_WORDS[kind],
                "pid": pid,
                "tid": tid,
                "ts": begin_ns / 1000,
                "dur": (end_ns - begin_ns) / 1000,
                "args": args,
            }
        )
    return events
