"""A strategy: a way to share a network among devices, with the search for its fastest plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.partition.explore.request import Request
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.strategies.layerwise import LayerwisePlan
    from fpgapipe.partition.timeline.timeline import Timeline

Found: TypeAlias = "tuple[Plan, Timeline, LayerwisePlan | None]"
"""A plan, its event simulation, and how degrees of layers were found, if they were searched."""

Search: TypeAlias = "Callable[[Request, str, Callable[[int, int], object]], Found]"


@dataclass(frozen=True)
class Strategy:
    """A way to share a network among devices that is no pipeline of single devices.

    Those of fpgapipe are registered in `fpgapipe.partition.strategies.registered`, those of other
    packages by entry points of the group ``fpgapipe.strategies``. Pipelines, whose search is that
    of `fpgapipe.partition.explore.explorer`, are none.

    Attributes
    ----------
    search : callable
        Returns the fastest plan for a request and the name of a network. It tells its third
        argument the number of steps done and of all, and raises `UserError` if there is no plan.
    is_tried : bool
        Whether it is tried if the fastest of all strategies is asked for.
    least_devices : int
        Devices of the smallest cluster for which it is tried then.
    kind : str
        Kind of its plans (`fpgapipe.partition.plan.Plan.kind`), if they have one of their own.
    suits_boards : bool
        Whether it is also tried for boards whose number of nodes is open.
    has_order : bool
        Whether a schedule may be asked for.
    estimate : callable, optional
        Finds degrees of layers by formulas, for networks with layers that no core runs.
    """

    search: Search
    is_tried: bool = False
    least_devices: int = 1
    kind: str = ""
    suits_boards: bool = False
    has_order: bool = False
    estimate: Callable[[Request, Callable[[int, int], object]], LayerwisePlan] | None = None
