"""A timeline as a trace in Chrome's JSON form, for ui.perfetto.dev and chrome://tracing."""

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
    """Make a trace: a process for each device, with a track for each engine and outgoing link.

    Times are in microseconds, rounded to nanoseconds, which is the resolution of Perfetto. So a
    task ends before or when the next one begins: events on a track never overlap. Tasks that take
    no time are events of length 0.

    Parameters
    ----------
    timeline : Timeline
    names : sequence of str, optional
        Names of the devices.
    transfer_bytes : mapping or callable, optional
        Bytes of one transfer by its kind (``SF``, ``SB``) and stage.

    Returns
    -------
    dict
        Trace for ``json.dump``; equal timelines give an equal trace.
    """
    named = device_names(timeline.schedule, names)
    marks = stage_marks(timeline.schedule)
    rows = rows_of(timeline, names)
    events: list[dict[str, Any]] = []
    for device in sorted({row.device for row in rows}):
        events.append(metadata("process_name", device, None, name=named[device]))
        events.append(metadata("process_sort_index", device, None, sort_index=device))
    engines = iter(lane.engine for lane in sorted(timeline.schedule.lanes, key=lambda x: x.device))
    # Thread numbers begin at 1, since 0 is the idle thread, and are unique in the whole trace.
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
    """Make a trace of groups of rows: a process for each device and group, a track for each row.

    Parameters
    ----------
    rows : sequence of Row
        Rows, those of a group one after the other.
    names : sequence of str
        Names of the devices.
    clock_hz : float
        Clock frequency, Hz; the trace has it so that times can be turned into cycles.

    Returns
    -------
    dict
        Trace for ``json.dump``; equal rows give an equal trace.
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
