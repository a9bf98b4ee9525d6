"""The best plan of a pipeline: formulas propose, whole programs choose.

Formulas time every core, number of micro-batches and schedule; they are often 10 % off, and
sometimes 60 %. From the combination that they like best, the search goes to those next to the best
so far and times plans of each by their whole programs, until none is left that may be faster. Where
there are several devices, the network is cut by prices of its layers in the program of one device.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError
from fpgapipe.jobs import results
from fpgapipe.lowering.schedule.schedule import ScheduleError, forward_only
from fpgapipe.lowering.units.network_units import RefusedNetwork, check_network
from fpgapipe.network.graph_json import to_json
from fpgapipe.partition.cost.cost import CostModel
from fpgapipe.partition.explore.candidate import device_chain, make_candidate_schedule, times_of
from fpgapipe.partition.explore.explorer import (
    KnownGraphs,
    device_chains,
    explore,
    on_one_device,
    plan_one,
    splits_of,
)
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.explore.smallest import THROUGHPUT, explore_smallest
from fpgapipe.partition.placed_nodes import PlacedNodes
from fpgapipe.partition.plan import Plan, Prediction
from fpgapipe.partition.pricing.climb import FASTEST, cheapest_first, climb
from fpgapipe.partition.pricing.layer_choice import Choice, priced_choice
from fpgapipe.partition.pricing.machine import (
    MOST_EFFORT,
    effort_of,
    is_soon_priced,
    price_plan,
    price_with_room,
)
from fpgapipe.partition.pricing.price_cache import remembered
from fpgapipe.partition.schedule.built_schedules import check_schedule_kind
from fpgapipe.partition.schedule.schedule_kinds import num_engines_of
from fpgapipe.partition.search.problem import PlanError
from fpgapipe.partition.timeline.timeline import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec, DeviceSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import Candidate
    from fpgapipe.partition.explore.explorer import Request
    from fpgapipe.partition.timeline.timeline import Timeline

SLACK = 0.12
"""Share of the time by prices of layers by which a whole program may be faster; 0.1 was seen."""


@dataclass(frozen=True)
class BestPlan:
    """What a search found.

    Attributes
    ----------
    plan : Plan
    graph : Graph
        The network for a micro-batch.
    timeline : Timeline
        Timetable of a mini-batch.
    built : dict
        Result of `why_not_built`.
    tried : list of dict
        The best of each schedule.
    refused : list of str
        Why other combinations are impossible.
    compared : str
        A sentence that says what was compared by programs, and what may be faster all the same.
    """

    plan: Plan
    graph: Graph
    timeline: Timeline
    built: dict[str, Any]
    tried: list[dict[str, Any]]
    refused: list[str]
    compared: str


def best_plan(
    request: Request,
    network: str,
    *,
    smallest: bool = False,
    on_step: Callable[[int, int], object] = lambda done, total: None,
) -> BestPlan:
    """Find the fastest plan of a request; a file remembers what was found.

    Parameters
    ----------
    request : Request
    network : str
        The name under which the network was loaded.
    smallest : bool
        Whether to take the smallest core that was found to be nearly as fast as the best.
    on_step : callable
        Called with the number of steps done and their total.

    Raises
    ------
    PlanError
        If nothing fits.
    """
    splits = [request.load(request.batch // count) for count in splits_of(request)]
    question = {
        "what": "best plan",
        "graphs": [hashlib.sha256(to_json(graph).encode()).hexdigest() for graph in splits],
        "request": [
            repr(getattr(request, each.name)) for each in fields(request) if each.name != "load"
        ],
        "network": network,
        "smallest": smallest,
    }
    answer = remembered(question, lambda: _Search(request, network, smallest, on_step).answer())
    plan = Plan.model_validate_json(answer["plan"])
    graph = request.load(plan.microbatch)
    built = why_not_built(plan, graph, request.cluster)
    if answer["fault"]:
        built |= {"possible": False, "reason": answer["fault"]}
    if answer["priced"]:
        plan, timeline = price_plan(plan, graph, request.cluster, options=request.step_options)
    else:
        timeline = _estimated(plan, request)
    rest = {name: answer[name] for name in ("tried", "refused", "compared")}
    return BestPlan(plan, graph, timeline, built, **rest)


def why_not_built(plan: Plan, graph: Graph, cluster: ClusterSpec) -> dict[str, Any]:
    """Say whether ``fpgapipe build`` can build a plan, for JSON.

    Returns
    -------
    dict
        ``possible``, a bool; ``reason``, a text or None; ``refused``, a list with ``layer``, ``op``
        and ``reason`` of each layer that the core does not run.
    """
    reasons: list[str] = []
    refused: list[dict[str, str]] = []
    try:
        check_network(graph, train=plan.trains)
    except RefusedNetwork as error:
        reasons.append(str(error))
        refused = [each.to_dict() for each in error.refusals]
    except UserError as error:
        reasons.append(str(error))
    for check in (
        partial(check_schedule_kind, plan.schedule),
        partial(PlacedNodes.of, plan, cluster),
    ):
        try:
            check()
        except UserError as error:
            reasons.append(str(error))
    return {"possible": not reasons, "reason": "; ".join(reasons) or None, "refused": refused}


def _estimated(plan: Plan, request: Request) -> Timeline:
    """The event simulation of a plan with the times that it has."""
    passes = [
        (each.forward_s, each.input_gradient_s, each.weight_gradient_s, each.update_s)
        for each in plan.nodes
    ]
    places = [request.cluster.device_names.index(node.device) for node in plan.nodes]
    times = times_of(
        passes,
        [node.sends_bytes for node in plan.nodes],
        [node.returns_bytes for node in plan.nodes],
        device_chain(request.cluster, places),
    )
    schedule = request.order or make_candidate_schedule(
        plan.schedule, len(passes), plan.num_microbatches, times
    )
    return simulate(schedule if plan.trains else forward_only(schedule), times)


@dataclass(frozen=True, eq=False)
class _Look:
    """A number of micro-batches and a core of each kind of device.

    Attributes
    ----------
    count : int
    cores : dict of DeviceSpec to NodeSpec
    estimate : Candidate
        The best of the formulas for them.
    """

    count: int
    cores: dict[DeviceSpec, NodeSpec]
    estimate: Candidate

    @cached_property
    def key(self) -> str:
        """Name of the cores."""
        return repr(self.cores)

    @cached_property
    def engines(self) -> int:
        """GEMM engines of a core."""
        return max(node.core.num_engines for node in self.cores.values())

    @property
    def estimate_s(self) -> float:
        """Seconds of a mini-batch by formulas."""
        return self.estimate.steady_s

    @property
    def least_s(self) -> float:
        """Seconds below which no program has been seen.

        Formulas leave out what a program does besides arithmetic. Where forward and backward passes
        have engines of their own, formulas let each take as long as if both were always at work.
        """
        return self.estimate_s * min(FASTEST, 1 / self.engines)


@dataclass(frozen=True)
class _Tried:
    """A plan by formulas or prices of layers, and the times of its programs if they are known."""

    plan: Plan
    predicted: Prediction
    synchronous: bool

    @property
    def is_exact(self) -> bool:
        """Whether the times are those of programs."""
        return self.predicted.level == "machine"

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


@dataclass
class _Search:
    """A search; the first attributes are the arguments of `best_plan`."""

    request: Request
    network: str
    smallest: bool
    on_step: Callable[[int, int], object]
    tried: list[_Tried] = field(default_factory=list)
    best_of: dict[_Look, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    effort: float = 0.0
    can_build: bool = False
    possible: dict[tuple[int, str], bool] = field(default_factory=dict)

    def answer(self) -> dict[str, Any]:
        """Search, and say what was found as values of JSON."""
        found = explore(self.request, self.on_step)
        best, looks = self._of(found.best), self._looks((*found.tried, *found.others))
        if possible := [look for look in looks if self._is_possible(look.estimate)]:
            self.can_build, looks = True, possible
            if not self._is_possible(found.best):
                best = self._of(possible[0].estimate)
        for engines in dict.fromkeys(look.engines for look in looks):
            self._climb([look for look in looks if look.engines == engines])
        if self.tried:
            best = min(self.tried, key=lambda each: (not each.is_exact, each.seconds))
        chosen = self._smallest(best) if self.smallest else best
        of_kind: dict[str, _Tried] = {}
        known = [each for each in self.tried if each.is_exact] or map(self._of, found.tried)
        for each in sorted(known, key=lambda each: each.seconds):
            of_kind.setdefault(each.plan.schedule, each)
        return {
            "plan": chosen.plan.to_json(),
            "priced": chosen.is_exact,
            "fault": self.faults[0] if self.faults and not chosen.is_exact else None,
            "tried": [
                {
                    "schedule": kind,
                    "num_microbatches": each.plan.num_microbatches,
                    **each.predicted.model_dump(mode="json"),
                }
                for kind, each in of_kind.items()
            ],
            "refused": list(found.refused),
            "compared": self._sentence(looks, best, chosen),
        }

    def _is_possible(self, candidate: Candidate) -> bool:
        """Whether programs are made for a candidate, whose cores and cuts do not matter."""
        key = candidate.num_microbatches, candidate.kind
        if key not in self.possible:
            plan = self._of(candidate).plan
            graph = self.request.load(plan.microbatch)
            self.possible[key] = why_not_built(plan, graph, self.request.cluster)["possible"]
        return self.possible[key]

    def _of(self, candidate: Candidate) -> _Tried:
        """A candidate of formulas or prices of layers."""
        assert candidate.microbatch is not None
        plan = as_plan(
            candidate,
            self.request.load(candidate.microbatch),
            self.network,
            self.request.batch,
            self.request.cluster,
            train=self.request.train,
        )
        return _Tried(plan, plan.predicted, candidate.timeline.schedule.synchronous)

    def _looks(self, candidates: Iterable[Candidate]) -> list[_Look]:
        """The combinations of candidates that use all kinds of devices, or one of them."""
        devices = self.request.cluster.devices
        found: dict[tuple[int, str], _Look] = {}
        for each in sorted(candidates, key=lambda each: each.steady_s):
            cores = {devices[part.device]: part.node for part in each.stages if part.node}
            kinds = {device: cores[device] for device in devices if device in cores}
            if len(kinds) == len(set(devices)) or len(each.stages) == 1:
                look = _Look(each.num_microbatches, kinds, each)
                found.setdefault((look.count, look.key), look)
        return list(found.values())

    def _climb(self, looks: list[_Look]) -> None:
        """Price the looks next to the best one until none of them is better."""
        # What takes long to time makes room for the next one.
        for look in cheapest_first(looks, lambda look: effort_of(self._of(look.estimate).plan)):
            if self._price([look]):
                break
        climb(looks, self.best_of, self._price)

    def _price(self, looks: Iterable[_Look]) -> bool:
        """Price plans of some looks, unless that takes too long; whether programs of any exist.

        Where no programs are made, whether there are plans by prices of layers.
        """
        jobs = {}
        for look in looks:
            self.best_of[look] = inf
            plan = self._of(look.estimate).plan
            effort = effort_of(plan)
            soon = is_soon_priced(plan) and self.effort + effort <= MOST_EFFORT
            if soon or (is_soon_priced(plan) and not self.effort):
                self.effort += effort
                graph = self.request.load(plan.microbatch)
                asked = replace(self.request, load=KnownGraphs((graph,)))
                limit_s = min(self.best_of.values())
                jobs[look] = asked, self.network, look.count, look.cores, limit_s, self.can_build
        found = results(_priced_plans, list(jobs.values()), self.on_step)
        for look, (tried, faults) in zip(jobs, found, strict=True):
            self.tried += tried
            self.faults += faults
            self.best_of[look] = min((each.seconds for each in tried if each.is_exact), default=inf)
        return any(each.is_exact or not self.can_build for tried, _ in found for each in tried)

    def _smallest(self, best: _Tried) -> _Tried:
        """The smallest of the cores that are nearly as fast as the best, of those that are tried.

        To these come the smallest core by formulas, and the best one with the smallest scratchpad.
        """
        core = best.plan.nodes[0].core
        like = replace(
            self.request,
            array=(core.rows, core.cols),
            num_microbatches=best.plan.num_microbatches,
            schedules=(best.plan.schedule,),
        )
        for asked in (self.request, like):
            try:
                small = explore_smallest(asked).best
            except PlanError:  # unlike devices have cores of their own
                continue
            if not best.is_exact:
                return self._of(small)
            self._price(self._looks([small]))
        enough = [
            each
            for each in self.tried
            if each.is_exact and each.seconds <= best.seconds / THROUGHPUT
        ]
        return min(enough, key=lambda each: each.size)

    def _sentence(self, looks: list[_Look], best: _Tried, chosen: _Tried) -> str:
        """What was compared by programs, and what may be faster all the same."""
        exact = [each for each in self.tried if each.is_exact]
        if not exact:
            return "compared by estimates alone"
        others = [look for look in looks if self.best_of.get(look, inf) == inf]
        told = (
            f"compared by whole programs: {len(exact)} plan{'s' if len(exact) > 1 else ''} from "
            f"{len(looks) - len(others)} of {len(looks)} pairs of a core and a number of "
            "micro-batches"
        )
        slow = sum(look.least_s >= best.seconds for look in others)
        if slow:
            told += f"; slower even by formulas: {slow}"
        if slow < len(others):
            gain = best.seconds / min(look.least_s for look in others) - 1
            told += (
                f"; not near the best, or long to time: {len(others) - slow}, which by formulas "
                f"could be at most {gain:.0%} faster"
            )
        if chosen is not best:
            core = best.plan.nodes[0].core
            told += (
                f"; this is the smallest core found within {1 - THROUGHPUT:.0%} of the fastest, "
                f"{core.rows}x{core.cols} with {self.request.batch / best.seconds:.0f} samples/s"
            )
        return told


def _priced_plans(
    request: Request,
    network: str,
    count: int,
    cores: dict[DeviceSpec, NodeSpec],
    limit_s: float,
    can_build: bool,
) -> tuple[list[_Tried], list[str]]:
    """Plans with some cores and a number of micro-batches, and why programs are not possible.

    Parameters
    ----------
    limit_s : float
        Plans are not priced that by prices of layers are much slower than this.
    can_build : bool
        Whether programs are made; if not, only layers are priced.
    """
    graph = request.load(request.batch // count)
    choice: Choice | None
    share = 1 - SLACK
    uncut = len(request.cluster.devices) == 1 or set(cores) != set(request.cluster.devices)
    if uncut and can_build:
        model = CostModel(graph)
        share = 1 / max(node.core.num_engines for node in cores.values())
        choice = {
            device: (node, model.costs(node, train=request.train, as_one=True))
            for device, node in cores.items()
        }
    else:
        choice = priced_choice(
            graph,
            cores,
            train=request.train,
            accumulates=count > 1,
            scratchpad_bytes=request.scratchpad_bytes,
            options=request.step_options,
        )
    tried: list[_Tried] = []
    faults = []
    for each in _distinct(_cuts(request, graph, choice, count)):
        plan = as_plan(each, graph, network, request.batch, request.cluster, train=request.train)
        found = _Tried(plan, plan.predicted, each.timeline.schedule.synchronous)
        if can_build and share * each.steady_s < limit_s and is_soon_priced(plan):
            try:
                roomy, (priced, _) = price_with_room(
                    plan,
                    graph,
                    request.cluster,
                    request.step_options,
                    request.scratchpad_bytes,
                )
            except UserError as error:  # a layer does not fit
                faults.append(str(error))
            else:
                found = replace(found, plan=roomy, predicted=priced.predicted)
                limit_s = min(limit_s, found.seconds)
        tried.append(found)
    return tried, faults


def _cuts(request: Request, graph: Graph, choice: Choice | None, count: int) -> Iterator[Candidate]:
    """The fastest candidates of all schedules by the prices of a choice."""
    if choice is None:
        return
    engines = {node.core.num_engines for node, _ in choice.values()}
    for kind in request.schedules:
        if num_engines_of(kind) not in engines:
            continue
        chains = device_chains(request.cluster)
        with suppress(ScheduleError):
            for chain in chains if set(choice) == set(request.cluster.devices) else ():
                with suppress(PlanError):
                    yield plan_one(request, graph, choice, chain, kind, count)
            if not (request.all_devices or request.merges):
                yield from on_one_device(request, choice, kind, count)


def _distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Candidates that differ in their stages or the order of their tasks, the fastest first.

    A single stage does the same work in all orders, and most simply in the first one.
    """
    found: dict[tuple[Any, ...], Candidate] = {}
    for each in candidates:
        lanes = each.timeline.schedule.lanes if len(each.stages) > 1 else ()
        order = [(lane.kinds.tobytes(), lane.microbatches.tobytes()) for lane in lanes]
        stages = [(part.device, *sorted(part.layers)) for part in each.stages]
        found.setdefault((*stages, *order), each)
    return sorted(found.values(), key=lambda each: each.steady_s)
