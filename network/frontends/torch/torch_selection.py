"""Translations of ATen operators that select: embeddings, fixed indices, and masks of booleans."""

from __future__ import annotations

import itertools
import math
from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.torch.torch_registry import Node, handles
from fpgapipe.network.frontends.torch.torch_translation import Translation
from fpgapipe.network.frontends.torch.torch_values import array
from fpgapipe.network.operators import (
    Binary,
    Concat,
    Embedding,
    Reduce,
    Reshape,
    Slice,
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


@handles("embedding_bag.default", "embedding_bag.padding_idx")
def _embedding_bag(t: Translation, node: Node) -> None:
    """Rows of an embedding that are added up, or averaged, over the bags of each sample."""
    modes = ("sum", "mean", "max")
    mode = modes[node["mode"]]
    if mode == "max" or node["per_sample_weights"] is not None or node["scale_grad_by_freq"]:
        raise Unsupported("only sums and means of bags, without weights of samples or frequencies")
    padding = node.arguments.get("padding_idx")
    if padding is not None and padding >= 0:
        raise Unsupported("only without padding_idx, whose rows would not count in a bag")
    for index in (1, 2, 3):
        if t.reads_result(node, index):
            raise Unsupported("only the bags are given, not where their rows come from")
    source = node["indices"]
    while str(source.target) in _FLATTENED:
        source = source.args[0]
    samples, *rest = tuple(source.meta["val"].shape)
    if len(rest) != 1:
        raise Unsupported("only indices of samples by their places")
    lengths = _bags(t, node, samples, rest[0])
    values = t.weights(node, weight="weight")
    rows, features = values["weight"][1].shape
    name = t.name_of(node, node["weight"])
    layer = t.add(name, Embedding(rows, features), t.layer(source), values=values)
    if len(lengths) == 1:
        t.give(node, [t.add(node.name, Reduce(mode, (1,), False), layer), None, None, None])
        return
    bags = []
    for number, (length, end) in enumerate(
        zip(lengths, itertools.accumulate(lengths), strict=True)
    ):
        own = f"{node.name}.bag{number}"
        part = t.add(f"{own}.rows", Slice(1, end - length, end), layer)
        bags.append(t.add(own, Reduce(mode, (1,), True), part))
    whole = t.add(f"{node.name}.bags", Concat(1), *bags)
    shape = Reshape((samples * len(lengths), features))
    t.give(node, [t.add(node.name, shape, whole), None, None, None])


_FLATTENED = tuple(
    f"aten.{name}" for name in ("reshape.default", "view.default", "flatten.using_ints")
)
"""Operators behind which the indices of all bags are one row."""


def _bags(t: Translation, node: Node, samples: int, places: int) -> list[int]:
    """Lengths of the bags of a sample, which are those of every sample."""
    offsets = t.known(node["offsets"])
    if offsets is None:
        raise Unsupported("only bags that begin at fixed places, not at those of an input")
    begins = [int(each) for each in offsets]
    if node["include_last_offset"]:
        begins = begins[:-1]
    per_sample, left = divmod(len(begins), samples)
    own = begins[:per_sample]
    repeated = [sample * places + begin for sample in range(samples) for begin in own]
    if left or not own or begins != repeated:
        raise Unsupported("only bags within samples, which are the same in all of them")
    lengths = [end - begin for begin, end in itertools.pairwise([*own, places])]
    if own[0] or min(lengths) < 1:
        raise Unsupported("only bags with at least one index")
    return lengths


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


@handles("tril.default", "triu.default", "tril_.default", "triu_.default")
def _triangle(t: Translation, node: Node) -> None:
    """The last two axes with zeros above or below a diagonal."""
    torch, shape = t.torch, t.tensor(node["self"]).shape
    function = torch.tril if "tril" in node.target else torch.triu
    mask = t.fixed(f"{node.name}.mask", function(torch.ones(shape[-2:]), node["diagonal"]))
    t.give(node, t.add(node.name, Binary("mul"), t.layer(node["self"]), mask))


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
