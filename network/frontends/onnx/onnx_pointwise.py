"""Translations of ONNX's element-wise operators, normalisations, reductions and loss."""

from __future__ import annotations

import math
from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.elements import bounded, celu, chain, elu
from fpgapipe.network.frontends.onnx.onnx_translation import (
    Translation,
    handles,
    node_name,
)
from fpgapipe.network.operators import (
    Activation,
    Affine,
    BatchNorm,
    Binary,
    Clamp,
    CrossEntropy,
    Dropout,
    Flatten,
    LayerNorm,
    LocalResponseNorm,
    Power,
    Reduce,
    Reshape,
    Softmax,
    Unary,
)
from fpgapipe.network.operators.tensors import normalise_axis

_BINARIES = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow"}
_ACTIVATIONS = {
    "Relu": "relu",
    "HardSwish": "hardswish",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Softplus": "softplus",
    "Mish": "mish",
}
_UNARIES = {
    "Neg": "neg",
    "Abs": "abs",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Erf": "erf",
}


@handles(*_BINARIES)
def _binary(t: Translation, node: Any) -> None:
    function = _BINARIES[node.op_type]
    for side in (0, 1):
        value = t.value(node, side)
        other = t.tensor(node.input[1 - side])
        if value is None or value.size != 1 or value.ndim > len(other.shape):
            continue
        number = float(value.reshape(()))
        x = node.input[1 - side]
        if function == "pow" and side == 1 and number == 2:
            t.give(node, t.add(node_name(node), Binary("mul"), t.layer(x), t.layer(x)))
            return
        if function == "div" and side == 0:
            layer = t.add(f"{node_name(node)}.reciprocal", Unary("reciprocal"), t.layer(x))
            t.give(node, t.add(node_name(node), Affine(number), layer))
            return
        operator = _with_number(function, number, number_is_left=side == 0)
        if operator is not None:
            t.give(node, t.add(node_name(node), operator, t.layer(x)))
            return
    shapes = {t.tensor(name).shape for name in node.input}
    if function == "div" and len(shapes) > 1:
        # A product with the reciprocal may repeat either tensor.
        one, divisor = t.layers(node)
        factor = t.add(f"{node_name(node)}.reciprocal", Unary("reciprocal"), divisor)
        t.give(node, t.add(node_name(node), Binary("mul"), one, factor))
        return
    t.simple(node, Binary(function))


def _with_number(function: str, number: float, *, number_is_left: bool) -> Affine | Power | None:
    """The operator of a function with a fixed number; None if there is none."""
    if function == "pow" and not number_is_left:
        return Power(number)
    if function == "add":
        return Affine(offset=number)
    if function == "mul":
        return Affine(scale=number)
    if function == "sub":
        return Affine(-1.0, number) if number_is_left else Affine(offset=-number)
    if function == "div" and not number_is_left and number != 0:
        return Affine(scale=1 / number)
    return None


@handles(*_ACTIVATIONS)
def _activation(t: Translation, node: Any) -> None:
    t.first(node, Activation(_ACTIVATIONS[node.op_type]))


@handles("Max", "Min")
def _extreme(t: Translation, node: Any) -> None:
    """Compare several tensors one after the other; a fixed number is a bound."""
    function = node.op_type.lower()
    numbers, layers = [], []
    for place, name in enumerate(node.input):
        value = t.value(node, place)
        if value is not None and value.size == 1 and value.ndim <= 1:
            numbers.append(float(value.reshape(())))
        else:
            layers.append(t.layer(name))
    name = node_name(node)
    if not layers:
        raise Unsupported("only where a tensor depends on the inputs")
    result, bound = layers[0], (max if function == "max" else min)(numbers, default=None)
    for number, other in enumerate(layers[1:], 1):
        last = number == len(layers) - 1 and bound is None
        result = t.add(name if last else f"{name}.{number}", Binary(function), result, other)
    if bound is not None:
        operator = Clamp(low=bound) if function == "max" else Clamp(high=bound)
        result = t.add(name, operator, result)
    t.give(node, result)


@handles("Selu", "Celu")
def _selu(t: Translation, node: Any) -> None:
    """Stretched forms of elu."""
    attributes = t.attributes(node)
    if node.op_type == "Selu":
        steps = elu(attributes.get("alpha", 1.6732632), attributes.get("gamma", 1.050701))
    else:
        steps = celu(attributes.get("alpha", 1.0))
    t.give(node, chain(t, node_name(node), steps, t.layer(node.input[0])))


@handles("Softsign")
def _softsign(t: Translation, node: Any) -> None:
    """``x / (1 + |x|)``."""
    x, name = t.layer(node.input[0]), node_name(node)
    layer = t.add(f"{name}.abs", Unary("abs"), x)
    layer = t.add(f"{name}.plus", Affine(1.0, 1.0), layer)
    t.give(node, t.add(name, Binary("div"), x, layer))


@handles("Elu")
def _elu(t: Translation, node: Any) -> None:
    t.first(node, Activation("elu", t.attributes(node).get("alpha", 1.0)))


@handles("Gelu")
def _gelu(t: Translation, node: Any) -> None:
    approximate = t.attributes(node).get("approximate", b"none") == b"tanh"
    t.first(node, Activation("gelu_tanh" if approximate else "gelu"))


@handles("HardSigmoid")
def _hard_sigmoid(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        t.first(node, Activation("hardsigmoid"))
        return
    layer = t.add(f"{node_name(node)}.line", Affine(alpha, beta), t.layer(node.input[0]))
    t.give(node, t.add(node_name(node), Clamp(0.0, 1.0), layer))


@handles("Swish")
def _swish(t: Translation, node: Any) -> None:
    if t.attributes(node).get("alpha", 1.0) != 1.0:
        raise Unsupported("only alpha 1")
    t.first(node, Activation("silu"))


@handles("LeakyRelu")
def _leaky_relu(t: Translation, node: Any) -> None:
    t.first(node, Activation("leaky_relu", t.attributes(node).get("alpha", 0.01)))


@handles("PRelu")
def _prelu(t: Translation, node: Any) -> None:
    """Learn one slope, or one for each channel; any other slopes multiply what is below 0."""
    slope, source = t.value(node, 1), node.input[1]
    shape = t.tensor(node.input[0]).shape
    if slope is not None:
        sizes = (1,) * (len(shape) - slope.ndim) + slope.shape
        alike = slope.size == 1 and len(shape) > 1
        if alike or (len(shape) > 1 and sizes == (1, shape[1], *(1 for _ in shape[2:]))):
            value = slope.reshape(-1)
            if t.readings.can_own(source, value):
                t.first(node, Activation("prelu", one_slope=alike), weight=(source, value))
                return
    x, name = t.layer(node.input[0]), node_name(node)
    above = t.add(f"{name}.above", Activation("relu"), x)
    below = t.add(f"{name}.below", Clamp(high=0.0), x)
    below = t.add(f"{name}.slope", Binary("mul"), below, t.layer(source))
    t.give(node, t.add(name, Binary("add"), above, below))


@handles("Clip")
def _clip(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    bounds = []
    for index, key in ((1, "min"), (2, "max")):
        given = t.operand(node, index)
        bounds.append(t.number(node, index, key) if given else attributes.get(key))
    # Numbers from the largest of FP32 on are no bounds.
    low, high = (None if each is None or abs(each) >= 3.4e38 else each for each in bounds)
    if low is None and high is None:
        t.give(node, t.layer(node.input[0]))
    else:
        t.first(node, bounded(low, high))


@handles(*_UNARIES)
def _unary(t: Translation, node: Any) -> None:
    t.first(node, Unary(_UNARIES[node.op_type]))


@handles("Dropout")
def _dropout(t: Translation, node: Any) -> None:
    t.refuse_outputs(node)
    ratio = t.attributes(node).get("ratio", 0.5)
    if t.operand(node, 1):
        ratio = t.number(node, 1, "ratio")
    if t.operand(node, 2):
        t.weight(node, 2, "training_mode")  # whether the network trains is said by who runs it
    t.first(node, Dropout(ratio))


@handles("BatchNormalization")
def _batch_norm(t: Translation, node: Any) -> None:
    t.refuse_outputs(node)
    attributes = t.attributes(node)
    if not attributes.get("spatial", 1):
        raise Unsupported("only statistics over all positions of a channel")
    roles = ("weight", "bias", "running_mean", "running_var")
    values = {
        role: (node.input[i], t.weight(node, i, role.replace("_", " ")))
        for i, role in enumerate(roles, 1)
    }
    settings = attributes.get("epsilon", 1e-5), 1 - attributes.get("momentum", 0.9)
    if t.readings.can_own_each(values["weight"], values["bias"]):
        t.first(node, BatchNorm(*settings), **values)
        return
    # The layer's own scale and shift do nothing, and are not learned.
    import numpy as np

    name = node_name(node)
    for role, number in (("weight", 1), ("bias", 0)):
        own = f"%{name}.{role}"
        t.builder.frozen.add(own)
        values[role] = own, np.full_like(values[role][1], number)
    layer = t.add(f"{name}.norm", BatchNorm(*settings), t.layer(node.input[0]), values=values)
    scale, shift = (t.layer(each) for each in node.input[1:3])
    t.give(node, _scaled_and_shifted(t, name, layer, scale, shift))


def _scaled_and_shifted(t: Translation, name: str, layer: str, scale: str, shift: str) -> str:
    """Add layers that multiply channels by a scale each, and add a shift to each."""
    rest = (1 for _ in t.builder.tensor(layer).shape[2:])
    shape = (t.builder.tensor(scale).elements, *rest)
    for function, given in (("mul", scale), ("add", shift)):
        numbers = t.add(f"{name}.{function}_numbers", Reshape(shape), given)
        last = name if function == "add" else f"{name}.mul"
        layer = t.add(last, Binary(function), layer, numbers)
    return layer


@handles("LayerNormalization", "RMSNormalization")
def _layer_norm(t: Translation, node: Any) -> None:
    """Normalise the last axes; a scale of another shape multiplies the result."""
    t.refuse_outputs(node)
    attributes, name = t.attributes(node), node_name(node)
    shape = t.tensor(node.input[0]).shape
    first = normalise_axis(attributes.get("axis", -1), len(shape))
    settings = len(shape) - first, attributes.get("epsilon", 1e-5)
    centred, biased = node.op_type == "LayerNormalization", bool(t.operand(node, 2))
    given = [t.value(node, 1)] + [t.value(node, 2)] * biased
    values = {
        role: (node.input[place], value)
        for place, (role, value) in enumerate(zip(("weight", "bias"), given, strict=False), 1)
        if value is not None and value.shape == shape[first:]
    }
    if len(values) == len(given) and t.readings.can_own_each(*values.values()):
        t.first(node, LayerNorm(*settings, True, biased, centred), **values)
        return
    operator = LayerNorm(*settings, affine=False, centred=centred)
    layer = t.add(f"{name}.norm", operator, t.layer(node.input[0]))
    last = name if not biased else f"{name}.mul"
    layer = t.add(last, Binary("mul"), layer, t.layer(node.input[1]))
    if biased:
        layer = t.add(name, Binary("add"), layer, t.layer(node.input[2]))
    t.give(node, layer)


@handles("GroupNormalization", "InstanceNormalization")
def _group_norm(t: Translation, node: Any) -> None:
    """Normalisation of rows, then scales and shifts of channels or groups."""
    attributes = t.attributes(node)
    samples, channels, *sizes = t.tensor(node.input[0]).shape
    groups = channels
    if node.op_type.startswith("Group"):
        groups = attributes["num_groups"]
    name = node_name(node)
    epsilon = attributes.get("epsilon", 1e-5)
    rows = t.add(f"{name}.rows", Reshape((samples, groups, -1)), t.layer(node.input[0]))
    normal = t.add(f"{name}.norm", LayerNorm(1, epsilon, affine=False), rows)
    images = Reshape((samples, channels, *sizes))
    scale, shift = (t.layer(each) for each in node.input[1:3])
    if node.op_type.startswith("Group") and t.opset < 21:
        # A scale and a shift for each group, not for each channel.
        layer = _scaled_and_shifted(t, f"{name}.groups", normal, scale, shift)
        t.give(node, t.add(name, images, layer))
        return
    layer = t.add(f"{name}.images", images, normal)
    t.give(node, _scaled_and_shifted(t, name, layer, scale, shift))


@handles("LRN")
def _local_response_norm(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    operator = LocalResponseNorm(
        attributes["size"],
        attributes.get("alpha", 1e-4),
        attributes.get("beta", 0.75),
        attributes.get("bias", 1.0),
        upper=attributes["size"] % 2 == 0,
    )
    t.first(node, operator)


@handles("Softmax", "LogSoftmax")
def _softmax(t: Translation, node: Any) -> None:
    log = node.op_type == "LogSoftmax"
    shape = t.tensor(node.input[0]).shape
    axis = normalise_axis(t.attributes(node).get("axis", 1 if t.opset < 13 else -1), len(shape))
    if t.opset >= 13 or math.prod(shape[axis + 1 :]) == 1:
        layer = t.builder.softmax(node_name(node), t.layer(node.input[0]), axis, log=log)
        t.give(node, layer)
        return
    # Up to opset 12, softmax runs over all axes from `axis` on together.
    name = node_name(node)
    x = t.add(f"{name}.flatten", Flatten(axis), t.layer(node.input[0]))
    x = t.add(name, Softmax(-1, log), x)
    t.give(node, t.add(f"{name}.reshape", Reshape(shape), x))


@handles("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduce(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    axes = t.integers(node, 1, "axes") if len(node.input) > 1 else attributes.get("axes")
    rank = len(t.tensor(node.input[0]).shape)
    if not axes:
        if attributes.get("noop_with_empty_axes", 0):
            t.give(node, t.layer(node.input[0]))
            return
        axes = range(rank)
    keep = bool(attributes.get("keepdims", 1))
    t.first(node, Reduce(node.op_type.removeprefix("Reduce").lower(), tuple(axes), keep))


@handles("SoftmaxCrossEntropyLoss")
def _cross_entropy(t: Translation, node: Any) -> None:
    t.refuse_outputs(node)
    attributes = t.attributes(node)
    reduction = attributes.get("reduction", b"mean").decode()
    if reduction != "mean" or t.operand(node, 2) or "ignore_index" in attributes:
        raise Unsupported("only the mean over all labels, without weights and ignored labels")
    t.simple(node, CrossEntropy())
