"""BaPipe's forward and backward engines on each device, which run concurrently.

Source: Zhao et al., arXiv 2012.12544, re-implemented from its abstract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.lowering.schedule.schedule import Lane, Schedule
from fpgapipe.partition.schedule.chains import OVERLAP, B, F, U, more_in_flight, work_of
from fpgapipe.partition.schedule.schedule_kind import ScheduleKind
from fpgapipe.partition.search.problem import ScheduleModel

if TYPE_CHECKING:
    from fpgapipe.partition.timeline.timeline import StageTimes


def fbp_as(p: int, m: int) -> Schedule:
    """A forward and a backward engine on each device, which run concurrently."""
    lanes = []
    for i in range(p):
        stages = np.full(m, i, np.int32)
        numbers = np.arange(m, dtype=np.int32)
        lanes.append(Lane(i, "forward", np.full(m, F, np.int8), stages, numbers))
        lanes.append(
            Lane(
                i,
                "backward",
                np.append(np.full(m, B, np.int8), np.int8(U)),
                np.full(m + 1, i, np.int32),
                np.append(numbers, np.int32(-1)),
            )
        )
    route = tuple(range(p))
    # There is room for the activations of 2 (p - i) - 1 micro-batches, and for those of one more
    # that are being computed.
    limit = tuple(2 * (p - i) for i in range(p))
    return Schedule(
        "fbp-as", m, route, (route,), np.zeros(m, np.int32), tuple(lanes), "stream", True, limit
    )


def _fbp_model(m: int, p: int, ratio: float) -> ScheduleModel:
    return ScheduleModel(m, more_in_flight(m), OVERLAP, 1, 2, 0, m - 1)


def _fbp_time(m: int, times: StageTimes) -> float:
    """Forward and backward passes fill the pipeline one after the other."""
    whole, update = work_of(times)
    return 2 * float(whole.sum()) + (m - 1) * float(whole.max()) + update


FBP_AS = ScheduleKind(
    "fbp-as", fbp_as, _fbp_model, _fbp_time, num_engines=2, is_tried=True, is_compared=True
)
"""The kind of schedule."""
