"""Tensors that pass a cut, and the limits that a finished cut has to keep."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.network.graph import Graph
from fpgapipe.partition.cost.cost import LayerCost
from fpgapipe.partition.explore.candidate import Candidate
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
        device = cluster.devices[stage.device]
        room = device.memory_bytes or np.inf
        if needed > room:
            over = needed - room
            fewer = math.ceil(over / stage.activation_bytes) if stage.activation_bytes else math.inf
            remedy = f"a device with {math.ceil(over):,} bytes more would help"
            if fewer < (needed - stage.state_bytes) / max(stage.activation_bytes, 1):
                remedy = f"{fewer} fewer micro-batches in flight or a smaller micro-batch would do"
            return PlanError(
                f"stage {i} on {cluster.device_names[stage.device]} needs {needed:,.0f} bytes of "
                f"memory, {room:,.0f} usable, {math.ceil(over):,} too few; {remedy}"
            )
    return None
