"""Translations of ATen operators that select: embeddings, fixed indices, and masks of booleans."""

from __future__ import annotations

import math
from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.torch.torch_translation import Node, Translation, handles
from fpgapipe.network.frontends.torch.torch_values import array
from fpgapipe.network.operators import (
    Binary,
    Embedding,
    Reshape,
)
from fpgapipe.network.operators.tensors import normalise_axis


@handles("embedding.default")
def _embedding(t: Translation, node: Node) -> None:
    if node["scale_grad_by_freq"]:
        raise Unsupported("only gradients that are not scaled by how often a row is read")
    padding = node["padding_idx"] if node["padding_idx"] >= 0 else None
    indices = t.known(node["indices"])
    if indices is not None:
        if padding is not None and (indices == padding).any():
            raise Unsupported("fixed indices must not select the row that is padding")
        layer = t.layer(node["weight"])
        t.give(node, t.builder.entries(node.name, layer, array(t.torch, indices)))
        return
    values = t.weights(node, weight="weight")
    rows, features = values["weight"][1].shape
    name = t.name_of(node, node["weight"])
    layer = t.add(name, Embedding(rows, features, padding), t.layer(node["indices"]), values=values)
    t.give(node, layer)


@handles("index_select.default")
def _index_select(t: Translation, node: Node) -> None:
    axis = normalise_axis(node["dim"], len(t.tensor(node["self"]).shape))
    _select(t, node, [*(None for _ in range(axis)), node["index"]])


@handles("index.Tensor")
def _index(t: Translation, node: Node) -> None:
    _select(t, node, node["indices"])


def _select(t: Translation, node: Node, indices: list[Any]) -> None:
    """Read a tensor at fixed indices of one axis, or of several axes that follow one another."""
    shape = t.tensor(node["self"]).shape
    axes = [axis for axis, each in enumerate(indices) if each is not None]
    known: list[Any] = [t.known(indices[axis]) for axis in axes]
    if not axes or any(each is None for each in known):
        raise Unsupported("only at indices that are fixed, and not computed from an input")
    if any(each.dtype is t.torch.bool for each in known):
        raise Unsupported("only at indices that are whole numbers, not booleans")
    first, last = axes[0], axes[-1]
    if axes != list(range(first, last + 1)):
        raise Unsupported("only at indices of axes that follow one another")
    flat = t.torch.zeros((), dtype=t.torch.int64)
    for axis, each in zip(axes, known, strict=True):
        flat = flat * shape[axis] + each % shape[axis]
    layer, name = t.layer(node["self"]), node.name
    before, behind = shape[:first], shape[last + 1 :]
    size = math.prod(shape[first : last + 1])
    if len(axes) > 1:
        layer = t.add(f"{name}.joined", Reshape((*before, size, *behind)), layer)
    t.give(node, t.builder.entries(name, layer, array(t.torch, flat), first))


# Masks
# -------------------------------------------------------------------------------------------


def shared_by_all(value: Any) -> Any:
    """A fixed tensor without what its first axes repeat: these axes have size 1."""
    for axis in range(value.ndim - 1):
        one = value.narrow(axis, 0, 1)
        if value.shape[axis] > 1:
            if not (value == one).all():
                break
            value = one
    return value


@handles("masked_fill.Scalar", "masked_fill.Tensor", "masked_fill_.Scalar", "masked_fill_.Tensor")
def _masked_fill(t: Translation, node: Node) -> None:
    _choose(t, node, node["mask"], node["value"], node["self"])


@handles("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(t: Translation, node: Node) -> None:
    _choose(t, node, node["condition"], node["self"], node["other"])


def _choose(t: Translation, node: Node, mask: Any, chosen: Any, other: Any) -> None:
    """Take `chosen` where a fixed mask is true, and `other` elsewhere.

    What is computed is multiplied by ones and zeros, and what is fixed is added.
    """
    torch, fixed = t.torch, t.known(mask)
    if fixed is None:
        raise Unsupported("only with a mask that is fixed, and not computed from an input")
    summands, constant = [], None
    for number, (value, where) in enumerate(((chosen, fixed), (other, ~fixed))):
        known = value if isinstance(value, int | float) else t.known(value)
        if known is None:
            layer = t.layer(value)
            if not where.all():
                factor = shared_by_all(where.to(torch.float32))
                name = f"{node.name}.{number}"
                layer = t.add(name, Binary("mul"), layer, t.fixed(f"{name}.mask", factor))
            summands.append(layer)
        else:
            part = torch.where(where, known, 0.0)
            constant = part if constant is None else constant + part
    if constant is not None and (constant != 0).any():
        numbers = shared_by_all(constant.to(torch.float32))
        summands.append(t.fixed(f"{node.name}.numbers", numbers))
    layer, *rest = summands
    for number, each in enumerate(rest):
        layer = t.add(f"{node.name}.sum{number}", Binary("add"), layer, each)
    t.give(node, layer)
