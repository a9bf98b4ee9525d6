"""Schedules as data: which tasks each engine of each device does, and in which order.

A schedule has *stages* (parts of the network, each placed on a device), *routes* (the stages that a
micro-batch passes, in order; a plain pipeline has one route, a bidirectional one has two) and
*lanes* (an engine of a device with its tasks in order). A schedule does not contain times; the
timeline computes them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from fpgapipe.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Transfer = Literal["stream", "after", "block"]
"""When a result is sent to the next device.

``stream``: while it is computed, over a link that works concurrently with the engines.
``after``: once it is computed, also concurrently with the engines.
``block``: once it is computed, while the sending engine stands still.
"""


class ScheduleError(UserError):
    """Raised for a schedule that cannot be created, read, or run."""


class TaskKind(enum.IntEnum):
    """Work of a task on a stage and a micro-batch."""

    F = 0
    """Forward pass."""
    B = 1
    """Whole backward pass: both gradients."""
    DX = 2
    """Input gradient."""
    DW = 3
    """Weight gradient."""
    U = 4
    """Update of the weights."""
    SF = 5
    """Send activations to the next stage."""
    RF = 6
    """Receive activations from the stage before."""
    SB = 7
    """Send gradients to the stage before."""
    RB = 8
    """Receive gradients from the next stage."""

    @property
    def token(self) -> str:
        """Short form of the kind in text: ``F``, ``B``, ``dX`` and so on."""
        return {TaskKind.DX: "dX", TaskKind.DW: "dW"}.get(self, self.name)


@dataclass(frozen=True)
class Task:
    """One task: its kind, stage and micro-batch (-1 for an update after all micro-batches)."""

    kind: TaskKind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        """``F3@1``: forward pass of micro-batch 3 in stage 1; ``U@1``: update of stage 1."""
        number = "" if self.microbatch < 0 else str(self.microbatch)
        return f"{self.kind.token}{number}@{self.stage}"


@dataclass(frozen=True)
class Lane:
    """An engine of a device and its tasks, in the order in which it does them.

    Parameters
    ----------
    device : int
    engine : str
        ``compute``, or ``forward`` and ``backward`` where a device has two.
    kinds, stages, microbatches : integer arrays of one length
        Kind, stage and micro-batch of each task.
    """

    device: int
    engine: str
    kinds: NDArray[np.int8]
    stages: NDArray[np.int32]
    microbatches: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[Task]:
        columns = (self.kinds.tolist(), self.stages.tolist(), self.microbatches.tolist())
        for kind, stage, microbatch in zip(*columns, strict=True):
            yield Task(TaskKind(kind), stage, microbatch)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Lane)
            and (self.device, self.engine) == (other.device, other.engine)
            and np.array_equal(self.kinds, other.kinds)
            and np.array_equal(self.stages, other.stages)
            and np.array_equal(self.microbatches, other.microbatches)
        )

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of(cls, device: int, engine: str, tasks: Sequence[tuple[int, int, int]]) -> Lane:
        """Make a lane from ``(kind, stage, microbatch)`` triples."""
        table = np.array(tasks, np.int32).reshape(-1, 3)
        return cls(device, engine, table[:, 0].astype(np.int8), table[:, 1], table[:, 2])


@dataclass(frozen=True)
class Schedule:
    """The tasks of a step: which engine does each of them, and in which order.

    Parameters
    ----------
    kind : str
        Name of the kind of schedule, such as ``1f1b-as``.
    num_microbatches : int
    placement : tuple of int
        Device of each stage.
    routes : tuple of tuple of int
        Stages that the micro-batches of each route pass, in order.
    route_of : integer array, shape (num_microbatches,)
        Route of each micro-batch.
    lanes : tuple of Lane
    transfer : str
        When results are sent to the next device; see `Transfer`.
    synchronous : bool
        Whether all micro-batches see one version of the weights.
    keeps_weights : bool
        Whether the backward pass of a micro-batch uses the weights of its forward pass, if the
        weights were updated meanwhile; otherwise it uses the newest.
    in_flight_limit : tuple of int
        For each stage, the number of micro-batches whose activations its device has room for. A
        forward pass waits until there is room. An empty tuple means no limit.
    """

    kind: str
    num_microbatches: int
    placement: tuple[int, ...]
    routes: tuple[tuple[int, ...], ...]
    route_of: NDArray[np.int32]
    lanes: tuple[Lane, ...]
    transfer: Transfer = "after"
    synchronous: bool = True
    in_flight_limit: tuple[int, ...] = ()
    keeps_weights: bool = True

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.placement)

    @property
    def num_devices(self) -> int:
        """Number of devices that have a stage."""
        return max(self.placement) + 1

    @property
    def num_tasks(self) -> int:
        """Number of tasks of all lanes."""
        return sum(len(lane) for lane in self.lanes)

    @property
    def splits_engines(self) -> bool:
        """Whether forward and backward passes have separate engines."""
        return any(lane.engine == "forward" for lane in self.lanes)

    def neighbours(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """For each route and stage, the stage before and the stage after; -1 where there is none.

        Returns
        -------
        (array, array), each of shape (routes, stages)
        """
        shape = len(self.routes), self.num_stages
        before, after = np.full(shape, -1, np.int32), np.full(shape, -1, np.int32)
        for number, route in enumerate(self.routes):
            before[number, list(route[1:])] = route[:-1]
            after[number, list(route[:-1])] = route[1:]
        return before, after

    def __str__(self) -> str:
        """The schedule as text, which `parse` reads back."""
        lines = [
            f"schedule {self.kind}",
            f"microbatches {self.num_microbatches}",
            f"transfer {self.transfer}",
            f"synchronous {'yes' if self.synchronous else 'no'}",
            f"placement {' '.join(map(str, self.placement))}",
        ]
        if not self.keeps_weights:
            lines.append("weights newest")
        if self.in_flight_limit:
            lines.append(f"in-flight {' '.join(map(str, self.in_flight_limit))}")
        for i, route in enumerate(self.routes):
            taken = " ".join(map(str, np.flatnonzero(self.route_of == i).tolist()))
            rest = "" if len(self.routes) == 1 else f" for {taken}"
            lines.append(f"route {' '.join(map(str, route))}{rest}")
        for lane in self.lanes:
            lines.append(f"device {lane.device} {lane.engine}: {' '.join(map(str, lane))}")
        return "\n".join(lines) + "\n"


def forward_only(schedule: Schedule) -> Schedule:
    """The forward passes of a schedule, which are the tasks of inference."""
    lanes = []
    for lane in schedule.lanes:
        keeps = lane.kinds == TaskKind.F
        if keeps.any():
            lanes.append(
                Lane(
                    lane.device,
                    lane.engine,
                    lane.kinds[keeps],
                    lane.stages[keeps],
                    lane.microbatches[keeps],
                )
            )
    return replace(schedule, lanes=tuple(lanes), in_flight_limit=())


_TOKENS = {kind.token: kind for kind in TaskKind}
_FIELDS = (
    "schedule", "microbatches", "transfer", "synchronous", "weights", "placement", "in-flight",
)  # fmt: skip


@dataclass
class _Draft:
    """The parts of a schedule that `parse` has read so far."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    routes: list[tuple[list[int], list[int]]] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)


def parse(text: str) -> Schedule:
    """Read a schedule that ``str(schedule)`` wrote.

    Raises
    ------
    ScheduleError
        If the text is no schedule; the message names the line and its fault.
    """
    draft = _Draft()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            _parse_line(draft, line)
        except (ValueError, IndexError, OverflowError) as error:
            raise ScheduleError(f"schedule line {number}: {error}") from None
    try:
        fields = draft.fields
        (kind,), (count,), (transfer,) = (
            fields["schedule"],
            fields["microbatches"],
            fields["transfer"],
        )
        (synchronous,) = fields["synchronous"]
        (weights,) = fields.get("weights", ["kept"])
        placement = tuple(map(int, fields["placement"]))
        limit = tuple(map(int, fields.get("in-flight", [])))
        num_microbatches = int(count)
    except (KeyError, ValueError) as error:
        raise ScheduleError(f"schedule lacks, or has no single value for, {error}") from None
    if transfer not in ("stream", "after", "block") or synchronous not in ("yes", "no"):
        raise ScheduleError(
            "schedule transfer must be stream, after or block; synchronous yes or no"
        )
    if weights not in ("kept", "newest"):
        raise ScheduleError("schedule weights must be kept or newest")
    if not draft.routes or not placement or not 1 <= num_microbatches <= 2**24:
        raise ScheduleError("schedule needs a route, a placement and 1..2**24 micro-batches")
    route_of = np.full(num_microbatches, 0 if len(draft.routes) == 1 else -1, np.int32)
    for i, (stages, taken) in enumerate(draft.routes):
        if any(not 0 <= stage < len(placement) for stage in stages):
            raise ScheduleError(f"schedule route {i} names a stage that has no placement")
        if any(not 0 <= each < num_microbatches for each in taken):
            raise ScheduleError(f"schedule route {i} names a micro-batch that there is not")
        route_of[taken] = i
    if (route_of < 0).any():
        raise ScheduleError("schedule has micro-batches without a route")
    return Schedule(
        kind,
        num_microbatches,
        placement,
        tuple(tuple(stages) for stages, _ in draft.routes),
        route_of,
        tuple(draft.lanes),
        transfer,  # type: ignore[arg-type]
        synchronous == "yes",
        limit,
        weights == "kept",
    )


def _parse_line(draft: _Draft, line: str) -> None:
    key, *words = line.split()
    if key == "route":
        stages, _, taken = " ".join(words).partition(" for ")
        draft.routes.append(([int(w) for w in stages.split()], [int(w) for w in taken.split()]))
    elif key == "device":
        head, _, body = line.partition(":")
        _, device, engine = head.split()
        draft.lanes.append(Lane.of(int(device), engine, [_parse_task(w) for w in body.split()]))
    elif key in _FIELDS:
        draft.fields[key] = words
    else:
        raise ValueError(f"begins with {key!r}, which is no part of a schedule")


def _parse_task(word: str) -> tuple[int, int, int]:
    action, _, stage = word.partition("@")
    token = action.rstrip("0123456789")
    if token not in _TOKENS or not stage.isdecimal():
        raise ValueError(f"{word!r} is no task; a task is such as F3@1 or dX0@2")
    number = action[len(token) :]
    return (_TOKENS[token], int(stage), int(number) if number else -1)
