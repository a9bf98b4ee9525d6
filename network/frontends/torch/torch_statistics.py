"""Translations of ATen reductions that several layers compute together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.torch.torch_composed import LEAST_SQUARE
from fpgapipe.network.frontends.torch.torch_registry import Node, handles
from fpgapipe.network.frontends.torch.torch_translation import Translation
from fpgapipe.network.operators import Affine, Binary, Clamp, Reduce, Reshape, Transpose, Unary
from fpgapipe.network.operators.tensors import normalise_axis


def _axes(t: Translation, node: Node) -> tuple[int, ...]:
    """The axes that a node reduces: all if it names none."""
    rank = len(t.tensor(node["self"]).shape)
    given = node.arguments.get("dim")
    given = [given] if isinstance(given, int) else given
    return tuple(sorted(normalise_axis(axis, rank) for axis in given or range(rank)))


def _without(t: Translation, node: Node, axes: Sequence[int], layer: str) -> str:
    """A result without the reduced axes, which have size 1 in a layer, unless they are to stay."""
    shape = t.builder.tensor(layer).shape
    if node.arguments.get("keepdim", False):
        return layer
    kept = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    return t.add(node.name, Reshape(kept), layer)


_SPREADS = [
    f"{name}.{form}"
    for name in ("var", "std", "var_mean", "std_mean")
    for form in ("default", "dim", "correction")
]


@handles(*_SPREADS)
def _variance(t: Translation, node: Node) -> None:
    """The mean of squared distances from the mean, divided by fewer values than there are."""
    x, axes = t.layer(node["self"]), _axes(t, node)
    count = math.prod(t.tensor(node["self"]).shape[axis] for axis in axes)
    correction: Any = node.arguments.get("correction")
    if correction is None:
        correction = 1 if node.arguments.get("unbiased", True) else 0
    if count <= correction:
        raise Unsupported(f"divides by {count} values less {correction}, which is not above 0")
    mean = t.add(f"{node.name}.mean", Reduce("mean", axes, True), x)
    centred = t.add(f"{node.name}.centred", Binary("sub"), x, mean)
    layer = t.add(f"{node.name}.squares", Binary("mul"), centred, centred)
    layer = t.add(f"{node.name}.variance", Reduce("mean", axes, True), layer)
    if correction:
        layer = t.add(f"{node.name}.scale", Affine(count / (count - correction)), layer)
    if "std" in node.target:
        # PyTorch's gradient of the deviation of equal values is zero, the root's alone infinite.
        layer = t.add(f"{node.name}.least", Clamp(LEAST_SQUARE, strict=True), layer)
        layer = t.add(f"{node.name}.root", Unary("sqrt"), layer)
    layer = _without(t, node, axes, layer)
    t.give(node, [layer, _without(t, node, axes, mean)] if "mean" in node.target else layer)


@handles("logsumexp.default")
def _logsumexp(t: Translation, node: Node) -> None:
    """``x - log_softmax(x)``, which all elements have in common, weighted by the softmax.

    Elements that are far below the others would lose the digits of the sum; they have no weight.
    """
    x, axes = t.layer(node["self"]), _axes(t, node)
    shape = t.tensor(node["self"]).shape
    kept = tuple(axis for axis in range(len(shape)) if axis not in axes)
    if len(axes) > 1 or not axes:
        if axes != tuple(range(len(kept), len(shape))):
            x = t.add(f"{node.name}.last", Transpose((*kept, *axes)), x)
        x = t.add(f"{node.name}.rows", Reshape((*(shape[axis] for axis in kept), -1)), x)
    axis = axes[0] if len(axes) == 1 else len(kept)
    shares = t.builder.softmax(f"{node.name}.softmax", x, axis, log=False)
    logarithms = t.builder.softmax(f"{node.name}.log_softmax", x, axis, log=True)
    layer = t.add(f"{node.name}.whole", Binary("sub"), x, logarithms)
    layer = t.add(f"{node.name}.weighted", Binary("mul"), layer, shares)
    layer = t.add(f"{node.name}.sum", Reduce("sum", (axis,), False), layer)
    if node["keepdim"]:
        wanted = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        layer = t.add(node.name, Reshape(wanted), layer)
    t.give(node, layer)
