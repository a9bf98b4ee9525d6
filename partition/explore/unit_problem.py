"""The partition problem of a network whose units stay whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.partition.search.problem import PartitionProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.cost.cost import LayerCost
    from fpgapipe.partition.explore.candidate import DeviceChain
    from fpgapipe.partition.search.problem import ScheduleModel

    Groups = Sequence[tuple[str, ...]]


def make_problem(
    graph: Graph,
    groups: Groups,
    columns: Sequence[Sequence[LayerCost]],
    device_kinds: Sequence[int],
    device_names: Sequence[str],
    memory_bytes: Sequence[float],
    row: DeviceChain,
    model: ScheduleModel,
    *,
    free_order: bool = False,
) -> PartitionProblem:
    """State the partition problem.

    Layers that run together on the core are one layer of the problem, which has the name of the
    first of them. No cut can thus come between them, or before a value that they need.

    Parameters
    ----------
    graph : Graph
    groups : sequence of tuple of str
        Names of layers that run together, as `layers_together` finds them.
    columns : sequence of sequence of LayerCost
        Costs of all layers, in the order of the network, for each kind of device.
    device_kinds, device_names, memory_bytes
        Kind, name and usable memory of each device.
    row : DeviceChain
        The links between the devices.
    model : ScheduleModel
    free_order : bool
        Whether the devices may be taken in any order.
    """
    by_name = [{cost.name: cost for cost in column} for column in columns]
    first = by_name[0]

    def total(
        value: Callable[[LayerCost], float], costs: dict[str, LayerCost]
    ) -> NDArray[np.float64]:
        return np.array([float(sum(value(costs[name]) for name in names)) for names in groups])

    index = {name: number for number, names in enumerate(groups) for name in names}
    edges = {
        (index[source], index[name])
        for name in index
        for source in graph.layers[name].inputs
        if source in index and index[source] != index[name]
    }
    return PartitionProblem(
        tuple(names[0] for names in groups),
        np.stack([total(lambda cost: cost.forward.seconds, column) for column in by_name], axis=1),
        np.stack([total(lambda cost: cost.backward_s, column) for column in by_name], axis=1),
        np.array([float(first[names[-1]].output_bytes) for names in groups]),
        total(lambda cost: cost.weight_bytes, first),
        total(lambda cost: cost.activation_bytes, first),
        tuple(sorted(edges)),
        tuple(device_names),
        np.array(device_kinds, np.int64),
        np.array(memory_bytes, np.float64),
        np.array(row.link_bytes_per_s, np.float64),
        np.array(row.link_latency_s, np.float64),
        model,
        total(lambda cost: cost.state_bytes, first),
        free_order,
    )


def units_of(
    groups: Groups, columns: Sequence[Sequence[LayerCost]]
) -> list[list[tuple[LayerCost, ...]]]:
    """For each kind of device, the costs of the layers of each layer of the problem."""
    found = []
    for column in columns:
        costs = {cost.name: cost for cost in column}
        found.append([tuple(costs[name] for name in names) for names in groups])
    return found


def reads_of(graph: Graph, units: Sequence[Sequence[LayerCost]]) -> tuple[tuple[int, int], ...]:
    """Pairs of a layer and a layer that reads its result, as their numbers within all units."""
    names = [cost.name for unit in units for cost in unit]
    index = {name: number for number, name in enumerate(names)}
    return tuple(
        (index[source], index[name])
        for name in names
        for source in graph.layers[name].inputs
        if source in index
    )
