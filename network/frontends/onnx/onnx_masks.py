"""Translations of ONNX operators on masks that are computed from inputs of the network."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.onnx.onnx_translation import (
    DTYPES,
    Translation,
    attempts,
    handles,
    node_name,
)
from fpgapipe.network.operators import Binary, Softmax
from fpgapipe.network.operators.tensors import DType


def computed(t: Translation, name: str) -> str | None:
    """The layer of a tensor that the network computes; None if its values are known."""
    if not name or t.constants.is_constant(name) or t.is_pending(name):
        return None
    return t.layer(name)


def mask_of(t: Translation, name: str) -> str | None:
    """The layer of a tensor that has booleans, whole numbers, or two levels."""
    layer = computed(t, name)
    if layer is None:
        return None
    is_float = t.builder.tensor(layer).dtype.is_float
    return layer if not is_float or t.masks.levels(layer) is not None else None


def flag_of(t: Translation, name: str) -> str:
    """A layer of zeros and ones that says where a tensor is not 0; it may be fixed."""
    layer = computed(t, name)
    if layer is not None:
        return t.masks.flag(layer)
    value = t.constants.get(name)
    if value is None:
        raise Unsupported(f"reads {name!r}, which no earlier node gives")
    return t.masks.fixed_flag(t.fixed(f"{name}.mask", (value != 0).astype("float32")))


def _number(t: Translation, name: str) -> float | None:
    """The number of which a fixed tensor consists; None if there is none."""
    value = t.constants.get(name)
    if value is None or not value.size or (value != value.flat[0]).any():
        return None
    return float(value.flat[0])


_COMPARISONS = {
    "Equal": ("eq", "eq"),
    "Less": ("lt", "gt"),
    "LessOrEqual": ("le", "ge"),
    "Greater": ("gt", "lt"),
    "GreaterOrEqual": ("ge", "le"),
}
"""Comparisons, each also with its sides exchanged."""


@handles(*_COMPARISONS)
def _compare(t: Translation, node: Any) -> None:
    for side, function in enumerate(_COMPARISONS[node.op_type]):
        layer, number = computed(t, node.input[side]), _number(t, node.input[1 - side])
        if layer is not None and number is not None:
            t.give(node, t.masks.compared(layer, function, number))
            return
    raise Unsupported("only a comparison of what is computed with one fixed number")


@attempts("Cast")
def _cast(t: Translation, node: Any) -> bool:
    from onnx import TensorProto

    name = TensorProto.DataType.Name(t.attributes(node)["to"])
    wanted = DTYPES.get(name)
    layer = mask_of(t, node.input[0])
    if wanted is DType.BOOL:
        layer = computed(t, node.input[0])
    if layer is None or wanted is None:
        return False
    is_float = t.builder.tensor(layer).dtype.is_float
    if wanted is DType.BOOL:
        layer = t.masks.flag(layer)
    elif wanted.is_float:
        layer = t.masks.numbers(layer)
    elif is_float and any(level % 1 for level in t.masks.levels(layer) or ()):
        raise Unsupported("rounds what is computed to whole numbers")
    t.give(node, layer)
    return True


@handles("Not")
def _not(t: Translation, node: Any) -> None:
    t.give(node, t.masks.inverted(t.layer(node.input[0])))


@handles("And", "Or")
def _both(t: Translation, node: Any) -> None:
    combine = t.masks.both if node.op_type == "And" else t.masks.either
    t.give(node, combine(node_name(node), *(flag_of(t, each) for each in node.input)))


_FUNCTIONS: Mapping[str, Callable[[float, float], float]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.truediv,
}


def _has_real(t: Translation, names: Sequence[str]) -> bool:
    """Whether one of some tensors has floating-point numbers."""
    return any(t.tensor(name).dtype.is_float for name in names)


def _exchanged(function: Callable[[float, float], float], other: float, one: float) -> float:
    return function(one, other)


def _hidden(value: float, own: float, mask: float) -> float:
    """A level of a tensor, or a number where a mask hides it."""
    return value if mask else own


@attempts(*_FUNCTIONS)
def _binary(t: Translation, node: Any) -> bool:
    function = node.op_type.lower()
    masks = [mask_of(t, each) for each in node.input]
    if masks == [None, None] or (None not in masks and not _has_real(t, node.input)):
        return False
    apply = _FUNCTIONS[node.op_type]
    for side, mask in enumerate(masks):
        number = _number(t, node.input[1 - side])
        if mask is None or number is None:
            continue
        if function == "div" and (side or not number):
            raise Unsupported("divides by a mask or by 0")
        if function == "div" and not _has_real(t, node.input):
            raise Unsupported("divides whole numbers")
        layer = t.masks.numbers(mask)
        pair = partial(apply, number) if side else partial(_exchanged, apply, number)
        mapped = t.masks.mapped(layer, pair)
        if mapped is not None:
            t.give(node, mapped)
            return True
    if function == "div" and masks[1] is not None:
        return False
    layers = [t.masks.numbers(t.layer(each)) for each in node.input]
    shape = Binary(function).output([t.builder.tensor(each) for each in layers]).shape
    if function == "add" and None in masks:
        place = masks.index(None)
        if t.builder.tensor(layers[place]).shape == shape:
            added = t.masks.added(node_name(node), layers[place], layers[1 - place])
            if added is not None:
                t.give(node, added)
                return True
    narrow = [
        each if mask is None else t.masks.narrow(each)
        for each, mask in zip(layers, masks, strict=True)
    ]
    if Binary(function).output([t.builder.tensor(each) for each in narrow]).shape == shape:
        layers = narrow
    t.give(node, t.add(node_name(node), Binary(function), *layers))
    return True


@attempts("Neg")
def _neg(t: Translation, node: Any) -> bool:
    layer = mask_of(t, node.input[0])
    if layer is None:
        return False
    mapped = t.masks.mapped(t.masks.numbers(layer), operator.neg)
    assert mapped is not None
    t.give(node, mapped)
    return True


@handles("Where")
def _where(t: Translation, node: Any) -> None:
    name = node_name(node)
    mask = flag_of(t, node.input[0])
    numbers = [_number(t, each) for each in node.input[1:]]
    tensors = [t.tensor(each) for each in node.input]
    shape = Binary("mul").output(tensors).shape
    if None not in numbers:
        then, otherwise = (math.nan if each is None else each for each in numbers)
        layer = t.masks.mapped(mask, lambda level: then if level else otherwise)
        assert layer is not None
        t.give(node, t.masks.repeated(layer, shape))
        return
    inverted = t.masks.inverted(mask)
    for place, where in ((0, mask), (1, inverted)):
        value = numbers[place]
        if value is not None:
            layer = t.masks.numbers(t.layer(node.input[2 - place]))
            paired = t.masks.paired(layer, where, partial(_hidden, value))
            t.give(node, paired or t.masks.fill(name, layer, where, value))
            return
    parts = [
        t.masks.fill(f"{name}.{number}", t.masks.numbers(t.layer(each)), where, 0.0)
        for number, (each, where) in enumerate(zip(node.input[1:], (inverted, mask), strict=True))
    ]
    t.give(node, t.add(name, Binary("add"), *parts))


@handles("IsNaN")
def _is_nan(t: Translation, node: Any) -> None:
    """The question for rows of a softmax that a mask hides wholly, which PyTorch's exporter asks.

    The `Where` that makes such rows zero is left out, since there are none.
    """
    shares = node.input[0]
    reader = t.sole_reader(node.output[0])
    makes_zeros = (
        reader is not None
        and reader.op_type == "Where"
        and (reader.input[0], reader.input[2]) == (node.output[0], shares)
        and _number(t, reader.input[1]) == 0
    )
    if reader is None or not makes_zeros or not _leaves_all_rows(t, t.layer(shares)):
        raise Unsupported("only of a softmax whose rows a fixed mask never hides wholly")
    t.give(reader, t.layer(shares))
    t.skip(reader)


def _leaves_all_rows(t: Translation, shares: str) -> bool:
    """Whether a layer is a softmax along the last axis of sums with a fixed mask, row by row."""
    layer = t.builder.layer(shares)
    if layer is None or not isinstance(layer.operator, Softmax):
        return False
    if layer.operator.axis % len(layer.output.shape) != len(layer.output.shape) - 1:
        return False
    added = t.builder.layer(layer.inputs[0])
    if added is None or not isinstance(added.operator, Binary) or added.op != "add":
        return False
    masks = [t.builder.fixed_value(each) for each in added.inputs]
    fixed = [each for each in masks if each is not None and each.ndim]
    if len(fixed) != 1 or (fixed[0] == math.inf).any():
        return False
    return not (fixed[0] == -math.inf).all(-1).any()


@attempts("ReduceSum", "ReduceMean")
def _reduce(t: Translation, node: Any) -> bool:
    """Numbers of elements that a mask keeps; what adds them up is translated as otherwise."""
    layer = mask_of(t, node.input[0])
    if layer is not None:
        t.put(node.input[0], t.masks.numbers(layer))
    return False
