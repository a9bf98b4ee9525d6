"""The oracle's answers with prices of the machine: programs where soon timed, or else formulas.

What links cost is what a mini-batch would be shorter if they took no time; copies and sums on the
devices count as computing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.lowering.units.network_units import refusals_of
from fpgapipe.partition.oracle.estimate import MOVES, SUM, estimate, pipeline_by_formulas
from fpgapipe.partition.oracle.forecast import Loss, limiter_of
from fpgapipe.partition.plan import above_one
from fpgapipe.partition.pricing.machine import price_plan
from fpgapipe.partition.search.problem import PlanError
from fpgapipe.partition.strategies.data_parallel import plan_data_parallel
from fpgapipe.partition.strategies.one_axis import SHARED, degrees_along
from fpgapipe.partition.strategies.plan_layerwise import plan_given_degrees
from fpgapipe.partition.strategies.strategy_file import StrategyFile

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.partition.oracle.forecast import Forecast
    from fpgapipe.partition.oracle.question import Machine
    from fpgapipe.partition.plan import Plan

STRATEGIES = ("data", "spatial", "pipeline", "filter", "channel", "data+filter", "data+spatial")
"""Names of the strategies."""

TIMED_DEVICES = 4
"""Devices up to which programs are timed."""

TIMED_WORK = 200_000_000
"""Multiplications of the forward pass of a mini-batch up to which programs are timed."""

GROUP_SIZES = (2, 4, 8, 16)
"""Devices of a group that cut layers, in mixtures with data parallelism; the fastest is taken."""

FAST = 1000.0
"""Factor by which the rate of links is raised to ask what they cost."""


def ask(machine: Machine, name: str, devices: int) -> Forecast:
    """Time and memory of a strategy on a number of devices, for a mini-batch.

    Parameters
    ----------
    machine : Machine
    name : str
        One of `STRATEGIES`.
    devices : int

    Raises
    ------
    UserError
        If it cannot be; the message is the reason.
    """
    groups = best_groups(machine, name, devices)
    found = estimate(machine, name, devices, groups)
    samples = machine.batch.of(groups)
    work = samples * machine.load(1).totals.macs
    timed = devices <= TIMED_DEVICES and work <= TIMED_WORK
    if not timed or refusals_of(machine.load(samples), train=True):
        return found
    try:
        plan = plan_of(machine, name, devices, groups)
    except (UserError, NotImplementedError):
        return found  # there are no programs for it
    return _timed(machine, found, plan, groups)


def best_groups(machine: Machine, name: str, devices: int) -> int:
    """Groups of devices that share the samples of a batch; the fastest, by formulas."""
    if name == "data":
        return devices
    if not name.startswith(SHARED):
        return 1
    sizes = [machine.group_devices] if machine.group_devices else GROUP_SIZES
    able = [devices // size for size in sizes if devices % size == 0 and devices > size]
    if not able:
        words = (
            f"a multiple of {sizes[0]} devices" if len(sizes) == 1 else "an even number of devices"
        )
        raise PlanError(f"{name} needs {words} that make two groups or more, not {devices}")
    speeds: dict[int, float] = {}
    fault: UserError | None = None
    for groups in able:
        try:
            found = estimate(machine, name, devices, groups)
        except UserError as error:
            fault = fault or error
            continue
        speeds[groups] = found.samples_per_s
    if not speeds:
        assert fault is not None
        raise fault
    return max(speeds, key=speeds.__getitem__)


def plan_of(machine: Machine, name: str, devices: int, groups: int) -> Plan:
    """The plan of ``fpgapipe plan`` for a strategy, whose programs are timed.

    Raises
    ------
    UserError, NotImplementedError
        If there is none.
    """
    if name == "pipeline" and devices > 1:
        plan = pipeline_by_formulas(machine, devices)
        return price_plan(plan, machine.load(plan.microbatch), machine.cluster_of(devices))[0]
    request = machine.request(devices, groups)
    if name == "data" or devices == 1:
        return plan_data_parallel(request, machine.network)[0]
    graph = machine.load(request.batch // groups)
    degrees = degrees_along(graph, name.removeprefix(SHARED), devices, groups)
    cut = above_one(degrees)
    strategy = StrategyFile(degrees={name: cut.get(name, {}) for name in degrees})
    return plan_given_degrees(request, machine.network, strategy)[0]


def _timed(machine: Machine, found: Forecast, plan: Plan, groups: int) -> Forecast:
    """An estimate with the times of a plan in its place."""
    if plan.predicted.level != "machine":
        return found
    whole_s = plan.predicted.minibatch_s
    compute_s = whole_s
    if len(plan.nodes) > 1:
        free, _ = price_plan(
            plan, machine.load(plan.microbatch), _without_wires(machine.cluster_of(found.devices))
        )
        compute_s = min(free.predicted.minibatch_s, whole_s)
    moved_s = whole_s - compute_s
    one = plan_data_parallel(
        replace(machine, num_microbatches=None).request(1, 1), machine.network
    )[0]
    ideal_s = one.predicted.minibatch_s * plan.batch / one.batch / found.devices
    axis = found.name.removeprefix(SHARED)
    words = [MOVES[axis]] if axis in MOVES else []
    if groups > 1 or axis == "spatial":
        words.append(SUM)
    rest = "work that is not divided evenly, copies and sums of pieces, and the update"
    losses = [Loss(" and ".join(words), moved_s), Loss(rest, compute_s - ideal_s)]
    return replace(
        found,
        compute_s=compute_s,
        communication_s=moved_s,
        memory_bytes=float(max(node.memory_bytes for node in plan.nodes)),
        limiter=limiter_of(losses, whole_s),
        level="machine",
        minibatch_s=whole_s,
        efficiency=ideal_s / whole_s,
    )


def _without_wires(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster with links that take hardly any time, but for the engines at their ends."""
    links = tuple(
        replace(link, line_rate_bits_per_s=FAST * link.line_rate_bits_per_s, latency_s=0.0)
        for link in cluster.links
    )
    return replace(cluster, links=links)
