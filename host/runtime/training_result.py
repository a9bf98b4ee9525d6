"""The result of a training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fpgapipe.host.runtime.check import Difference


@dataclass(frozen=True)
class TrainingResult:
    """Results of a training.

    Attributes
    ----------
    steps : int
        Number of steps that are done, including those before it was resumed.
    ran : int
        Number of these steps that ran in this process.
    last : mapping
        The log's line of the last step; empty if there is none.
    validation : mapping
        The log's line of the last validation; empty if there is none.
    wall_s : float
        Wall time of the steps that ran in this process, seconds.
    difference : Difference or None
        Difference at which a check ended the run.
    stopped : bool
        Whether the run has stopped at the end of its time, before its last step.
    ended_early : bool
        Whether it has ended for want of a better validation.
    best : mapping
        The best validation; empty if there is none.
    """

    steps: int
    ran: int
    last: Mapping[str, Any]
    validation: Mapping[str, Any]
    wall_s: float
    difference: Difference | None
    stopped: bool = False
    ended_early: bool = False
    best: Mapping[str, Any] = field(default_factory=dict)
