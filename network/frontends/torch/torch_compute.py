"""Translations of ATen operators that compute: products, windows, functions, losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.torch.torch_registry import Node, handles
from fpgapipe.network.frontends.torch.torch_translation import Translation
from fpgapipe.network.frontends.torch.torch_values import Noise
from fpgapipe.network.operators import (
    BatchNorm,
    Binary,
    Conv,
    ConvTranspose,
    CrossEntropy,
    Dropout,
    Expand,
    LayerNorm,
    Linear,
    MatMul,
    Pad,
    Pool,
    Reduce,
    Reshape,
    Transpose,
)
from fpgapipe.network.operators.tensors import broadcast
from fpgapipe.network.operators.windows import Padding, per_axis, same_padding


@handles(
    *(f"conv{rank}d.{form}" for rank in (1, 2, 3) for form in ("default", "padding")),
)
def _conv(t: Translation, node: Node) -> None:
    values = t.weights(node, weight="weight", bias="bias")
    weight = values["weight"][1]
    rank = weight.ndim - 2
    stride = _spread(node["stride"], rank)
    dilation = _spread(node["dilation"], rank)
    kernel = weight.shape[2:]
    padding: Padding
    if node["padding"] == "same":
        sizes = t.tensor(node["input"]).shape[2:]
        padding = same_padding(sizes, kernel, stride, dilation)
    else:
        sides = 0 if node["padding"] == "valid" else node["padding"]
        padding = tuple((side, side) for side in _spread(sides, rank))
    x, padding = _padded_in_front(t, t.layer(node["input"]), padding, 0.0)
    operator = Conv(
        weight.shape[0], kernel, stride, padding, dilation, node["groups"], "bias" in values
    )
    name = t.name_of(node, node["weight"])
    t.give(node, t.add(name, operator, x, values=values))


def _padded_in_front(t: Translation, x: str, padding: Padding, value: float) -> tuple[str, Padding]:
    """Input of windows, and their padding, if a layer that pads images is taken into them.

    Parameters
    ----------
    t : Translation
    x : str
        Layer that the windows would read.
    padding : tuple of (int, int)
        Padding of the windows.
    value : float
        What the windows are padded with.
    """
    layer = t.builder.layer(x)
    if layer is None or not isinstance(layer.operator, Pad) or layer.operator.value != value:
        return x, padding
    before = layer.operator.padding
    if any(before[0]) or any(before[1]):
        return x, padding
    sides = zip(padding, before[2:], strict=True)
    return layer.inputs[0], tuple((a + c, b + d) for (a, b), (c, d) in sides)


@handles("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def _conv_transpose(t: Translation, node: Node) -> None:
    values = t.weights(node, weight="weight", bias="bias")
    weight = values["weight"][1]
    rank = weight.ndim - 2
    operator = ConvTranspose(
        weight.shape[1] * node["groups"],
        weight.shape[2:],
        _spread(node["stride"], rank),
        tuple((side, side) for side in _spread(node["padding"], rank)),
        _spread(node["output_padding"], rank),
        _spread(node["dilation"], rank),
        node["groups"],
        "bias" in values,
    )
    name = t.name_of(node, node["weight"])
    t.give(node, t.add(name, operator, t.layer(node["input"]), values=values))


@handles("linear.default")
def _linear(t: Translation, node: Node) -> None:
    weight, bias = t.reference(node["weight"]), t.reference(node["bias"]) if node["bias"] else None
    fits = weight is not None and (not node["bias"] or bias is not None) and weight.value.ndim == 2
    if fits and t.can_hold(weight):
        values = t.weights(node, weight="weight", bias="bias")
        operator = Linear(values["weight"][1].shape[0], "bias" in values)
        name = t.name_of(node, node["weight"])
        t.give(node, t.add(name, operator, t.layer(node["input"]), values=values))
        return
    right = t.layer(node["weight"])
    order = tuple(reversed(range(len(t.builder.tensor(right).shape))))
    right = t.add(f"{node.name}.transpose", Transpose(order), right)
    _product(t, node, node["input"], right, node["bias"])


def _product(t: Translation, node: Node, left: Any, right: str, bias: Any) -> None:
    """Translate a product with a matrix that the network computes, and perhaps a bias."""
    layer = matrix_product(t, node.name, t.layer(left), right)
    if bias is not None:
        layer = t.add(f"{node.name}.bias", Binary("add"), layer, t.layer(bias))
    t.give(node, layer)


def matrix_product(t: Translation, name: str, one: str, other: str) -> str:
    """Add a product of matrices, whose operands are repeated along the axes before the last two.

    If the second operand is one matrix, the rows of all matrices of the first one are multiplied
    together.
    """
    shapes = [t.builder.tensor(each).shape for each in (one, other)]
    if min(map(len, shapes)) < 2 or shapes[0][:-2] == shapes[1][:-2]:
        return t.add(name, MatMul(), one, other)
    if len(shapes[1]) == 2:
        rows = t.add(f"{name}.rows", Reshape((-1, shapes[0][-1])), one)
        found = t.add(f"{name}.product", MatMul(), rows, other)
        return t.add(name, Reshape((*shapes[0][:-1], shapes[1][-1])), found)
    batch = broadcast([shape[:-2] for shape in shapes])
    operands = [
        layer
        if shape[:-2] == batch
        else t.add(f"{name}.operand{number}", Expand((*batch, *shape[-2:])), layer)
        for number, (layer, shape) in enumerate(zip((one, other), shapes, strict=True))
    ]
    return t.add(name, MatMul(), *operands)


@handles("matmul.default", "mm.default", "bmm.default")
def _matmul(t: Translation, node: Node) -> None:
    right = node["other"] if "other" in node.arguments else node["mat2"]
    weight = t.reference(right)
    if weight is None or weight.value.ndim != 2 or not t.can_hold(weight, transposed=True):
        _product(t, node, node["self"], t.layer(right), None)
        return
    values = {"weight": t.weight(right, "weight", transposed=True)}
    operator = Linear(values["weight"][1].shape[0], bias=False)
    name = t.name_of(node, right) if t.is_tied(right) else node.name
    t.give(node, t.add(name, operator, t.layer(node["self"]), values=values))


@handles("addmm.default")
def _addmm(t: Translation, node: Node) -> None:
    if node["alpha"] != 1 or node["beta"] != 1:
        raise Unsupported("only alpha and beta of 1")
    weight, bias = t.reference(node["mat2"]), t.reference(node["self"])
    fits = weight is not None and bias is not None and bias.value.ndim == 1
    if not fits or not t.can_hold(weight, transposed=True):
        _product(t, node, node["mat1"], t.layer(node["mat2"]), node["self"])
        return
    values = {
        "weight": t.weight(node["mat2"], "mat2", transposed=True),
        "bias": t.weight(node["self"], "bias"),
    }
    operator = Linear(values["weight"][1].shape[0])
    if values["bias"][1].shape != (values["weight"][1].shape[0],):
        raise Unsupported("only a bias for each output feature")
    t.give(node, t.add(node.name, operator, t.layer(node["mat1"]), values=values))


# Windows
# -------------------------------------------------------------------------------------------


@handles(
    *(f"max_pool{rank}d.default" for rank in (1, 2, 3)),
    *(f"avg_pool{rank}d.default" for rank in (1, 2, 3)),
)
def _pool(t: Translation, node: Node) -> None:
    rank = len(t.tensor(node["self"]).shape) - 2
    kernel = _spread(node["kernel_size"], rank)
    if node.arguments.get("divisor_override") is not None:
        raise Unsupported("only the window's own size as divisor")
    function = "max" if "max" in node.target else "average"
    padding: Padding = tuple((side, side) for side in _spread(node["padding"], rank))
    x = t.layer(node["self"])
    if function == "max" and not node["ceil_mode"]:
        x, padding = _padded_in_front(t, x, padding, -math.inf)
    operator = Pool(
        function,
        kernel,
        _spread(node["stride"], rank) if node["stride"] else kernel,
        padding,
        _spread(node.arguments.get("dilation", 1), rank),
        bool(node["ceil_mode"]),
        bool(node.arguments.get("count_include_pad", True)),
    )
    t.give(node, t.add(node.name, operator, x))


def _spread(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One number for each axis; ATen may give a single number for all as a list."""
    if not isinstance(value, int) and len(value) == 1:
        value = value[0]
    return per_axis(value, rank, "the setting")


def of_noise(t: Translation, node: Node) -> bool:
    """Translate a node that scales random numbers or multiplies by them; return whether it does."""
    drawn, other = t.noise(node["self"]), node.arguments.get("other")
    if drawn and node.target.startswith("aten.div") and isinstance(other, int | float) and other:
        drawn.scale *= other
        t.give_noise(node, drawn)
        return True
    x = other if drawn else node["self"]
    drawn = drawn or t.noise(other)
    if drawn is None or not node.target.startswith("aten.mul") or isinstance(x, int | float):
        return False
    shape = t.tensor(x).shape
    rate = 1 - (drawn.kept or 0)
    if drawn.kept is None or abs(drawn.scale - drawn.kept) > 1e-6 or not 0 <= rate < 1:
        raise Unsupported(
            "only random numbers that drop a share below 1 and divide the rest by what is kept"
        )
    if len(drawn.shape) != len(shape) or any(
        drawn.shape[axis] not in (1, size) for axis, size in enumerate(shape)
    ):
        raise Unsupported(f"random numbers of shape {list(drawn.shape)} for {list(shape)}")
    together = tuple(axis for axis, size in enumerate(shape) if drawn.shape[axis] == 1 and size > 1)
    t.give(node, t.add(node.name, Dropout(rate, together), t.layer(x)))
    return True


@handles("empty.memory_format", "new_empty.default")
def _empty(t: Translation, node: Node) -> None:
    t.give_noise(node, Noise(tuple(node["size"])))


@handles("bernoulli_.float")
def _bernoulli(t: Translation, node: Node) -> None:
    drawn = t.noise(node["self"])
    if drawn is None:
        raise Unsupported("overwrites what is not empty")
    drawn.kept, drawn.scale = float(node["p"]), 1.0
    t.give_noise(node, drawn)


@handles("feature_dropout.default")
def _feature_dropout(t: Translation, node: Node) -> None:
    if not node["train"] or not node["p"]:
        t.give(node, t.layer(node["input"]))
        return
    if not t.training:
        raise Unsupported("drops in evaluation, too; give it the module's mode (self.training)")
    together = tuple(range(2, len(t.tensor(node["input"]).shape)))
    t.give(node, t.add(node.name, Dropout(node["p"], together), t.layer(node["input"])))


@handles("dropout.default", "dropout_.default")
def _dropout(t: Translation, node: Node) -> None:
    x = node["input"] if "input" in node.arguments else node["self"]
    layer = t.layer(x)
    if node["train"] and node["p"] > 0 and not t.training:
        raise Unsupported("drops in evaluation, too; give it the module's mode (self.training)")
    if node["train"] and node["p"] > 0:
        layer = t.add(node.name, Dropout(node["p"]), layer)
    t.give(node, layer)


# Normalisation, reduction, loss
# --------------------------------------------------------------------


@handles("batch_norm.default")
def _batch_norm(t: Translation, node: Node) -> None:
    values = t.weights(
        node,
        weight="weight",
        bias="bias",
        running_mean="running_mean",
        running_var="running_var",
    )
    if "running_mean" not in values:
        raise Unsupported("only with running statistics")
    if node["training"] != t.training:
        mode, other = ("evaluation", "training") if t.training else ("training", "evaluation")
        raise Unsupported(f"it computes as in {mode} while the module is in {other}")
    if ("weight" in values) != ("bias" in values):
        raise Unsupported("only with scale and shift, or neither")
    operator = BatchNorm(node["eps"], node["momentum"], affine="weight" in values)
    name = t.name_of(node, node["running_mean"])
    t.give(node, t.add(name, operator, t.layer(node["input"]), values=values))


@handles("layer_norm.default")
def _layer_norm(t: Translation, node: Node) -> None:
    values = t.weights(node, weight="weight", bias="bias")
    operator = LayerNorm(
        len(node["normalized_shape"]), node["eps"], "weight" in values, "bias" in values
    )
    name = t.name_of(node, node["weight"])
    t.give(node, t.add(name, operator, t.layer(node["input"]), values=values))


@handles("group_norm.default", "instance_norm.default")
def _group_norm(t: Translation, node: Node) -> None:
    """Normalisation over the channels of a group and all positions; an instance's is of a channel.

    It becomes a normalisation of rows, and scales and shifts of channels.
    """
    samples, channels, *sizes = t.tensor(node["input"]).shape
    if node.target.startswith("aten.instance"):
        if not node["use_input_stats"]:
            raise Unsupported("only with the statistics of its input, not running ones")
        groups = channels
        if node["running_mean"] is not None:
            raise Unsupported("only without running statistics (track_running_stats=False)")
    else:
        groups = node["num_groups"]
    rows = t.add(f"{node.name}.rows", Reshape((samples, groups, -1)), t.layer(node["input"]))
    normal = t.add(f"{node.name}.norm", LayerNorm(1, node["eps"], affine=False), rows)
    layer = t.add(f"{node.name}.images", Reshape((samples, channels, *sizes)), normal)
    for function, role in (("mul", "weight"), ("add", "bias")):
        if node[role] is not None:
            number = t.layer(node[role])
            if sizes:
                shape = (channels, *(1 for _ in sizes))
                number = t.add(f"{node.name}.{role}", Reshape(shape), number)
            layer = t.add(f"{node.name}.{function}", Binary(function), layer, number)
    t.give(node, layer)


@handles(
    *("mean.dim", "sum.dim_IntList", "mean.default", "sum.default"),
    *("amax.default", "amin.default"),
)
def _reduce(t: Translation, node: Node) -> None:
    rank = len(t.tensor(node["self"]).shape)
    axes = tuple(node.arguments.get("dim") or range(rank))
    function = node.target.split(".")[1].removeprefix("a")
    t.simple(node, Reduce(function, axes, bool(node.arguments.get("keepdim", False))))


@handles("cross_entropy_loss.default")
def _cross_entropy(t: Translation, node: Node) -> None:
    if node["reduction"] != 1 or node["weight"] is not None or node["label_smoothing"]:
        raise Unsupported("only the mean over all labels, without weights and smoothing")
    t.simple(node, CrossEntropy(), "self", "target")
