"""The strategies by name: those of fpgapipe, and those of other packages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fpgapipe.partition.plan import Plan
from fpgapipe.partition.strategies.data_parallel import plan_data_parallel
from fpgapipe.partition.strategies.layerwise import LayerwisePlan
from fpgapipe.partition.strategies.one_axis import ONE_AXIS, plan_one_axis
from fpgapipe.partition.strategies.plan_hybrid import plan_hybrid
from fpgapipe.partition.strategies.plan_layerwise import plan_any_degrees, plan_layerwise
from fpgapipe.partition.strategies.strategy import Strategy
from fpgapipe.partition.timeline.timeline import Timeline
from fpgapipe.plugins import Registry, instance_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.partition.explore.explorer import Request
    from fpgapipe.partition.strategies.strategy import Found

    OnStep = Callable[[int, int], object]


def _without_search(
    plan: Callable[[Request, str, OnStep], tuple[Plan, Timeline]],
    request: Request,
    network: str,
    on_step: OnStep,
) -> Found:
    return *plan(request, network, on_step), None


def _along(name: str, request: Request, network: str, on_step: OnStep) -> Found:
    return *plan_one_axis(request, network, name, on_step), None


def _is_found(found: object) -> None:
    """Refuse what is not what a search returns."""
    kinds = (Plan, Timeline, (LayerwisePlan, type(None)))
    is_one = isinstance(found, tuple) and len(found) == len(kinds)
    if not is_one or not all(map(isinstance, found, kinds)):  # type: ignore[call-overload]
        parts = found if isinstance(found, tuple) else (found,)
        names = " and ".join(type(each).__name__ for each in parts)
        raise TypeError(
            f"it returns {names}, not a tuple of Plan, Timeline, and LayerwisePlan or None"
        )


STRATEGIES: Registry[Strategy] = Registry(
    "fpgapipe.strategies",
    "strategy",
    {
        "data": Strategy(partial(_without_search, plan_data_parallel), is_tried=True),
        **{name: Strategy(partial(_along, name)) for name in ONE_AXIS},
        "layerwise": Strategy(plan_layerwise, is_tried=True, estimate=plan_any_degrees),
        "hybrid": Strategy(partial(_without_search, plan_hybrid), is_tried=True, least_devices=3),
    },
    instance_of(Strategy, search=_is_found),
)
"""All strategies."""
