"""A kind of schedule: how it is made, and what the planner asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.lowering.schedule.schedule import Schedule
    from fpgapipe.partition.search.problem import ScheduleModel
    from fpgapipe.partition.timeline.timeline import StageTimes

NO_ORDER = "has no order of its own, but searches one for given times"
"""Message about kinds that are made for given times."""

SEVERAL = "has other than one stage on each device"
"""Message about kinds that no programs are made for."""

CHUNKS = 2
"""Stages per device of a kind with several, unless another number is given."""

MakeFor: TypeAlias = "Callable[[int, int, StageTimes, int | None], Schedule]"


@dataclass(frozen=True)
class ScheduleKind:
    """A kind of schedule.

    Those of fpgapipe are registered in `fpgapipe.partition.schedule.schedule_kinds`, those of other
    packages by entry points of the group ``fpgapipe.schedules``. Whether updates are late, and
    whether stages have one device each, is a property of a `Schedule`.

    Attributes
    ----------
    name : str
    make : callable
        Makes the schedule for numbers of devices and of micro-batches. If it `takes_chunks`, it has
        a third argument, the number of stages of each device.
    model : callable or None
        Makes the partitioner's model, given numbers of micro-batches and of devices and the ratio
        of backward to forward time. None if stages cannot be planned for this schedule.
    closed_form : callable or None
        Time of a mini-batch, given the number of micro-batches and the stages' times. It is exact
        if all stages are equal and transfers take no time.
    num_engines : int
        GEMM engines of a device: 2 if forward and backward passes each have an engine, else 1.
    not_built : str
        Why no programs are made for it, as the end of a sentence about it; empty if they are. None
        are made for what has `make_for`.
    make_for : callable or None
        Makes the schedule for numbers of devices and of micro-batches, the stages' times, and the
        number of micro-batches whose activations a device has room for, or None. Such a schedule
        has no order of its own: `make` gives one that stands for it where times are not known.
    is_tried : bool
        Whether the planner tries it if the user asks for no other.
    is_compared : bool
        Whether comparisons of ways to train have it.
    takes_chunks : bool
        Whether a device has several stages.
    """

    name: str
    make: Callable[..., Schedule]
    model: Callable[[int, int, float], ScheduleModel] | None = None
    closed_form: Callable[[int, StageTimes], float] | None = None
    num_engines: int = 1
    not_built: str = ""
    make_for: MakeFor | None = None
    is_tried: bool = False
    is_compared: bool = False
    takes_chunks: bool = False

    @property
    def why_not_built(self) -> str:
        """A sentence that says why no programs are made for it; empty if they are."""
        why = NO_ORDER if self.make_for else self.not_built
        return why and f"schedule {self.name} {why}"
