"""The strategies by name: those of fpgapipe, and those of other packages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter

from fpgapipe.partition.explore.explorer import with_enough_splits
from fpgapipe.partition.plan import DATA_PARALLEL, LAYERWISE, REPLICAS, Plan
from fpgapipe.partition.pricing.machine import price_plan
from fpgapipe.partition.pricing.price_cache import question_of, remembered
from fpgapipe.partition.strategies.data_parallel import plan_data_parallel
from fpgapipe.partition.strategies.layerwise import LayerwisePlan
from fpgapipe.partition.strategies.one_axis import ONE_AXIS, plan_one_axis
from fpgapipe.partition.strategies.plan_hybrid import plan_hybrid
from fpgapipe.partition.strategies.plan_layerwise import plan_any_degrees, plan_layerwise
from fpgapipe.partition.strategies.plan_replicas import plan_replicas
from fpgapipe.partition.strategies.strategy import Strategy
from fpgapipe.partition.timeline.timeline import Timeline
from fpgapipe.plugins import Registry, instance_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.partition.explore.request import Request
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
        "data": Strategy(
            partial(_without_search, plan_data_parallel),
            is_tried=True,
            kind=DATA_PARALLEL,
            suits_boards=True,
        ),
        **{name: Strategy(partial(_along, name)) for name in ONE_AXIS},
        "layerwise": Strategy(
            plan_layerwise, is_tried=True, kind=LAYERWISE, estimate=plan_any_degrees
        ),
        "hybrid": Strategy(partial(_without_search, plan_hybrid), is_tried=True, least_devices=3),
        "replicas": Strategy(
            partial(_without_search, plan_replicas),
            is_tried=True,
            least_devices=4,
            kind=REPLICAS,
            suits_boards=True,
            has_order=True,
        ),
    },
    instance_of(Strategy, search=_is_found),
)
"""All strategies."""

_DEGREES = TypeAdapter(LayerwisePlan | None, config=ConfigDict(ser_json_inf_nan="constants"))


def search(name: str, request: Request, network: str, on_step: OnStep) -> Found:
    """Find the fastest plan of a strategy; a file remembers plans that have prices of programs.

    Parameters
    ----------
    name : str
        A name of `STRATEGIES`.
    request : Request
    network : str
        The name under which the network was loaded.
    on_step : callable
        Called with the number of steps done and their total.

    Raises
    ------
    UserError
        If there is no plan.
    """
    found: list[Found] = []

    def find() -> dict[str, Any] | None:
        search = STRATEGIES[name].search
        found.append(with_enough_splits(request, lambda asked: search(asked, network, on_step)))
        plan, _, degrees = found[0]
        if plan.predicted.level != "machine":
            return None
        return {"plan": plan.to_json(), "degrees": _DEGREES.dump_python(degrees, mode="json")}

    answer = remembered(question_of(f"strategy {name}", request, network), find)
    if answer is None:
        return found[0]
    plan = Plan.model_validate_json(answer["plan"])
    priced, timeline = price_plan(
        plan, request.load(plan.microbatch), request.cluster, options=request.step_options
    )
    return priced, timeline, _DEGREES.validate_python(answer["degrees"])
