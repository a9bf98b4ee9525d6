"""The best plan of a pipeline: formulas propose, whole programs choose.

Formulas time every core, number of micro-batches and schedule; they leave much out
(``bench/bench_formulas.py``). From the combination that they like best, the search goes to those
next to the best so far and times plans of each by their whole programs, until none is left that may
be faster. Where there are several devices, the network is cut by prices of its layers in the
program of one device.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError
from fpgapipe.jobs import results
from fpgapipe.lowering.units.network_units import RefusedNetwork, check_network
from fpgapipe.partition.explore.candidate import device_chain
from fpgapipe.partition.explore.explorer import KnownGraphs, by_simulation, explore_by_models
from fpgapipe.partition.explore.plan_timeline import timeline_of_plan
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.explore.smallest import THROUGHPUT, explore_smallest
from fpgapipe.partition.placed_nodes import PlacedNodes
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.climb import (
    FURTHER,
    PROMISING,
    SLACK,
    Combination,
    cheapest_first,
    climb,
)
from fpgapipe.partition.pricing.machine import (
    LONG_BATCHES,
    PRICES_S,
    PROGRAMS_S,
    effort_of,
    effort_of_layers,
    effort_of_programs,
    is_soon_priced,
    price_plan,
)
from fpgapipe.partition.pricing.price_cache import question_of, remembered
from fpgapipe.partition.pricing.tried import Tried, is_cut, plans_of, timed
from fpgapipe.partition.schedule.built_schedules import check_schedule_kind
from fpgapipe.partition.search.problem import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec, DeviceSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import Candidate
    from fpgapipe.partition.explore.explorer import Exploration
    from fpgapipe.partition.explore.request import Request
    from fpgapipe.partition.timeline.timeline import Timeline


MOST_DOUBTS = 4
"""Plans of which programs are made at last, where none fitted the memory."""


@dataclass(frozen=True)
class BestPlan:
    """Result of a search.

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
    fault : str or None
        Why the programs do not fit the memory, if that is known.
    """

    plan: Plan
    graph: Graph
    timeline: Timeline
    built: dict[str, Any]
    tried: list[dict[str, Any]]
    refused: list[str]
    compared: str
    fault: str | None = None


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
    question = question_of("best plan", request, network) | {"smallest": smallest}
    answer = remembered(question, lambda: _Search(request, network, smallest, on_step).answer())
    plan = Plan.model_validate_json(answer["plan"])
    graph = request.load(plan.microbatch)
    built = why_not_built(plan, graph, request.cluster)
    if answer["fault"]:
        built |= {"possible": False, "reason": answer["fault"]}
    if answer["priced"]:
        plan, timeline = price_plan(plan, graph, request.cluster, options=request.step_options)
    else:
        timeline = timeline_of_plan(plan, request.cluster, request.order)
    rest = {name: answer[name] for name in ("tried", "refused", "compared", "fault")}
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


def _is_alike_from_either_end(cluster: ClusterSpec, memory_bytes: Iterable[float]) -> bool:
    """Whether devices with the same cores take as long in the reverse order of a chain.

    Parameters
    ----------
    cluster : ClusterSpec
    memory_bytes : iterable of float
        What the stages of a plan need of the devices' memories.
    """
    row = device_chain(cluster)
    sizes = [device.memory_bytes for device in cluster.devices]
    binding = sizes if max(memory_bytes) > min(sizes) else []
    return all(
        list(each) == list(each)[::-1]
        for each in (binding, row.link_bytes_per_s, row.link_latency_s)
    )


def _name_of(cores: Sequence[NodeSpec], *, is_alike: bool) -> str:
    """Name of the cores of a chain, which is the same for those that are about as fast.

    Cells are as fast packed as plain, and a core on another die may need savings of LUTs for an
    array of the same size. Where a chain `is_alike` from either end, so are cores in reverse order.
    """
    if len(set(cores)) == 1:
        return repr(cores[0])
    along = [
        (
            *(node.core.rows, node.core.cols, node.core.num_engines, node.core.vector_lanes),
            *(node.core.scratchpad, node.memory_bytes_per_cycle, node.clk_hz),
        )
        for node in cores
    ]
    return min(map(repr, (along, along[::-1]))) if is_alike else repr(along)


def _unlike_share(graph: Graph) -> float:
    """Share of the layers of a network that are unlike each other."""
    layers = graph.layers.values()
    return len({(each.operator, each.input_tensors, each.output) for each in layers}) / len(layers)


@dataclass(frozen=True, eq=False)
class _Look(Combination):
    """A core of each kind of device, and the best candidate of the formulas with it.

    Attributes
    ----------
    cores : dict of DeviceSpec to NodeSpec
    estimate : Candidate
    name : str
        Name of the cores; see `_name_of`.
    """

    cores: dict[DeviceSpec, NodeSpec]
    estimate: Candidate
    name: str

    @property
    def count(self) -> int:
        """Number of micro-batches."""
        return self.estimate.num_microbatches

    @property
    def node(self) -> NodeSpec:
        """The first device's core, port and lanes."""
        return next(iter(self.cores.values()))

    @property
    def key(self) -> str:
        """Name of the cores."""
        return self.name

    @property
    def estimate_s(self) -> float:
        """Seconds of a mini-batch by formulas."""
        return self.estimate.steady_s

    @property
    def alike(self) -> tuple[int, bool]:
        """Those that formulas can compare have as many engines, and both one device or several.

        A pipeline takes longer than formulas say, as its stages wait for each other.
        """
        return self.engines, len(self.cores) == 1


@dataclass
class _Search:
    """A search; the first attributes are the arguments of `best_plan`."""

    request: Request
    network: str
    smallest: bool
    on_step: Callable[[int, int], object]
    tried: list[Tried] = field(default_factory=list)
    best_of: dict[_Look, float] = field(default_factory=dict)
    effort_s: float = 0.0
    can_build: bool = False
    possible: dict[tuple[int, str], bool] = field(default_factory=dict)

    def answer(self) -> dict[str, Any]:
        """Search, and say what was found as values of JSON."""
        found = explore_by_models(self.request, self.on_step)
        looks = self._looks((*found.tried, *found.others))
        if possible := [look for look in looks if self._is_possible(look.estimate)]:
            self.can_build, looks = True, possible
        for alike in dict.fromkeys(look.alike for look in looks):
            self._climb([look for look in looks if look.alike == alike])
        self._time_programs()
        if not self.tried:  # formulas have the last word
            tried = by_simulation(self.request, found).tried
            best_of_kinds = [each for each in tried if self._is_possible(each)]
            self.tried = list(map(self._of, best_of_kinds or tried))
        best = self._best()
        chosen = self._smallest(best, found) if self.smallest else best
        of_kind: dict[str, Tried] = {}
        known = [each for each in self.tried if each.is_exact] or self.tried
        for each in sorted(known, key=lambda each: each.seconds):
            of_kind.setdefault(each.plan.schedule, each)
        return {
            "plan": chosen.plan.to_json(),
            "priced": chosen.is_exact,
            "fault": self._fault(chosen),
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

    def _best(self) -> Tried:
        """The fastest of what was tried; its programs are made, if those of others do not fit."""

        def key(each: Tried) -> tuple[bool, bool, float]:
            return not each.is_exact, bool(each.fault), each.seconds

        best = min(self.tried, key=key)
        for _ in range(MOST_DOUBTS):
            if best.is_timed or not self._fault(best):
                break
            self._time([best])
            best = min(self.tried, key=key)
        return best

    def _fault(self, chosen: Tried) -> str | None:
        """Why no programs are made for a plan, as far as those of others tell."""
        if chosen.is_timed or not is_soon_priced(chosen.plan):
            return chosen.fault or None
        others = sorted(self.tried, key=lambda each: (not each.fault, each.seconds))
        fault = others[0].fault
        return f"of plans that are about as fast, none fits: {fault}" if fault else None

    def _is_possible(self, candidate: Candidate) -> bool:
        """Whether programs are made for a candidate, whose cores and cuts do not matter."""
        key = candidate.num_microbatches, candidate.kind
        if key not in self.possible:
            plan = self._of(candidate).plan
            graph = self.request.load(plan.microbatch)
            self.possible[key] = why_not_built(plan, graph, self.request.cluster)["possible"]
        return self.possible[key]

    def _of(self, candidate: Candidate) -> Tried:
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
        return Tried(plan, plan.predicted, candidate.timeline.schedule.synchronous)

    def _looks(self, candidates: Iterable[Candidate]) -> list[_Look]:
        """The combinations of candidates that use all kinds of devices, or one of them.

        Of several with the same name and number of micro-batches, the one is taken that formulas
        find fastest.
        """
        devices = self.request.cluster.devices
        found: dict[tuple[int, str], _Look] = {}
        for each in sorted(candidates, key=lambda each: each.steady_s):
            cores = {devices[part.position]: part.node for part in each.stages if part.node}
            kinds = {device: cores[device] for device in devices if device in cores}
            if len(kinds) == len(set(devices)):
                is_alike = _is_alike_from_either_end(self.request.cluster, each.memory_bytes)
                name = _name_of([kinds[device] for device in devices], is_alike=is_alike)
            elif len(each.stages) == 1:
                name = repr(kinds)
            else:
                continue
            found.setdefault((each.num_microbatches, name), _Look(kinds, each, name))
        return list(found.values())

    def _climb(self, looks: list[_Look]) -> None:
        """Price the looks next to the best one until none of them is better."""
        # What takes long to price, and what is no plan of programs, makes room for the next one.
        # Where there is none at all, it is for the memory, and then with other cores, too.
        in_vain: set[int] = set()
        for look in cheapest_first(looks, self._effort_s):
            if look.count in in_vain:
                continue
            before_s, known = self.effort_s, len(self.tried)
            plans = self._price([look])
            if any(self._time([each]) or not self.can_build for each in plans):
                break
            if self.effort_s > before_s and all(each.fault for each in self.tried[known:]):
                self.effort_s = before_s
                in_vain.add(look.count)
        climb(looks, self.best_of, self._price)

    def _effort_s(self, look: _Look) -> float:
        """Seconds, as they are estimated, to price a look."""
        plan = self._of(look.estimate).plan
        if self._by_layers(look):
            return effort_of_layers(plan)
        return effort_of(plan, _unlike_share(self.request.load(plan.microbatch)))

    def _price(self, looks: Iterable[_Look], most_s: float = PRICES_S) -> list[Tried]:
        """Price plans of some looks, unless that takes too long; the fastest of each comes first.

        A plan on one device has the time of its program, and one over several has the times of the
        programs of its layers. Looks that promise to be the best may take twice as long, and on one
        device as long as some mini-batches.
        """
        long_s = 2 * most_s
        if len(self.request.cluster.devices) == 1:
            known = (each.seconds for each in self.tried if each.is_exact)
            long_s = max(long_s, LONG_BATCHES * min(known, default=0.0))
        jobs = {}
        best = min(self.best_of, key=lambda look: self.best_of[look], default=None)
        for look in looks:
            self.best_of[look] = inf
            plan = self._of(look.estimate).plan
            promises = best is not None and look.estimate_s <= PROMISING * best.estimate_s
            own_s = long_s if promises else most_s
            if is_soon_priced(plan) and self._affords(self._effort_s(look), own_s):
                graph = self.request.load(plan.microbatch)
                asked = replace(self.request, load=KnownGraphs((graph,)))
                limit_s = min((each.seconds for each in self.tried if each.is_exact), default=inf)
                jobs[look] = (
                    *(asked, self.network, look.count, look.cores, limit_s, self.can_build),
                    self._of(look.estimate),
                )
        found = results(plans_of, list(jobs.values()), self.on_step)
        for look, plans in zip(jobs, found, strict=True):
            by_layers = self._by_layers(look)
            self.best_of[look] = min(
                (each.seconds for each in plans if each.is_exact or (by_layers and each.is_priced)),
                default=inf,
            )
        self.tried += (plans := list(chain(*found)))
        return plans

    def _by_layers(self, look: _Look) -> bool:
        """Whether the search goes by prices of layers, and not by programs of whole plans."""
        return not self.can_build or is_cut(self.request, look.cores)

    def _affords(self, effort_s: float, most_s: float) -> bool:
        """Spend an effort, and say so, if a search may spend that much; the first one is free."""
        if self.effort_s and self.effort_s + effort_s > most_s:
            return False
        self.effort_s += effort_s
        return True

    def _time_programs(self) -> None:
        """Time the programs of all plans that by prices of their layers may be the best.

        It depends on engines and micro-batches how far prices of layers are off, so each program
        that is timed says of which plan it is worth to time the next one.
        """
        most_s = max(self.effort_s, PRICES_S) + PROGRAMS_S
        while self.can_build:
            least_s = min((each.seconds for each in self.tried if each.is_exact), default=inf)
            ratios = self._ratios()
            expected_s: dict[Tried, float] = {}
            for each in self.tried:
                ratio = ratios.get(each.alike, 1.0)
                slack = FURTHER if each.is_cut and each.alike in ratios else SLACK
                found_s = each.seconds * ratio
                if (
                    not each.is_timed
                    and is_soon_priced(each.plan)
                    and (1 - slack) * found_s < least_s
                ):
                    expected_s[each] = found_s
            for each in sorted(expected_s, key=lambda each: expected_s[each]):
                if self._affords(effort_of_programs(each.plan), most_s):
                    self._time([each])
                    break
            else:
                return

    def _ratios(self) -> dict[Hashable, float]:
        """Least ratios of programs to prices of layers, of plans that are alike."""
        found: dict[Hashable, float] = {}
        for each in self.tried:
            if each.by_layers_s:
                ratio = each.seconds / each.by_layers_s
                found[each.alike] = min(ratio, found.get(each.alike, inf))
        return found

    def _time(self, plans: Iterable[Tried]) -> bool:
        """Time the programs of plans, if that is soon done; whether programs of any are timed."""
        asked, some = [], []
        for each in plans:
            some.append(each)
            if self.can_build and not each.is_timed and is_soon_priced(each.plan):
                graph = self.request.load(each.plan.microbatch)
                request = replace(self.request, load=KnownGraphs((graph,)))
                asked.append((request, graph, each))
        found = results(timed, asked, self.on_step)
        of = {each: then for (*_, each), then in zip(asked, found, strict=True)}
        self.tried = [of.get(each, each) for each in self.tried]
        return any(of.get(each, each).is_exact for each in some)

    def _smallest(self, best: Tried, found: Exploration) -> Tried:
        """The smallest of the cores that are nearly as fast as the best, of those that are tried.

        To these come the smallest core by formulas, and the best one with the smallest scratchpad.
        `found` is what the search began with.
        """
        core = best.plan.nodes[0].core
        like = replace(
            self.request,
            array=(core.rows, core.cols),
            num_microbatches=best.plan.num_microbatches,
            schedules=(best.plan.schedule,),
        )
        looks: list[_Look] = []
        for asked, known in ((self.request, found), (like, None)):
            with suppress(PlanError):  # unlike devices have cores of their own
                small = explore_smallest(asked, known=known).best
                if not best.is_exact:
                    return self._of(small)
                looks += self._looks([small])
        self._time(self._price(looks, PRICES_S + PROGRAMS_S))
        enough = [
            each
            for each in self.tried
            if each.is_exact and each.seconds <= best.seconds / THROUGHPUT
        ]
        return min(enough, key=lambda each: each.size)

    def _sentence(self, looks: list[_Look], best: Tried, chosen: Tried) -> str:
        """Plans that were compared by programs, and those that may be faster all the same."""
        exact = [each for each in self.tried if each.is_exact]
        if not exact:
            return "compared by estimates alone"
        others = [look for look in looks if self.best_of.get(look, inf) == inf]
        rest = sum(each.is_priced for each in self.tried) - len(exact)
        by_layers = f", and {rest} more by programs of layers," if rest else ""
        told = (
            f"compared by whole programs: {len(exact)} plan{'s' if len(exact) > 1 else ''}"
            f"{by_layers} from {len(looks) - len(others)} of {len(looks)} pairs of a core and a "
            "number of micro-batches"
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
