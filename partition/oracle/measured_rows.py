"""The oracle's layers from a profile of measured times and bytes of one sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.network.graph import NetworkError
from fpgapipe.network.operators import Measured
from fpgapipe.partition.oracle.paradl import LayerRow

if TYPE_CHECKING:
    from fpgapipe.network.graph import Graph


def rows_of(graph: Graph, bytes_per_element: float) -> list[LayerRow]:
    """The layers of a profile, per sample.

    The input of a layer is what the layers before it give. A profile does not say what the network
    itself reads, nor how long an update takes; both count as nothing. Filter and channel
    parallelism cut the layers with weights.

    Parameters
    ----------
    graph : Graph
        A network of `Measured` layers, with times and bytes of a sample.
    bytes_per_element : float

    Raises
    ------
    NetworkError
        If the network is no profile.
    """
    rows = []
    bytes_of: dict[str, int] = {}
    for name, layer in graph.layers.items():
        operator = layer.operator
        if not isinstance(operator, Measured):
            raise NetworkError(f"{graph.name} is no profile: its layers have shapes, not times")
        bytes_of[name] = operator.output_bytes
        rows.append(
            LayerRow(
                name,
                sum(bytes_of.get(source, 0) for source in layer.inputs) / bytes_per_element,
                operator.output_bytes / bytes_per_element,
                operator.weight_bytes / bytes_per_element,
                operator.forward_s,
                operator.backward_input_s + operator.backward_weight_s,
                has_filters=operator.weight_bytes > 0,
            )
        )
    return rows
