"""Translations of attention and softmax, and of the masks in front of it."""

from __future__ import annotations

import math
from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.masks import HIDDEN
from fpgapipe.network.frontends.torch.torch_masks import additive_mask
from fpgapipe.network.frontends.torch.torch_registry import Node, handles
from fpgapipe.network.frontends.torch.torch_selection import shared_by_all
from fpgapipe.network.frontends.torch.torch_translation import Translation
from fpgapipe.network.operators import (
    Affine,
    Binary,
    Dropout,
    Expand,
    MatMul,
    Reshape,
    Softmax,
    Transpose,
)


@handles("scaled_dot_product_attention.default")
def _attention(t: Translation, node: Node) -> None:
    q, k, v = (t.layer(node[each]) for each in ("query", "key", "value"))
    name = node.name
    if node["enable_gqa"]:
        heads = t.builder.tensor(q).shape[-3]
        k, v = (_repeated(t, f"{name}.{at}", each, heads) for at, each in (("k", k), ("v", v)))
    shape = t.builder.tensor(k).shape
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    k = t.add(f"{name}.transpose", Transpose(order), k)
    x = t.add(f"{name}.scores", MatMul(), q, k)
    scale = node["scale"] if node["scale"] is not None else 1 / math.sqrt(shape[-1])
    x = t.add(f"{name}.scale", Affine(scale=scale), x)
    causal = bool(node["is_causal"])
    if node["attn_mask"] is not None:
        x, causal = _masked(t, name, x, node["attn_mask"])
    # PyTorch gives zeros where a mask hides all of a row here, and NaN in a softmax alone.
    empty = not causal and _may_hide_rows(t, node["attn_mask"])
    x = t.add(f"{name}.softmax", Softmax(-1, causal=causal, empty=empty), x)
    if node["dropout_p"] and not t.training:
        raise Unsupported("drops in evaluation, too; give it the module's mode (self.training)")
    if node["dropout_p"]:
        x = t.add(f"{name}.dropout", Dropout(node["dropout_p"]), x)
    t.give(node, t.add(name, MatMul(), x, v))


def _repeated(t: Translation, name: str, layer: str, heads: int) -> str:
    """Repeat each of the heads, of which several heads of queries share one."""
    *batch, own, positions, features = t.builder.tensor(layer).shape
    if own == heads:
        return layer
    layer = t.add(f"{name}.one", Reshape((*batch, own, 1, positions, features)), layer)
    shape = (*batch, own, heads // own, positions, features)
    layer = t.add(f"{name}.each", Expand(shape), layer)
    return t.add(f"{name}.heads", Reshape((*batch, heads, positions, features)), layer)


def _masked(t: Translation, name: str, scores: str, mask: Any) -> tuple[str, bool]:
    """Add a mask to scores; return the layer, and whether the softmax must be causal instead."""
    known = t.known(mask)
    if known is None:
        return additive_mask(t, f"{name}.mask", scores, mask), False
    if known.dtype is t.torch.bool:
        known = t.torch.zeros(known.shape).masked_fill(~known, -math.inf)
    if not known.any():
        return scores, False
    if is_causal(known, t.builder.tensor(scores).shape):
        return scores, True
    numbers = t.fixed(f"{name}.hidden", shared_by_all(known))
    return t.add(f"{name}.mask", Binary("add"), scores, numbers), False


@handles("baddbmm.default")
def _baddbmm(t: Translation, node: Node) -> None:
    """Scores of heads, to which a mask is added."""
    if node["alpha"] != 1 or node["beta"] != 1:
        raise Unsupported("only alpha and beta of 1")
    x = t.add(f"{node.name}.product", MatMul(), t.layer(node["batch1"]), t.layer(node["batch2"]))
    t.give(node, _added(t, node.name, x, node["self"]))


def _added(t: Translation, name: str, scores: str, mask: Any) -> str:
    """Scores to which a mask is added, whether it is fixed or computed."""
    known = t.known(mask)
    if known is None:
        return additive_mask(t, name, scores, mask)
    return t.add(name, Binary("add"), scores, t.fixed(f"{name}.mask", shared_by_all(known)))


def _may_hide_rows(t: Translation, mask: Any) -> bool:
    """Whether a mask may hide all of a row by -infinity."""
    if mask is None:
        return False
    known = t.known(mask)
    if known is None:
        levels = t.masks.levels(t.layer(mask))
        return levels is None or bool(mask.meta["val"].dtype is t.torch.bool or -math.inf in levels)
    hidden = ~known if known.dtype is t.torch.bool else known == -math.inf
    return bool(hidden.all(-1).any())


def is_causal(mask: Any, shape: tuple[int, ...]) -> bool:
    """Whether a fixed mask, added to scores, leaves row `i` the columns ``0..i`` and no others."""
    mask = shared_by_all(mask)
    rows, columns = shape[-2:]
    if mask.ndim < 2 or mask.shape[-2:] != (rows, columns) or mask.numel() != rows * columns:
        return False
    mask = mask.reshape(rows, columns)
    future = mask.new_ones(rows, columns).triu(1).bool()
    return rows <= columns and not mask[~future].any() and bool((mask[future] <= HIDDEN).all())


@handles("softmax.int", "log_softmax.int")
def _softmax(t: Translation, node: Node) -> None:
    log = "log" in node.target
    scores, rank = t.layer(node["self"]), len(t.tensor(node["self"]).shape)
    axis = node["dim"] % rank if rank else 0
    if not log and axis == rank - 1 and (inner := _without_future(t, scores)):
        t.give(node, t.add(node.name, Softmax(node["dim"], causal=True), inner))
        return
    t.give(node, t.builder.softmax(node.name, scores, node["dim"], log=log))


def _without_future(t: Translation, scores: str) -> str | None:
    """The scores to which a causal mask is added; None if they are anything else."""
    layer = t.builder.layer(scores)
    if layer is None or not isinstance(layer.operator, Binary) or layer.op != "add":
        return None
    for inner, mask in (layer.inputs, layer.inputs[::-1]):
        value = t.builder.fixed_value(mask)
        if value is None or t.builder.tensor(inner).shape != layer.output.shape:
            continue
        if is_causal(t.torch.from_numpy(value), layer.output.shape):
            return inner
    return None
