"""Interleaved 1F1B, with several stages on each device (Narayanan et al., SC 2021)."""

from __future__ import annotations

import numpy as np

from fpgapipe.lowering.schedule.schedule import Lane, Schedule, ScheduleError
from fpgapipe.partition.schedule.chains import B, F, U
from fpgapipe.partition.schedule.schedule_kind import CHUNKS, SEVERAL, ScheduleKind


def interleaved(p: int, m: int, chunks: int = CHUNKS) -> Schedule:
    """1F1B with `chunks` stages per device: device ``i`` has the stages ``i, i + p, ...``.

    Raises
    ------
    ScheduleError
        If the number of micro-batches is no multiple of the number of devices, or `chunks` is
        below 1.
    """
    if chunks < 1:
        raise ScheduleError(f"interleaved needs at least 1 chunk a device, not {chunks}")
    if m % p:
        raise ScheduleError(
            f"interleaved needs a multiple of {p} micro-batches (one for each device), not {m}"
        )
    step = np.arange(m * chunks)
    chunk = step % (p * chunks) // p
    number = step // (p * chunks) * p + step % p
    forward = np.stack([np.full_like(step, F), chunk, number], axis=1)
    backward = np.stack([np.full_like(step, B), chunks - 1 - chunk, number], axis=1)
    lanes = []
    for i in range(p):
        warm_up = min(2 * (p - i - 1) + (chunks - 1) * p, m * chunks)
        steady = m * chunks - warm_up
        pairs = np.stack([forward[warm_up:], backward[:steady]], axis=1).reshape(-1, 3)
        rows = np.concatenate([forward[:warm_up], pairs, backward[steady:]])
        stages = rows[:, 1] * p + i
        ends = np.arange(chunks) * p + i
        lanes.append(
            Lane(
                i,
                "compute",
                np.append(rows[:, 0], np.full(chunks, U)).astype(np.int8),
                np.append(stages, ends).astype(np.int32),
                np.append(rows[:, 2], np.full(chunks, -1)).astype(np.int32),
            )
        )
    placement = tuple(stage % p for stage in range(p * chunks))
    route = tuple(range(p * chunks))
    return Schedule(
        "interleaved", m, placement, (route,), np.zeros(m, np.int32), tuple(lanes), "after"
    )


INTERLEAVED = ScheduleKind("interleaved", interleaved, not_built=SEVERAL, takes_chunks=True)
"""The kind of schedule."""
