"""Orders of chains with a stage on each device, and what their models and closed forms share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.lowering.schedule.schedule import Lane, Schedule, TaskKind
from fpgapipe.partition.search.problem import ScheduleModel, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fpgapipe.lowering.schedule.schedule import Transfer as Sending
    from fpgapipe.partition.timeline.timeline import StageTimes

F, B, DX, DW, U = TaskKind.F, TaskKind.B, TaskKind.DX, TaskKind.DW, TaskKind.U

OVERLAP = Transfer.OVERLAP


def chain_schedule(
    kind: str, p: int, m: int, orders: list[NDArray[np.int32]], transfer: Sending, **more: object
) -> Schedule:
    """A schedule with one stage and one lane per device.

    Each device's order is an array with a row (kind, micro-batch) for each of its tasks.
    """
    lanes = tuple(
        Lane(
            i, "compute", order[:, 0].astype(np.int8), np.full(len(order), i, np.int32), order[:, 1]
        )
        for i, order in enumerate(orders)
    )
    route = tuple(range(p))
    return Schedule(kind, m, route, (route,), np.zeros(m, np.int32), lanes, transfer, **more)  # type: ignore[arg-type]


def run_of(kind: int, first: int, last: int) -> NDArray[np.int32]:
    """Rows of one kind for the micro-batches ``first..last - 1``."""
    numbers = np.arange(first, last, dtype=np.int32)
    return np.stack([np.full_like(numbers, kind), numbers], axis=1)


def one_forward_one_backward(
    m: int, warm_up: int, *, split_after: int | None = None
) -> NDArray[np.int32]:
    """Order of a stage: forward passes of the warm-up, then backward and forward passes in turn.

    With `split_after` the backward pass is split. After each dX, a dW runs if more than
    `split_after` of them are outstanding; the remaining dW run at the end.
    """
    warm_up = min(warm_up, m)
    backward = DX if split_after is not None else B
    steps = np.arange(m, dtype=np.int32)
    columns = [np.stack([np.full_like(steps, backward), steps], axis=1)]
    keep = [np.ones(m, bool)]
    if split_after is not None:
        columns.append(np.stack([np.full_like(steps, DW), steps - split_after], axis=1))
        keep.append(steps >= split_after)
    columns.append(np.stack([np.full_like(steps, F), steps + warm_up], axis=1))
    keep.append(steps + warm_up < m)
    steady = np.stack(columns, axis=1)[np.stack(keep, axis=1)]
    parts = [run_of(F, 0, warm_up), steady]
    if split_after is not None:
        parts.append(run_of(DW, max(0, m - split_after), m))
    return np.concatenate([*parts, [[U, -1]]]).astype(np.int32)


def few_in_flight(m: int) -> Callable[[int], int]:
    """Micro-batches in flight by the stages behind one: one for each, and its own."""
    return lambda after: min(after + 1, m)


def more_in_flight(m: int) -> Callable[[int], int]:
    """Micro-batches in flight by the stages behind one: two for each, and its own."""
    return lambda after: min(2 * after + 1, m)


def streamed_model(m: int, p: int, ratio: float) -> ScheduleModel:
    """Model of 1F1B with results that stream out while they are computed."""
    # The activations of a micro-batch are sent while the stage runs its forward pass, which takes
    # one part in 1 + ratio of the period.
    return ScheduleModel(m, few_in_flight(m), OVERLAP, 1 + ratio, 1, 0, m - 1)


def filled_and_drained(m: int, times: StageTimes) -> float:
    """Time in which the pipeline fills, and the slowest stage then does all other micro-batches."""
    whole, update = work_of(times)
    return float(whole.sum()) + (m - 1) * float(whole.max()) + update


def work_of(times: StageTimes) -> tuple[NDArray[np.float64], float]:
    """Time of each stage for a micro-batch, and the longest update."""
    whole = times.forward_s + times.input_gradient_s + times.weight_gradient_s
    return whole, float(times.update_s.max(initial=0.0))
