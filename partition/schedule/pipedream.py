"""PipeDream: 1F1B without a flush (Narayanan et al., SOSP 2019)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.lowering.schedule.schedule import Schedule
from fpgapipe.partition.schedule.chains import (
    OVERLAP,
    B,
    U,
    chain_schedule,
    one_forward_one_backward,
    work_of,
)
from fpgapipe.partition.schedule.schedule_kind import ScheduleKind
from fpgapipe.partition.search.problem import ScheduleModel

if TYPE_CHECKING:
    from fpgapipe.partition.timeline.timeline import StageTimes


def pipedream(p: int, m: int) -> Schedule:
    """1F1B without a flush.

    Every micro-batch updates the weights, and its backward pass uses the version of the weights
    that its forward pass used.
    """
    orders = []
    for i in range(p):
        order = one_forward_one_backward(m, p - i)[:-1]
        rows = np.repeat(order, 1 + (order[:, 0] == B), axis=0)
        second = np.concatenate([[False], (rows[1:] == rows[:-1]).all(1)])
        rows[second, 0] = U
        orders.append(rows)
    return chain_schedule("pipedream", p, m, orders, "after", synchronous=False)


def pipedream_newest(p: int, m: int) -> Schedule:
    """The same without older versions of the weights: a backward pass uses the newest."""
    return dataclasses.replace(pipedream(p, m), kind="pipedream-newest", keeps_weights=False)


def _pipedream_model(m: int, p: int, ratio: float) -> ScheduleModel:
    versions = lambda after: after + 1  # noqa: E731
    return ScheduleModel(m, versions, OVERLAP, 1 + ratio, 0, 0, m, weight_versions=versions)


def _newest_model(m: int, p: int, ratio: float) -> ScheduleModel:
    return ScheduleModel(m, lambda after: after + 1, OVERLAP, 1 + ratio, 0, 0, m)


def _pipedream_time(m: int, times: StageTimes) -> float:
    """Each micro-batch has an update, and the pipeline drains at the end."""
    whole, update = work_of(times)
    return float(whole.sum() - whole.max()) + m * (float(whole.max()) + update)


PIPEDREAM = ScheduleKind(
    "pipedream", pipedream, _pipedream_model, _pipedream_time, is_compared=True
)
"""With the weights of the forward pass."""

NEWEST = ScheduleKind("pipedream-newest", pipedream_newest, _newest_model, _pipedream_time)
"""With the newest weights."""
