"""Volumes as images whose channels are those of several planes, and the adjoint of that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from fpgapipe.host.backends.torch_mx import Product, TransposedProduct
from fpgapipe.lowering.units.images.volume_unit import depth_of
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of

if TYPE_CHECKING:
    from fpgapipe.lowering.kernels.images.depth import Depth
    from fpgapipe.network.graph import Layer


def convolved_volumes(layer: Layer, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A convolution with three axes, of all channels or of a group, without its bias."""
    depth = depth_of(layer)
    taps = weight.transpose(1, 2).flatten(1, 2)
    conv = replace(conv_of(layer), cin=taps.shape[1], cout=len(weight))
    y = Product.apply(unfolded(x, depth), taps, conv)
    return y.unflatten(0, (depth.batch, depth.results)).transpose(1, 2)


def transposed_volumes(layer: Layer, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A transposed convolution with three axes, of all channels or of a group."""
    depth = depth_of(layer)
    taps = weight.transpose(1, 2).flatten(1, 2)
    images = x.transpose(1, 2).flatten(0, 1)
    return folded(TransposedProduct.apply(images, taps, conv_of(layer)), depth)


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
