"""Data parallelism, shown as a schedule: every device has the whole network."""

from __future__ import annotations

import numpy as np

from fpgapipe.lowering.schedule.schedule import Lane, Schedule
from fpgapipe.partition.schedule.chains import B, F, U
from fpgapipe.partition.schedule.schedule_kind import SEVERAL, ScheduleKind


def data_parallel(p: int, m: int) -> Schedule:
    """Every device has the whole network, takes every p-th micro-batch and updates once."""
    lanes = []
    for i in range(p):
        numbers = np.arange(i, m, p, dtype=np.int32)
        kinds = np.append(np.tile(np.array([F, B], np.int8), len(numbers)), np.int8(U))
        microbatches = np.append(np.repeat(numbers, 2), np.int32(-1))
        lanes.append(Lane(i, "compute", kinds, np.full(len(kinds), i, np.int32), microbatches))
    routes = tuple((i,) for i in range(p))
    route_of = (np.arange(m) % p).astype(np.int32)
    return Schedule("data-parallel", m, tuple(range(p)), routes, route_of, tuple(lanes), "after")


DATA_PARALLEL = ScheduleKind("data-parallel", data_parallel, not_built=SEVERAL)
"""The kind of schedule."""
