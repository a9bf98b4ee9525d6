"""The kinds of schedules by name, and schedules for given numbers of stages and micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.lowering.schedule.schedule import Schedule, ScheduleError
from fpgapipe.partition.schedule.schedule_kind import CHUNKS, ScheduleKind
from fpgapipe.partition.search.problem import ScheduleModel
from fpgapipe.plugins import Registry, instance_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


MAX_DEVICES = 65_536
MAX_MICROBATCHES = 2**24
MAX_PASSES = 2**20
"""Largest product of stages and micro-batches. A schedule of this size is made and timed within
seconds."""


def make_schedule(
    kind: str, num_devices: int, num_microbatches: int, *, chunks: int | None = None
) -> Schedule:
    """Make a schedule by its name.

    Parameters
    ----------
    kind : str
        Name of its kind.
    num_devices : int
        Devices in the chain.
    num_microbatches : int
        Micro-batches of a mini-batch.
    chunks : int, optional
        Stages per device, if a device of this kind has several; `CHUNKS` if it is not given.

    Raises
    ------
    ScheduleError
        If there is no such kind, or it is not defined for these numbers.
    """
    found = schedule_kind(kind)
    if found.make_for is not None:
        raise ScheduleError(found.why_not_built)
    if chunks is not None and not found.takes_chunks:
        raise ScheduleError(f"{kind} has one stage on each device: leave out chunks")
    chunks = chunks or CHUNKS
    if not 1 <= num_devices <= MAX_DEVICES:
        raise ScheduleError(f"{kind} needs 1..{MAX_DEVICES} devices, not {num_devices}")
    if not 1 <= num_microbatches <= MAX_MICROBATCHES:
        raise ScheduleError(
            f"{kind} needs 1..{MAX_MICROBATCHES} micro-batches, not {num_microbatches}"
        )
    more = (chunks,) if found.takes_chunks else ()
    check_passes(kind, num_devices * (chunks if found.takes_chunks else 1), num_microbatches)
    made = found.make(num_devices, num_microbatches, *more)
    if made.kind != kind or made.splits_engines != (found.num_engines == 2):
        engines = 1 + made.splits_engines
        raise ScheduleError(
            f"{kind} must make schedules named {kind} for {found.num_engines} engines, not "
            f"{made.kind} for {engines}; mend the package that offers it"
        )
    return made


def check_passes(kind: str, num_stages: int, num_microbatches: int) -> None:
    """Refuse a schedule that would take minutes and gigabytes to make.

    Raises
    ------
    ScheduleError
        If stages times micro-batches exceed `MAX_PASSES`. The message names the limit.
    """
    passes = num_stages * num_microbatches
    if passes > MAX_PASSES:
        raise ScheduleError(
            f"{kind} must have at most {MAX_PASSES:,} passes (stages times micro-batches), not "
            f"{num_stages:,} x {num_microbatches:,} = {passes:,}"
        )


def _kind(entry: EntryPoint, found: object) -> ScheduleKind:
    kind = instance_of(ScheduleKind, make=Schedule, model=ScheduleModel)(entry, found)
    if kind.name != entry.name:
        raise TypeError(f"has the name {kind.name!r} of its own")
    return kind


SCHEDULES: Registry[ScheduleKind] = Registry(
    "fpgapipe.schedules",
    "schedule",
    {
        name: f"fpgapipe.partition.schedule.{place}"
        for name, place in (
            ("gpipe", "gpipe:GPIPE"),
            ("1f1b", "one_f_one_b:PLAIN"),
            ("pipedream", "pipedream:PIPEDREAM"),
            ("pipedream-newest", "pipedream:NEWEST"),
            ("1f1b-sno", "one_f_one_b:BLOCKING"),
            ("1f1b-so", "one_f_one_b:OVERLAPPED"),
            ("1f1b-as", "one_f_one_b:STREAMED"),
            ("fbp-as", "fbp:FBP_AS"),
            ("interleaved", "interleaved:INTERLEAVED"),
            ("zb-h1", "split_backward:ZB_H1"),
            ("zb-h2", "split_backward:ZB_H2"),
            ("chimera", "chimera:CHIMERA"),
            ("data-parallel", "on_every_device:DATA_PARALLEL"),
            ("zb-auto", "zero_bubble:ZB_AUTO"),
        )
    },
    _kind,
)
"""All kinds of schedules."""


def schedule_kind(name: str) -> ScheduleKind:
    """Return a kind of schedule.

    Raises
    ------
    ScheduleError
        If there is none of that name.
    """
    try:
        return SCHEDULES[name]
    except UserError as error:
        raise ScheduleError(str(error)) from error


def tried_schedules() -> tuple[str, ...]:
    """Names of the schedules that are tried unless the user asks for one."""
    return tuple(name for name in SCHEDULES.usable() if SCHEDULES[name].is_tried)


def compared_schedules() -> tuple[str, ...]:
    """Names of the schedules that comparisons of ways to train have."""
    return tuple(name for name in SCHEDULES.usable() if SCHEDULES[name].is_compared)


def num_engines_of(name: str) -> int:
    """GEMM engines per device of a kind of schedule; an order from a file, of no kind, needs 1."""
    return SCHEDULES[name].num_engines if name in SCHEDULES else 1


def model_of(kind: str, count: int, num_devices: int, ratio: float = 2.0) -> ScheduleModel:
    """The partitioner's model of a schedule.

    Parameters
    ----------
    kind : str
        Name of the kind.
    count : int
        Micro-batches of a mini-batch.
    num_devices : int
        Devices of the chain.
    ratio : float
        Ratio of backward to forward time.

    Raises
    ------
    ScheduleError
        If there is no such schedule, or it cannot be planned.
    """
    found = schedule_kind(kind)
    if found.model is None:
        raise ScheduleError(f"{kind} is no schedule of plain stages that can be planned")
    return found.model(count, num_devices, ratio)
