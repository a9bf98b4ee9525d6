"""Tensors that pass a cut, the limits that a finished cut has to keep, and no cut at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.network.graph import Graph
from fpgapipe.partition.cost.cost import LayerCost
from fpgapipe.partition.explore.candidate import (
    Candidate,
    Choice,
    DeviceChain,
    Stage,
    time_candidate,
)
from fpgapipe.partition.search.problem import PlanError


def cut_bytes(graph: Graph, before: Sequence[LayerCost]) -> tuple[float, float]:
    """Bytes of the boundary tensors of a cut per micro-batch: activations, and their gradients.

    Parameters
    ----------
    graph : Graph
    before : sequence of LayerCost
        All layers before the cut. A result that is read several stages later crosses every cut in
        between.
    """
    inside = {cost.name for cost in before}
    read_beyond = {
        name
        for layer in graph.layers.values()
        if layer.name not in inside
        for name in layer.inputs
        if name in inside
    }
    out = [cost for cost in before if cost.name in read_beyond]
    return float(sum(c.output_bytes for c in out)), float(sum(c.gradient_bytes for c in out))


def check_memory(candidate: Candidate, cluster: ClusterSpec) -> None:
    """Check that the simulated peak of memory fits on each device.

    Raises
    ------
    PlanError
        If it does not. The message names the stage, the amount, and what would help.
    """
    fault = memory_fault(candidate, cluster)
    if fault is not None:
        raise fault


def memory_fault(candidate: Candidate, cluster: ClusterSpec) -> PlanError | None:
    """The error that `check_memory` raises; None if the peaks fit."""
    for i, (stage, needed) in enumerate(zip(candidate.stages, candidate.memory_bytes, strict=True)):
        device = cluster.devices[stage.position]
        room = device.memory_bytes or np.inf
        if needed > room:
            over = needed - room
            fewer = math.ceil(over / stage.activation_bytes) if stage.activation_bytes else math.inf
            remedy = f"a device with {math.ceil(over):,} bytes more would help"
            if fewer < (needed - stage.state_bytes) / max(stage.activation_bytes, 1):
                remedy = f"{fewer} fewer micro-batches in flight or a smaller micro-batch would do"
            return PlanError(
                f"stage {i} on {cluster.device_names[stage.position]} needs {needed:,.0f} bytes of "
                f"memory, {room:,.0f} usable, {math.ceil(over):,} too few; {remedy}"
            )
    return None


def on_one_device(
    cluster: ClusterSpec, choice: Choice, kind: str, batch: int, count: int, train: bool
) -> Iterator[Candidate]:
    """The whole network on a single device, for each kind of device that can hold it.

    The partitioner always uses the first devices of the chain, and over slow links its model of a
    schedule may be more optimistic than the simulation. So single devices are timed as well.

    Parameters
    ----------
    cluster : ClusterSpec
    choice : dict of DeviceSpec to (NodeSpec, list of LayerCost)
        Core of each kind of device, and the layers' costs there.
    kind : str
        Kind of the schedule.
    batch, count : int
        Samples and micro-batches of a mini-batch.
    train : bool
    """
    for device, (node, costs) in choice.items():
        position = cluster.devices.index(device)
        stage = Stage(position, node, tuple(costs), 0.0, 0.0)
        alone = DeviceChain((position,), (), ())
        timed = time_candidate(kind, batch // count, count, [stage], alone, train=train)
        if memory_fault(timed, cluster) is None:
            yield replace(timed, reason="one device, which the simulation finds faster")
