"""Convolutions of volumes, as images that have the channels of several planes, and depthwise ones.

The latter are computed on the vector engine: in FP32, tap after tap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from fpgapipe.host.backends.torch_mx import product_of, transposed_product_of
from fpgapipe.host.backends.torch_reference import with_gradients_of
from fpgapipe.lowering.units.images.volume_unit import depth_of
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from fpgapipe.lowering.kernels.images.depth import Depth
    from fpgapipe.network.graph import Layer

Window = tuple[slice, ...]


def convolved_volumes(
    layer: Layer, x: torch.Tensor, weight: torch.Tensor, array_rows: int
) -> torch.Tensor:
    """A convolution with three axes, of all channels or of a group, without its bias."""
    depth = depth_of(layer)
    taps = weight.transpose(1, 2).flatten(1, 2)
    conv = replace(conv_of(layer), cin=taps.shape[1], cout=len(weight))
    y = product_of(unfolded(x, depth), taps, conv, array_rows)
    return y.unflatten(0, (depth.batch, depth.results)).transpose(1, 2)


def transposed_volumes(
    layer: Layer, x: torch.Tensor, weight: torch.Tensor, array_rows: int
) -> torch.Tensor:
    """A transposed convolution with three axes, of all channels or of a group."""
    depth = depth_of(layer)
    taps = weight.transpose(1, 2).flatten(1, 2)
    images = x.transpose(1, 2).flatten(0, 1)
    return folded(transposed_product_of(images, taps, conv_of(layer), array_rows), depth)


def unfolded(x: torch.Tensor, depth: Depth) -> torch.Tensor:
    """Images of the planes of the result, ``batch * results, taps * channels, rows, columns``."""
    reach = (depth.results - 1) * depth.stride + 1
    last = (depth.taps - 1) * depth.dilation + reach
    behind = max(last - depth.before - depth.planes, 0)
    whole = functional.pad(x, (0, 0, 0, 0, depth.before, behind))
    parts = [
        whole[:, :, tap * depth.dilation :][:, :, :reach][:, :, :: depth.stride]
        for tap in range(depth.taps)
    ]
    return torch.stack(parts, 1).permute(0, 3, 1, 2, 4, 5).flatten(2, 3).flatten(0, 1)


def folded(images: torch.Tensor, depth: Depth) -> torch.Tensor:
    """Sums of what the images have of each plane of the volumes."""
    parts = images.unflatten(0, (depth.batch, depth.results)).unflatten(2, (depth.taps, -1))
    reach = (depth.results - 1) * depth.stride + 1
    last = (depth.taps - 1) * depth.dilation + reach
    size = max(last, depth.before + depth.planes)
    whole = images.new_zeros(depth.batch, parts.shape[3], size, *images.shape[2:])
    for tap in range(depth.taps):
        first = tap * depth.dilation
        whole[:, :, first : first + reach : depth.stride] += parts[:, :, tap].transpose(1, 2)
    return whole[:, :, depth.before : depth.before + depth.planes]


def depthwise(
    layer: Layer,
    x: torch.Tensor,
    roles: Mapping[str, torch.Tensor],
    late: Mapping[str, torch.Tensor | None],
) -> torch.Tensor:
    """Compute a layer with its bias; `late` are the parameters of its gradients."""

    def with_parameters(own: Mapping[str, torch.Tensor]) -> torch.Tensor:
        y = Depthwise.apply(x, own["weight"], layer.operator, layer.output.shape)
        return y if "bias" not in own else y + own["bias"].reshape(-1, *(1,) * (x.ndim - 2))

    others = {role: each for role, each in late.items() if each is not None}
    result = with_parameters(roles)
    return with_gradients_of(result, with_parameters({**roles, **others})) if others else result


class Depthwise(torch.autograd.Function):  # type: ignore[misc]
    """The three passes of a depthwise convolution, without its bias.

    Called as ``Depthwise.apply(x, weight, operator, shape)`` with the shape of the result. Result
    and gradient of the input have the bits of the core, but for numbers below ``2**-126``. The
    gradient of the weight is added up in PyTorch's order.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, operator: ops.Conv, shape: tuple[int, ...]
    ) -> torch.Tensor:
        """Add up the products of the taps, row by row; padding adds nothing."""
        ctx.save_for_backward(x, weight)
        ctx.operator = operator
        y = x.new_full(shape, -0.0)
        for tap, pixels, positions in _taps(operator, x.shape, shape):
            y[positions] += x[pixels] * _of_channels(weight, tap)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Add up the products of the windows in their order, in which taps come from the last."""
        x, weight = ctx.saved_tensors
        taps = list(_taps(ctx.operator, x.shape, dy.shape))
        dx, dw = torch.zeros_like(x), torch.zeros_like(weight)
        if ctx.needs_input_grad[0]:
            for tap, pixels, positions in reversed(taps):
                dx[pixels] += dy[positions] * _of_channels(weight, tap)
        if ctx.needs_input_grad[1]:
            sums = [0, *range(2, x.ndim)]
            for tap, pixels, positions in taps:
                dw[(slice(None), 0, *tap)] = (x[pixels] * dy[positions]).sum(sums)
        return dx, dw, None, None


def _of_channels(weight: torch.Tensor, tap: tuple[int, ...]) -> torch.Tensor:
    """A tap of each channel, in a shape that images are multiplied by."""
    return weight[(slice(None), 0, *tap)].reshape(-1, *(1,) * len(tap))


def _taps(
    operator: ops.Conv, images: tuple[int, ...], results: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], Window, Window]]:
    """Each tap, the pixels that it reads, and the positions whose windows have them."""
    axes = [
        [
            (tap, *_seen(tap * dilation - before, stride, size, count))
            for tap in range(kernel)
        ]
        for kernel, stride, dilation, (before, _), size, count in zip(
            operator.kernel, operator.stride, operator.dilation, operator.padding,
            images[2:], results[2:], strict=True,
        )
    ]  # fmt: skip
    every = slice(None), slice(None)
    for several in product(*axes):
        tap, pixels, positions = zip(*several, strict=True)
        yield tap, (*every, *pixels), (*every, *positions)


def _seen(first: int, stride: int, size: int, count: int) -> tuple[slice, slice]:
    """Pixels ``first + stride * position`` within the image, and their positions."""
    begin = max(-(first // stride), 0)
    end = max(min((size - 1 - first) // stride + 1, count), begin)
    low = first + begin * stride
    return slice(low, low + (end - begin) * stride, stride), slice(begin, end)
