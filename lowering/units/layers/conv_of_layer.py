"""The convolution that a layer computes on the array."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from fpgapipe.network.graph import Layer


def conv_of(layer: Layer) -> ConvSpec:
    """Return the convolution that a convolution or linear layer computes, or one of its groups.

    For a transposed convolution it is the convolution whose input gradient that computes; for an
    embedding or a selection it is the linear layer whose input gradient that is, for rows with a
    single one.

    Raises
    ------
    NotImplementedError
        If the core does not run it.
    """
    operator = layer.operator
    shape = layer.input_tensors[0].shape
    if isinstance(operator, ops.Linear):
        return ConvSpec.linear(prod(shape[:-1]), operator.out_features, shape[-1])
    if isinstance(operator, ops.Embedding):
        return ConvSpec.linear(prod(shape), operator.num_embeddings, operator.features)
    if isinstance(operator, ops.Select):
        return ConvSpec.linear(len(operator.indices), shape[0], prod(shape[1:]))
    if isinstance(operator, ops.ConvTranspose):
        return _conv_behind(operator, shape, layer.output.shape)
    assert isinstance(operator, ops.Conv)
    if len(operator.kernel) > 2:
        raise NotImplementedError(
            f"convolutions must have one axis or two, not {len(operator.kernel)}"
        )
    # With one axis, images have one row.
    none: tuple[int, ...] = (1,) * (2 - len(operator.kernel))
    (top, bottom), (left, right) = ((0, 0),) * len(none) + operator.padding
    height, width = none + shape[2:]
    down, across = none + operator.kernel
    return ConvSpec(
        cin=shape[1] // operator.groups,
        cout=operator.out_channels // operator.groups,
        kernel=(down, across),
        stride=_pair(none + operator.stride),
        pad=(top, left, bottom, right),
        h=height,
        w=width,
        batch=shape[0],
        dilation=_pair(none + operator.dilation),
    )


def _conv_behind(
    operator: ops.ConvTranspose, shape: tuple[int, ...], output: tuple[int, ...]
) -> ConvSpec:
    """The convolution of which a transposed one is the input gradient."""
    if len(operator.kernel) > 2:
        raise NotImplementedError(
            f"transposed convolutions must have one axis or two, not {len(operator.kernel)}"
        )
    if operator.groups > 1:
        raise NotImplementedError(
            f"transposed convolutions must have one group, not {operator.groups}"
        )
    none: tuple[int, ...] = (1,) * (2 - len(operator.kernel))
    (top, bottom), (left, right) = ((0, 0),) * len(none) + operator.padding
    height, width = none + output[2:]
    return ConvSpec(
        cin=output[1],
        cout=shape[1],
        kernel=_pair(none + operator.kernel),
        stride=_pair(none + operator.stride),
        pad=(top, left, bottom, right),
        h=height,
        w=width,
        batch=shape[0],
        dilation=_pair(none + operator.dilation),
    )


def _pair(numbers: tuple[int, ...]) -> tuple[int, int]:
    first, second = numbers
    return first, second
