"""Translations of ONNX's element-wise operators, normalisations, reductions and loss."""

from __future__ import annotations

import math
from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
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
    CrossEntropy,
    Dropout,
    Flatten,
    LayerNorm,
    LocalResponseNorm,
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
        operator = _with_number(function, number, number_is_left=side == 0)
        if operator is not None:
            layer = t.layer(node.input[1 - side])
            t.give(node, t.add(node_name(node), operator, layer))
            return
    t.simple(node, Binary(function))


def _with_number(function: str, number: float, *, number_is_left: bool) -> Affine | None:
    """The `Affine` operator of a function with a fixed number; None if it is not affine."""
    if function == "add":
        return Affine(offset=number)
    if function == "mul":
        return Affine(scale=number)
    if function == "sub":
        return Affine(-1.0, number) if number_is_left else Affine(offset=-number)
    if function == "div" and not number_is_left and number != 0:
        return Affine(scale=1 / number)
    return None


@handles("Sum")
def _sum(t: Translation, node: Any) -> None:
    layers = t.layers(node)
    total = layers[0]
    for i, other in enumerate(layers[1:], 1):
        name = node_name(node) if i == len(layers) - 1 else f"{node_name(node)}.{i}"
        total = t.add(name, Binary("add"), total, other)
    t.give(node, total)


@handles(*_ACTIVATIONS)
def _activation(t: Translation, node: Any) -> None:
    t.first(node, Activation(_ACTIVATIONS[node.op_type]))


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
    if not math.isclose(alpha, 1 / 6, rel_tol=1e-6) or beta != 0.5:
        raise Unsupported(f"only alpha 1/6 and beta 0.5, not {alpha:g} and {beta:g}")
    t.first(node, Activation("hardsigmoid"))


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
    slope = t.weight(node, 1, "slope")
    shape = t.tensor(node.input[0]).shape
    channels = shape[1] if len(shape) > 1 else 1
    if slope.size not in (1, channels) or slope.size != max(slope.shape, default=1):
        raise Unsupported(f"only a slope for each channel, not of shape {list(slope.shape)}")
    import numpy as np

    value = np.broadcast_to(slope.reshape(-1), (channels,))
    t.first(node, Activation("prelu"), weight=(node.input[1], value))


@handles("Clip")
def _clip(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    bounds = []
    for index, key in ((1, "min"), (2, "max")):
        given = t.operand(node, index)
        bounds.append(t.number(node, index, key) if given else attributes.get(key))
    low, high = bounds
    if low == 0 and high == 6:
        t.first(node, Activation("relu6"))
    elif low == 0 and (high is None or high >= 3.4e38):
        t.first(node, Activation("relu"))
    else:
        raise Unsupported(f"only bounds 0 and 6 (ReLU6) or 0 and none (ReLU), not {low} and {high}")


@handles(*_UNARIES)
def _unary(t: Translation, node: Any) -> None:
    t.first(node, Unary(_UNARIES[node.op_type]))


@handles("Dropout")
def _dropout(t: Translation, node: Any) -> None:
    t.refuse_outputs(node)
    ratio = t.attributes(node).get("ratio", 0.5)
    if t.operand(node, 1):
        ratio = t.number(node, 1, "ratio")
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
    momentum = 1 - attributes.get("momentum", 0.9)
    t.first(node, BatchNorm(attributes.get("epsilon", 1e-5), momentum), **values)


@handles("LayerNormalization")
def _layer_norm(t: Translation, node: Any) -> None:
    t.refuse_outputs(node)
    attributes = t.attributes(node)
    shape = t.tensor(node.input[0]).shape
    axes = len(shape) - normalise_axis(attributes.get("axis", -1), len(shape))
    values = {"weight": (node.input[1], t.weight(node, 1, "scale"))}
    if t.operand(node, 2):
        values["bias"] = (node.input[2], t.weight(node, 2, "bias"))
    epsilon = attributes.get("epsilon", 1e-5)
    t.first(node, LayerNorm(axes, epsilon, True, "bias" in values), **values)


@handles("GroupNormalization", "InstanceNormalization")
def _group_norm(t: Translation, node: Any) -> None:
    """Normalisation of rows, then scales and shifts of channels."""
    attributes = t.attributes(node)
    samples, channels, *sizes = t.tensor(node.input[0]).shape
    groups = channels
    if node.op_type.startswith("Group"):
        groups = attributes["num_groups"]
    name = node_name(node)
    epsilon = attributes.get("epsilon", 1e-5)
    rows = t.add(f"{name}.rows", Reshape((samples, groups, -1)), t.layer(node.input[0]))
    normal = t.add(f"{name}.norm", LayerNorm(1, epsilon, affine=False), rows)
    layer = t.add(f"{name}.images", Reshape((samples, channels, *sizes)), normal)
    for place, function in ((1, "mul"), (2, "add")):
        shape = (channels, *(1 for _ in sizes))
        number = t.add(f"{name}.{place}", Reshape(shape), t.layer(node.input[place]))
        layer = t.add(f"{name}.{function}", Binary(function), layer, number)
    t.give(node, layer)


@handles("LRN")
def _local_response_norm(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    operator = LocalResponseNorm(
        attributes["size"],
        attributes.get("alpha", 1e-4),
        attributes.get("beta", 0.75),
        attributes.get("bias", 1.0),
    )
    t.first(node, operator)


@handles("Softmax", "LogSoftmax")
def _softmax(t: Translation, node: Any) -> None:
    log = node.op_type == "LogSoftmax"
    shape = t.tensor(node.input[0]).shape
    axis = normalise_axis(t.attributes(node).get("axis", 1 if t.opset < 13 else -1), len(shape))
    if t.opset >= 13 or math.prod(shape[axis + 1 :]) == 1:
        t.first(node, Softmax(axis, log))
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
