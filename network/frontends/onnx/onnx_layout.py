"""Translations of ONNX operators that move elements."""

from __future__ import annotations

import math
from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.onnx.onnx_translation import (
    DTYPES,
    Translation,
    handles,
    node_name,
)
from fpgapipe.network.operators import (
    AxisMap,
    Cast,
    Concat,
    Expand,
    Flatten,
    Reshape,
    Slice,
    Split,
    Transpose,
)
from fpgapipe.network.operators.axis_map import selection
from fpgapipe.network.operators.tensors import ShapeError, normalise_axis


@handles("Identity")
def _identity(t: Translation, node: Any) -> None:
    t.give(node, t.layer(node.input[0]))


@handles("Cast")
def _cast(t: Translation, node: Any) -> None:
    from onnx import TensorProto

    name = TensorProto.DataType.Name(t.attributes(node)["to"])
    if name not in DTYPES:
        raise Unsupported(f"element type {name} is not supported")
    if t.tensor(node.input[0]).dtype is DTYPES[name]:
        t.give(node, t.layer(node.input[0]))
    else:
        t.first(node, Cast(DTYPES[name]))


@handles("Reshape")
def _reshape(t: Translation, node: Any) -> None:
    wanted = t.integers(node, 1, "shape") or []
    shape = t.tensor(node.input[0]).shape
    if not t.attributes(node).get("allowzero", 0):
        if any(size == 0 and i >= len(shape) for i, size in enumerate(wanted)):
            raise Unsupported(f"shape {wanted} copies an axis that {list(shape)} does not have")
        wanted = [shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    t.first(node, Reshape(tuple(wanted)))


@handles("Flatten")
def _flatten(t: Translation, node: Any) -> None:
    axis = t.attributes(node).get("axis", 1)
    shape = t.tensor(node.input[0]).shape
    axis = axis % len(shape) if axis < 0 else axis
    if axis == 1 and len(shape) > 1:
        t.first(node, Flatten(1))
        return
    t.first(node, Reshape((math.prod(shape[:axis]), math.prod(shape[axis:]))))


@handles("Squeeze", "Unsqueeze")
def _squeeze(t: Translation, node: Any) -> None:
    given = t.integers(node, 1, "axes") if len(node.input) > 1 else t.attributes(node).get("axes")
    shape = list(t.tensor(node.input[0]).shape)
    axes = [i for i, size in enumerate(shape) if size == 1] if given is None else list(given)
    if node.op_type == "Unsqueeze":
        rank = len(shape) + len(axes)
        for axis in sorted(normalise_axis(axis, rank) for axis in axes):
            shape.insert(axis, 1)
    else:
        gone = {normalise_axis(axis, len(shape)) for axis in axes}
        if any(shape[axis] != 1 for axis in gone):
            raise Unsupported(f"axes {axes} of {shape} have more than one element")
        shape = [size for i, size in enumerate(shape) if i not in gone]
    t.first(node, Reshape(tuple(shape)))


@handles("Transpose")
def _transpose(t: Translation, node: Any) -> None:
    rank = len(t.tensor(node.input[0]).shape)
    t.first(node, Transpose(tuple(t.attributes(node).get("perm", range(rank)[::-1]))))


@handles("Concat")
def _concat(t: Translation, node: Any) -> None:
    t.simple(node, Concat(t.attributes(node)["axis"]))


@handles("Split")
def _split(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    shape = t.tensor(node.input[0]).shape
    axis = normalise_axis(attributes.get("axis", 0), len(shape))
    sizes = t.integers(node, 1, "split") if t.operand(node, 1) else attributes.get("split")
    if sizes is None:
        part = -(-shape[axis] // len(node.output))
        sizes = [part] * (len(node.output) - 1)
        sizes.append(shape[axis] - sum(sizes))
    start = 0
    for i, size in enumerate(sizes):
        if t.consumers[node.output[i]]:
            piece = Split(axis, start, start + size)
            t.give(node, t.add(f"{node_name(node)}.{i}", piece, t.layer(node.input[0])), output=i)
        start += size
    if start != shape[axis]:
        raise ShapeError(f"sizes {list(sizes)} do not add up to {shape[axis]}")


@handles("Slice")
def _slice(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    if t.opset < 10:
        starts, ends = list(attributes["starts"]), list(attributes["ends"])
        axes, steps = attributes.get("axes"), None
    else:
        starts = t.integers(node, 1, "starts") or []
        ends = t.integers(node, 2, "ends") or []
        axes, steps = t.integers(node, 3, "axes"), t.integers(node, 4, "steps")
    axes = list(range(len(starts))) if axes is None else list(axes)
    layer = t.layer(node.input[0])
    shape = t.tensor(node.input[0]).shape
    for i, (axis, start, end) in enumerate(zip(axes, starts, ends, strict=True)):
        axis = normalise_axis(axis, len(shape))
        step = steps[i] if steps else 1
        if step < 1:
            places = range(*slice(start, end, step).indices(shape[axis]))
            name = f"{node_name(node)}.{i}"
            layer = t.add(name, AxisMap(axis, selection(places)), layer)
            continue
        first, last, _ = slice(start, end).indices(shape[axis])
        if (first, last, step) != (0, shape[axis], 1):
            name = node_name(node) if len(axes) == 1 else f"{node_name(node)}.{i}"
            layer = t.add(name, Slice(axis, first, last, step), layer)
    t.give(node, layer)


@handles("Expand")
def _expand(t: Translation, node: Any) -> None:
    t.first(node, Expand(tuple(t.integers(node, 1, "shape") or ())))
