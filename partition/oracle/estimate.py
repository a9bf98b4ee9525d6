"""The oracle's estimates by formulas, for devices and networks whose programs take long to time.

A device does its shard of every layer that the strategy cuts, and the whole of every other one, as
all devices of its group do; the times are those of the cost model on the core that runs the network
fastest. Values that shards need of each other move over the chain between passes, which nothing
hides. Gradients of weights that several devices have are added up once a mini-batch. Channel
parallelism has the prices of filters: what one of them gathers on the way forward, the other
gathers on the way back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError, counted
from fpgapipe.lowering.shards.cuts import can_be_cut
from fpgapipe.lowering.shards.degrees import SERIAL, Degrees
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.network.operators import Conv, Linear
from fpgapipe.partition.cost.cost import CostModel
from fpgapipe.partition.explore.candidate import device_chain, ring_seconds
from fpgapipe.partition.explore.core_choices import core_choices
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.oracle.forecast import Forecast, Loss, check_most, limiter_of
from fpgapipe.partition.search.problem import PlanError
from fpgapipe.partition.strategies.layerwise import LayerwiseProblem
from fpgapipe.partition.strategies.one_axis import AXES, SHARED, degrees_along
from fpgapipe.partition.strategies.plan_layerwise import COPIES
from fpgapipe.partition.timeline.timeline import StageTimes, simulate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.oracle.question import Machine
    from fpgapipe.partition.plan import Plan

MOVES = {
    "filter": "layer-wise collectives",
    "channel": "layer-wise collectives",
    "spatial": "halos",
    "pipeline": "transfers between stages",
}
"""Values that move within a group, by strategy."""

SUM = "the sum of gradients"


def most_devices(machine: Machine, name: str) -> int | None:
    """Most devices that a strategy can use; None if the batch grows with them.

    Raises
    ------
    PlanError
        If it cuts no convolution or linear layer.
    """
    batch = machine.batch
    samples = None if batch.per_device else batch.samples
    if name == "data":
        return samples
    if name == "pipeline":
        return len(layers_together(machine.load(1)))
    most, _ = most_parts(machine, name.removeprefix(SHARED))
    if name in AXES:
        return most
    return None if samples is None else samples * most


@lru_cache(maxsize=16)
def most_parts(machine: Machine, axis: str) -> tuple[int, str]:
    """Most parts into which a strategy can cut every product that it can cut in two.

    Parameters
    ----------
    machine : Machine
    axis : str
        A key of `AXES`.

    Returns
    -------
    most : int
    layer : str
        The layer that can be cut into the fewest.

    Raises
    ------
    PlanError
        If there is no such layer.
    """
    graph = machine.load(1)
    found: list[tuple[int, str]] = []
    for names in layers_together(graph):
        first = graph.layers[names[0]]
        if not isinstance(first.operator, Conv | Linear):
            continue
        sizes = (first.input_tensors[0].shape[1], *first.output.shape[1:])
        parts = [
            number
            for number in range(2, max(sizes) + 1)
            if any(can_be_cut(graph, names, cut, number, 1) for cut in AXES[axis])
        ]
        if parts:
            found.append((max(parts), names[0]))
    if not found:
        raise PlanError(f"{axis} parallelism cuts no convolution or linear layer of {graph.name}")
    return min(found)


def check_devices(machine: Machine, name: str, devices: int, groups: int) -> None:
    """Refuse devices that a strategy cannot use.

    Raises
    ------
    UserError
        The message says how many it can use, and why.
    """
    batch = machine.batch
    if name == "pipeline":
        most = most_devices(machine, name)
        assert most is not None
        check_most(name, devices, most, "groups of layers that run together")
    if not batch.per_device:
        check_most(name, groups, batch.samples, "samples", "group" if SHARED in name else "device")
    batch.of(groups)
    axis = name.removeprefix(SHARED)
    if axis in AXES:
        most, layer = most_parts(machine, axis)
        if devices // groups > most:
            by = {"filter": "filters", "channel": "channels", "spatial": "rows"}[axis]
            group = " in a group" if SHARED in name else ""
            raise PlanError(
                f"{name} has at most {counted(most, 'device')}{group}: layer {layer!r} cannot be "
                f"cut into more parts by {by}"
            )


def estimate(machine: Machine, name: str, devices: int, groups: int) -> Forecast:
    """Time and memory of a strategy, by formulas.

    Parameters
    ----------
    machine : Machine
    name : str
    devices, groups : int
        Number of devices, and of groups of them that have samples of their own.

    Raises
    ------
    UserError
        If it cannot be.
    """
    check_devices(machine, name, devices, groups)
    if name == "pipeline" and devices > 1:
        return _pipeline(machine, devices)
    size = devices // groups
    axis = name.removeprefix(SHARED)
    own = machine.batch.of(groups) // groups
    group = _group(machine, axis, own, size)
    sum_s = 0.0
    if groups > 1 or (axis == "spatial" and size > 1):
        sum_s = ring_seconds(machine.load(1), device_chain(machine.cluster_of(devices)))
    whole_s = group.compute_s + group.moves_s + sum_s
    losses = [
        Loss(MOVES.get(axis, ""), group.moves_s),
        Loss(SUM, sum_s),
        Loss("layers that every device does whole", group.uncut_s),
        Loss(
            "small shards and the update of weights",
            group.compute_s - group.ideal_s - group.uncut_s,
        ),
    ]
    return Forecast(
        name,
        devices,
        group.compute_s,
        group.moves_s + sum_s,
        group.memory_bytes,
        most_devices(machine, name),
        limiter_of(losses, whole_s),
        own * groups,
        "estimate",
        whole_s,
        None,
        group.ideal_s / whole_s,
    )


@dataclass(frozen=True)
class _Group:
    """Time of a mini-batch in a group of devices with the same samples, by formulas.

    Attributes
    ----------
    compute_s, moves_s : float
        Seconds of a device's shards, and of the values that move between them.
    uncut_s : float
        Seconds that whole layers take longer than if they were cut.
    ideal_s : float
        Seconds of a single device, divided by the number of devices.
    memory_bytes : float
    """

    compute_s: float
    moves_s: float
    uncut_s: float
    ideal_s: float
    memory_bytes: float


@lru_cache(maxsize=256)
def _group(machine: Machine, axis: str, samples: int, size: int) -> _Group:
    """Time of a group of devices, in the fewest micro-batches that have room.

    Raises
    ------
    UserError
        If none have room, or no layer can be cut.
    """
    board = machine.cluster_of(1).devices[0]
    memory = float("inf")
    for rounds in _rounds(machine, samples):
        graph = machine.load(samples // rounds)
        degrees = degrees_along(graph, axis, size) if size > 1 else None
        problem = _problem(machine, graph, rounds, size, degrees)
        memory = sum(float(each[0]) for each in problem.memory)
        if memory <= board.memory_bytes:
            break
    else:
        raise PlanError(
            f"a device needs {memory:,.0f} bytes of memory and {board.name} has "
            f"{board.memory_bytes:,}; more devices in a group or fewer samples need less"
        )
    alone = problem if size == 1 else _problem(machine, graph, rounds, 1, None)
    uncut_s = sum(
        float(seconds[0])
        for choices, seconds in zip(problem.choices, problem.compute_s, strict=True)
        if choices[0] == SERIAL
    )
    return _Group(
        sum(float(each[0]) for each in problem.compute_s),
        sum(float(table[0, 0]) for _, table in problem.edges),
        (1 - 1 / size) * uncut_s,
        sum(float(each[0]) for each in alone.compute_s) / size,
        memory,
    )


def _rounds(machine: Machine, samples: int) -> list[int]:
    """Numbers of micro-batches of some samples that are tried until the memory has room."""
    if machine.num_microbatches is not None:
        if samples % machine.num_microbatches:
            raise UserError(
                f"{samples} samples are no {machine.num_microbatches} equal micro-batches"
            )
        return [machine.num_microbatches]
    return [number for number in range(1, samples + 1) if samples % number == 0]


def _problem(
    machine: Machine, graph: Graph, rounds: int, size: int, degrees: Mapping[str, Degrees] | None
) -> LayerwiseProblem:
    """Prices of a group of devices with given degrees."""
    cluster = machine.cluster_of(size)

    def choices(names: list[str]) -> list[Degrees]:
        given = SERIAL if degrees is None else degrees[names[0]]
        # Input channels have the prices of filters.
        return [Degrees(channel=given.input) if given.input > 1 else given]

    return LayerwiseProblem(
        graph,
        cluster,
        device_chain(cluster),
        {cluster.devices[0]: _core(machine, graph.batch or 1)},
        choices=choices,  # type: ignore[arg-type]
        rounds=rounds,
        copies=COPIES,
    )


@lru_cache(maxsize=256)
def _core(machine: Machine, samples: int) -> NodeSpec:
    """The core that runs the whole network fastest, by formulas, or the one that is asked for."""
    request = machine.request(2, 2)
    choice = next(iter(core_choices(request, CostModel(machine.load(samples)), 1)))
    core, _ = choice[request.cluster.devices[0]]
    return core


def _pipeline(machine: Machine, devices: int) -> Forecast:
    """The fastest pipeline by the search of ``fpgapipe plan``, which may leave devices idle."""
    plan = pipeline_by_formulas(machine, devices)
    whole_s = plan.predicted.minibatch_s
    moved_s = max(whole_s - _free_of_transfers_s(plan), 0.0)
    group = _group(machine, "pipeline", plan.batch, 1)
    ideal_s = group.ideal_s / devices
    used = len(plan.nodes)
    idle = f", with {devices - used} of the devices idle" if used < devices else ""
    losses = [
        Loss(MOVES["pipeline"], moved_s),
        Loss(f"load balance and the fill of the pipeline{idle}", whole_s - moved_s - ideal_s),
    ]
    return Forecast(
        "pipeline",
        devices,
        whole_s - moved_s,
        moved_s,
        float(max(node.memory_bytes for node in plan.nodes)),
        most_devices(machine, "pipeline"),
        limiter_of(losses, whole_s),
        plan.batch,
        "estimate",
        whole_s,
        None,
        ideal_s / whole_s,
    )


def pipeline_by_formulas(machine: Machine, devices: int) -> Plan:
    """The fastest pipeline by formulas."""
    request = machine.request(devices, 1)
    best = explore(request).best
    assert best.microbatch is not None
    graph = machine.load(best.microbatch)
    return as_plan(best, graph, machine.network, request.batch, request.cluster)


def _free_of_transfers_s(plan: Plan) -> float:
    """Seconds that a pipeline's mini-batch would take if transfers took no time."""
    none = np.zeros(len(plan.nodes))
    times = StageTimes(
        np.array([each.forward_s for each in plan.nodes]),
        np.array([each.input_gradient_s for each in plan.nodes]),
        np.array([each.weight_gradient_s for each in plan.nodes]),
        np.array([each.update_s for each in plan.nodes]),
        none,
        none,
    )
    return simulate(plan.order, times).makespan_s
