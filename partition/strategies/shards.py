"""Shards: the part of some layers that one device computes, as a network of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.lowering.shards.degrees import CHANNELWISE, largest
from fpgapipe.lowering.shards.rebatched import with_samples
from fpgapipe.network.graph import GraphBuilder
from fpgapipe.network.operators import Conv, Linear, Pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.lowering.shards.degrees import Degrees
    from fpgapipe.network.graph import Graph
    from fpgapipe.network.operators import Operator
    from fpgapipe.network.operators.tensors import Tensor


def shard(graph: Graph, names: Sequence[str], degrees: Degrees) -> Graph:
    """The largest part of some layers that a device computes, as a network.

    Rows that a device needs of its neighbours are rows of the input; where the whole network pads
    an image, so does each part, which makes a part at the border one row larger than it is.

    Parameters
    ----------
    graph : Graph
    names : sequence of str
        Names of layers that run together.
    degrees : Degrees
        Degrees of all of them.
    """
    own = set(names)
    first = graph.layers[names[0]]
    batch = largest(graph.batch or 1, degrees.sample)
    builder = GraphBuilder(f"{names[0]} {degrees}", batch)
    for name in names:
        layer = graph.layers[name]
        for source, tensor in zip(layer.inputs, layer.input_tensors, strict=True):
            if source in own or not builder.is_free(source):
                continue
            reader = first if source in first.inputs else layer
            builder.input(source, _cut(graph, tensor, reader.operator, degrees))
        operator = with_samples(layer, graph.batch or 1, batch)
        builder.add(name, _operator(operator, degrees), *layer.inputs)
    return builder.build()


def _cut(graph: Graph, tensor: Tensor, operator: Operator, degrees: Degrees) -> Tensor:
    """The part of an input that an operator needs."""
    shape = list(tensor.shape)
    if shape and shape[0] == graph.batch:
        shape[0] = largest(shape[0], degrees.sample)
    if len(shape) in (2, 4) and isinstance(operator, CHANNELWISE):
        shape[1] = largest(shape[1], degrees.channel)
    if len(shape) == 4:
        for axis, count in enumerate((degrees.height, degrees.width)):
            if count > 1:
                shape[2 + axis] = _cut_rows(operator, axis, shape[2 + axis], count)
    return tensor.with_shape(tuple(shape))


def _cut_rows(operator: Operator, axis: int, size: int, count: int) -> int:
    """Rows of an input that make the largest part of the rows of the output."""
    if not isinstance(operator, Conv | Pool):
        return largest(size, count)
    stride, padding = operator.stride[axis], sum(operator.padding[axis])
    reach = operator.dilation[axis] * (operator.kernel[axis] - 1) + 1
    rows = (size + padding - reach) // stride + 1
    wanted = (largest(rows, count) - 1) * stride + reach - padding
    return max(min(wanted, size), reach - padding, 1)


def _operator(operator: Operator, degrees: Degrees) -> Operator:
    """The operator with its share of the output channels."""
    if isinstance(operator, Conv):
        return replace(operator, out_channels=largest(operator.out_channels, degrees.channel))
    if isinstance(operator, Linear):
        return replace(operator, out_features=largest(operator.out_features, degrees.channel))
    return operator
