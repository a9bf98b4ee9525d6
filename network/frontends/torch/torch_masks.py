"""Translations of ATen operators on masks that are computed from inputs of the network.

They are asked before the others, and leave to these what has nothing to do with such masks.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.masks import is_flag
from fpgapipe.network.frontends.torch.torch_registry import Node, attempts
from fpgapipe.network.frontends.torch.torch_selection import shared_by_all
from fpgapipe.network.frontends.torch.torch_translation import Translation
from fpgapipe.network.frontends.torch.torch_values import array
from fpgapipe.network.operators import Binary
from fpgapipe.network.operators.tensors import DType


def mask_of(t: Translation, node: Any) -> str | None:
    """The layer of an argument that has booleans, whole numbers, or two levels."""
    layer = t.computed(node)
    if layer is None:
        return None
    is_float = t.builder.tensor(layer).dtype.is_float
    return layer if not is_float or t.masks.levels(layer) is not None else None


def flag_of(t: Translation, node: Any) -> str:
    """A layer of zeros and ones that says where an argument is not 0; it may be fixed."""
    layer = t.computed(node)
    if layer is not None:
        return t.masks.flag(layer)
    known = t.known(node)
    if known is None:
        raise Unsupported("reads what is learned as booleans")
    fixed = shared_by_all(t.torch.ne(known, 0).to(t.torch.float32))
    assert is_flag(array(t.torch, fixed))
    return t.masks.fixed_flag(t.fixed(f"{node.name}.mask", fixed))


_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
"""Each comparison with its sides exchanged."""


@attempts(*(f"{name}.{kind}" for name in _SWAPPED for kind in ("Scalar", "Tensor")))
def _compare(t: Translation, node: Node) -> bool:
    function, other = node.target.split(".")[1], node["other"]
    layer, number = t.computed(node["self"]), _number(t, other)
    if layer is None:
        layer, number = t.computed(other), _number(t, node["self"])
        function = _SWAPPED[function]
    if layer is None or number is None:
        raise Unsupported("only a comparison of what is computed with one fixed number")
    t.give(node, t.masks.compared(layer, function, number))
    return True


def _number(t: Translation, value: Any) -> float | None:
    """A fixed number, or that of which a fixed tensor consists; None if there is none."""
    if isinstance(value, int | float):
        return float(value)
    known = t.known(value)
    if known is None or not known.numel() or (known != known.flatten()[0]).any():
        return None
    return float(known.flatten()[0])


@attempts("to.dtype", "_to_copy.default", "to.dtype_layout", "to.device", "type_as.default")
def _to(t: Translation, node: Node) -> bool:
    layer = mask_of(t, node["self"])
    wanted = node.fx.meta["val"].dtype
    if wanted is t.torch.bool:
        layer = t.computed(node["self"])
    if layer is None:
        return False
    is_float = t.builder.tensor(layer).dtype.is_float
    if wanted is t.torch.bool:
        layer = t.masks.flag(layer)
    elif is_float and not wanted.is_floating_point and _has_booleans(t, node["self"]):
        pass  # zeros and ones are whole numbers
    elif is_float and not wanted.is_floating_point:
        raise Unsupported("rounds what is computed to whole numbers")
    elif wanted.is_floating_point:
        layer = t.masks.numbers(layer)
    t.give(node, layer)
    return True


def _has_booleans(t: Translation, node: Any) -> bool:
    """Whether an argument has booleans or whole numbers in PyTorch."""
    return not node.meta["val"].dtype.is_floating_point


@attempts("bitwise_not.default", "logical_not.default")
def _not(t: Translation, node: Node) -> bool:
    layer = t.computed(node["self"])
    if layer is None or ("bitwise" in node.target and not _is_boolean(t, node["self"])):
        raise Unsupported("only the opposite of booleans")
    t.give(node, t.masks.inverted(layer))
    return True


def _is_boolean(t: Translation, node: Any) -> bool:
    if not isinstance(node, t.torch.fx.Node):
        return isinstance(node, bool)
    return bool(node.meta["val"].dtype is t.torch.bool)


@attempts(
    *(f"{kind}_{name}.default" for kind in ("bitwise", "logical") for name in ("and", "or")),
    *(f"bitwise_{name}.Tensor" for name in ("and", "or")),
    *(f"__{name}__.Tensor" for name in ("and", "or")),
)
def _both(t: Translation, node: Node) -> bool:
    pair = (node["self"], node["other"])
    if "logical" not in node.target and not all(_is_boolean(t, each) for each in pair):
        raise Unsupported("only of booleans")
    combine = t.masks.both if "and" in node.target else t.masks.either
    for one, other in (pair, pair[::-1]):
        known, layer = t.known(one), t.computed(other)
        if known is not None and layer is not None and (known != 0).all() and "and" in node.target:
            shape = tuple(node.fx.meta["val"].shape)
            t.give(node, t.masks.repeated(t.masks.flag(layer), shape))
            return True
    t.give(node, combine(node.name, *(flag_of(t, each) for each in pair)))
    return True


@attempts("rsub.Scalar", "neg.default")
def _rsub(t: Translation, node: Node) -> bool:
    layer = mask_of(t, node["self"])
    if layer is None:
        return False
    factor, number = 1.0, 0.0
    if "rsub" in node.target:
        factor, number = float(node["alpha"]), float(node["other"])
    mapped = t.masks.mapped(t.masks.numbers(layer), lambda level: number - factor * level)
    assert mapped is not None
    t.give(node, mapped)
    return True


_FUNCTIONS: Mapping[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}


def _of_levels(function: str, number: float, *, first: bool) -> Callable[[float], float]:
    """Levels after a function of two numbers is applied to the levels of one of them."""
    apply = _FUNCTIONS[function]
    return lambda level: apply(level, number) if first else apply(number, level)


@attempts(*(f"{name}{suffix}.Tensor" for name in _FUNCTIONS for suffix in ("", "_")))
def _binary(t: Translation, node: Node) -> bool:
    function, alpha = node.target.split(".")[1].removesuffix("_"), node.arguments.get("alpha", 1)
    one, other = node["self"], node["other"]
    masks = [mask_of(t, each) for each in (one, other)]
    if masks == [None, None] or alpha != 1:
        if any(
            each is not None and _has_booleans(t, arg)
            for each, arg in zip(masks, (one, other), strict=True)
        ):
            raise Unsupported("only alpha 1 for booleans and whole numbers")
        return False
    numbers = [_number(t, each) for each in (one, other)]
    for mask, number, first in ((masks[0], numbers[1], True), (masks[1], numbers[0], False)):
        if mask is not None and number is not None:
            if function == "div" and (not first or not number):
                raise Unsupported("divides by a mask or by 0")
            if not math.isfinite(number) and function != "add":
                raise Unsupported(f"only a finite number with a mask, not {number}")
            levels = _of_levels(function, number, first=first)
            mapped = t.masks.mapped(t.masks.numbers(mask), levels)
            assert mapped is not None
            t.give(node, mapped)
            return True
    if function == "div" and masks[1] is not None:
        return False
    if function == "add" and None in masks:
        mask = next(each for each in masks if each is not None)
        values = other if masks[0] is not None else one
        x = t.layer(values)
        fits = Binary("add").output([t.builder.tensor(x), t.builder.tensor(mask)])
        if fits.shape == t.builder.tensor(x).shape:
            added = t.masks.added(node.name, x, mask)
            if added is not None:
                t.give(node, added)
                return True
    both = all(_is_boolean(t, each) for each in (one, other))
    if both:
        if function != "mul":
            raise Unsupported("only products of booleans")
        t.give(node, t.masks.both(node.name, flag_of(t, one), flag_of(t, other)))
        return True
    shape = tuple(node.fx.meta["val"].shape)
    layers = [t.layer(each) for each in (one, other)]
    if not any(t.builder.tensor(each).dtype.is_float for each in layers):
        raise Unsupported("only of whole numbers and floating-point or fixed numbers")
    layers = [t.masks.numbers(each) for each in layers]
    narrow = [
        each if mask is None else t.masks.narrow(each)
        for each, mask in zip(layers, masks, strict=True)
    ]
    if Binary(function).output([t.builder.tensor(each) for each in narrow]).shape == shape:
        layers = narrow
    t.give(node, t.add(node.name, Binary(function), *layers))
    return True


@attempts("masked_fill.Scalar", "masked_fill.Tensor", "masked_fill_.Scalar", "masked_fill_.Tensor")
def _masked_fill(t: Translation, node: Node) -> bool:
    mask = t.computed(node["mask"])
    if mask is None:
        return False
    value = _number(t, node["value"])
    if value is None:
        raise Unsupported("only a fixed number in the place of what is hidden")
    t.give(node, _filled(t, node, node["self"], mask, value))
    return True


def _filled(t: Translation, node: Node, x: Any, mask: str, value: float) -> str:
    """A tensor with a number where a mask is not 0."""
    mask = t.masks.flag(mask)
    shape = tuple(node.fx.meta["val"].shape)
    number = _number(t, x)
    if number is not None:
        layer = t.masks.mapped(mask, lambda level: value if level else number)
        assert layer is not None
        return t.masks.repeated(layer, shape)
    layer = t.masks.numbers(t.layer(x))
    paired = t.masks.paired(layer, mask, lambda own, level: value if level else own)
    return paired or t.masks.fill(node.name, layer, mask, value)


@attempts("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(t: Translation, node: Node) -> bool:
    mask = t.computed(node["condition"])
    if mask is None:
        return False
    chosen, other = node["self"], node["other"]
    value, rest = _number(t, chosen), _number(t, other)
    if value is not None:
        t.give(node, _filled(t, node, other, mask, value))
    elif rest is not None:
        t.give(node, _filled(t, node, chosen, t.masks.inverted(mask), rest))
    else:
        inverted = t.masks.inverted(mask)
        parts = [
            t.masks.fill(f"{node.name}.{number}", t.masks.numbers(t.layer(each)), where, 0.0)
            for number, (each, where) in enumerate(((chosen, inverted), (other, mask)))
        ]
        t.give(node, t.add(node.name, Binary("add"), *parts))
    return True


@attempts("sum.default", "sum.dim_IntList", "mean.default", "mean.dim")
def _reduce(t: Translation, node: Node) -> bool:
    """Numbers of elements that a mask keeps; what adds them up is translated as otherwise."""
    layer = mask_of(t, node["self"])
    if layer is not None:
        t.put(node["self"], t.masks.numbers(layer))
    return False


def additive_mask(t: Translation, name: str, scores: str, mask: Any) -> str:
    """Scores to which a computed mask is added, or of which it hides those where it is false."""
    layer = t.layer(mask)
    if _is_boolean(t, mask):
        return t.masks.fill(name, scores, t.masks.inverted(layer), -math.inf)
    added = t.masks.added(name, scores, layer)
    if added is not None:
        return added
    if t.builder.tensor(layer).dtype not in (DType.FLOAT32, DType.FLOAT64):
        raise Unsupported("only a mask of booleans or of floating-point numbers")
    return t.add(name, Binary("add"), scores, t.masks.narrow(layer))
