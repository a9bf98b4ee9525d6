"""Translations of ONNX operators that resize and pad: fixed maps of axes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.onnx.onnx_translation import Translation, handles, node_name
from fpgapipe.network.operators import AxisMap, Pad, Slice, Upsample
from fpgapipe.network.operators.axis_map import cubic, interpolation, padded_indices, selection
from fpgapipe.network.operators.tensors import normalise_axis

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.network.operators.axis_map import Taps

_ROUNDINGS: dict[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: math.floor(x + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}

_PADDINGS = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
"""Names of the paddings that repeat elements."""


@handles("Resize", "Upsample")
def _resize(t: Translation, node: Any) -> None:
    """Resize the axes one by one, to the nearest element or by interpolation."""
    attributes: dict[str, Any] = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in t.attributes(node).items()
    }
    if attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Unsupported("only scales or sizes of the axes, whose ratio is free")
    if attributes.get("antialias", 0):
        raise Unsupported("only without antialias")
    layer, shape = t.layer(node.input[0]), t.tensor(node.input[0]).shape
    scales, wanted = _wanted(t, node, attributes, shape)
    mode, maps = attributes.get("mode", "nearest"), {}
    for axis, (size, want, scale) in enumerate(zip(shape, wanted, scales, strict=True)):
        if want == size and scale == 1:
            continue
        positions = _positions(t, node, attributes, size, want, scale)
        maps[axis] = _taps(t, node, attributes, positions, size)
    factors = [want // size for size, want in zip(shape, wanted, strict=True)]
    repeats = all(
        taps == selection(place // factors[axis] for place in range(shape[axis] * factors[axis]))
        for axis, taps in maps.items()
    )
    if mode == "nearest" and repeats and len(shape) > 2 and not {0, 1} & set(maps):
        t.first(node, Upsample(tuple(factors[2:])))
        return
    _mapped(t, node, layer, shape, maps)


def _wanted(
    t: Translation, node: Any, attributes: dict[str, Any], shape: tuple[int, ...]
) -> tuple[list[float], list[int]]:
    """The scale and the new size of each axis."""
    import numpy as np

    axes = [normalise_axis(axis, len(shape)) for axis in attributes.get("axes", range(len(shape)))]
    place = 1 if node.op_type == "Upsample" or t.opset < 11 else 2
    scales, wanted = [1.0] * len(shape), list(shape)
    if t.operand(node, place) and t.weight(node, place, "scales").size:
        given = [float(each) for each in t.weight(node, place, "scales").reshape(-1)[:9]]
    elif "scales" in attributes:
        given = list(attributes["scales"])
    else:
        sizes = t.integers(node, 3, "sizes") or []
        if len(sizes) != len(axes):
            raise Unsupported(f"{len(sizes)} sizes for {len(axes)} axes")
        for axis, want in zip(axes, sizes, strict=True):
            wanted[axis], scales[axis] = want, want / shape[axis]
        return scales, wanted
    if len(given) != len(axes):
        raise Unsupported(f"{len(given)} scales for {len(axes)} axes")
    for axis, scale in zip(axes, given, strict=True):
        # In FP32, as runtimes do it: 12 elements times 20 / 12 are 20, not 19.
        wanted[axis] = math.floor(np.float32(shape[axis]) * np.float32(scale))
        scales[axis] = scale
    return scales, wanted


def _positions(
    t: Translation, node: Any, attributes: dict[str, Any], size: int, want: int, scale: float
) -> list[float]:
    """Where each element of the result lies on an axis of the input.

    They are rounded as onnxruntime rounds them: which of two elements is the nearest depends on it.
    """
    import numpy as np

    where = attributes.get("coordinate_transformation_mode", "half_pixel")
    if node.op_type == "Upsample" or t.opset < 11:
        where = "asymmetric"
    one, half, factor = np.float32(1), np.float32(0.5), np.float32(scale)
    places = np.arange(want, dtype=np.float32)
    if where == "align_corners":
        found = places * np.float32(size - 1) / np.float32(max(want - 1, 1))
    elif where == "asymmetric":
        found = places / factor
    elif where == "pytorch_half_pixel" and want == 1:
        found = places
    elif where in ("half_pixel", "pytorch_half_pixel"):
        found = (places + half) / factor - half
    elif where == "half_pixel_symmetric":
        # The elements move so that the middle of what is left is the middle; sums are in FP64 here.
        shift = np.float32(size) * half * (one - np.float32(want) / (factor * np.float32(size)))
        found = float(shift) + (np.arange(want) + 0.5) / float(factor) - 0.5
    else:
        raise Unsupported(f"only positions without a region of interest, not {where}")
    return [float(each) for each in found.astype(np.float32)]


def _taps(
    t: Translation, node: Any, attributes: dict[str, Any], positions: list[float], size: int
) -> tuple[Taps, ...]:
    """The map of an axis."""
    mode = attributes.get("mode", "nearest")
    if mode == "nearest":
        rounding = attributes.get("nearest_mode", "round_prefer_floor")
        if node.op_type == "Upsample" or t.opset < 11:
            rounding = "floor"
            if len(positions) < size and any(each != int(each) for each in positions):
                raise Unsupported(
                    f"opset {t.opset} does not say which of {size} elements the {len(positions)} "
                    "nearest are; export it with opset 11 or newer"
                )
        places = (_ROUNDINGS[rounding](each) for each in positions)
        return selection([min(max(place, 0), size - 1) for place in places])
    if mode == "cubic":
        exclude = bool(attributes.get("exclude_outside", 0))
        return cubic(positions, size, attributes.get("cubic_coeff_a", -0.75), exclude=exclude)
    if mode != "linear":
        raise Unsupported(f"only modes nearest, linear and cubic, not {mode}")
    return interpolation(positions, size)


def _mapped(
    t: Translation,
    node: Any,
    layer: str,
    shape: tuple[int, ...],
    maps: dict[int, tuple[Taps, ...]],
) -> None:
    """Map some axes of a tensor, those that shrink first."""
    order = sorted(maps, key=lambda axis: len(maps[axis]) / shape[axis])
    for number, axis in enumerate(order):
        name = node_name(node) if number == len(order) - 1 else f"{node_name(node)}.{axis}"
        layer = t.add(name, AxisMap(axis, maps[axis]), layer)
    t.give(node, layer)


@handles("Pad")
def _pad(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    mode = attributes.get("mode", b"constant").decode()
    pads = list(attributes["pads"]) if t.opset < 11 else t.integers(node, 1, "pads") or []
    shape = t.tensor(node.input[0]).shape
    rank = len(shape)
    axes = [normalise_axis(axis, rank) for axis in t.integers(node, 3, "axes") or range(rank)]
    sides = {axis: (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    sides = {axis: pair for axis, pair in sides.items() if any(pair)}
    layer, name = t.layer(node.input[0]), node_name(node)
    if mode != "constant":
        if mode not in _PADDINGS or any(side < 0 for pair in sides.values() for side in pair):
            raise Unsupported(f"only sides of at least 0 in mode {mode}")
        kind = _PADDINGS[mode]
        maps = {
            axis: selection(padded_indices(kind, shape[axis], *pair))
            for axis, pair in sides.items()
        }
        _mapped(t, node, layer, shape, maps)
        return
    value = t.number(node, 2, "value") if t.operand(node, 2) else attributes.get("value", 0.0)
    for axis, (before, after) in sides.items():
        if before < 0 or after < 0:
            part = Slice(axis, max(-before, 0), shape[axis] - max(-after, 0))
            layer = t.add(f"{name}.{axis}", part, layer)
    padding = [(max(first, 0), max(last, 0)) for first, last in
               (sides.get(axis, (0, 0)) for axis in range(rank))]  # fmt: skip
    if any(side for pair in padding for side in pair):
        layer = t.add(name, Pad(tuple(padding), value), layer)
    t.give(node, layer)
