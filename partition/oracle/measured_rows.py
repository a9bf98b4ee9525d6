"""The oracle's layers from a profile of measured times and bytes of one sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.network.graph import NetworkError
from fpgapipe.network.operators import Measured
from fpgapipe.partition.oracle.paradl import LayerRow

if TYPE_CHECKING:
    from fpgapipe.network.graph import Graph


def rows_of(graph: Graph, bytes_per_element: float, input_elements: float = 0) -> list[LayerRow]:
    """The layers of a profile, per sample.

    The input of a layer is what the layers before it give. A profile does not say how long an
    update takes, which counts as nothing, nor which layers filter and channel parallelism cut: as
    in the formulas of the paper, these are all.

    Parameters
    ----------
    graph : Graph
        A network of `Measured` layers, with times and bytes of a sample.
    bytes_per_element : float
    input_elements : float
        Elements of a sample that the network reads.

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
                sum(bytes_of[source] for source in layer.inputs) / bytes_per_element
                if layer.inputs
                else input_elements,
                operator.output_bytes / bytes_per_element,
                operator.weight_bytes / bytes_per_element,
                operator.forward_s,
                operator.backward_input_s + operator.backward_weight_s,
            )
        )
    return rows
