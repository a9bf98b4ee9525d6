"""Timetables of schedules for stages of given times, as ``fpgapipe schedule`` draws them.

Schedules may come from files, in PyTorch's CSV form.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpgapipe.errors import FileError, UserError, counted
from fpgapipe.host.report.drawing.pictures import picture
from fpgapipe.host.report.drawing.timetable_text import draw_text
from fpgapipe.host.terminal.console import Table
from fpgapipe.host.terminal.result import Result
from fpgapipe.lowering.schedule.pytorch_csv import read_pytorch_csv, to_pytorch_csv
from fpgapipe.lowering.schedule.schedule import Schedule, ScheduleError
from fpgapipe.partition.schedule.schedule_kinds import check_passes, make_schedule, schedule_kind
from fpgapipe.partition.schedule.schedule_rules import Verdict, check_schedule
from fpgapipe.partition.timeline.timeline import StageTimes, Timeline, simulate


@dataclass(frozen=True)
class Timetable(Result):
    """A schedule with the times of its tasks, and what it needs.

    Attributes
    ----------
    schedule : Schedule
    timeline : Timeline
    verdict : Verdict
        Memory and links that it needs.
    shows_order : bool
        Whether the order of the tasks is shown, instead of a drawing.
    """

    schedule: Schedule
    timeline: Timeline
    verdict: Verdict
    shows_order: bool = False

    def picture(self, kind: str) -> str:
        """Text of a picture of the timetable: ``svg``, ``html``, or ``trace`` for Perfetto."""
        return picture(kind, self.timeline, f"{self.schedule.kind} timetable")

    def to_csv(self) -> str:
        """The order of the tasks as the CSV that PyTorch reads."""
        return to_pytorch_csv(self.schedule)

    def to_dict(self) -> dict[str, Any]:
        """Times, bubbles, and what the schedule needs."""
        return {
            "kind": self.schedule.kind,
            "makespan": self.timeline.makespan_s,
            "span": self.timeline.span_s,
            "bubble_rate": self.timeline.bubble_rate,
            "peak_microbatches": list(self.timeline.peak_microbatches()),
            "weight_versions": list(self.verdict.weight_versions),
            "fifo_depth": self.verdict.fifo_depth,
            "busy": list(self.timeline.busy_s),
        }

    def shown(self) -> Iterator[Table | str]:
        """A drawing or the order of the tasks, and what it comes to."""
        made = self.timeline
        if self.shows_order:
            yield str(self.schedule).removesuffix("\n")
        else:
            width = shutil.get_terminal_size((120, 24)).columns
            is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
            yield draw_text(made, width=width, unicode=is_unicode)
        yield f"makespan {made.makespan_s:g} s, bubble rate {made.bubble_rate:.2%}"
        yield f"micro-batches of activations kept: {'/'.join(map(str, made.peak_microbatches()))}"
        yield f"versions of weights kept: {'/'.join(map(str, self.verdict.weight_versions))}"
        yield f"results that each link must hold: {self.verdict.fifo_depth}"


def schedule(
    kind: str | None = None,
    stages: int | None = None,
    micro_batches: int | None = None,
    *,
    order: Schedule | Path | str | None = None,
    tf: float = 1.0,
    tb: float = 1.0,
    tw: float = 1.0,
    tcomm: float = 0.0,
    latency: float = 0.0,
    chunks: int | None = None,
    memory_limit: int | None = None,
    fifo_depth: int | None = None,
    shows_order: bool = False,
) -> Timetable:
    """Time a schedule of equal stages.

    Parameters
    ----------
    kind : str, optional
        Its name; an `order` has one of its own.
    stages, micro_batches : int, optional
        Devices in the chain, and parts of a mini-batch.
    order : Schedule or path, optional
        A schedule, or a file in PyTorch's CSV form, instead of one by name.
    tf, tb, tw : float
        Seconds of a forward pass, of the gradient of the inputs and of that of the weights.
    tcomm, latency : float
        Seconds of a transfer to the next device, and from one end of a link to the other.
    chunks : int, optional
        Stages of each device in interleaved schedules; 2 if it is not given.
    memory_limit : int, optional
        Micro-batches whose activations a device may keep, for ``zb-auto``.
    fifo_depth : int, optional
        Results that a link holds; no limit if it is not given.
    shows_order : bool
        Whether the result shows the order of the tasks, instead of a drawing.

    Raises
    ------
    UserError
        If options contradict each other or the schedule breaks a rule.
    """
    work = (tf, tb, tw)
    transfer = {"transfer_s": tcomm, "latency_s": latency}
    if order is not None:
        if kind is not None:
            raise UserError(f"--from-csv has a schedule of its own: leave out {kind!r}")
        if memory_limit is not None:
            raise UserError("--memory-limit is for zb-auto; --from-csv has an order of its own")
        if chunks is not None:
            raise UserError("--chunks is for interleaved; --from-csv has an order of its own")
        if not isinstance(order, Schedule):
            order = read_schedule(order, stages, micro_batches)
        made = order
        times = StageTimes.uniform(made.num_stages, *work, **transfer)
    else:
        if kind is None:
            raise UserError("name a kind of schedule, or a file with --from-csv")
        if stages is None or micro_batches is None:
            missing = "stages" if stages is None else "micro-batches"
            raise UserError(f"{kind} needs --{missing}")
        if chunks is not None and not schedule_kind(kind).takes_chunks:
            raise UserError(
                "--chunks is for schedules with several stages on a device, such as interleaved; "
                f"{kind} has one"
            )
        if make := schedule_kind(kind).make_for:
            times = StageTimes.uniform(stages, *work, **transfer)
            made = make(stages, micro_batches, times, memory_limit)
        elif memory_limit is not None:
            raise UserError(
                "--memory-limit is for schedules that are made for given times, such as zb-auto; "
                f"{kind} has an order of its own"
            )
        else:
            made = make_schedule(kind, stages, micro_batches, chunks=chunks)
            # The stages of a route share the work of all devices.
            share = stages / len(made.routes[0])
            work = (tf * share, tb * share, tw * share)
            times = StageTimes.uniform(made.num_stages, *work, **transfer)
    timeline = simulate(made, times, fifo_depth=fifo_depth)
    return Timetable(made, timeline, check_schedule(made, fifo_depth=fifo_depth), shows_order)


def read_schedule(
    name: str | Path, num_devices: int | None = None, num_microbatches: int | None = None
) -> Schedule:
    """Read a schedule in PyTorch's CSV form and check it against all rules.

    Parameters
    ----------
    name : str or Path
        The file.
    num_devices, num_microbatches : int, optional
        Numbers that the schedule has to have.

    Raises
    ------
    FileError
        If the file is no schedule, breaks a rule, deadlocks, or has other numbers.
    """
    made = read_pytorch_csv(Path(name))
    faults = []
    for word, plural, has, wanted in (
        ("device", "s", made.num_devices, num_devices),
        ("micro-batch", "es", made.num_microbatches, num_microbatches),
    ):
        if wanted is not None and has != wanted:
            faults.append(f"has {counted(has, word, plural)}, not the {wanted} asked for")
    if not faults:
        try:
            check_passes(made.kind, made.num_stages, made.num_microbatches)
            faults += check_schedule(made).faults
        except ScheduleError as error:
            faults.append(str(error))
    if faults:
        raise FileError(name, faults)
    return made


def read_plain_schedule(
    name: Schedule | str | Path, num_devices: int | None = None, num_microbatches: int | None = None
) -> Schedule:
    """Read a schedule with a stage on each device, in the order of the devices.

    A schedule that is one already is returned as it is.

    Raises
    ------
    FileError
        In the same cases as `read_schedule`, and if a device has other stages.
    """
    if isinstance(name, Schedule):
        return name
    made = read_schedule(name, None, num_microbatches)
    if made.placement != tuple(range(made.num_stages)):
        raise FileError(
            name,
            [
                "plan takes schedules with one stage on each device, stage 0 on line 1 and so on; "
                f"this one places its stages on lines {_lines(made.placement)}; "
                "'fpgapipe schedule --from-csv' times it with times of your own"
            ],
        )
    if num_devices is not None and made.num_stages != num_devices:
        raise FileError(
            name, [f"has {counted(made.num_stages, 'stage')}, and there must be {num_devices}"]
        )
    return made


def _lines(placement: tuple[int, ...]) -> str:
    some = ", ".join(str(device + 1) for device in placement[:8])
    return some + (", ..." if len(placement) > 8 else "")
