"""Translations of ATen operators that resize, pad and mirror: fixed maps of axes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.torch.torch_registry import Node, handles
from fpgapipe.network.frontends.torch.torch_translation import Translation
from fpgapipe.network.operators import AxisMap, GlobalPool, Pad, Pool, Slice, Upsample
from fpgapipe.network.operators.axis_map import (
    averages,
    cubic,
    extended,
    interpolation,
    padded_indices,
    selection,
    windows,
)
from fpgapipe.network.operators.tensors import normalise_axis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.network.operators.axis_map import Taps

CUBIC = -0.75
"""Coefficient of PyTorch's cubic convolution."""


@handles(
    *(
        f"{name}{rank}d.{overload}"
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for rank in (1, 2, 3)
        for overload in ("vec", "default")
    )
)
def _nearest(t: Translation, node: Node) -> None:
    """Resize to the nearest pixel, at PyTorch's positions, which are in FP32."""
    x, sizes, wanted, scales = _sizes(t, node)
    middle = 0.5 if "exact" in node.target else 0.0
    chosen = [
        _nearest_indices(size, want, scale, middle)
        for size, want, scale in zip(sizes, wanted, scales, strict=True)
    ]
    factors = tuple(max(want // size, 1) for size, want in zip(sizes, wanted, strict=True))
    if all(
        list(each) == [place // factor for place in range(size * factor)]
        for each, size, factor in zip(chosen, sizes, factors, strict=True)
    ):
        t.give(node, t.add(node.name, Upsample(factors), t.layer(x)))
        return
    _mapped(t, node, x, {axis: selection(each) for axis, each in enumerate(chosen, 2)})


def _nearest_indices(size: int, want: int, scale: float | None, middle: float) -> list[int]:
    step = np.float32(1 / scale if scale else size / want)
    positions = (np.arange(want, dtype=np.float32) + np.float32(middle)) * step
    return [int(each) for each in np.minimum(positions.astype(np.int64), size - 1)]


@handles(
    *(
        f"upsample_{name}.{overload}"
        for name in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d")
        for overload in ("vec", "default")
    )
)
def _interpolated(t: Translation, node: Node) -> None:
    """Resize by linear or cubic interpolation along each axis."""
    x, sizes, wanted, scales = _sizes(t, node)
    maps = {}
    for axis, (size, want, scale) in enumerate(zip(sizes, wanted, scales, strict=True), 2):
        if node["align_corners"]:
            positions = np.arange(want) * ((size - 1) / (want - 1) if want > 1 else 0.0)
        else:
            positions = (np.arange(want) + 0.5) * (1 / scale if scale else size / want) - 0.5
        found = positions.tolist()
        maps[axis] = (
            cubic(found, size, CUBIC) if "cubic" in node.target else interpolation(found, size)
        )
    _mapped(t, node, x, maps)


def _sizes(
    t: Translation, node: Node
) -> tuple[Any, tuple[int, ...], list[int], list[float | None]]:
    """The input, its sizes, those wanted, and the scales, of an operator that resizes."""
    vec = node.target.endswith("vec")
    x = node.arguments["input" if vec else "self"]
    sizes = t.tensor(x).shape[2:]
    rank = len(sizes)
    scales: list[float | None]
    if vec:
        scales = list(node.arguments.get("scale_factors") or [None] * rank)
    else:
        names = ("scales",) if rank == 1 else ("scales_d", "scales_h", "scales_w")[-rank:]
        scales = [node.arguments.get(name) for name in names]
    wanted = node.arguments.get("output_size") or [
        math.floor(size * (scale or 1)) for size, scale in zip(sizes, scales, strict=True)
    ]
    return x, sizes, list(wanted), scales


def _mapped(t: Translation, node: Node, x: Any, maps: dict[int, tuple[Taps, ...]]) -> None:
    """Map some axes of a tensor, those that shrink first; maps that change nothing are left out."""
    shape, layer = t.tensor(x).shape, t.layer(x)
    order = sorted(maps, key=lambda axis: len(maps[axis]) / shape[axis])
    needed = [axis for axis in order if maps[axis] != selection(range(shape[axis]))]
    for number, axis in enumerate(needed):
        name = node.name if number == len(needed) - 1 else f"{node.name}.{axis}"
        layer = t.add(name, AxisMap(axis, maps[axis]), layer)
    t.give(node, layer)


@handles(
    *(f"adaptive_avg_pool{rank}d.default" for rank in (1, 2, 3)),
    *(f"adaptive_max_pool{rank}d.default" for rank in (1, 2, 3)),
)
def _adaptive_pool(t: Translation, node: Node) -> None:
    """Windows of one size are ordinary ones; others are averages, or repeat their last element."""
    function = "max" if "max" in node.target else "average"
    sizes = t.tensor(node["self"]).shape[2:]
    wanted = [
        size if want is None else want
        for size, want in zip(sizes, node["output_size"], strict=True)
    ]
    found = [windows(size, want) for size, want in zip(sizes, wanted, strict=True)]
    kernel = tuple(max(end - begin for begin, end in each) for each in found)
    layer = t.layer(node["self"])
    if list(wanted) == list(sizes):
        t.give(node, [layer, None] if function == "max" else layer)
        return
    even = [
        each == [(i * size, (i + 1) * size) for i in range(len(each))]
        for each, size in zip(found, kernel, strict=True)
    ]
    if all(want == 1 for want in wanted):
        layer = t.add(node.name, GlobalPool(function), layer)
    elif all(even) or function == "max":
        for axis, each in enumerate(found, 2):
            if not even[axis - 2]:
                taps = selection(extended(each))
                layer = t.add(f"{node.name}.{axis}", AxisMap(axis, taps), layer)
        none = ((0, 0),) * len(kernel)
        operator = Pool(function, kernel, kernel, none, (1,) * len(kernel))
        layer = t.add(node.name, operator, layer)
    else:
        _mapped(
            t,
            node,
            node["self"],
            {
                axis: averages(size, want)
                for axis, (size, want) in enumerate(zip(sizes, wanted, strict=True), 2)
            },
        )
        return
    t.give(node, [layer, None] if function == "max" else layer)


@handles(
    "pad.default",
    "constant_pad_nd.default",
    *(f"{name}_pad{rank}d.default" for name in ("reflection", "replication") for rank in (1, 2, 3)),
)
def _pad(t: Translation, node: Node) -> None:
    mode = node.arguments.get("mode", "constant")
    for kind, name in (("reflect", "reflection"), ("replicate", "replication")):
        if name in node.target:
            mode = kind
    x = node["self"] if "self" in node.arguments else node["input"]
    pad = node["pad"] if "pad" in node.arguments else node["padding"]
    shape, layer = t.tensor(x).shape, t.layer(x)
    sides = {
        len(shape) - 1 - i: (pad[2 * i], pad[2 * i + 1])  # the last axis comes first
        for i in range(len(pad) // 2)
    }
    if mode == "constant":
        t.give(node, _padded(t, node, layer, shape, sides))
        return
    if any(side < 0 for pair in sides.values() for side in pair):
        raise Unsupported(f"only sides of at least 0 in mode {mode}")
    maps = {
        axis: selection(padded_indices(mode, shape[axis], *pair)) for axis, pair in sides.items()
    }
    _mapped(t, node, x, maps)


def _padded(
    t: Translation,
    node: Node,
    layer: str,
    shape: Sequence[int],
    sides: dict[int, tuple[int, int]],
) -> str:
    """Add a fixed number around a tensor; negative sides cut off what is there."""
    for axis, (before, after) in sides.items():
        if before < 0 or after < 0:
            part = Slice(axis, max(-before, 0), shape[axis] - max(-after, 0))
            layer = t.add(f"{node.name}.{axis}", part, layer)
    padding = [(0, 0)] * len(shape)
    for axis, (before, after) in sides.items():
        padding[axis] = (max(before, 0), max(after, 0))
    if not any(side for pair in padding for side in pair):
        return layer
    return t.add(node.name, Pad(tuple(padding), float(node.arguments.get("value") or 0)), layer)


@handles("flip.default")
def _flip(t: Translation, node: Node) -> None:
    shape = t.tensor(node["self"]).shape
    axes = [normalise_axis(axis, len(shape)) for axis in node["dims"]]
    maps = {axis: selection(range(shape[axis] - 1, -1, -1)) for axis in axes}
    _mapped(t, node, node["self"], maps)
