"""The fastest data-parallel plan: each device has the whole network and a share of the batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Protocol

from fpgapipe.errors import UserError, counted
from fpgapipe.jobs import results
from fpgapipe.lowering.schedule.schedule import ScheduleError
from fpgapipe.lowering.units.network_units import refusals_of
from fpgapipe.partition.cost.cost import CostModel
from fpgapipe.partition.explore.candidate import device_chain, on_every_device, ring_seconds
from fpgapipe.partition.explore.core_choices import core_choices
from fpgapipe.partition.explore.cut_problem import memory_fault
from fpgapipe.partition.explore.explorer import KnownGraphs, splits_of
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.pricing.climb import SLACK, Combination, cheapest_first, climb
from fpgapipe.partition.pricing.machine import (
    PRICES_S,
    effort_of,
    is_soon_priced,
    price_with_room,
)
from fpgapipe.partition.search.problem import PlanError, Refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import Candidate
    from fpgapipe.partition.explore.request import Request
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.timeline.timeline import Timeline


class PlanMaker(Protocol):
    """Makes the plan of a candidate."""

    def __call__(self, candidate: Candidate, /, *, request: Request) -> Plan:
        """Return the plan."""


PRICED = 3
"""Plans, the best by formulas, whose programs are timed if that is not `LARGE_S` an effort."""

LARGE_S = 10.0
"""Effort (`fpgapipe.partition.pricing.machine.effort_of`) that only the first plan is worth."""


def plan_data_parallel(
    request: Request,
    network: str,
    on_step: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[Plan, Timeline]:
    """Find the fastest data-parallel plan over all devices of a cluster.

    Formulas say which core and how many micro-batches are best; the programs of some numbers of
    micro-batches are timed where the core runs the network.

    Parameters
    ----------
    request : Request
        Its schedules and its objective do not matter.
    network : str
        The name under which the network was loaded.
    on_step : function
        Called with the number of steps done and their total.

    Raises
    ------
    PlanError
        If the devices cannot share the batch equally, two of them that follow one another have no
        link, or the network does not fit a device.
    """
    found = shared_candidates(request, on_step)
    planned = [
        (candidate, partial(_planned, seconds=seconds, network=network))
        for seconds, candidate in found
    ]
    plan, timeline, _ = priced_best(request, planned, on_step, "data-parallel plan")
    return plan, timeline


def shared_candidates(
    request: Request,
    on_step: Callable[[int, int], object] = lambda done, total: None,
    *,
    sharers: int | None = None,
    whole: bool = True,
) -> list[tuple[float, Candidate]]:
    """Candidates of devices that share the samples of a batch, the fastest by formulas first.

    Parameters
    ----------
    request, on_step
        As for `plan_data_parallel`.
    sharers : int, optional
        Parts into which the samples are divided: all devices, if left out, or equal groups of them,
        whose devices share the work on each micro-batch.
    whole : bool
        Whether every device needs room for the whole network.

    Returns
    -------
    list of (float, Candidate)
        Seconds of a mini-batch if the devices of a group share its work equally, and the candidate,
        in which each device does the micro-batches of its group.

    Raises
    ------
    PlanError
        As `plan_data_parallel` does.
    """
    count = len(request.cluster.devices)
    sharers = sharers or count
    chain = device_chain(request.cluster)
    if 0.0 in chain.link_bytes_per_s:
        raise PlanError("devices that follow one another have no link for the sum of gradients")
    if count % sharers:
        raise PlanError(f"{count} devices cannot share samples in {sharers} equal parts")
    if request.batch % sharers:
        raise PlanError(
            f"a batch of {request.batch} samples cannot be shared equally by "
            f"{_parts(sharers, count)}; use a multiple of {sharers}"
        )
    shares = _shares(request, sharers)
    found: list[tuple[float, Candidate]] = []
    fault: str | None = None
    for step, number in enumerate(shares):
        on_step(step, len(shares))
        graph = request.load(request.batch // number)
        sum_s = ring_seconds(graph, chain) if request.train else 0.0
        model = CostModel(graph, accumulates=number > sharers)
        for choice in core_choices(request, model, 1):
            try:
                timed = on_every_device(
                    request.cluster,
                    choice,
                    request.batch // number,
                    number * count // sharers,
                    train=request.train,
                )
            except ScheduleError as error:
                fault = str(error)
                continue
            excess = memory_fault(timed, request.cluster)
            if whole and excess:
                fault = str(excess)
                continue
            found.append((timed.minibatch_s * sharers / count + sum_s, timed))
    if not found:
        raise PlanError(fault or "nothing to try")
    found.sort(key=lambda each: (each[0], _cells(each[1])))
    # Whatever the device has that nobody waits for, the time is the same.
    best = {(candidate.num_microbatches, seconds): candidate for seconds, candidate in found[::-1]}
    return [each for each in found if best[each[1].num_microbatches, each[0]] is each[1]]


def _cells(candidate: Candidate) -> int:
    """Cells of all cores."""
    return sum(stage.node.core.cells for stage in candidate.stages if stage.node)


def _shares(request: Request, sharers: int) -> list[int]:
    """Numbers of micro-batches that groups of devices can share equally."""
    found = [number for number in splits_of(request) if number % sharers == 0]
    if not found and request.num_microbatches is not None:
        devices = len(request.cluster.devices)
        raise PlanError(
            f"{counted(request.num_microbatches, 'micro-batch', 'es')} cannot be shared equally by "
            f"{_parts(sharers, devices)}; use a multiple of {sharers}"
        )
    return found or [sharers]


def _parts(sharers: int, count: int) -> str:
    """Devices that share the samples."""
    return f"{count} devices" if sharers == count else f"{sharers} groups of devices"


def priced_best(
    request: Request,
    candidates: Sequence[tuple[Candidate, PlanMaker]],
    on_step: Callable[[int, int], object],
    subject: str,
    *,
    has_formulas: bool = True,
) -> tuple[Plan, Timeline, int]:
    """The fastest plan by prices of the machine that is found, or else the first by formulas.

    The first plans are priced, or the next ones if none of these is possible, and then those next
    to the best (`fpgapipe.partition.pricing.climb`). Plans whose programs would take long to be
    timed are left out; if no programs are made for the network, the first plan has the formulas'
    time. Where a scratchpad has no room for a layer, twice as large ones are tried.

    Parameters
    ----------
    request : Request
    candidates : sequence of (Candidate, callable)
        Candidates, and functions of modules, or partials of them, that make their plans for a
        request, also with larger scratchpads. They load the graph of the micro-batch alone.
    on_step : function
        Called with the number of steps done and their total.
    subject : str
        Name of the kind of plan, for a refusal.
    has_formulas : bool
        Whether formulas have a time of the first plan.

    Returns
    -------
    plan : Plan
    timeline : Timeline
    number : int
        Number of the candidate.

    Raises
    ------
    PlanError
        If all plans whose programs are timed are refused, with the reasons, or if none is timed
        and formulas have no time.
    """
    looks = [_Estimated(step, request, *each) for step, each in enumerate(candidates)]
    best_of: dict[_Estimated, float] = {}
    found: dict[_Estimated, tuple[Plan, Timeline]] = {}
    refusals = Refusals()
    spent = [0.0]

    def price(some: Sequence[_Estimated], most_s: float = PRICES_S) -> None:
        jobs = []
        for look in some:
            best_of[look] = inf
            own = effort_of(look.plan)
            if is_soon_priced(look.plan) and (not found or spent[0] + own <= most_s):
                spent[0] += own
                jobs.append((look, request.load(look.plan.microbatch)))
        asked = [(replace(request, load=KnownGraphs((own,))), own, look.plan) for look, own in jobs]
        for (look, _), answer in zip(jobs, results(_priced, asked, on_step), strict=True):
            if isinstance(answer, UserError):
                refusals.add(f"with {counted(look.count, 'micro-batch', 'es')}", answer)
            else:
                found[look], best_of[look] = answer, answer[0].predicted.minibatch_s

    def may_win(look: _Estimated) -> bool:
        """Whether a look may be the best if formulas are about as far off as for the first one."""
        (first,) = found
        slack = SLACK if look.key == first.key else 2 * SLACK  # more so for other cores
        expected_s = look.estimate_s * best_of[first] / first.estimate_s
        return effort_of(look.plan) <= LARGE_S and (1 - slack) * expected_s < best_of[first]

    largest = request.load(looks[0].plan.microbatch)
    if not refusals_of(largest, train=request.train):
        first: Sequence[_Estimated] = looks
        if has_formulas:
            first = cheapest_first(looks, lambda look: effort_of(look.plan))
        waiting = (look for look in first if is_soon_priced(look.plan))
        for look in waiting:
            price([look])
            if found:
                break
        if has_formulas and found:
            price(list(filter(may_win, islice(waiting, PRICED - 1))), most_s=inf)
            climb(looks, best_of, price)
    if found:
        best = min(found, key=lambda look: best_of[look])
        return *found[best], best.number
    if refusals:
        raise refusals.error(subject)
    if not has_formulas:
        raise PlanError(
            "the programs of this strategy would take long to be timed, and formulas have no "
            "prices of it; take smaller micro-batches"
        )
    return looks[0].plan, looks[0].candidate.timeline, 0


@dataclass(frozen=True, eq=False)
class _Estimated(Combination):
    """A candidate, and what formulas say of its plan."""

    number: int
    request: Request
    candidate: Candidate
    planned: PlanMaker

    @cached_property
    def plan(self) -> Plan:
        """The plan, with the times of formulas."""
        return self.planned(self.candidate, request=self.request)

    @property
    def count(self) -> int:
        """Number of micro-batches."""
        return self.plan.num_microbatches

    @property
    def node(self) -> NodeSpec:
        """The first device's core, port and lanes."""
        return self.plan.nodes[0].spec

    @cached_property
    def key(self) -> str:
        """Name of the cores and of the number of devices that share samples."""
        kinds = dict.fromkeys((node.board, node.spec) for node in self.plan.nodes)
        return repr((list(kinds), self.plan.sharers, *self.plan.division.sizes))

    @property
    def estimate_s(self) -> float:
        """Seconds of a mini-batch by formulas."""
        return self.plan.predicted.minibatch_s


def _priced(request: Request, graph: Graph, plan: Plan) -> tuple[Plan, Timeline] | UserError:
    """The plan by prices of the machine, or why it has none."""
    try:
        _, priced = price_with_room(
            plan, graph, request.cluster, request.step_options, request.scratchpad_bytes
        )
    except UserError as error:
        return error
    return priced


def _planned(candidate: Candidate, *, seconds: float, request: Request, network: str) -> Plan:
    """The plan of a candidate, with the seconds of a mini-batch that formulas have."""
    assert candidate.microbatch is not None
    graph = request.load(candidate.microbatch)
    plan = as_plan(candidate, graph, network, request.batch, request.cluster, train=request.train)
    return plan.estimated(seconds, "the fastest of some that were tried")
