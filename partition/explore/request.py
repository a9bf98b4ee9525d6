"""The question to the planner."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fpgapipe.errors import UserError, shown
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.hw.hls_models.spec.systolic import Form
from fpgapipe.lowering.schedule.schedule import Schedule
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.graph import Graph
from fpgapipe.partition.schedule.schedule_kinds import tried_schedules
from fpgapipe.partition.search.problem import Objective

MOST_CELLS = 1024
"""Most rows and most columns of an array that may be asked for."""


@dataclass(frozen=True)
class Request:
    """The question to the planner.

    Parameters
    ----------
    load : callable
        Returns the network for a number of samples.
    batch : int
        Samples in a mini-batch.
    cluster : ClusterSpec
    schedules : sequence of str
        Names of the schedules to try.
    num_microbatches : int, optional
        Number of micro-batches; several are tried if it is not given.
    most_microbatches : int, optional
        Most micro-batches that are tried; as many as do any good if it is not given.
    objective : Objective
        Time that the partitioner minimises.
    array : (int, int), optional
        Rows and columns of every device's array; several arrays are tried if it is not given.
    free_order : bool
        Whether the devices may be cabled in another order; all links must be equal then.
    train : bool
        Whether to plan training; if false, there are only forward passes.
    all_devices : bool
        Whether every device gets a stage, even if fewer devices would be faster.
    scratchpad_bytes : int, optional
        Upper limit of each core's scratchpad, bytes.
    order : Schedule, optional
        A schedule with an order of its own and a stage for each device, instead of one by name.
        `schedules` has its kind, and `all_devices` is set.
    merges : bool
        Whether the stages are those of `fpgapipe.partition.search.merge`, not the fastest ones.
    options : StepOptions, optional
        Options of the programs, of which the prices are; those of `train` if not given.
    num_links : int, optional
        Links that every core has room for; as many as the devices of the cluster have neighbours,
        if not given.
    form : Form, optional
        How the cells of every device's array are made; packed where that saves, if not given.
    """

    load: Callable[[int], Graph]
    batch: int
    cluster: ClusterSpec
    schedules: Sequence[str] = field(default_factory=tried_schedules)
    num_microbatches: int | None = None
    objective: Objective = Objective.MINIBATCH
    array: tuple[int, int] | None = None
    free_order: bool = False
    train: bool = True
    all_devices: bool = False
    scratchpad_bytes: int | None = None
    order: Schedule | None = None
    merges: bool = False
    options: StepOptions | None = None
    most_microbatches: int | None = None
    form: Form | None = None
    num_links: int | None = None

    def __post_init__(self) -> None:
        """Refuse an array that is no pair of numbers, as Python may give one."""
        if self.array is None:
            return
        try:
            rows, cols = map(operator.index, self.array)
        except (TypeError, ValueError):
            rows = cols = 0
        if not (1 <= rows <= MOST_CELLS and 1 <= cols <= MOST_CELLS):
            raise UserError(
                f"the array must be a pair of whole numbers, rows and columns, each 1.."
                f"{MOST_CELLS}, such as (8, 8), not {shown(self.array)}"
            )

    @property
    def step_options(self) -> StepOptions:
        """Options of the programs."""
        return self.options or StepOptions(train=self.train)
