"""1F1B: each stage does a forward and a backward pass in turn, with several ways to send results.

Sources: 1F1B (Narayanan et al., SOSP 2019); BaPipe (Zhao et al., arXiv 2012.12544) for 1f1b-as,
1f1b-sno and 1f1b-so, re-implemented from its abstract.
"""

from __future__ import annotations

import numpy as np

from fpgapipe.lowering.schedule.schedule import Schedule, TaskKind
from fpgapipe.partition.schedule.chains import (
    OVERLAP,
    B,
    F,
    chain_schedule,
    few_in_flight,
    filled_and_drained,
    more_in_flight,
    one_forward_one_backward,
    streamed_model,
)
from fpgapipe.partition.schedule.schedule_kind import ScheduleKind
from fpgapipe.partition.search.problem import ScheduleModel, Transfer


def one_f_one_b(p: int, m: int) -> Schedule:
    """1F1B with transfers concurrent with compute: the base line of other papers."""
    orders = [one_forward_one_backward(m, p - i) for i in range(p)]
    return chain_schedule("1f1b", p, m, orders, "after")


def one_f_one_b_as(p: int, m: int) -> Schedule:
    """1F1B on devices whose results stream out while they are computed."""
    orders = [one_forward_one_backward(m, p - i) for i in range(p)]
    return chain_schedule("1f1b-as", p, m, orders, "stream")


def one_f_one_b_so(p: int, m: int) -> Schedule:
    """1F1B with transfers concurrent with compute, and twice the warm-up to hide them."""
    orders = [one_forward_one_backward(m, 2 * (p - i) - 1) for i in range(p)]
    return chain_schedule("1f1b-so", p, m, orders, "after")


def one_f_one_b_sno(p: int, m: int) -> Schedule:
    """1F1B with transfers that block the sending device."""
    orders = []
    for i in range(p):
        order = one_forward_one_backward(m, p - i)
        kinds, numbers = order.T
        before = np.where(kinds == F, TaskKind.RF, np.where(kinds == B, TaskKind.RB, -1))
        after = np.where(kinds == F, TaskKind.SF, np.where(kinds == B, TaskKind.SB, -1))
        if i == 0:
            before[kinds == F] = after[kinds == B] = -1
        if i == p - 1:
            before[kinds == B] = after[kinds == F] = -1
        table = np.stack([before, kinds, after], axis=1)
        rows = np.stack([table, np.repeat(numbers[:, None], 3, axis=1)], axis=2).reshape(-1, 2)
        orders.append(rows[rows[:, 0] >= 0].astype(np.int32))
    return chain_schedule("1f1b-sno", p, m, orders, "block")


def _so_model(m: int, p: int, ratio: float) -> ScheduleModel:
    return ScheduleModel(m, more_in_flight(m), OVERLAP, 2, 1, 2, m - 1)


def _sno_model(m: int, p: int, ratio: float) -> ScheduleModel:
    return ScheduleModel(m, few_in_flight(m), Transfer.BLOCK, 2, 1, 0, m - 1)


PLAIN = ScheduleKind("1f1b", one_f_one_b, _so_model)
"""Transfers concurrent with compute."""

BLOCKING = ScheduleKind(
    "1f1b-sno", one_f_one_b_sno, _sno_model, filled_and_drained, is_compared=True
)
"""Transfers that block the sender."""

OVERLAPPED = ScheduleKind(
    "1f1b-so", one_f_one_b_so, _so_model, filled_and_drained, is_compared=True
)
"""Transfers concurrent with compute, and twice the warm-up."""

STREAMED = ScheduleKind(
    *("1f1b-as", one_f_one_b_as, streamed_model, filled_and_drained),
    is_tried=True,
    is_compared=True,
)
"""Results that stream out while they are computed."""
