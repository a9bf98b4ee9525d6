"""GPipe: all forward passes, then all backward passes (Huang et al., NeurIPS 2019)."""

from __future__ import annotations

import numpy as np

from fpgapipe.lowering.schedule.schedule import Schedule
from fpgapipe.partition.schedule.chains import (
    OVERLAP,
    B,
    F,
    U,
    chain_schedule,
    filled_and_drained,
    run_of,
)
from fpgapipe.partition.schedule.schedule_kind import ScheduleKind
from fpgapipe.partition.search.problem import ScheduleModel


def gpipe(p: int, m: int) -> Schedule:
    """All forward passes, then all backward passes."""
    order = np.concatenate([run_of(F, 0, m), run_of(B, 0, m), [[U, -1]]]).astype(np.int32)
    return chain_schedule("gpipe", p, m, [order] * p, "after")


def _gpipe_model(m: int, p: int, ratio: float) -> ScheduleModel:
    return ScheduleModel(m, lambda after: m, OVERLAP, 1 + ratio, 1, 2, m - 1)


GPIPE = ScheduleKind("gpipe", gpipe, _gpipe_model, filled_and_drained, is_compared=True)
"""The kind of schedule."""
