"""Comparison of one device, data parallelism, an even split and pipelines of each schedule.

Each way is the plan that `fpgapipe plan` finds for it, with the times of its programs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError, counted
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.jobs import results
from fpgapipe.partition.cost.cost import CostModel
from fpgapipe.partition.explore.candidate import (
    Stage,
    device_chain,
    ring_seconds,
    time_candidate,
)
from fpgapipe.partition.explore.core_choices import core_choices
from fpgapipe.partition.explore.cut_problem import check_memory, cut_bytes
from fpgapipe.partition.explore.explorer import splits_of
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.pricing.all_reduce_cycles import all_reduce_s
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.schedule.schedule_kinds import tried_schedules
from fpgapipe.partition.search.problem import PlanError, Refusals
from fpgapipe.partition.strategies.data_parallel import plan_data_parallel, priced_best

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import Candidate, Choice
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.timeline.timeline import Timeline


@dataclass(frozen=True)
class Entry:
    """One way of training, with its time and its use of the devices.

    Attributes
    ----------
    name : str
        Name of the way: a schedule, or for example ``one device``.
    minibatch_s : float
        Time of a mini-batch; for an asynchronous pipeline, its time in the steady state.
    num_microbatches, num_devices : int
        Micro-batches of a mini-batch, and devices in use.
    bubble_rate : float
        Share of the time in which the average device does not compute.
    memory_bytes : float
        The most memory in use on any device.
    link_load : float
        Share of the time in which the busiest link sends.
    level : str
        That of the plan's times: ``machine`` or ``estimate``.
    """

    name: str
    minibatch_s: float
    num_microbatches: int
    num_devices: int
    bubble_rate: float
    memory_bytes: float
    link_load: float
    level: str

    def over(self, base: Entry | None) -> float | None:
        """Speed-up over another way; None if that does not fit, or has prices of another level."""
        if base is None or base.level != self.level:
            return None
        return base.minibatch_s / self.minibatch_s


@dataclass(frozen=True)
class Comparison:
    """All ways of training that fit, and the reasons why the others do not.

    Attributes
    ----------
    entries : tuple of Entry
    refused : tuple of str
    is_whole : bool
        Whether all ways were tried; they were not if the user ended the search.
    """

    entries: tuple[Entry, ...]
    refused: tuple[str, ...]
    is_whole: bool = True

    def find(self, name: str) -> Entry | None:
        """The entry with a given name; None if that way does not fit."""
        return next((entry for entry in self.entries if entry.name == name), None)


def compare(
    request: Request,
    network: str,
    on_step: Callable[[int, int], object] = lambda done, total: None,
) -> Comparison:
    """Time every way to train a mini-batch; the user may end it, and has the ways that are there.

    Parameters
    ----------
    request : Request
        Its schedules are those of the pipelines that are compared.
    network : str
        The name under which the network was loaded.
    on_step : function
        Called with the number of steps done and their total.
    """
    names = [*_WAYS, *request.schedules]
    found: list[list[Entry | str]] = []
    is_whole = True
    try:
        asked = [(name, request, network) for name in names]
        results(_way, asked, on_step, found, are_long=True)
    except KeyboardInterrupt:
        if not any(isinstance(each, Entry) for part in found for each in part):
            raise
        is_whole = False
    entries = tuple(each for part in found for each in part if isinstance(each, Entry))
    refused = tuple(each for part in found for each in part if isinstance(each, str))
    return Comparison(entries, refused, is_whole)


def _way(name: str, request: Request, network: str) -> list[Entry | str]:
    """The entries of a way, or why there are none."""
    try:
        if name in _WAYS:
            return _WAYS[name](request, network)
        found = best_plan(replace(request, schedules=(name,)), network)
        return [entry_of(name, found.plan, found.timeline)]
    except UserError as error:
        return [f"{name}: {error}"]


def entry_of(name: str, plan: Plan, timeline: Timeline) -> Entry:
    """The entry that sums up a plan."""
    predicted = plan.predicted
    seconds, bubble = predicted.minibatch_s, predicted.bubble_rate
    schedule = plan.order if predicted.level == "machine" else timeline.schedule
    if not schedule.synchronous:
        seconds = predicted.period_s * plan.num_microbatches
        bubble = 1 - sum(timeline.busy_s) / len(plan.nodes) / seconds
    return Entry(
        name,
        seconds,
        plan.num_microbatches,
        len(plan.nodes),
        bubble,
        max(node.memory_bytes for node in plan.nodes),
        max(timeline.link_busy_s, default=0.0) / seconds,
        predicted.level,
    )


def _one_device(request: Request, network: str) -> list[Entry | str]:
    """The whole network on the one device that trains it fastest."""
    found: list[Entry] = []
    refusals = Refusals()
    cluster = request.cluster
    for device in dict.fromkeys(cluster.devices):
        name = cluster.device_names[cluster.devices.index(device)]
        alone = ClusterSpec(cluster.name, (name,), (device,), ())
        try:
            best = best_plan(replace(request, cluster=alone, schedules=tried_schedules()), network)
        except UserError as error:
            refusals.add(name, error)
        else:
            found.append(entry_of("one device", best.plan, best.timeline))
    if not found:
        raise refusals.error("plan of one device")
    return [min(found, key=lambda each: (each.level != "machine", each.minibatch_s))]


def _data_parallel(request: Request, network: str) -> list[Entry | str]:
    """The whole network on every device, and the bound of hiding the sum of its gradients."""
    plan, timeline = plan_data_parallel(request, network)
    sum_s, bound_s = hidden_sum(plan, request)
    found = entry_of("data parallel", plan, timeline)
    found = replace(found, link_load=sum_s / found.minibatch_s)
    name = "data parallel, overlapped"
    return [found, replace(found, name=name, minibatch_s=bound_s, link_load=sum_s / bound_s)]


def hidden_sum(plan: Plan, request: Request) -> tuple[float, float]:
    """Seconds of the sum of gradients of a data-parallel plan, and a bound of hiding it.

    Returns
    -------
    sum_s : float
    bound_s : float
        Seconds of a mini-batch if the last backward pass hid the sum as far as possible, as if
        every gradient were ready when that pass begins. No form of data parallelism is faster.
    """
    graph = request.load(plan.microbatch)
    if plan.predicted.level == "machine":
        sum_s = all_reduce_s(plan, request.cluster, [graph.totals.parameters])
    else:
        sum_s = ring_seconds(graph, device_chain(request.cluster))
    backward_s = max(each.input_gradient_s + each.weight_gradient_s for each in plan.nodes)
    return sum_s, plan.predicted.minibatch_s - min(sum_s, backward_s)


def _even_split(request: Request, network: str) -> list[Entry | str]:
    """Stages with equal numbers of layers under 1f1b-as, as one would choose without a planner."""
    if 0.0 in device_chain(request.cluster).link_bytes_per_s:
        raise PlanError("devices that follow one another have no link for what they send")
    found = []
    refusals = Refusals()
    for count in splits_of(request):
        graph = request.load(request.batch // count)
        try:
            model = CostModel(graph, accumulates=count > 1)
            choice = next(iter(core_choices(request, model, 1)))
            candidate = even_candidate(graph, choice, request.cluster, count)
            check_memory(candidate, request.cluster)
        except PlanError as error:
            refusals.add(f"with {counted(count, 'micro-batch', 'es')}", error)
        else:
            found.append(candidate)
    if not found:
        raise refusals.error("even split")
    found.sort(key=lambda each: each.minibatch_s)
    planned = partial(_even_plan, network=network)
    made = [(each, planned) for each in found]
    plan, timeline, _ = priced_best(request, made, lambda done, total: None, "even split")
    return [entry_of("even split", plan, timeline)]


def _even_plan(candidate: Candidate, *, request: Request, network: str) -> Plan:
    assert candidate.microbatch is not None
    graph = request.load(candidate.microbatch)
    return as_plan(candidate, graph, network, request.batch, request.cluster)


def even_candidate(graph: Graph, choice: Choice, cluster: ClusterSpec, count: int) -> Candidate:
    """Stages with equal numbers of layers under 1f1b-as.

    Parameters
    ----------
    graph : Graph
        The network for one micro-batch.
    choice : mapping
        Core of each kind of device, and the costs of all layers on it.
    cluster : ClusterSpec
    count : int
        Number of micro-batches.

    Raises
    ------
    PlanError
        If there are fewer layers than devices.
    """
    n = len(cluster.devices)
    names = list(graph.layers)
    if len(names) < n:
        raise PlanError(f"{len(names)} layers are too few for {n} devices")
    bounds = [len(names) * i // n for i in range(n + 1)]
    stages = []
    for i, device in enumerate(cluster.devices):
        node, own = choice[device]
        costs = {cost.name: cost for cost in own}
        inside = [costs[name] for name in names[: bounds[i + 1]]]
        stages.append(Stage(i, node, tuple(inside[bounds[i] :]), *cut_bytes(graph, inside)))
    return time_candidate("1f1b-as", graph.batch or 1, count, stages, device_chain(cluster))


_WAYS = {"one device": _one_device, "data parallel": _data_parallel, "even split": _even_split}
"""Ways that are no pipelines of the planner."""
