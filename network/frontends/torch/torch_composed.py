"""Translations of ATen operators that several layers compute together."""

from __future__ import annotations

import math

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.torch.torch_registry import Node, handles
from fpgapipe.network.frontends.torch.torch_translation import Translation
from fpgapipe.network.operators import (
    Affine,
    AxisMap,
    Binary,
    Clamp,
    Expand,
    LayerNorm,
    Pad,
    Reduce,
    Reshape,
    Slice,
    Transpose,
    Unary,
)
from fpgapipe.network.operators.axis_map import selection
from fpgapipe.network.operators.tensors import normalise_axis

LEAST_SQUARE = 2.0**-100
"""Square of what takes the place of the norm of zeros, 9e-16."""


@handles("addcmul.default", "addcmul_.default")
def _addcmul(t: Translation, node: Node) -> None:
    factors = (t.layer(node[each]) for each in ("tensor1", "tensor2"))
    layer = t.add(f"{node.name}.product", Binary("mul"), *factors)
    if node["value"] != 1:
        layer = t.add(f"{node.name}.scale", Affine(scale=float(node["value"])), layer)
    t.give(node, t.add(node.name, Binary("add"), t.layer(node["self"]), layer))


# Norms
# -------------------------------------------------------------------------------------------


@handles("rms_norm.default")
def _rms_norm(t: Translation, node: Node) -> None:
    """Divide by the root of the mean of squares over the last axes, and scale.

    The scale is the normalisation's own, unless it is computed.
    """
    x = t.layer(node["input"])
    epsilon = node["eps"]
    if epsilon is None:
        epsilon = t.torch.finfo(getattr(t.torch, t.builder.tensor(x).dtype.value)).eps
    try:
        values = t.weights(node, weight="weight")
    except Unsupported:
        values = {}
    axes = len(node["normalized_shape"])
    operator = LayerNorm(axes, float(epsilon), bool(values), bias=False, centred=False)
    if values or node["weight"] is None:
        name = t.name_of(node, node["weight"]) if values else node.name
        t.give(node, t.add(name, operator, x, values=values))
        return
    layer = t.add(f"{node.name}.norm", operator, x)
    t.give(node, t.add(node.name, Binary("mul"), layer, t.layer(node["weight"])))


@handles("linalg_vector_norm.default", "norm.ScalarOpt_dim")
def _vector_norm(t: Translation, node: Node) -> None:
    order = node.arguments.get("ord", node.arguments.get("p"))
    if order not in (2, None):
        raise Unsupported(f"only the root of the sum of squares, not of order {order}")
    shape, x = t.tensor(node["self"]).shape, t.layer(node["self"])
    axes = node["dim"]
    axes = [axes] if isinstance(axes, int) else axes or range(len(shape))
    layer = t.add(f"{node.name}.squares", Binary("mul"), x, x)
    reduce = Reduce("sum", tuple(axes), bool(node["keepdim"]))
    layer = t.add(f"{node.name}.sum", reduce, layer)
    # The gradient of the norm of zeros is zero in PyTorch; that of the root alone is infinite.
    layer = t.add(f"{node.name}.least", Clamp(LEAST_SQUARE, strict=True), layer)
    t.give(node, t.add(node.name, Unary("sqrt"), layer))


# Repetitions and orders of elements
# -------------------------------------------------------------------------------------------


@handles("repeat.default", "tile.default")
def _repeat(t: Translation, node: Node) -> None:
    """Each axis comes several times, one time after the other."""
    counts = [*(node["repeats"] if "repeats" in node.arguments else node["dims"])]
    shape = t.tensor(node["self"]).shape
    rank = max(len(counts), len(shape))
    counts = [*(1 for _ in range(rank - len(counts))), *counts]
    shape = (*(1 for _ in range(rank - len(shape))), *shape)
    _repeated(t, node, shape, [(count, size) for count, size in zip(counts, shape, strict=True)], 0)


@handles("repeat_interleave.self_int")
def _repeat_interleave(t: Translation, node: Node) -> None:
    """Each element along an axis comes several times, one time after the other."""
    shape, axis = t.tensor(node["self"]).shape, node["dim"]
    if axis is None:
        shape, axis = (math.prod(shape),), 0
    axis = normalise_axis(axis, len(shape))
    counts = [(node["repeats"] if each == axis else 1, size) for each, size in enumerate(shape)]
    _repeated(t, node, shape, counts, 1)


def _repeated(
    t: Translation, node: Node, shape: tuple[int, ...], axes: list[tuple[int, int]], place: int
) -> None:
    """Repeat along axes; `place` says on which side of an axis its repetitions lie, 0 or 1."""
    if any(count < 1 for count, _ in axes):
        raise Unsupported("repeats nothing")
    layer = t.layer(node["self"])
    one: list[int] = []
    all_: list[int] = []
    for count, size in axes:
        pair, whole = ([size, 1], [size, count]) if place else ([1, size], [count, size])
        one += pair if count > 1 else [size]
        all_ += whole if count > 1 else [size]
    if one != all_:
        layer = t.add(f"{node.name}.one", Reshape(tuple(one)), layer)
        layer = t.add(f"{node.name}.each", Expand(tuple(all_)), layer)
    wanted = tuple(count * size for count, size in axes)
    if t.builder.tensor(layer).shape != wanted:
        layer = t.add(node.name, Reshape(wanted), layer)
    t.give(node, layer)


@handles("unfold.default")
def _unfold(t: Translation, node: Node) -> None:
    """Windows along an axis, whose elements get an axis of their own behind all others."""
    shape = t.tensor(node["self"]).shape
    axis = normalise_axis(node["dimension"], len(shape))
    size, step = node["size"], node["step"]
    count = (shape[axis] - size) // step + 1
    places = [window * step + place for window in range(count) for place in range(size)]
    layer = t.add(f"{node.name}.windows", AxisMap(axis, selection(places)), t.layer(node["self"]))
    apart = Reshape((*shape[:axis], count, size, *shape[axis + 1 :]))
    layer = t.add(f"{node.name}.apart", apart, layer)
    order = [each for each in range(len(shape) + 1) if each != axis + 1]
    t.give(node, t.add(node.name, Transpose((*order, axis + 1)), layer))


@handles("im2col.default")
def _im2col(t: Translation, node: Node) -> None:
    """Columns of the elements of all windows of images, the channels outermost."""
    samples, channels, *sizes = t.tensor(node["self"]).shape
    layer, pads = t.layer(node["self"]), node["padding"]
    if any(pads):
        padding = ((0, 0), (0, 0), *((side, side) for side in pads))
        layer = t.add(f"{node.name}.padded", Pad(padding), layer)
    counts = []
    for number, size in enumerate(sizes):
        kernel, step, dilation = (
            node[each][number] for each in ("kernel_size", "stride", "dilation")
        )
        count = (size + 2 * pads[number] - dilation * (kernel - 1) - 1) // step + 1
        places = [tap * dilation + at * step for tap in range(kernel) for at in range(count)]
        windows = AxisMap(2 + number, selection(places))
        layer = t.add(f"{node.name}.windows{number}", windows, layer)
        counts += [kernel, count]
    layer = t.add(f"{node.name}.apart", Reshape((samples, channels, *counts)), layer)
    layer = t.add(f"{node.name}.order", Transpose((0, 1, 2, 4, 3, 5)), layer)
    rows = channels * counts[0] * counts[2]
    t.give(node, t.add(node.name, Reshape((samples, rows, counts[1] * counts[3])), layer))


@handles("movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist")
def _movedim(t: Translation, node: Node) -> None:
    rank = len(t.tensor(node["self"]).shape)
    source, target = (
        [normalise_axis(axis, rank) for axis in ([given] if isinstance(given, int) else given)]
        for given in (node["source"], node["destination"])
    )
    order = [axis for axis in range(rank) if axis not in source]
    for place, axis in sorted(zip(target, source, strict=True)):
        order.insert(place, axis)
    t.simple(node, Transpose(tuple(order)))


@handles("narrow.default")
def _narrow(t: Translation, node: Node) -> None:
    shape = t.tensor(node["self"]).shape
    axis = normalise_axis(node["dim"], len(shape))
    start = normalise_axis(node["start"], shape[axis])
    t.simple(node, Slice(axis, start, start + node["length"]))


@handles("pixel_shuffle.default", "pixel_unshuffle.default")
def _pixel_shuffle(t: Translation, node: Node) -> None:
    """Channels become pixels of a larger image, or the other way round."""
    *batch, channels, height, width = t.tensor(node["self"]).shape
    rank = len(batch)
    apart = "unshuffle" in node.target
    factor = node["downscale_factor" if apart else "upscale_factor"]
    axes = range(rank)
    if apart:
        height, width = height // factor, width // factor
        split = (*batch, channels, height, factor, width, factor)
        order = (*axes, rank, rank + 2, rank + 4, rank + 1, rank + 3)
        whole = (*batch, channels * factor**2, height, width)
    else:
        channels //= factor**2
        split = (*batch, channels, factor, factor, height, width)
        order = (*axes, rank, rank + 3, rank + 1, rank + 4, rank + 2)
        whole = (*batch, channels, height * factor, width * factor)
    layer = t.add(f"{node.name}.split", Reshape(split), t.layer(node["self"]))
    layer = t.add(f"{node.name}.order", Transpose(order), layer)
    t.give(node, t.add(node.name, Reshape(whole), layer))


@handles("channel_shuffle.default")
def _channel_shuffle(t: Translation, node: Node) -> None:
    samples, channels, *sizes = shape = t.tensor(node["self"]).shape
    groups = node["groups"]
    split = Reshape((samples, groups, channels // groups, *sizes))
    layer = t.add(f"{node.name}.split", split, t.layer(node["self"]))
    order = (0, 2, 1, *range(3, 3 + len(sizes)))
    layer = t.add(f"{node.name}.order", Transpose(order), layer)
    t.give(node, t.add(node.name, Reshape(tuple(shape)), layer))
