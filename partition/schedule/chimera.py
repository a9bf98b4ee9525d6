"""Chimera: two pipelines in opposite directions (Li, Hoefler, SC 2021)."""

from __future__ import annotations

import numpy as np

from fpgapipe.lowering.schedule.schedule import Lane, Schedule, ScheduleError
from fpgapipe.partition.schedule.chains import B, F, U
from fpgapipe.partition.schedule.schedule_kind import SEVERAL, ScheduleKind


def chimera(p: int, m: int) -> Schedule:
    """Two pipelines in opposite directions, each with half of the micro-batches.

    The tasks of both pipelines are put in the order in which they would run if every task took one
    time step. Units of `p` micro-batches begin ``2 p`` time steps apart, and no two tasks of a
    device fall on the same time step: on every device, the forward passes of one pipeline have odd
    time steps and those of the other have even ones, and the backward passes follow without a gap.

    Raises
    ------
    ScheduleError
        If the number of devices is odd, or the number of micro-batches is no multiple of it.
    """
    if p % 2:
        raise ScheduleError(f"chimera needs an even number of devices, not {p}")
    if m % p:
        raise ScheduleError(f"chimera needs a multiple of {p} micro-batches, not {m}")
    half = p // 2
    tasks: list[list[tuple[int, int, int, int]]] = [[] for _ in range(p)]
    for unit in range(m // p):
        for direction in (0, 1):
            for k in range(half):
                number = unit * p + direction * half + k
                for s in range(p):
                    device = s if direction == 0 else p - 1 - s
                    stage = s if direction == 0 else p + s
                    begin = unit * 2 * p
                    tasks[device].append((begin + s + 2 * k, F, stage, number))
                    back = p + (p - 1 - s) + 2 * k
                    tasks[device].append((begin + back, B, stage, number))
    lanes = []
    for device in range(p):
        rows = [row[1:] for row in sorted(tasks[device])]
        ends = [(int(U), device, -1), (int(U), 2 * p - 1 - device, -1)]
        lanes.append(Lane.of(device, "compute", [*rows, *ends]))
    placement = (*range(p), *(p - 1 - s for s in range(p)))
    routes = (tuple(range(p)), tuple(range(p, 2 * p)))
    route_of = (np.arange(m) % p >= half).astype(np.int32)
    return Schedule("chimera", m, placement, routes, route_of, tuple(lanes), "after")


CHIMERA = ScheduleKind("chimera", chimera, not_built=SEVERAL)
"""The kind of schedule."""
