"""Schedules in which a stage may have several devices, its replicas.

The replicas of a stage take the micro-batches in turn. Each has the order of tasks that a device
has in a plain pipeline, for its own micro-batches: the stages before and behind it count as many as
there are devices there for each replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fpgapipe.lowering.schedule.schedule import Lane, Schedule
from fpgapipe.partition.schedule.schedule_kinds import check_passes, make_schedule


def replicated(kind: str, replicas: Sequence[int], num_microbatches: int) -> Schedule:
    """Make a schedule by its name, for stages with replicas.

    Every replica is a stage of the schedule, with a device of its own: first those of the first
    stage, then those of the second, and so on.

    Parameters
    ----------
    kind : str
        Name of a schedule with one stage on each device.
    replicas : sequence of int
        Number of replicas of each stage.
    num_microbatches : int

    Raises
    ------
    ScheduleError
        If there is no such kind, or there are too many stages and micro-batches.
    """
    total = sum(replicas)
    if max(replicas) == 1:
        return make_schedule(kind, total, num_microbatches)
    check_passes(kind, total, num_microbatches)
    firsts = np.concatenate([[0], np.cumsum(replicas)])
    lanes: list[Lane] = []
    limits: list[int] = []
    example = make_schedule(kind, 1, 1)
    for stage, count in enumerate(replicas):
        before = -(-int(firsts[stage]) // count)
        behind = -(-(total - int(firsts[stage + 1])) // count)
        for copy in range(count):
            number = int(firsts[stage]) + copy
            own = len(range(copy, num_microbatches, count))
            limits.append(0)
            if not own:
                continue
            plain = make_schedule(kind, before + 1 + behind, own)
            if plain.in_flight_limit:
                limits[-1] = plain.in_flight_limit[before] * count
            for lane in plain.lanes:
                if lane.device == before:
                    lanes.append(_renumbered(lane, number, copy, count))
    microbatches = np.arange(num_microbatches)
    taken = np.stack([firsts[i] + microbatches % r for i, r in enumerate(replicas)], axis=1)
    routes, route_of = np.unique(taken, axis=0, return_inverse=True)
    return replace(
        example,
        num_microbatches=num_microbatches,
        placement=tuple(range(total)),
        routes=tuple(tuple(route) for route in routes.tolist()),
        route_of=route_of.reshape(-1).astype(np.int32),
        lanes=tuple(lanes),
        in_flight_limit=tuple(limits) if example.in_flight_limit else (),
    )


def side_by_side(schedule: Schedule, replicas: int) -> Schedule:
    """The schedule of several pipelines, one behind the other, which take micro-batches in turn.

    Stages and devices of the second pipeline come after those of the first, and so on.
    """
    if replicas == 1:
        return schedule
    size, count = schedule.num_stages, replicas * schedule.num_microbatches
    assert schedule.placement == tuple(range(size)), "each stage has a device"
    lanes = [
        Lane(
            lane.device + replica * size,
            lane.engine,
            lane.kinds,
            lane.stages + replica * size,
            np.where(lane.microbatches < 0, -1, replica + replicas * lane.microbatches),
        )
        for replica in range(replicas)
        for lane in schedule.lanes
    ]
    return replace(
        schedule,
        num_microbatches=count,
        placement=tuple(range(replicas * size)),
        routes=tuple(
            tuple(range(first, first + size)) for first in range(0, replicas * size, size)
        ),
        route_of=(np.arange(count) % replicas).astype(np.int32),
        lanes=tuple(lanes),
        in_flight_limit=replicas * tuple(replicas * each for each in schedule.in_flight_limit),
    )


def _renumbered(lane: Lane, device: int, copy: int, count: int) -> Lane:
    """A lane of a plain pipeline as that of a replica."""
    numbers = np.where(lane.microbatches < 0, -1, copy + count * lane.microbatches)
    stages = np.full(len(lane), device, np.int32)
    return Lane(device, lane.engine, lane.kinds, stages, numbers.astype(np.int32))
