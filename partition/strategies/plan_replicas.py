"""The fastest plan of equal pipelines that share the samples, one behind the other in a chain."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError, counted
from fpgapipe.partition.cost.cores import core_fits, with_links
from fpgapipe.partition.explore.planned import link_ends
from fpgapipe.partition.placed_nodes import PlacedNodes
from fpgapipe.partition.plan import StagePlan
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.pricing.machine import price_with_room
from fpgapipe.partition.schedule.schedule_kinds import make_schedule, schedule_kind
from fpgapipe.partition.search.problem import PlanError, Refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec, DeviceSpec
    from fpgapipe.partition.explore.request import Request
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.timeline.timeline import Timeline

RESOURCES = ("lut", "ff", "bram36", "uram", "dsp")
"""Counts of a die."""


def plan_replicas(
    request: Request,
    network: str,
    on_step: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[Plan, Timeline]:
    """Find the fastest plan of several pipelines that share the samples of a mini-batch.

    For each number of pipelines of two devices or more into which the chain can be divided, the
    best pipeline of the first devices is found for its share of the samples; the others are like
    it. Then the programs of all are timed, with the sums of their gradients.

    Parameters
    ----------
    request, network, on_step
        As for `fpgapipe.partition.strategies.data_parallel.plan_data_parallel`.

    Raises
    ------
    UserError
        If there is no such plan.
    """
    count = len(request.cluster.devices)
    numbers = [number for number in range(2, count // 2 + 1) if count % number == 0]
    if not numbers:
        raise PlanError(
            f"{counted(count, 'device')} cannot be divided into equal pipelines of two devices or "
            "more"
        )
    found: list[tuple[Plan, Timeline]] = []
    refusals = Refusals()
    for step, number in enumerate(numbers):
        on_step(step, len(numbers))
        try:
            found.append(_planned(request, network, number))
        except UserError as error:
            refusals.add(f"with {number} replicas", error)
    if not found:
        raise refusals.error("plan of replicas")
    return min(found, key=lambda each: each[0].predicted.minibatch_s)


def _planned(request: Request, network: str, replicas: int) -> tuple[Plan, Timeline]:
    """The fastest plan of a number of replicas."""
    one_of = _of_one_replica(request.cluster, replicas)
    parts = request.num_microbatches
    for number, what in ((request.batch, "sample"), (parts, "micro-batch")):
        if number is not None and number % replicas:
            several = counted(number, what, "es" if what == "micro-batch" else "s")
            raise PlanError(f"{several} cannot be shared equally by {replicas} replicas")
    schedules = list(filter(_has_replicas, request.schedules))
    if not schedules:
        raise PlanError(
            f"no programs are made for replicas with schedule {', '.join(request.schedules)}; take "
            "1f1b-as"
        )
    own = replace(
        request,
        cluster=one_of,
        batch=request.batch // replicas,
        num_microbatches=parts and parts // replicas,
        schedules=schedules,
        all_devices=True,
        num_links=2,
    )
    one = best_plan(own, network)
    if one.fault:
        raise PlanError(one.fault)
    if not one.built["possible"]:
        raise PlanError(one.built["reason"])
    plan = replicated_plan(one.plan, request.cluster, replicas)
    _, priced = price_with_room(
        plan, one.graph, request.cluster, request.step_options, request.scratchpad_bytes
    )
    return priced


def replicated_plan(one: Plan, cluster: ClusterSpec, replicas: int) -> Plan:
    """The plan of several pipelines like one of the first devices of a cluster.

    Its times are those of the one pipeline.

    Raises
    ------
    PlanError
        If a core does not fit its device.
    """
    size = len(one.nodes)
    own = [cluster.device_names.index(node.device) for node in one.nodes]
    order = range(replicas) if own == sorted(own) else range(replicas)[::-1]
    places = [replica * size + place for replica in order for place in own]
    placed = PlacedNodes.chain(places, cluster)
    ends = link_ends(placed)
    nodes = [
        node.model_copy(
            update={
                "device": cluster.device_names[place],
                "spec": with_links(
                    node.spec, [ends[wire] for wire in placed.placement.wires_of(number)]
                ),
            }
        )
        for number, (node, place) in enumerate(zip(replicas * one.nodes, places, strict=True))
    ]
    for node, device in zip(nodes, placed.devices, strict=True):
        if broken := core_fits(device, node.core):
            core = f"a core of {node.core.rows}x{node.core.cols} does not fit {node.device}"
            raise PlanError(f"{core}: {'; '.join(map(str, broken))}")
    stages = [
        StagePlan(layers=stage.layers, nodes=tuple(nodes[number::size]))
        for number, stage in enumerate(one.stages)
    ]
    changed = {
        "cluster": cluster.name,
        "batch": replicas * one.batch,
        "num_microbatches": replicas * one.num_microbatches,
        "stages": tuple(stages),
        "replicas": replicas,
        "lower_bound_s": 0.0,
        "gap": 1.0,
    }
    return one.model_copy(update=changed).estimated(
        one.predicted.minibatch_s, "the best pipeline of the first devices; the others are like it"
    )


def _has_replicas(kind: str) -> bool:
    """Whether programs are made for replicas with a schedule."""
    found = schedule_kind(kind)
    is_built = found.num_engines == 1 and not found.why_not_built
    return is_built and make_schedule(kind, 2, 2).synchronous


def _of_one_replica(cluster: ClusterSpec, replicas: int) -> ClusterSpec:
    """The devices of one replica, each with what the devices in its place have in all replicas.

    Nodes of a board have other dies and ports at the ends of a chain of boards.

    Raises
    ------
    PlanError
        If the devices have other memories or clocks in another replica, or links of another rate.
    """
    size = len(cluster.devices) // replicas
    placed = PlacedNodes.chain(range(len(cluster.devices)), cluster)
    devices, links = [], []
    for place in range(size):
        nodes = range(place, len(cluster.devices), size)
        names = cluster.device_names[place::size]
        devices.append(_least_of(cluster.devices[place::size], names))
        if not place:
            continue
        own = [placed.link_before(node) for node in nodes]
        if len({(each.payload_bytes_per_s, each.protocol) for each in own}) > 1:
            raise PlanError(
                f"the links to devices {', '.join(names)} from those before them have not all the "
                "same rate"
            )
        links.append(replace(own[0], latency_s=max(each.latency_s for each in own)))
    return replace(
        cluster,
        device_names=cluster.device_names[:size],
        devices=tuple(devices),
        links=tuple(links),
    )


def _least_of(devices: Sequence[DeviceSpec], names: Sequence[str]) -> DeviceSpec:
    """A device with the resources and the memory that each of some devices has."""
    first = devices[0]
    for device, name in zip(devices, names, strict=True):
        alike = replace(
            device,
            dies=first.dies,
            ports=first.ports,
            memories=tuple(
                replace(each, size_bytes=own.size_bytes)
                for each, own in zip(device.memories, first.memories, strict=False)
            ),
        )
        counts = [(len(each.dies), len(each.memories)) for each in (device, first)]
        if alike != first or counts[0] != counts[1]:
            raise PlanError(f"devices {names[0]} and {name} differ")
    most_ports = max(devices, key=lambda each: sum(port.count for port in each.ports)).ports
    return replace(
        first,
        dies=tuple(
            replace(
                dies[0],
                **{name: min(getattr(die, name) for die in dies) for name in RESOURCES},
            )
            for dies in zip(*(each.dies for each in devices), strict=True)
        ),
        memories=tuple(
            replace(own[0], size_bytes=min(each.size_bytes for each in own))
            for own in zip(*(each.memories for each in devices), strict=True)
        ),
        ports=most_ports,
    )
