"""The layer-wise plan of a request: its core, its prices, its degrees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.partition.cost.cost import CostModel
from fpgapipe.partition.explore.candidate import device_chain
from fpgapipe.partition.explore.explorer import core_choices
from fpgapipe.partition.search.problem import PlanError
from fpgapipe.partition.strategies.layerwise import LayerwiseProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.partition.explore.explorer import Request
    from fpgapipe.partition.strategies.layerwise import LayerwisePlan


def plan_layerwise(
    request: Request, on_step: Callable[[int, int], object] = lambda done, total: None
) -> LayerwisePlan:
    """Find the fastest degrees of all layers on the cluster's devices, in their order.

    The core of each kind of device is the one that runs the whole network fastest, by formulas, or
    the one that is asked for.

    Parameters
    ----------
    request : Request
        The whole batch is one micro-batch; its schedules and its objective do not matter.
    on_step : function
        Called with the number of groups of layers that are priced and of all.

    Raises
    ------
    PlanError
        If the memories have no room in any degrees, or two devices that follow one another have no
        link.
    """
    if request.num_microbatches not in (None, 1):
        raise PlanError("layer-wise parallelism has one micro-batch: leave out --micro-batches")
    graph = request.load(request.batch)
    choice = next(iter(core_choices(request, CostModel(graph), 1)))
    cores = {device: core for device, (core, _) in choice.items()}
    chain = device_chain(request.cluster)
    return LayerwiseProblem(graph, request.cluster, chain, cores, on_step=on_step).solve()
