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
        return _conv(operator, layer.output.shape, shape)
    assert isinstance(operator, ops.Conv)
    return _conv(operator, shape, layer.output.shape)


def _conv(
    operator: ops.Conv | ops.ConvTranspose, images: tuple[int, ...], results: tuple[int, ...]
) -> ConvSpec:
    """The convolution of a group, whose inputs and results have these shapes.

    With one axis, images have one row. With three axes, there is an image for each plane of the
    result, which has the channels of all planes that the taps read.
    """
    none: tuple[int, ...] = (1,) * (2 - len(operator.kernel))
    kernel, stride, dilation = (
        none + numbers for numbers in (operator.kernel, operator.stride, operator.dilation)
    )
    *_, (top, bottom), (left, right) = ((0, 0),) * len(none) + operator.padding
    height, width = (none + images[2:])[-2:]
    volumes = len(kernel) > 2
    return ConvSpec(
        cin=images[1] // operator.groups * (kernel[0] if volumes else 1),
        cout=results[1] // operator.groups,
        kernel=(kernel[-2], kernel[-1]),
        stride=(stride[-2], stride[-1]),
        pad=(top, left, bottom, right),
        h=height,
        w=width,
        batch=images[0] * (results[2] if volumes else 1),
        dilation=(dilation[-2], dilation[-1]),
    )
