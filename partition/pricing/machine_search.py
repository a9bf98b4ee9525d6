"""The second round of an exploration: cuts by prices of the machine.

The first round prices thousands of cuts, cores and ways to cut the batch by formulas. Of what it
found best, this one lowers the network on one device, prices the layers by the program, and cuts
anew.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.spec.core_spec import NoRoom
from fpgapipe.hw.hls_models.spec.node import NodeSpec
from fpgapipe.jobs import results
from fpgapipe.lowering.schedule.schedule import ScheduleError
from fpgapipe.network.graph_json import to_json
from fpgapipe.partition.cost.cores import with_larger_scratchpad
from fpgapipe.partition.cost.cost import CostModel, LayerCost
from fpgapipe.partition.explore.explorer import (
    Exploration,
    KnownGraphs,
    device_chains,
    on_one_device,
    plan_one,
    splits_of,
)
from fpgapipe.partition.pricing.layer_prices import LayerPrices
from fpgapipe.partition.pricing.machine import MOST_CYCLES
from fpgapipe.partition.pricing.price_cache import remembered
from fpgapipe.partition.schedule.schedule_kinds import num_engines_of
from fpgapipe.partition.search.problem import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fpgapipe.hw.hls_models.spec.device import DeviceSpec
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import Candidate
    from fpgapipe.partition.explore.explorer import Request

LOOKS = 1
"""Combinations of cores and micro-batches that are priced."""

THOROUGH = 4
"""As many where all strategies are searched, which takes long anyway."""

EACH_CORE = 2
"""Of these, those with the same cores."""

MORE = 3
"""How many times as many combinations are at hand, should the first ones take long to price."""

NODES = TypeAdapter(NodeSpec)

Choice = dict["DeviceSpec", tuple[NodeSpec, list[LayerCost]]]

Look = tuple[int, dict["DeviceSpec", NodeSpec]]
"""A number of micro-batches, and the core of each kind of device."""


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
    priced = _priced(request, _looks(request, found, looks), found.refused, looks)
    return priced or found


def explore_remembered(
    request: Request, first: Callable[[], Exploration], round_name: str, looks: int = LOOKS
) -> Exploration:
    """Do both rounds; of an earlier first round for the same request, a file says what it chose.

    Parameters
    ----------
    request : Request
    first : callable
        Does the first round.
    round_name : str
        Name of the first round, of which there are several.
    looks : int
        As for `explore_on_machine`.
    """
    splits = [request.load(request.batch // count) for count in splits_of(request)]
    question = {
        "what": round_name,
        "graphs": [hashlib.sha256(to_json(graph).encode()).hexdigest() for graph in splits],
        "request": [
            repr(getattr(request, each.name)) for each in fields(request) if each.name != "load"
        ],
        "looks": looks,
    }
    found: list[Exploration] = []

    def choose() -> dict[str, Any] | None:
        found.append(first())
        chosen = _looks(request, found[0], looks)
        if not chosen:
            return None
        return {
            "looks": [
                [count, [NODES.dump_python(cores[kind], mode="json") for kind in _kinds(request)]]
                for count, cores in chosen
            ],
            "refused": found[0].refused,
        }

    answer = remembered(question, choose)
    if answer is not None:
        chosen = [
            (
                count,
                dict(zip(_kinds(request), map(NODES.validate_python, cores), strict=True)),
            )
            for count, cores in answer["looks"]
        ]
        if priced := _priced(request, chosen, tuple(answer["refused"]), looks):
            return priced
    return found[0] if found else first()


def _looks(request: Request, found: Exploration, looks: int) -> list[Look]:
    """What of the first round may be priced, the best first."""
    tried = found.tried
    if looks > EACH_CORE:
        tried = tuple(sorted((*tried, *found.others), key=lambda each: each.steady_s))
    return [
        (each.num_microbatches, _cores(each, request))
        for each in _distinct(tried, request, MORE * looks)
    ]


def _priced(
    request: Request, chosen: list[Look], refused: tuple[str, ...], looks: int
) -> Exploration | None:
    """The best of what is found with the prices of some cores and numbers of micro-batches.

    Those that cannot be priced soon make room for the next ones, and so do further ones of a core.
    """
    tried: list[Candidate] = []
    num_of: dict[str, int] = {}
    known: dict[int, list[Candidate]] = {}

    def is_wanted(key: str, so_far: Mapping[str, int]) -> bool:
        return so_far.get(key, 0) < EACH_CORE and sum(so_far.values()) < looks

    keys = [repr(cores) for _, cores in chosen]
    for number, key in enumerate(keys):
        if not is_wanted(key, num_of):
            continue
        if number not in known:  # those that are wanted even if the ones before them can be priced
            jobs, hoped = {}, dict(num_of)
            for later in range(number, len(keys)):
                if is_wanted(keys[later], hoped) and known.get(later, True):
                    hoped[keys[later]] = hoped.get(keys[later], 0) + 1
                    if later in known:
                        continue
                    count, cores = chosen[later]
                    graph = request.load(request.batch // count)
                    jobs[later] = replace(request, load=KnownGraphs((graph,))), count, cores
            known |= zip(jobs, results(_cut_again, list(jobs.values())), strict=True)
        if known[number]:
            tried += known[number]
            num_of[key] = num_of.get(key, 0) + 1
    if not tried:
        return None
    tried.sort(key=lambda each: each.steady_s)
    return Exploration(tried[0], tuple(tried), refused, level="machine")


def _kinds(request: Request) -> list[DeviceSpec]:
    return list(dict.fromkeys(request.cluster.devices))


def _cores(candidate: Candidate, request: Request) -> dict[DeviceSpec, NodeSpec]:
    """The core of each kind of device that a candidate uses."""
    return {
        request.cluster.devices[stage.device]: stage.node
        for stage in candidate.stages
        if stage.node is not None
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


def priced_choice(
    graph: Graph,
    cores: Mapping[DeviceSpec, NodeSpec],
    *,
    train: bool,
    accumulates: bool,
    scratchpad_bytes: int | None = None,
    options: StepOptions | None = None,
) -> Choice | None:
    """Costs of all layers by the programs of some cores; None if these cannot be made soon.

    Where a layer has no tiling that fits a core's scratchpad, one twice as large takes its place,
    as long as it fits the device.

    Parameters
    ----------
    graph : Graph
        The network for one micro-batch.
    cores : mapping of DeviceSpec to NodeSpec
    train, accumulates : bool
        As for `LayerPrices`.
    scratchpad_bytes : int, optional
        Upper limit of a core's scratchpad.
    options : StepOptions, optional
        As for `LayerPrices`.
    """
    model = CostModel(graph)
    prices = LayerPrices(graph, train, accumulates, options)
    choice: Choice = {}
    try:
        for device, node in cores.items():
            estimates = model.costs(node, train=train, as_one=True)
            seconds = prices.num_microbatches * sum(each.total_s for each in estimates)
            if seconds * node.clk_hz > MOST_CYCLES:
                return None
            while device not in choice:
                try:
                    choice[device] = node, prices.costs(estimates, node)
                except NoRoom:
                    size = 2 * node.core.scratchpad.size_bytes
                    larger = with_larger_scratchpad(device, node)
                    if larger is None or size > (scratchpad_bytes or size):
                        raise
                    node = larger
    except (UserError, NotImplementedError):
        return None
    return choice


def _cut_again(request: Request, count: int, cores: dict[DeviceSpec, NodeSpec]) -> list[Candidate]:
    """The fastest candidates of all schedules by prices of the machine, if there are any."""
    graph = request.load(request.batch // count)
    choice = priced_choice(
        graph,
        cores,
        train=request.train,
        accumulates=count > 1,
        scratchpad_bytes=request.scratchpad_bytes,
        options=request.step_options,
    )
    found: list[Candidate] = []
    if choice is None:
        return found
    for kind in request.schedules:
        if num_engines_of(kind) not in {node.core.num_engines for node, _ in choice.values()}:
            continue
        for chain in device_chains(request.cluster):
            try:
                candidates = [plan_one(request, graph, choice, chain, kind, count)]
                if not (request.all_devices or request.merges):
                    candidates += on_one_device(request, choice, kind, count)
            except (PlanError, ScheduleError):
                continue
            found += candidates
    return found
