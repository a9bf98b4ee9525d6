"""Parts of every picture of a timetable: rows, labels, shares of time, words for times."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import counted
from fpgapipe.lowering.schedule.schedule import TaskKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.lowering.schedule.schedule import Schedule
    from fpgapipe.partition.timeline.timeline import Timeline

TransferBytes = (
    Mapping[tuple[TaskKind, int], float] | Callable[[TaskKind, int], float | None] | None
)
"""Bytes of one transfer by its kind (``SF`` or ``SB``) and the stage whose result is sent."""

KIND_WORDS = {
    TaskKind.F: "forward",
    TaskKind.B: "backward",
    TaskKind.DX: "input gradient",
    TaskKind.DW: "weight gradient",
    TaskKind.U: "update",
    TaskKind.SF: "send activations",
    TaskKind.RF: "receive activations",
    TaskKind.SB: "send gradient",
    TaskKind.RB: "receive gradient",
}


@dataclass(frozen=True)
class Row:
    """One line of a timetable: an engine, or a link from one device to another.

    Parameters
    ----------
    name : str
        Name that is shown at the row.
    device : int
        Device that has the engine, or sends.
    destination : int
        Device that receives; -1 for an engine.
    kinds, stages, microbatches : integer arrays
    start_s, end_s : float arrays
        Tasks of the row in order of time, without overlap; all arrays have one length.
    group : str
        Rows of one group are drawn together, below its name.
    """

    name: str
    device: int
    destination: int
    kinds: NDArray[np.int8]
    stages: NDArray[np.int32]
    microbatches: NDArray[np.int32]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    group: str = ""

    @property
    def is_link(self) -> bool:
        """Whether this is a link."""
        return self.destination >= 0

    @property
    def busy_s(self) -> float:
        """Time in which it computes or sends, s; waiting to send or receive does not count."""
        counts = np.ones(len(self.kinds), bool) if self.is_link else self.kinds <= TaskKind.DW
        return float((self.end_s[counts] - self.start_s[counts]).sum())


def rows_of(timeline: Timeline, names: Sequence[str] | None = None) -> list[Row]:
    """Return rows of engines by device, the outgoing links of each device behind its engines.

    Parameters
    ----------
    timeline : Timeline
    names : sequence of str, optional
        Names of the devices.

    Raises
    ------
    ValueError
        If there are fewer or more names than devices.
    """
    named = device_names(timeline.schedule, names)
    lanes = timeline.schedule.lanes
    several = {lane.device for lane in lanes if lane.engine != "compute"}
    rows = []
    for lane, start, end in zip(lanes, timeline.start_s, timeline.end_s, strict=True):
        name = named[lane.device]
        if lane.device in several:
            name += f" {lane.engine}"
        columns = (lane.kinds, lane.stages, lane.microbatches, start, end)
        rows.append(Row(name, lane.device, -1, *columns))
    for link in timeline.links:
        name = f"{named[link.source]} → {named[link.destination]}"
        columns = (link.kinds, link.stages, link.microbatches, link.start_s, link.end_s)
        rows.append(Row(name, link.source, link.destination, *columns))
    return sorted(rows, key=lambda row: (row.device, row.destination))


def device_names(schedule: Schedule, names: Sequence[str] | None = None) -> list[str]:
    """Return the given names without control characters, or ``device 0``, ``device 1``..."""
    lanes = schedule.lanes
    count = max([schedule.num_devices, *(lane.device + 1 for lane in lanes)])
    if names is None:
        return [f"device {i}" for i in range(count)]
    if len(names) != count:
        raise ValueError(f"names must be one for each of {count} devices, not {len(names)}")
    return [printable(name) for name in names]


def printable(text: str) -> str:
    """Replace characters that a terminal or XML must not get: control characters and the like."""
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs", "Cn") else c for c in text)


def span_of(rows: Sequence[Row]) -> float:
    """Last end of any task or transfer, in seconds."""
    return max((float(row.end_s[-1]) for row in rows if len(row.end_s)), default=0.0)


def sampled(num: int, most: int) -> list[int]:
    """At most `most` of ``0..num - 1``, evenly spread, first and last among them."""
    if num <= most:
        return list(range(num))
    return sorted(set(np.linspace(0, num - 1, most).round().astype(int).tolist()))


def stage_marks(schedule: Schedule) -> list[str]:
    """Return a mark for each stage: "", or ``a``, ``b``... if its device has several stages."""
    total = np.bincount(np.array(schedule.placement, np.int64), minlength=1)
    seen = np.zeros(len(total), int)
    marks = []
    for stage, device in enumerate(schedule.placement):
        letter = chr(ord("a") + seen[device]) if total[device] <= 26 else f"@{stage}"
        marks.append("" if total[device] == 1 else letter)
        seen[device] += 1
    return marks


def label(kind: int, microbatch: int, mark: str = "") -> str:
    """Write a short label of a task: ``F3``, ``dX0``, ``U``; a mark says which stage of several."""
    number = "" if microbatch < 0 else str(microbatch)
    return f"{TaskKind(kind).token}{number}{mark}"


def busy_shares(row: Row, edges: NDArray[np.float64]) -> dict[TaskKind, NDArray[np.float64]]:
    """Share of the time between adjacent edges that each kind of task takes.

    Parameters
    ----------
    row : Row
    edges : float array, shape (n + 1,)
        Increasing times.

    Returns
    -------
    dict
        Float array of shape (n,) with shares in 0..1 for each kind that takes time.
    """
    shares = {}
    width = np.diff(edges)
    for kind in np.unique(row.kinds).tolist():
        mask = row.kinds == kind
        start, end = row.start_s[mask], row.end_s[mask]
        done = np.cumsum(end - start)
        if done[-1] <= 0:
            continue
        # Time spent on the kind up to t is piecewise linear in t: interpolate, then subtract.
        times = np.stack([start, end], axis=1).ravel()
        spent = np.stack([done - (end - start), done], axis=1).ravel()
        taken = np.diff(np.interp(edges, times, spent))
        shares[TaskKind(kind)] = np.clip(taken / width, 0.0, 1.0)
    return shares


UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps"))


def unit_of(span_s: float) -> tuple[float, str]:
    """Return the unit in which a span is at least 1: its length in seconds and its name."""
    return next((unit for unit in UNITS if span_s >= unit[0] * 0.99999), UNITS[-1 if span_s else 0])


def duration(seconds: float, *, digits: int = 4) -> str:
    """Write a time with the unit that suits it: ``1.5 ms``, ``250 µs``, ``1,234 s``."""
    rounded = float(f"{seconds:.{digits - 1}e}")
    factor, unit = unit_of(abs(rounded))
    return f"{number(rounded / factor, digits)} {unit}"


def number(value: float, digits: int) -> str:
    """Write a number to some digits, without an exponent and without trailing zeros."""
    if not value:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def tick_step(span: float, most: int) -> float:
    """Smallest 1, 2 or 5 times a power of ten that divides a span into at most `most` parts."""
    if span <= 0:
        return 1.0
    rough = span / max(1, most)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(
        factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= rough * 0.999999
    )


def summary(timeline: Timeline) -> str:
    """Write a summary in one line: ``1f1b-as, 4 devices, 8 micro-batches: 33 s, bubble 27.3 %``."""
    schedule = timeline.schedule
    devices = counted(schedule.num_devices, "device")
    microbatches = counted(schedule.num_microbatches, "micro-batch", "es")
    return (
        f"{printable(schedule.kind)}, {devices}, {microbatches}: "
        f"{duration(timeline.makespan_s)}, bubble {percent(timeline.bubble_rate)}"
    )


def percent(share: float) -> str:
    """Write a share: ``27.3 %``."""
    return f"{100 * share:.3g} %" if share < 0.9995 else f"{100 * share:.0f} %"


def bytes_of(transfer_bytes: TransferBytes, kind: TaskKind, stage: int) -> float | None:
    """Bytes of a transfer, or None if they are not known."""
    if transfer_bytes is None:
        return None
    if isinstance(transfer_bytes, Mapping):
        return transfer_bytes.get((kind, stage))
    return transfer_bytes(kind, stage)
