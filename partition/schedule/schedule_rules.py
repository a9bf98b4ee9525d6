"""A checker for all schedules: completeness, placement, memory, weight versions and deadlock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fpgapipe.lowering.schedule.schedule import Lane, Schedule, ScheduleError, Task, TaskKind
from fpgapipe.partition.timeline.timeline import DeadlockError, StageTimes, simulate

MAX_FAULTS = 20
"""Most faults that are listed; the others are only counted."""

F, B, DX, DW, U = TaskKind.F, TaskKind.B, TaskKind.DX, TaskKind.DW, TaskKind.U


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes
    ----------
    faults : tuple of str
        Rules that the schedule breaks, in words; empty if it is sound.
    fifo_depth : int or None
        The fewest results that each link must hold for the schedule to run to its end, counted
        separately for activations and gradients; None if it never runs to its end.
    peak_microbatches : tuple of int
        For each device, the most micro-batches whose activations it keeps at once, from the forward
        pass to the end of the last pass that uses them, whatever the durations of the tasks.
    weight_versions : tuple of int
        For each stage, the number of versions of its weights that it must keep.
    """

    faults: tuple[str, ...]
    fifo_depth: int | None
    peak_microbatches: tuple[int, ...]
    weight_versions: tuple[int, ...]

    @property
    def is_sound(self) -> bool:
        """Whether no rule is broken."""
        return not self.faults


def check_schedule(
    schedule: Schedule,
    *,
    fifo_depth: int | None = None,
    memory_limit: Sequence[int] | None = None,
) -> Verdict:
    """Check a schedule against all rules.

    Parameters
    ----------
    schedule : Schedule
    fifo_depth : int, optional
        Number of results that each link holds. A schedule that deadlocks with it is at fault.
    memory_limit : sequence of int, optional
        For each device, the number of micro-batches whose activations it has room for.

    Returns
    -------
    Verdict
    """
    faults = _whole(schedule) + _placed(schedule)
    needed = None
    peaks = _peaks(schedule)
    if not faults:
        try:
            needed = least_fifo_depth(schedule)
            if fifo_depth is not None and fifo_depth < needed:
                _run(schedule, fifo_depth)
        except ScheduleError as error:
            faults.append(str(error))
    if memory_limit is not None:
        faults += [
            f"device {device} keeps the activations of {peak} micro-batches, it has room for {room}"
            for device, (peak, room) in enumerate(zip(peaks, memory_limit, strict=True))
            if peak > room
        ]
    versions, more = _versions(schedule)
    faults += more
    hidden = len(faults) - MAX_FAULTS
    if hidden > 0:
        faults = [*faults[:MAX_FAULTS], f"and {hidden} more"]
    return Verdict(tuple(faults), needed, peaks, versions)


def kept_microbatches(schedule: Schedule) -> tuple[int, ...]:
    """Micro-batches whose activations each stage's device keeps in any case, a stage a device.

    With two engines on a device, the number depends on the durations of the tasks and is at least
    1. An asynchronous schedule keeps as many as there are stages from this one on, in the steady
    state.
    """
    stages = schedule.num_stages
    if not schedule.synchronous:
        return tuple(range(stages, 0, -1))
    if schedule.splits_engines or all((lane.kinds == F).all() for lane in schedule.lanes):
        return (1,) * stages
    peaks = _peaks(schedule)
    return tuple(peaks[device] for device in schedule.placement)


def least_fifo_depth(schedule: Schedule) -> int:
    """The fewest results that each link must hold for the schedule to run to its end.

    Raises
    ------
    DeadlockError
        If it does not run to its end with any depth.
    """
    _run(schedule, None)
    low, high = 1, 1
    while not _runs(schedule, high):
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        if _runs(schedule, middle):
            high = middle
        else:
            low = middle + 1
    return low


def _run(schedule: Schedule, fifo_depth: int | None) -> None:
    # Whether tasks wait for one another in a cycle does not depend on how long they take.
    ones = StageTimes.uniform(schedule.num_stages, 1, 1, 1, transfer_s=1)
    simulate(schedule, ones, fifo_depth=fifo_depth)


def _runs(schedule: Schedule, fifo_depth: int) -> bool:
    try:
        _run(schedule, fifo_depth)
    except DeadlockError:
        return False
    return True


def _whole(schedule: Schedule) -> list[str]:
    """Check that every micro-batch passes each stage of its route once per pass, and no other."""
    shape = (schedule.num_stages, schedule.num_microbatches)
    wanted = np.zeros(shape, bool)
    for i, route in enumerate(schedule.routes):
        numbers = np.flatnonzero(schedule.route_of == i)
        wanted[np.ix_(np.array(route), numbers)] = True
    counts = {kind: np.zeros(shape, np.int32) for kind in (F, B, DX, DW)}
    for lane in schedule.lanes:
        inside = (lane.stages < shape[0]) & (lane.microbatches < shape[1]) & (lane.stages >= 0)
        for kind, count in counts.items():
            mask = inside & (lane.kinds == kind) & (lane.microbatches >= 0)
            np.add.at(count, (lane.stages[mask], lane.microbatches[mask]), 1)
        strange = ~inside | ((lane.kinds != U) & (lane.microbatches < 0))
        if strange.any():
            at = int(np.argmax(strange))
            return [f"{_task(lane, at)} names a stage or micro-batch that there is not"]
    faults = []
    for kind, count in counts.items():
        for stage, number in np.argwhere(count > 1).tolist():
            faults.append(f"{Task(kind, stage, number)} is there {count[stage, number]} times")
        for stage, number in np.argwhere((count > 0) & ~wanted).tolist():
            faults.append(f"{Task(kind, stage, number)} is not on its micro-batch's route")
    for stage, number in np.argwhere(wanted & (counts[F] == 0)).tolist():
        faults.append(f"{Task(F, stage, number)} is missing")
    split = (counts[DX] > 0) | (counts[DW] > 0)
    for stage, number in np.argwhere(wanted & ~split & (counts[B] == 0)).tolist():
        faults.append(f"{Task(B, stage, number)} is missing")
    for kind in (DX, DW):
        for stage, number in np.argwhere(wanted & split & (counts[kind] == 0)).tolist():
            faults.append(f"{Task(kind, stage, number)} is missing")
    for stage, number in np.argwhere(split & (counts[B] > 0)).tolist():
        faults.append(f"{Task(B, stage, number)} is there beside a split backward pass")
    return faults


def _placed(schedule: Schedule) -> list[str]:
    """Check that each lane has only tasks of stages on its own device."""
    faults = []
    placement = np.array(schedule.placement)
    for lane in schedule.lanes:
        inside = (lane.stages >= 0) & (lane.stages < schedule.num_stages)
        for at in np.flatnonzero(inside)[placement[lane.stages[inside]] != lane.device].tolist():
            home = placement[lane.stages[at]]
            faults.append(f"{_task(lane, at)} is on device {lane.device}, its stage on {home}")
    return faults


def _peaks(schedule: Schedule) -> tuple[int, ...]:
    """Most micro-batches kept on each device.

    On a device with one engine they follow from the order of the tasks. On a device with two
    engines they are bounded by the limit that the schedule sets.
    """
    peaks = [0] * schedule.num_devices
    if schedule.splits_engines:
        for stage, device in enumerate(schedule.placement):
            limit = schedule.in_flight_limit[stage] if schedule.in_flight_limit else 0
            room = limit - 1 if limit else schedule.num_microbatches  # one place is being filled
            peaks[device] += min(room, schedule.num_microbatches)
        return tuple(peaks)
    for lane in schedule.lanes:
        split = set(lane.stages[lane.kinds == DW].tolist())
        releases = (lane.kinds == DW) | ((lane.kinds == B) & ~np.isin(lane.stages, list(split)))
        change = (lane.kinds == F).astype(int) - releases.astype(int)
        if 0 <= lane.device < len(peaks):
            peaks[lane.device] += int(np.cumsum(change).max(initial=0))
    return tuple(peaks)


def _versions(schedule: Schedule) -> tuple[tuple[int, ...], list[str]]:
    """Number of weight versions that each stage keeps, and the faults of misplaced updates."""
    versions = [1] * schedule.num_stages
    faults: list[str] = []
    lanes: list[list[Lane]] = [[] for _ in range(schedule.num_stages)]
    for lane in schedule.lanes:
        for stage in np.unique(lane.stages).tolist():
            if 0 <= stage < len(lanes):
                lanes[stage].append(lane)
    for stage, own_lanes in enumerate(lanes):
        for lane in own_lanes:
            own = np.flatnonzero(lane.stages == stage)
            kinds, numbers = lane.kinds[own], lane.microbatches[own]
            updates = np.cumsum(kinds == U)
            learns = (kinds == B) | (kinds == DW)
            if not learns.any():
                continue
            if schedule.synchronous:
                late = np.flatnonzero(((kinds == F) | learns) & (updates > 0))
                if len(late):
                    faults.append(f"{_task(lane, int(own[late[0]]))} comes after the update")
                if updates[-1] != 1:
                    faults.append(f"stage {stage} has {updates[-1]} updates, not 1")
            elif schedule.keeps_weights:
                seen = np.zeros(schedule.num_microbatches, int)
                forward = kinds == F
                seen[numbers[forward]] = updates[forward]
                versions[stage] = int((updates[learns] - seen[numbers[learns]]).max()) + 1
    return tuple(versions), faults


def _task(lane: Lane, at: int) -> Task:
    kind = TaskKind(int(lane.kinds[at]))
    return Task(kind, int(lane.stages[at]), int(lane.microbatches[at]))
