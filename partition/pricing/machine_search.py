"""The second round of an exploration: cuts by prices of the machine.

The first round prices thousands of cuts, cores and ways to cut the batch by formulas. Of what it
found best, this one lowers the network on one device, prices the layers by the program, and cuts
anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.lowering.schedule.schedule import ScheduleError
from fpgapipe.partition.cost.cost import CostModel, LayerCost
from fpgapipe.partition.explore.explorer import (
    Exploration,
    device_chains,
    num_engines_of,
    on_one_device,
    one_engine,
    plan_one,
)
from fpgapipe.partition.pricing.layer_prices import LayerPrices
from fpgapipe.partition.pricing.machine import MOST_CYCLES
from fpgapipe.partition.search.problem import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.hw.hls_models.spec.device import DeviceSpec
    from fpgapipe.partition.cost.cores import CoreConfig
    from fpgapipe.partition.explore.candidate import Candidate
    from fpgapipe.partition.explore.explorer import Request

LOOKS = 1
"""Combinations of cores and micro-batches that are priced."""

Choice = dict["DeviceSpec", tuple["CoreConfig", list[LayerCost]]]


def explore_on_machine(request: Request, found: Exploration, looks: int = LOOKS) -> Exploration:
    """Cut again what was found best, by prices of the machine.

    Parameters
    ----------
    request : Request
    found : Exploration
        What the first round found.
    looks : int
        Combinations of cores and micro-batches that are priced, the best ones of the first round.

    Returns
    -------
    Exploration
        What was found, if the core does not run the network, or if its program would take minutes
        to time.
    """
    tried: list[Candidate] = []
    for candidate in _distinct(found.tried, request, looks):
        tried += _cut_again(request, candidate)
    if not tried:
        return found
    tried.sort(key=lambda each: each.steady_s)
    return Exploration(tried[0], tuple(tried), found.refused)


def _cores(candidate: Candidate, request: Request) -> dict[DeviceSpec, CoreConfig]:
    """The core of each kind of device that a candidate uses."""
    return {
        request.cluster.devices[stage.device]: stage.core
        for stage in candidate.stages
        if stage.core is not None
    }


def _distinct(tried: tuple[Candidate, ...], request: Request, looks: int) -> Iterator[Candidate]:
    """The first candidates that differ in their cores or micro-batches and use all kinds."""
    seen: set[tuple[int, tuple[str, ...]]] = set()
    kinds = set(request.cluster.devices)
    for each in tried:
        cores = _cores(each, request)
        key = each.num_microbatches, tuple(sorted(map(repr, cores.values())))
        if set(cores) != kinds or key in seen or len(seen) == looks:
            continue
        seen.add(key)
        yield each


def _cut_again(request: Request, candidate: Candidate) -> Iterator[Candidate]:
    count = candidate.num_microbatches
    graph = request.load(request.batch // count)
    model = CostModel(graph)
    prices = LayerPrices(graph, request.train, accumulates=count > 1)
    choice: Choice = {}
    try:
        for device, core in _cores(candidate, request).items():
            estimates = model.costs(device, one_engine(core), train=request.train)
            if prices.num_microbatches * sum(each.total_s for each in estimates) * core.clk_hz > (
                MOST_CYCLES
            ):
                return
            choice[device] = core, prices.costs(estimates, device, core)
    except (UserError, NotImplementedError):
        return
    for kind in request.schedules:
        if num_engines_of(kind) not in {core.num_engines for core, _ in choice.values()}:
            continue
        for chain in device_chains(request.cluster):
            try:
                candidates = [plan_one(request, graph, choice, chain, kind, count)]
                if not request.all_devices:
                    candidates += on_one_device(request, choice, kind, count)
            except (PlanError, ScheduleError):
                continue
            yield from candidates
