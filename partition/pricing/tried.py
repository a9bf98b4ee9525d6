"""Plans with some cores and a number of micro-batches, as a search tries them one after the other.

The functions run in any process, so that a search can share them out.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError
from fpgapipe.lowering.schedule.schedule import ScheduleError
from fpgapipe.partition.cost.cost import CostModel
from fpgapipe.partition.explore.candidate import device_chain
from fpgapipe.partition.explore.cut_problem import on_one_device
from fpgapipe.partition.explore.explorer import (
    device_chains,
    plan_one,
)
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.pricing.climb import least_of
from fpgapipe.partition.pricing.layer_choice import priced_choice
from fpgapipe.partition.pricing.machine import NoRoomError, is_soon_priced, price_with_room
from fpgapipe.partition.schedule.schedule_kinds import num_engines_of
from fpgapipe.partition.search.problem import PlanError

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterable, Iterator, Mapping

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec, DeviceSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import Candidate, Choice
    from fpgapipe.partition.explore.request import Request
    from fpgapipe.partition.plan import Plan, Prediction


MOST_CUTS = 4
"""Cuts that are tried, each with less memory, until their programs fit."""


@dataclass(frozen=True, eq=False)
class Tried:
    """A plan by formulas or prices of layers, and the times of its programs if they are known.

    Attributes
    ----------
    plan : Plan
    predicted : Prediction
    synchronous : bool
        Whether a mini-batch ends before the next one begins.
    fault : str
        Why no programs are possible; empty if that is not known.
    by_layers_s : float
        What `seconds` was by prices of layers, if the times are those of programs by now.
    is_priced : bool
        Whether the times are not just those of formulas, since no cut by prices of layers has room.
    """

    plan: Plan
    predicted: Prediction
    synchronous: bool
    fault: str = ""
    by_layers_s: float = 0.0
    is_priced: bool = True

    @property
    def engines(self) -> int:
        """GEMM engines of a core."""
        return max(node.core.num_engines for node in self.plan.nodes)

    @property
    def is_cut(self) -> bool:
        """Whether the prices are those of layers, and not formulas, as on a single device."""
        return len(self.plan.nodes) > 1

    @property
    def alike(self) -> Hashable:
        """Same for plans whose prices of layers, or formulas, are about as far off.

        Engines for forward and backward passes share a memory, which prices of layers leave out;
        how much they get into each other's way depends on the number of micro-batches.
        """
        several = self.engines > 1 and self.is_cut
        return self.is_cut, self.engines, self.plan.num_microbatches if several else 0

    @property
    def is_exact(self) -> bool:
        """Whether the times are those of programs."""
        return self.predicted.level == "machine"

    @property
    def is_timed(self) -> bool:
        """Whether programs were made, or turned out to be impossible."""
        return self.is_exact or bool(self.fault)

    @property
    def seconds(self) -> float:
        """Time of a mini-batch; for an asynchronous pipeline, its time in the steady state."""
        if self.synchronous:
            return self.predicted.minibatch_s
        return self.predicted.period_s * self.plan.num_microbatches

    @property
    def size(self) -> tuple[int, int, float]:
        """Cells and bytes of scratchpads of all cores, and seconds."""
        cores = [node.core for node in self.plan.nodes]
        memory = sum(core.scratchpad.size_bytes for core in cores)
        return sum(core.cells for core in cores), memory, self.seconds


def plans_of(
    request: Request,
    network: str,
    count: int,
    cores: dict[DeviceSpec, NodeSpec],
    limit_s: float,
    can_build: bool,
    estimate: Tried,
) -> list[Tried]:
    """Plans with some cores and a number of micro-batches, the fastest first.

    Parameters
    ----------
    limit_s : float
        The program of a plan on one device is not timed if it cannot be faster than this.
    can_build : bool
        Whether programs are made; if not, only layers are priced.
    estimate : Tried
        The plan of formulas, which is returned with the reason if no cut has room.
    """
    graph = request.load(request.batch // count)
    choice: Choice | None
    by_program = can_build and not is_cut(request, cores)
    if by_program:
        model = CostModel(graph, accumulates=count > 1)
        choice = {
            device: (node, model.costs(node, train=request.train, as_one=True))
            for device, node in cores.items()
        }
    else:
        choice = _by_layers(request, graph, cores, count)
    engines = max(node.core.num_engines for node in cores.values())
    tried: list[Tried] = []
    reasons: list[str] = []
    for each in _distinct(_cuts(request, graph, choice, count, reasons)):
        found = _as_tried(each, graph, network, request)
        if by_program and least_of(each.steady_s, engines) < limit_s and is_soon_priced(found.plan):
            found = timed(request, graph, found)
            limit_s = min(limit_s, found.seconds if found.is_exact else inf)
        tried.append(found)
    if reasons and not tried:
        tried.append(replace(estimate, fault=reasons[0], is_priced=False))
    return tried


def is_cut(request: Request, cores: Container[DeviceSpec]) -> bool:
    """Whether a network is cut over devices of these kinds, and not put on one as a whole."""
    devices = request.cluster.devices
    return len(devices) > 1 and all(device in cores for device in devices)


def timed(request: Request, graph: Graph, tried: Tried) -> Tried:
    """A plan with the times of its programs, or why there are none.

    Where the programs of a cut take more memory than formulas say, which leave the programs
    themselves out, the network is cut again with so much less of it.
    """
    less_bytes: dict[int, int] = {}  # by position of the device
    latest = tried
    for _ in range(MOST_CUTS):
        try:
            plan, (priced, _) = price_with_room(
                latest.plan, graph, request.cluster, request.step_options, request.scratchpad_bytes
            )
        except NoRoomError as error:
            tried = replace(tried, fault=tried.fault or str(error))
            positions = _positions(latest.plan, request.cluster)
            for at, node, needed in zip(
                positions, latest.plan.nodes, error.needed_bytes, strict=True
            ):
                less_bytes[at] = max(less_bytes.get(at, 0), needed - node.memory_bytes)
            again = _with_less(request, graph, latest.plan, less_bytes)
            if again is None or again.plan.stages == latest.plan.stages:
                return tried
            latest = again
        except UserError as error:  # a layer does not fit
            return replace(tried, fault=str(error))
        else:
            return replace(
                latest, plan=plan, predicted=priced.predicted, by_layers_s=latest.seconds
            )
    return tried


def _positions(plan: Plan, cluster: ClusterSpec) -> list[int]:
    return [cluster.device_names.index(node.device) for node in plan.nodes]


def _with_less(
    request: Request, graph: Graph, plan: Plan, less_bytes: Mapping[int, int]
) -> Tried | None:
    """The fastest cut for a plan's schedule and cores where devices have less memory, if any."""
    cluster, count = request.cluster, plan.num_microbatches
    positions = _positions(plan, cluster)
    specs = [cluster.devices[at] for at in positions]
    cores = {
        device: replace(node.spec, core=replace(node.core, links=()))
        for device, node in zip(specs, plan.nodes, strict=True)
    }
    if not is_cut(request, cores):
        return None
    choice = _by_layers(request, graph, cores, count)
    if choice is None or set(choice) != set(specs):
        return None
    devices = list(cluster.devices)
    smaller: Choice = {}
    for at in positions:
        left = devices[at].memory_bytes - less_bytes.get(at, 0)
        if left <= 0:
            return None
        of_one = replace(devices[at].memories[0], count=1, size_bytes=left)
        devices[at] = replace(devices[at], memories=(of_one,))
        smaller[devices[at]] = choice[cluster.devices[at]]
    asked = replace(request, cluster=replace(cluster, devices=tuple(devices)))
    with suppress(PlanError, ScheduleError):
        chain = device_chain(asked.cluster, positions)
        found = plan_one(asked, graph, smaller, chain, plan.schedule, count)
        return _as_tried(found, graph, plan.network, request)
    return None


def _by_layers(
    request: Request, graph: Graph, cores: Mapping[DeviceSpec, NodeSpec], count: int
) -> Choice | None:
    """Prices of layers with some cores; see `priced_choice`."""
    return priced_choice(
        graph,
        cores,
        train=request.train,
        count=count,
        scratchpad_bytes=request.scratchpad_bytes,
        options=request.step_options,
    )


def _as_tried(candidate: Candidate, graph: Graph, network: str, request: Request) -> Tried:
    plan = as_plan(candidate, graph, network, request.batch, request.cluster, train=request.train)
    return Tried(plan, plan.predicted, candidate.timeline.schedule.synchronous)


def _cuts(
    request: Request, graph: Graph, choice: Choice | None, count: int, reasons: list[str]
) -> Iterator[Candidate]:
    """The fastest candidates of all schedules by the prices of a choice; or why there are none."""
    if choice is None:
        return
    engines = {node.core.num_engines for node, _ in choice.values()}
    for kind in request.schedules:
        if num_engines_of(kind) not in engines:
            continue
        chains = device_chains(request.cluster)
        with suppress(ScheduleError):
            for each in chains if set(choice) == set(request.cluster.devices) else ():
                try:
                    yield plan_one(request, graph, choice, each, kind, count)
                except PlanError as error:
                    reasons.append(str(error))
            if not (request.all_devices or request.merges):
                yield from on_one_device(
                    request.cluster, choice, kind, request.batch, count, request.train
                )


def _distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Candidates that differ in their stages or the order of their tasks, the fastest first.

    A single stage does the same work in all orders, and most simply in the first one.
    """
    found: dict[tuple[Any, ...], Candidate] = {}
    for each in candidates:
        lanes = each.timeline.schedule.lanes if len(each.stages) > 1 else ()
        order = [(lane.kinds.tobytes(), lane.microbatches.tobytes()) for lane in lanes]
        stages = [(part.position, *sorted(part.layers)) for part in each.stages]
        found.setdefault((*stages, *order), each)
    return sorted(found.values(), key=lambda each: each.steady_s)
