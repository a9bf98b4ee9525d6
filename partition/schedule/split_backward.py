"""ZB-H1 and ZB-H2: backward passes split in two (Qi et al., ICLR 2024)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.lowering.schedule.schedule import Schedule
from fpgapipe.partition.schedule.chains import (
    chain_schedule,
    one_forward_one_backward,
    streamed_model,
    work_of,
)
from fpgapipe.partition.schedule.schedule_kind import ScheduleKind
from fpgapipe.partition.search.problem import ScheduleModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.partition.timeline.timeline import StageTimes


def split_chain(kind: str, m: int, warm_up: Sequence[int], split_after: Sequence[int]) -> Schedule:
    """A chain with split backward passes.

    Each stage has a warm-up (`warm_up`) and a number of dW that may be outstanding (`split_after`).
    """
    orders = [
        one_forward_one_backward(m, warm, split_after=owed)
        for warm, owed in zip(warm_up, split_after, strict=True)
    ]
    return chain_schedule(kind, len(orders), m, orders, "after")


def zb_h1(p: int, m: int) -> Schedule:
    """Zero-bubble schedule with the memory of 1F1B."""
    return split_chain("zb-h1", m, range(p, 0, -1), range(p))


def zb_h2(p: int, m: int) -> Schedule:
    """Zero-bubble schedule with twice the warm-up, and hence nearly no bubble."""
    return split_chain("zb-h2", m, range(2 * p - 1, 0, -2), range(0, 2 * p, 2))


def h1_model(m: int, p: int, ratio: float) -> ScheduleModel:
    """Model of zero-bubble schedules: all devices keep equally many micro-batches."""
    return dataclasses.replace(streamed_model(m, p, ratio), in_flight=lambda after: min(p, m))


def _h2_model(m: int, p: int, ratio: float) -> ScheduleModel:
    return dataclasses.replace(
        streamed_model(m, p, ratio), in_flight=lambda after: min(2 * p - 1, m)
    )


def _h1_time(m: int, times: StageTimes) -> float:
    """Exact if, beside, all passes take the same time.

    ZB-H1 computes the weight gradients of the last micro-batches where other schedules wait, so its
    bubble is ``(N - 1) (F + dX - dW)`` for ``N`` stages. Source: Qi et al., "Zero Bubble Pipeline
    Parallelism", ICLR 2024.
    """
    whole, update = work_of(times)
    slowest = int(np.argmax(whole))
    weight = times.weight_gradient_s
    bubbles = np.maximum(times.forward_s + times.input_gradient_s - weight, 0)
    return m * float(whole[slowest]) + float(bubbles.sum() - bubbles[slowest]) + update


ZB_H1 = ScheduleKind("zb-h1", zb_h1, h1_model, _h1_time, is_tried=True, is_compared=True)
"""With the memory of 1F1B."""

ZB_H2 = ScheduleKind("zb-h2", zb_h2, _h2_model, is_tried=True, is_compared=True)
"""With twice the warm-up."""
