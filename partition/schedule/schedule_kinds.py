"""The schedules that fpgapipe can make for given numbers of stages and micro-batches.

Sources: GPipe (Huang et al., NeurIPS 2019); 1F1B and PipeDream (Narayanan et al., SOSP 2019);
interleaved (Narayanan et al., SC 2021); BaPipe (Zhao et al., arXiv 2012.12544) for 1f1b-as, fbp-as,
1f1b-sno and 1f1b-so, re-implemented from its abstract; zero bubble (Qi et al., ICLR 2024); Chimera
(Li, Hoefler, SC 2021).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.lowering.schedule.schedule import Lane, Schedule, ScheduleError, TaskKind
from fpgapipe.partition.schedule.schedule_kind import ScheduleKind
from fpgapipe.partition.search.problem import ScheduleModel, Transfer
from fpgapipe.plugins import Registry, instance_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from numpy.typing import NDArray

    from fpgapipe.lowering.schedule.schedule import Transfer as Sending
    from fpgapipe.partition.timeline.timeline import StageTimes

MAX_DEVICES = 65_536
MAX_MICROBATCHES = 2**24
MAX_PASSES = 2**20
"""Largest product of stages and micro-batches. A schedule of this size is made and timed within
seconds."""

OVERLAP = Transfer.OVERLAP

F, B, DX, DW, U = TaskKind.F, TaskKind.B, TaskKind.DX, TaskKind.DW, TaskKind.U


CHUNKS = 2
"""Stages per device of a kind with several, unless another number is given."""


def make_schedule(
    kind: str, num_devices: int, num_microbatches: int, *, chunks: int | None = None
) -> Schedule:
    """Make a schedule by its name.

    Parameters
    ----------
    kind : str
        Name of its kind.
    num_devices : int
        Devices in the chain.
    num_microbatches : int
        Micro-batches of a mini-batch.
    chunks : int, optional
        Stages per device, if a device of this kind has several; `CHUNKS` if it is not given.

    Raises
    ------
    ScheduleError
        If there is no such kind, or it is not defined for these numbers.
    """
    found = schedule_kind(kind)
    if found.make_for is not None:
        raise ScheduleError(found.why_not_built)
    if chunks is not None and not found.takes_chunks:
        raise ScheduleError(f"{kind} has one stage on each device: leave out chunks")
    chunks = chunks or CHUNKS
    if not 1 <= num_devices <= MAX_DEVICES:
        raise ScheduleError(f"{kind} needs 1..{MAX_DEVICES} devices, not {num_devices}")
    if not 1 <= num_microbatches <= MAX_MICROBATCHES:
        raise ScheduleError(
            f"{kind} needs 1..{MAX_MICROBATCHES} micro-batches, not {num_microbatches}"
        )
    more = (chunks,) if found.takes_chunks else ()
    check_passes(kind, num_devices * (chunks if found.takes_chunks else 1), num_microbatches)
    made = found.make(num_devices, num_microbatches, *more)
    if made.kind != kind or made.splits_engines != (found.num_engines == 2):
        engines = 1 + made.splits_engines
        raise ScheduleError(
            f"{kind} must make schedules named {kind} for {found.num_engines} engines, not "
            f"{made.kind} for {engines}; mend the package that offers it"
        )
    return made


def check_passes(kind: str, num_stages: int, num_microbatches: int) -> None:
    """Refuse a schedule that would take minutes and gigabytes to make.

    Raises
    ------
    ScheduleError
        If stages times micro-batches exceed `MAX_PASSES`. The message names the limit.
    """
    passes = num_stages * num_microbatches
    if passes > MAX_PASSES:
        raise ScheduleError(
            f"{kind} must have at most {MAX_PASSES:,} passes (stages times micro-batches), not "
            f"{num_stages:,} x {num_microbatches:,} = {passes:,}"
        )


def _chain(
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


def _run(kind: int, first: int, last: int) -> NDArray[np.int32]:
    """Rows of one kind for the micro-batches ``first..last - 1``."""
    numbers = np.arange(first, last, dtype=np.int32)
    return np.stack([np.full_like(numbers, kind), numbers], axis=1)


def _one_forward_one_backward(
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
    parts = [_run(F, 0, warm_up), steady]
    if split_after is not None:
        parts.append(_run(DW, max(0, m - split_after), m))
    return np.concatenate([*parts, [[U, -1]]]).astype(np.int32)


def gpipe(p: int, m: int) -> Schedule:
    """All forward passes, then all backward passes."""
    order = np.concatenate([_run(F, 0, m), _run(B, 0, m), [[U, -1]]]).astype(np.int32)
    return _chain("gpipe", p, m, [order] * p, "after")


def one_f_one_b_as(p: int, m: int) -> Schedule:
    """1F1B on devices whose results stream out while they are computed."""
    orders = [_one_forward_one_backward(m, p - i) for i in range(p)]
    return _chain("1f1b-as", p, m, orders, "stream")


def one_f_one_b(p: int, m: int) -> Schedule:
    """1F1B with transfers concurrent with compute: the base line of other papers."""
    orders = [_one_forward_one_backward(m, p - i) for i in range(p)]
    return _chain("1f1b", p, m, orders, "after")


def one_f_one_b_so(p: int, m: int) -> Schedule:
    """1F1B with transfers concurrent with compute, and twice the warm-up to hide them."""
    orders = [_one_forward_one_backward(m, 2 * (p - i) - 1) for i in range(p)]
    return _chain("1f1b-so", p, m, orders, "after")


def one_f_one_b_sno(p: int, m: int) -> Schedule:
    """1F1B with transfers that block the sending device."""
    orders = []
    for i in range(p):
        order = _one_forward_one_backward(m, p - i)
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
    return _chain("1f1b-sno", p, m, orders, "block")


def pipedream(p: int, m: int) -> Schedule:
    """1F1B without a flush.

    Every micro-batch updates the weights, and its backward pass uses the version of the weights
    that its forward pass used.
    """
    orders = []
    for i in range(p):
        order = _one_forward_one_backward(m, p - i)[:-1]
        rows = np.repeat(order, 1 + (order[:, 0] == B), axis=0)
        second = np.concatenate([[False], (rows[1:] == rows[:-1]).all(1)])
        rows[second, 0] = U
        orders.append(rows)
    return _chain("pipedream", p, m, orders, "after", synchronous=False)


def pipedream_newest(p: int, m: int) -> Schedule:
    """The same without older versions of the weights: a backward pass uses the newest."""
    return dataclasses.replace(pipedream(p, m), kind="pipedream-newest", keeps_weights=False)


def split_chain(kind: str, m: int, warm_up: Sequence[int], split_after: Sequence[int]) -> Schedule:
    """A chain with split backward passes.

    Each stage has a warm-up (`warm_up`) and a number of dW that may be outstanding (`split_after`).
    """
    orders = [
        _one_forward_one_backward(m, warm, split_after=owed)
        for warm, owed in zip(warm_up, split_after, strict=True)
    ]
    return _chain(kind, len(orders), m, orders, "after")


def zb_h1(p: int, m: int) -> Schedule:
    """Zero-bubble schedule with the memory of 1F1B."""
    return split_chain("zb-h1", m, range(p, 0, -1), range(p))


def zb_h2(p: int, m: int) -> Schedule:
    """Zero-bubble schedule with twice the warm-up, and hence nearly no bubble."""
    return split_chain("zb-h2", m, range(2 * p - 1, 0, -2), range(0, 2 * p, 2))


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


# Models for the planner ------------------------------------------------------------------------


def _short(m: int) -> Callable[[int], int]:
    return lambda after: min(after + 1, m)


def _long(m: int) -> Callable[[int], int]:
    return lambda after: min(2 * after + 1, m)


def _gpipe_model(m: int, p: int, ratio: float) -> ScheduleModel:
    return ScheduleModel(m, lambda after: m, OVERLAP, 1 + ratio, 1, 2, m - 1)


def _as_model(m: int, p: int, ratio: float) -> ScheduleModel:
    # The activations of a micro-batch are sent while the stage runs its forward pass, which takes
    # one part in 1 + ratio of the period.
    return ScheduleModel(m, _short(m), OVERLAP, 1 + ratio, 1, 0, m - 1)


def _fbp_model(m: int, p: int, ratio: float) -> ScheduleModel:
    return ScheduleModel(m, _long(m), OVERLAP, 1, 2, 0, m - 1)


def _sno_model(m: int, p: int, ratio: float) -> ScheduleModel:
    return ScheduleModel(m, _short(m), Transfer.BLOCK, 2, 1, 0, m - 1)


def _so_model(m: int, p: int, ratio: float) -> ScheduleModel:
    return ScheduleModel(m, _long(m), OVERLAP, 2, 1, 2, m - 1)


def _pipedream_model(m: int, p: int, ratio: float) -> ScheduleModel:
    versions = lambda after: after + 1  # noqa: E731
    return ScheduleModel(m, versions, OVERLAP, 1 + ratio, 0, 0, m, weight_versions=versions)


def _newest_model(m: int, p: int, ratio: float) -> ScheduleModel:
    return ScheduleModel(m, lambda after: after + 1, OVERLAP, 1 + ratio, 0, 0, m)


def h1_model(m: int, p: int, ratio: float) -> ScheduleModel:
    """Model of zero-bubble schedules: all devices keep equally many micro-batches."""
    return dataclasses.replace(_as_model(m, p, ratio), in_flight=lambda after: min(p, m))


def _h2_model(m: int, p: int, ratio: float) -> ScheduleModel:
    return dataclasses.replace(_as_model(m, p, ratio), in_flight=lambda after: min(2 * p - 1, m))


# Closed forms ----------------------------------------------------------------------------------


def _filled_and_drained(m: int, times: StageTimes) -> float:
    """Time in which the pipeline fills, and the slowest stage then does all other micro-batches."""
    whole, update = _work(times)
    return float(whole.sum()) + (m - 1) * float(whole.max()) + update


def _fbp_time(m: int, times: StageTimes) -> float:
    """Forward and backward passes fill the pipeline one after the other."""
    whole, update = _work(times)
    return 2 * float(whole.sum()) + (m - 1) * float(whole.max()) + update


def _pipedream_time(m: int, times: StageTimes) -> float:
    """Each micro-batch has an update, and the pipeline drains at the end."""
    whole, update = _work(times)
    return float(whole.sum() - whole.max()) + m * (float(whole.max()) + update)


def _h1_time(m: int, times: StageTimes) -> float:
    """Exact if, beside, all passes take the same time.

    ZB-H1 computes the weight gradients of the last micro-batches where other schedules wait, so its
    bubble is ``(N - 1) (F + dX - dW)`` for ``N`` stages. Source: Qi et al., "Zero Bubble Pipeline
    Parallelism", ICLR 2024.
    """
    whole, update = _work(times)
    slowest = int(np.argmax(whole))
    weight = times.weight_gradient_s
    bubbles = np.maximum(times.forward_s + times.input_gradient_s - weight, 0)
    return m * float(whole[slowest]) + float(bubbles.sum() - bubbles[slowest]) + update


def _work(times: StageTimes) -> tuple[NDArray[np.float64], float]:
    """Time of each stage for a micro-batch, and the longest update."""
    whole = times.forward_s + times.input_gradient_s + times.weight_gradient_s
    return whole, float(times.update_s.max(initial=0.0))


# The registry ----------------------------------------------------------------------------------


def _kind(entry: EntryPoint, found: object) -> ScheduleKind:
    kind = instance_of(ScheduleKind, make=Schedule, model=ScheduleModel)(entry, found)
    if kind.name != entry.name:
        raise TypeError(f"has the name {kind.name!r} of its own")
    return kind


_SEVERAL = "has other than one stage on each device"

_OWN: tuple[ScheduleKind, ...] = (
    ScheduleKind("gpipe", gpipe, _gpipe_model, _filled_and_drained, is_compared=True),
    ScheduleKind("1f1b", one_f_one_b, _so_model),
    ScheduleKind("pipedream", pipedream, _pipedream_model, _pipedream_time, is_compared=True),
    ScheduleKind("pipedream-newest", pipedream_newest, _newest_model, _pipedream_time),
    ScheduleKind("1f1b-sno", one_f_one_b_sno, _sno_model, _filled_and_drained, is_compared=True),
    ScheduleKind("1f1b-so", one_f_one_b_so, _so_model, _filled_and_drained, is_compared=True),
    ScheduleKind(
        *("1f1b-as", one_f_one_b_as, _as_model, _filled_and_drained),
        is_tried=True,
        is_compared=True,
    ),
    ScheduleKind(
        "fbp-as", fbp_as, _fbp_model, _fbp_time, num_engines=2, is_tried=True, is_compared=True
    ),
    ScheduleKind("interleaved", interleaved, not_built=_SEVERAL, takes_chunks=True),
    ScheduleKind("zb-h1", zb_h1, h1_model, _h1_time, is_tried=True, is_compared=True),
    ScheduleKind("zb-h2", zb_h2, _h2_model, is_tried=True, is_compared=True),
    ScheduleKind("chimera", chimera, not_built=_SEVERAL),
    ScheduleKind("data-parallel", data_parallel, not_built=_SEVERAL, strategy="data"),
)

SCHEDULES: Registry[ScheduleKind] = Registry(
    "fpgapipe.schedules",
    "schedule",
    {
        **{kind.name: kind for kind in _OWN},
        "zb-auto": "fpgapipe.partition.schedule.zero_bubble:ZB_AUTO",
    },
    _kind,
)
"""All kinds of schedules."""


def schedule_kind(name: str) -> ScheduleKind:
    """Return a kind of schedule.

    Raises
    ------
    ScheduleError
        If there is none of that name.
    """
    try:
        return SCHEDULES[name]
    except UserError as error:
        raise ScheduleError(str(error)) from error


def tried_schedules() -> tuple[str, ...]:
    """Names of the schedules that are tried unless the user asks for one."""
    return tuple(name for name in SCHEDULES.usable() if SCHEDULES[name].is_tried)


def compared_schedules() -> tuple[str, ...]:
    """Names of the schedules that comparisons of ways to train have."""
    return tuple(name for name in SCHEDULES.usable() if SCHEDULES[name].is_compared)


def num_engines_of(name: str) -> int:
    """GEMM engines per device of a kind of schedule; an order from a file, of no kind, needs 1."""
    return SCHEDULES[name].num_engines if name in SCHEDULES else 1


def model_of(kind: str, count: int, num_devices: int, ratio: float = 2.0) -> ScheduleModel:
    """The partitioner's model of a schedule.

    Parameters
    ----------
    kind : str
        Name of the kind.
    count : int
        Micro-batches of a mini-batch.
    num_devices : int
        Devices of the chain.
    ratio : float
        Ratio of backward to forward time.

    Raises
    ------
    ScheduleError
        If there is no such schedule, or it cannot be planned.
    """
    found = schedule_kind(kind)
    if found.model is None:
        raise ScheduleError(f"{kind} is no schedule of plain stages that can be planned")
    return found.model(count, num_devices, ratio)
