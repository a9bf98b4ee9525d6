"""Translations of ONNX operators with matrix products or sliding windows, and the embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import shown
from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.onnx.onnx_constants import MAX_FOLDED_ELEMENTS
from fpgapipe.network.frontends.onnx.onnx_readings import Made, Value
from fpgapipe.network.frontends.onnx.onnx_translation import (
    Translation,
    dtype_of,
    handles,
    node_name,
)
from fpgapipe.network.operators import (
    Affine,
    Binary,
    Conv,
    ConvTranspose,
    Embedding,
    GlobalPool,
    Linear,
    MatMul,
    Pool,
    Reshape,
    Slice,
    Transpose,
)
from fpgapipe.network.operators.tensors import Tensor, normalise_axis
from fpgapipe.network.operators.windows import Padding, same_padding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _padding(
    attributes: dict[str, Any],
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Padding:
    """The padding that the attributes ``pads`` or ``auto_pad`` demand."""
    auto = attributes.get("auto_pad", b"NOTSET").decode()
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise Unsupported(
            f"auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, not {shown(auto)}"
        )
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return same_padding(sizes, kernel, stride, dilation, upper=auto == "SAME_UPPER")
    pads = [0] * (2 * len(kernel)) if auto == "VALID" else attributes.get("pads")
    pads = list(pads) if pads is not None else [0] * (2 * len(kernel))
    if len(pads) != 2 * len(kernel):
        raise Unsupported(f"pads must have {2 * len(kernel)} entries, not {len(pads)}")
    return tuple(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))


def convolution(t: Translation, node: Any, weight: NDArray[np.generic], *, bias: bool) -> Conv:
    """The convolution of a node with the attributes of Conv, whose input comes first."""
    attributes = t.attributes(node)
    kernel = tuple(int(size) for size in weight.shape[2:])
    said = attributes.get("kernel_shape")
    if said is not None and tuple(said) != kernel:
        raise Unsupported(
            f"kernel_shape {list(said)} contradicts its weight, whose kernel is {list(kernel)}"
        )
    ones = (1,) * len(kernel)
    stride = tuple(attributes.get("strides", ones))
    dilation = tuple(attributes.get("dilations", ones))
    sizes = t.tensor(node.input[0]).shape[2:]
    if len(sizes) != len(kernel):
        raise Unsupported(f"weight of shape {list(weight.shape)} does not fit its input")
    padding = _padding(attributes, sizes, kernel, stride, dilation)
    return Conv(
        int(weight.shape[0]), kernel, stride, padding, dilation, attributes.get("group", 1), bias
    )


@handles("Conv")
def _conv(t: Translation, node: Any) -> None:
    weight = t.weight(node, 1, "weight")
    bias = t.weight(node, 2, "bias") if t.operand(node, 2) else None
    operator = convolution(t, node, weight, bias=bias is not None)
    values = {"weight": (node.input[1], weight)}
    if bias is not None:
        values["bias"] = (node.input[2], bias)
    t.first(node, operator, **values)


@handles("ConvTranspose")
def _conv_transpose(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    weight = t.weight(node, 1, "weight")
    kernel = tuple(int(size) for size in weight.shape[2:])
    ones = (1,) * len(kernel)
    if tuple(attributes.get("kernel_shape", kernel)) != kernel:
        raise Unsupported(
            f"kernel_shape {list(attributes['kernel_shape'])} contradicts its weight, whose kernel "
            f"is {list(kernel)}"
        )
    sizes = t.tensor(node.input[0]).shape[2:]
    if len(sizes) != len(kernel):
        raise Unsupported(f"weight of shape {list(weight.shape)} does not fit its input")
    groups = attributes.get("group", 1)
    values = {"weight": (node.input[1], weight)}
    if t.operand(node, 2):
        values["bias"] = (node.input[2], t.weight(node, 2, "bias"))
    stride = tuple(attributes.get("strides", ones))
    dilation = tuple(attributes.get("dilations", ones))
    more = tuple(attributes.get("output_padding", (0,) * len(kernel)))
    given = stride, dilation, more
    operator = ConvTranspose(
        int(weight.shape[1]) * groups,
        kernel,
        stride,
        transposed_padding(attributes, sizes, kernel, *given),
        more,
        dilation,
        groups,
        "bias" in values,
    )
    t.first(node, operator, **values)


def transposed_padding(
    attributes: Mapping[str, Any],
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    more: Sequence[int],
) -> Padding:
    """Pixels that a transposed convolution cuts off: given, or so that the result has a size."""
    auto = attributes.get("auto_pad", b"NOTSET")
    wanted = attributes.get("output_shape")
    if wanted is None and auto not in (b"SAME_UPPER", b"SAME_LOWER"):
        return _padding(dict(attributes), sizes, kernel, stride, dilation)
    if wanted is None:
        wanted = [size * step for size, step in zip(sizes, stride, strict=True)]
    if len(wanted) not in (len(kernel), len(kernel) + 2):
        raise Unsupported(f"output_shape must have {len(kernel)} entries, not {len(wanted)}")
    padding = []
    axes = zip(sizes, kernel, stride, dilation, more, wanted[-len(kernel) :], strict=True)
    for size, window, step, apart, extra, want in axes:
        whole = step * (size - 1) + extra + (window - 1) * apart + 1
        total = whole - want
        if total < 0:
            raise Unsupported(
                f"its windows give {whole} elements along an axis, and a result of {want} would "
                "need padding of less than 0; give output_padding"
            )
        less, rest = total // 2, total - total // 2
        padding.append((less, rest) if auto == b"SAME_UPPER" else (rest, less))
    return tuple(padding)


def pooling(t: Translation, node: Any) -> Pool:
    """The pooling of a node."""
    attributes = t.attributes(node)
    kernel = tuple(attributes["kernel_shape"])
    ones = (1,) * len(kernel)
    stride = tuple(attributes.get("strides", ones))
    dilation = tuple(attributes.get("dilations", ones))
    sizes = t.tensor(node.input[0]).shape[2:]
    if len(sizes) != len(kernel):
        raise Unsupported(f"kernel_shape {list(kernel)} does not fit its input")
    if attributes.get("auto_pad", b"").startswith(b"SAME") and set(dilation) != {1}:
        raise Unsupported("auto_pad with dilations means other sizes to other runtimes; give pads")
    return Pool(
        "max" if node.op_type == "MaxPool" else "average",
        kernel,
        stride,
        _padding(attributes, sizes, kernel, stride, dilation),
        dilation,
        bool(attributes.get("ceil_mode", 0)),
        bool(attributes.get("count_include_pad", 0)),
    )


@handles("MaxPool", "AveragePool")
def _pool(t: Translation, node: Any) -> None:
    t.refuse_outputs(node)
    t.first(node, pooling(t, node))


@handles("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(t: Translation, node: Any) -> None:
    t.first(node, GlobalPool("average" if "Average" in node.op_type else "max"))


@handles("Gemm")
def _gemm(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    a = t.layer(node.input[0])
    if attributes.get("transA", 0):
        a = t.add(f"{node_name(node)}.transpose_a", Transpose((1, 0)), a)
    weight = t.value(node, 1)
    bias = t.value(node, 2)
    transposed = bool(attributes.get("transB", 0))
    if weight is not None and weight.ndim == 2:
        weight = weight if transposed else weight.T
    if weight is not None and weight.ndim == 2 and _owns(t, node.input[1], weight, alpha):
        features = int(weight.shape[0])
        fits = False
        values = {"weight": _scaled(node.input[1], weight, alpha)}
        if bias is not None and bias.shape in ((features,), (1, features)):
            bias = bias.reshape(-1)
            fits = _owns(t, node.input[2], bias, beta)
        if bias is not None and fits:
            values["bias"] = _scaled(node.input[2], bias, beta)
        layer = t.add(node_name(node), Linear(features, fits), a, values=values)
        if t.operand(node, 2) and not fits:
            layer = _plus(t, node, layer, beta)
        t.give(node, layer)
        return
    b = t.layer(node.input[1])
    if transposed:
        b = t.add(f"{node_name(node)}.transpose_b", Transpose((1, 0)), b)
    layer = t.add(node_name(node), MatMul(), a, b)
    if alpha != 1:
        layer = t.add(f"{node_name(node)}.alpha", Affine(scale=alpha), layer)
    if t.operand(node, 2):
        layer = _plus(t, node, layer, beta)
    t.give(node, layer)


def _owns(t: Translation, name: str, value: NDArray[np.generic], factor: float) -> bool:
    """Whether a layer can own a weight times a number."""
    return t.readings.can_own(name, value) and (factor == 1 or not t.readings.is_apart(name))


def _scaled(name: str, value: NDArray[np.generic], factor: float) -> Value:
    """A weight times a number; a weight that is too large is refused."""
    if factor == 1:
        return name, value
    if value.size > MAX_FOLDED_ELEMENTS:
        raise Unsupported(f"a weight of {value.size} elements times {factor:g} is too large")
    import numpy as np

    product = np.multiply(value, factor, dtype=value.dtype)
    return Made(name, product, value, f"times {factor!r}", lambda given: given / factor)


def _plus(t: Translation, node: Any, layer: str, beta: float) -> str:
    """Add Gemm's third operand in a layer of its own."""
    c = t.layer(node.input[2])
    if beta != 1:
        c = t.add(f"{node_name(node)}.beta", Affine(scale=beta), c)
    return t.add(f"{node_name(node)}.add", Binary("add"), layer, c)


@handles("MatMul")
def _matmul(t: Translation, node: Any) -> None:
    """Multiply by a weight in a linear layer, or multiply two tensors.

    A vector is a matrix of one row or one column, whose axis leaves the result.
    """
    name, (one, two) = node_name(node), node.input
    left, right = t.tensor(one).shape, t.tensor(two).shape
    first, second = t.value(node, 0), t.value(node, 1)
    if first is None and second is not None:
        matrix = _matrix(second, len(left))
        if matrix is not None and t.readings.can_own(two, matrix.T):
            _linear(t, node, matrix)
            return
    result = MatMul().output([Tensor(left), Tensor(right)]).shape
    if second is None and first is not None and len(left) == 1 and len(right) > 1:
        row = first.reshape(1, -1)
        if t.readings.can_own(one, row):
            order = (*range(len(right) - 2), len(right) - 1, len(right) - 2)
            turned = t.add(f"{name}.transpose", Transpose(order), t.layer(two))
            operator, values = Linear(1, bias=False), {"weight": (one, row)}
            product = t.add(f"{name}.product", operator, turned, values=values)
            t.give(node, t.add(name, Reshape(result), product))
            return
    if len(left) > 1 and len(right) > 1:
        t.simple(node, MatMul())
        return
    a, b = t.layers(node)
    if len(left) == 1:
        a = t.add(f"{name}.row", Reshape((1, *left)), a)
    if len(right) == 1:
        b = t.add(f"{name}.column", Reshape((*right, 1)), b)
    product = t.add(f"{name}.product", MatMul(), a, b)
    t.give(node, t.add(name, Reshape(result), product))


def _matrix(weight: NDArray[np.generic], rank: int) -> NDArray[np.generic] | None:
    """The one matrix by which a weight multiplies a tensor of some axes; None for several."""
    if weight.ndim == 1:
        return weight.reshape(-1, 1)
    if weight.ndim > max(rank, 2) or any(size != 1 for size in weight.shape[:-2]):
        return None
    return weight.reshape(weight.shape[-2:])


def _linear(t: Translation, node: Any, matrix: NDArray[np.generic]) -> None:
    """Multiply by a matrix; what is added to each of its columns is a bias."""
    features = int(matrix.shape[1])
    values: dict[str, Value] = {"weight": (node.input[1], matrix.T)}
    if len(t.tensor(node.input[1]).shape) == 1:
        name, shape = node_name(node), t.tensor(node.input[0]).shape[:-1]
        product = Linear(1, bias=False)
        layer = t.add(f"{name}.product", product, t.layer(node.input[0]), values=values)
        t.give(node, t.add(name, Reshape(shape), layer))
        return
    addition = t.sole_reader(node.output[0])
    if addition is not None and addition.op_type == "Add":
        other = next(name for name in addition.input if name != node.output[0])
        bias = t.constants.get(other)
        if bias is not None and bias.shape == (features,) and t.readings.can_own(other, bias):
            layer = t.first(node, Linear(features), bias=(other, bias), **values)
            t.give(addition, layer)
            t.skip(addition)
            return
    t.first(node, Linear(features, bias=False), **values)


@handles("Gather")
def _gather(t: Translation, node: Any) -> None:
    axis = t.attributes(node).get("axis", 0)
    table = t.value(node, 0)
    index = t.value(node, 1)
    if table is not None and index is None:
        if table.ndim != 2 or axis != 0 or not dtype_of(table).is_float:
            raise Unsupported("only rows of a matrix of floating-point numbers (an embedding)")
        operator = Embedding(int(table.shape[0]), int(table.shape[1]))
        values = {"weight": (node.input[0], table)}
        t.give(node, t.add(node_name(node), operator, t.layer(node.input[1]), values=values))
        return
    if index is None:
        raise Unsupported("only an embedding, or indices that are constant")
    shape = t.tensor(node.input[0]).shape
    axis = normalise_axis(axis, len(shape))
    if index.size != 1:
        name, layer = node_name(node), t.layer(node.input[0])
        t.give(node, t.builder.entries(name, layer, index.astype("int64"), axis))
        return
    start = int(index.reshape(-1)[0]) % shape[axis]
    layer = t.add(f"{node_name(node)}.slice", Slice(axis, start, start + 1), t.layer(node.input[0]))
    result = (*shape[:axis], *index.shape, *shape[axis + 1 :])
    t.give(node, t.add(node_name(node), Reshape(result), layer))
