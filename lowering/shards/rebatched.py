"""A network for another number of samples."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.network.graph import GraphBuilder
from fpgapipe.network.operators import Expand, Reshape

if TYPE_CHECKING:
    from fpgapipe.network.graph import Graph, Layer
    from fpgapipe.network.operators import Operator


def with_samples(layer: Layer, batch: int | None, other: int) -> Operator:
    """The operator of a layer, which may name the number of samples, `batch`, for `other` ones."""
    operator = layer.operator
    named = isinstance(operator, Reshape)
    if isinstance(operator, Expand):
        # With more axes than the input has, the first one is not that of the samples.
        named = len(operator.shape) == len(layer.input_tensors[0].shape)
    if isinstance(operator, Reshape | Expand) and named and operator.shape[0] == batch:
        return replace(operator, shape=(other, *operator.shape[1:]))
    return operator


def rebatched(graph: Graph, batch: int) -> Graph:
    """The network with another number of samples; its parameters keep their names.

    Parameters
    ----------
    graph : Graph
    batch : int
        Samples of the new network.

    Raises
    ------
    NotImplementedError
        If the first axis of an input or of a layer's result is not that of the samples.
    """
    if batch == graph.batch:
        return graph
    builder = GraphBuilder(graph.name, batch)
    for name, tensor in graph.inputs.items():
        if not tensor.shape or tensor.shape[0] != graph.batch:
            raise NotImplementedError(f"input {name!r} has no samples that could be shared")
        builder.input(name, tensor.with_shape((batch, *tensor.shape[1:])))
    for layer in graph.layers.values():
        shape = layer.output.shape
        operator = with_samples(layer, graph.batch, batch)
        names = {each.spec.role: each.name for each in layer.parameters}
        builder.add(
            layer.name,
            operator,
            *layer.inputs,
            shared=names,
            frozen=layer.frozen,
            orders=layer.orders,
        )
        if builder.tensor(layer.name).shape != (batch, *shape[1:]):
            raise NotImplementedError(f"layer {layer.name!r} has no samples that could be shared")
    return builder.build(graph.outputs, graph.auxiliary)
