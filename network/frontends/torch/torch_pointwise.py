"""Translations of ATen functions of elements, of one tensor or of two."""

from __future__ import annotations

import math
from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.elements import Steps, bounded, celu, chain, elu, inverse
from fpgapipe.network.frontends.torch.torch_complex import of_pairs
from fpgapipe.network.frontends.torch.torch_compute import of_noise
from fpgapipe.network.frontends.torch.torch_registry import Node, handles
from fpgapipe.network.frontends.torch.torch_selection import shared_by_all
from fpgapipe.network.frontends.torch.torch_translation import Translation
from fpgapipe.network.operators import (
    UNARIES,
    Activation,
    Affine,
    Binary,
    Power,
    Split,
    Unary,
)
from fpgapipe.network.operators.tensors import normalise_axis

_PLAIN = ("relu", "relu6", "hardsigmoid", "hardswish", "sigmoid", "tanh", "silu", "mish")


@handles(*(f"{name}{suffix}.default" for name in _PLAIN for suffix in ("", "_")))
def _activation(t: Translation, node: Node) -> None:
    t.simple(node, Activation(node.target.split(".")[1].removesuffix("_")))


@handles("gelu.default")
def _gelu(t: Translation, node: Node) -> None:
    t.simple(node, Activation("gelu_tanh" if node["approximate"] == "tanh" else "gelu"))


@handles("leaky_relu.default", "leaky_relu_.default")
def _leaky_relu(t: Translation, node: Node) -> None:
    t.simple(node, Activation("leaky_relu", node["negative_slope"]))


@handles("prelu.default")
def _prelu(t: Translation, node: Node) -> None:
    values = t.weights(node, weight="weight")
    shape = t.tensor(node["self"]).shape
    alike = len(shape) > 1 and values["weight"][1].size == 1
    name = t.name_of(node, node["weight"])
    operator = Activation("prelu", one_slope=alike)
    t.give(node, t.add(name, operator, t.layer(node["self"]), values=values))


@handles(
    *(f"{name}{suffix}.default" for name in ("hardtanh", "clamp") for suffix in ("", "_")),
    *(f"{name}{suffix}.default" for name in ("clamp_min", "clamp_max") for suffix in ("", "_")),
)
def _clamp(t: Translation, node: Node) -> None:
    hard = "hardtanh" in node.target
    low = node.arguments.get("min_val" if hard else "min")
    high = node.arguments.get("max_val" if hard else "max")
    low, high = (None if each is None else float(each) for each in (low, high))
    t.simple(node, bounded(low, high, strict=hard))


@handles("elu.default", "elu_.default", "selu.default", "selu_.default")
def _elu(t: Translation, node: Node) -> None:
    """``scale * elu(x * input_scale)``, whose two parts may be stretched unlike; selu is one."""
    if "selu" in node.target:
        steps = elu(1.6732632423543772, 1.0507009873554805)
    else:
        steps = elu(node["alpha"], node["scale"], node["input_scale"])
    t.give(node, chain(t, node.name, steps, t.layer(node["self"])))


@handles("celu.default", "celu_.default")
def _celu(t: Translation, node: Node) -> None:
    steps = celu(float(node["alpha"]))
    t.give(node, chain(t, node.name, steps, t.layer(node["self"])))


@handles("softplus.default")
def _softplus(t: Translation, node: Node) -> None:
    """``log(1 + exp(beta * x)) / beta``; beyond PyTorch's threshold of 20 it is x in FP32."""
    beta, threshold = float(node["beta"]), float(node["threshold"])
    if threshold < 20:
        raise Unsupported(f"only a threshold of at least 20, not {threshold:g}")
    steps: Steps = [("inner", Affine(beta)), ("softplus", Activation("softplus"))]
    steps.append(("scale", Affine(inverse(beta))))
    t.give(node, chain(t, node.name, steps, t.layer(node["self"])))


@handles("log_sigmoid.default")
def _log_sigmoid(t: Translation, node: Node) -> None:
    """``-softplus(-x)``."""
    negated, softplus = Unary("neg"), Activation("softplus")
    steps: Steps = [("inner", negated), ("softplus", softplus), ("outer", negated)]
    t.give(node, chain(t, node.name, steps, t.layer(node["self"])))


@handles("glu.default")
def _glu(t: Translation, node: Node) -> None:
    """The first half of an axis times the sigmoid of the second."""
    shape = t.tensor(node["self"]).shape
    axis = normalise_axis(node["dim"], len(shape))
    half = shape[axis] // 2
    x = t.layer(node["self"])
    value = t.add(f"{node.name}.value", Split(axis, 0, half), x)
    gate = t.add(f"{node.name}.gate", Split(axis, half, 2 * half), x)
    gate = t.add(f"{node.name}.sigmoid", Activation("sigmoid"), gate)
    t.give(node, t.add(node.name, Binary("mul"), value, gate))


@handles(*(f"{name}{suffix}.default" for name in UNARIES for suffix in ("", "_")))
def _unary(t: Translation, node: Node) -> None:
    t.simple(node, Unary(node.target.split(".")[1].removesuffix("_")))


_LOGARITHMS = {"log2": math.log(2), "log10": math.log(10)}


@handles(*(f"{name}.default" for name in (*_LOGARITHMS, "exp2", "log1p")))
def _other_base(t: Translation, node: Node) -> None:
    """Exponentials and logarithms of other bases, and of x and 1."""
    name, x = node.target.split(".")[1], t.layer(node["self"])
    if name in _LOGARITHMS:
        layer = t.add(f"{node.name}.log", Unary("log"), x)
        t.give(node, t.add(node.name, Affine(1 / _LOGARITHMS[name]), layer))
        return
    inner = Affine(math.log(2)) if name == "exp2" else Affine(1.0, 1.0)
    layer = t.add(f"{node.name}.inner", inner, x)
    t.give(node, t.add(node.name, Unary("exp" if name == "exp2" else "log"), layer))


@handles("square.default")
def _square(t: Translation, node: Node) -> None:
    x = t.layer(node["self"])
    t.give(node, t.add(node.name, Binary("mul"), x, x))


@handles("maximum.default", "minimum.default", "max.other", "min.other")
def _extreme(t: Translation, node: Node) -> None:
    function = "max" if "max" in node.target else "min"
    t.simple(node, Binary(function), "self", "other")


@handles(
    *(f"{name}{suffix}.Tensor" for name in ("add", "sub", "mul", "div") for suffix in ("", "_")),
    "pow.Tensor_Tensor",
)
def _binary(t: Translation, node: Node) -> None:
    if of_noise(t, node) or of_pairs(t, node):
        return
    function = node.target.split(".")[1].removesuffix("_")
    other = node["other"] if "other" in node.arguments else node["exponent"]
    alpha = node.arguments.get("alpha", 1)
    if isinstance(other, int | float):
        scale, offset = {
            "add": (1.0, other * alpha),
            "sub": (1.0, -other * alpha),
            "mul": (other, 0.0),
            "div": (1 / other if other else math.inf, 0.0),
        }[function]
        if math.isinf(scale):
            raise Unsupported("a division by zero")
        t.simple(node, Affine(float(scale), float(offset)))
        return
    left, right = (_operand(t, each) for each in (node["self"], other))
    if alpha != 1:
        right = t.add(f"{node.name}.alpha", Affine(scale=float(alpha)), right)
    if function == "div" and t.builder.tensor(left).shape != t.builder.tensor(right).shape:
        # A product with the reciprocal may repeat either tensor.
        right = t.add(f"{node.name}.reciprocal", Unary("reciprocal"), right)
        function = "mul"
    t.give(node, t.add(node.name, Binary(function), left, right))


def _operand(t: Translation, node: Any) -> str:
    """The layer of an operand; a fixed tensor is stored without what its first axes repeat."""
    known = t.known(node)
    if known is not None and known.dtype.is_floating_point:
        once = shared_by_all(known)
        if once.shape != known.shape:
            return t.fixed(node.name, once)
    return t.layer(node)


@handles("rsub.Scalar")
def _rsub(t: Translation, node: Node) -> None:
    t.simple(node, Affine(-float(node["alpha"]), float(node["other"])))


_ROOTS = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}


@handles("pow.Tensor_Scalar")
def _power(t: Translation, node: Node) -> None:
    exponent = node["exponent"]
    x = t.layer(node["self"])
    if exponent == 2:
        t.give(node, t.add(node.name, Binary("mul"), x, x))
    elif exponent in _ROOTS:
        t.give(node, t.add(node.name, Unary(_ROOTS[exponent]), x))
    elif exponent == 1:
        t.give(node, x)
    else:
        t.give(node, t.add(node.name, Power(float(exponent)), x))
