"""Strategies that cut all layers along the same axis, as far as they can be cut along it.

These are filter, channel and spatial parallelism, by themselves or within groups of devices that
share the samples (Kahira et al., "An oracle for guiding large-scale model/hybrid parallel training
of convolutional neural networks", HPDC 2021).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fpgapipe.errors import counted
from fpgapipe.lowering.shards.cuts import Cut, can_be_cut, degrees_of_cut, why_not_cut
from fpgapipe.lowering.units.network_units import check_network, layers_together
from fpgapipe.network.operators import Conv, Flatten, Linear
from fpgapipe.partition.search.problem import PlanError, Refusals
from fpgapipe.partition.strategies.data_parallel import priced_best, shared_candidates
from fpgapipe.partition.strategies.plan_layerwise import given_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.lowering.shards.degrees import Degrees
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import Candidate
    from fpgapipe.partition.explore.request import Request
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.timeline.timeline import Timeline

AXES = {
    "filter": (Cut.CHANNELS,),
    "channel": (Cut.INPUTS, Cut.CHANNELS),
    "spatial": (Cut.ROWS,),
}
"""Cuts of each axis, the one that is tried first."""

SHARED = "data+"
"""Prefix of the names of strategies whose groups of devices share the samples."""

ONE_AXIS = (*AXES, *(SHARED + name for name in AXES))
"""Names of all these strategies."""


def degrees_along(
    graph: Graph, axis: str, num_devices: int, num_groups: int = 1
) -> dict[str, Degrees]:
    """Degrees of all layers along an axis; those that cannot be cut along it are whole.

    Parameters
    ----------
    graph : Graph
    axis : str
        A key of `AXES`. With ``channel``, layers are cut by input channels, or by output channels
        where that cannot be.
    num_devices, num_groups : int
        Number of devices, and of groups of them that have samples of their own.

    Raises
    ------
    PlanError
        If no layer can be cut.
    """
    size = num_devices // num_groups
    found: dict[str, Degrees] = {}
    cuts = []
    why = ""
    for names in layers_together(graph):
        # A flattened image stays in the order of one device, unless the next layer needs channels.
        stays = axis == "filter" and isinstance(graph.layers[names[0]].operator, Flatten)
        able = (each for each in AXES[axis] if can_be_cut(graph, names, each, size, 1))
        cut = Cut.WHOLE if stays else next(able, Cut.WHOLE)
        cuts.append(cut)
        if not why and isinstance(graph.layers[names[0]].operator, Conv | Linear):
            why = f": {why_not_cut(graph, names, AXES[axis][0], size, 1)}"
        found |= dict.fromkeys(names, degrees_of_cut(cut, num_devices, num_groups))
    if all(cut is Cut.WHOLE for cut in cuts):
        raise PlanError(
            f"no layer of {graph.name} can be cut into {size} parts in {axis} parallelism{why}"
        )
    return found


def plan_one_axis(
    request: Request,
    network: str,
    name: str,
    on_step: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[Plan, Timeline]:
    """Find the fastest plan of a strategy, of some numbers of micro-batches.

    Parameters
    ----------
    request, network, on_step
        As for `plan_data_parallel`.
    name : str
        One of `ONE_AXIS`. Where groups share the samples, all equal groups are tried.

    Raises
    ------
    UserError
        If no programs are made for the network, or the devices make no such plan.
    """
    axis = name.removeprefix(SHARED)
    count = len(request.cluster.devices)
    largest = request.load(request.batch // (request.num_microbatches or 1))
    check_network(largest, train=request.train, loss=request.step_options.loss)
    groups = [1]
    if name != axis:
        groups = [number for number in range(2, count) if count % number == 0]
        if not groups:
            raise PlanError(
                f"{count} devices are no groups of two or more; {name} parallelism needs 4, 6, 8 "
                "devices, for example"
            )
    found: list[tuple[float, Candidate, dict[str, Degrees]]] = []
    refusals = Refusals()
    for number in groups:
        try:
            candidates = shared_candidates(request, on_step, sharers=number, whole=False)
            microbatch = candidates[0][1].microbatch
            assert microbatch is not None
            degrees = degrees_along(request.load(microbatch), axis, count, number)
        except PlanError as error:
            refusals.add(f"with {counted(number, 'group')}", error)
            continue
        found += [(seconds, candidate, degrees) for seconds, candidate in candidates]
    if not found:
        raise refusals.error(f"{name} plan")
    found.sort(key=lambda each: each[0])
    made = [
        (candidate, partial(given_plan, degrees=degrees, network=network))
        for _, candidate, degrees in found
    ]
    plan, timeline, _ = priced_best(request, made, on_step, f"{name} plan", has_formulas=False)
    reason = f"{name} parallelism, the fastest of some numbers of micro-batches"
    return plan.model_copy(update={"reason": reason}), timeline
