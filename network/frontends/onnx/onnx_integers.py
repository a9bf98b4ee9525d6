"""Translations of quantised ONNX operators: QLinear operators, and QDQ pairs.

Tensors of integers, and real numbers that stand for them, are *pending*: their layers are added
when it is known what reads them. So a convolution between DequantizeLinear and QuantizeLinear
becomes sums of integers that are rescaled, and what only moves or compares elements (reshape,
maximum pooling) works on the integers. What is read otherwise is dequantised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.onnx.onnx_integer_operands import (
    Weights,
    centred,
    dequantised_weights,
    quantised_input,
    reads_alone,
    require_scales,
    scale_of,
    scales_of,
    weights_of,
    zero_of,
    zeros_of,
)
from fpgapipe.network.frontends.onnx.onnx_integer_values import (
    RANGES,
    Integers,
    Real,
    Sums,
    Total,
    Windows,
)
from fpgapipe.network.frontends.onnx.onnx_products import convolution, pooling
from fpgapipe.network.frontends.onnx.onnx_translation import (
    HANDLERS,
    Translation,
    attempts,
    handles,
    node_name,
)
from fpgapipe.network.operators import (
    Affine,
    Concat,
    Dequantise,
    GlobalPool,
    Linear,
    Quantise,
    Rescale,
    Reshape,
    Slice,
    WindowSum,
)
from fpgapipe.network.operators.tensors import normalise_axis

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.network.operators import Conv, Operator

MOST_SLICES = 1024
"""Most channels that are quantised each with a scale of its own."""

# ---------------------------------------------------------------------- products


def _sums(
    t: Translation,
    name: str,
    operator: Conv | Linear,
    x: Integers,
    weights: Weights,
    bias: NDArray[np.int64] | None,
    factors: NDArray[np.floating[Any]],
) -> Sums:
    """Add the layer of a product; its channels are those of the weights' first axis."""
    values = np.ascontiguousarray(weights.values.astype(np.float32))
    source = f"{weights.source} of {name}"
    t.builder.frozen.add(source)
    layer = t.add(f"{name}.product", operator, x.name, values={"weight": (source, values)})
    magnitudes = np.abs(weights.values).reshape(len(values), -1)
    rank = len(t.builder.tensor(layer).shape)
    rescale = Rescale(
        x.limits,
        weights.limits,
        int(magnitudes.sum(axis=1).max()),
        magnitudes.shape[1],
        (0, 0),
        () if bias is None else tuple(int(each) for each in bias),
        axis=rank - 1 if isinstance(operator, Linear) else 1,
    )
    return Sums(layer, rescale, factors)


def _bias(value: NDArray[Any], scales: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """A bias in units of the sums, rounded."""
    exact = np.asarray(value, np.float64).reshape(-1) / scales.astype(np.float64)
    return np.rint(exact).astype(np.int64)


@attempts("Conv", "Gemm", "MatMul")
def _product_of_reals(t: Translation, node: Any) -> bool:
    """A product of real numbers that integers stand for, with a weight of the same kind."""
    x = t.pending.get(node.input[0])
    weights = dequantised_weights(t, node.input[1])
    if not isinstance(x, Real) or weights is None:
        return False
    attributes = t.attributes(node)
    if node.op_type == "Conv":
        operator: Conv | Linear = convolution(t, node, weights.values, bias=False)
    else:
        if weights.values.ndim != 2:
            return False
        if node.op_type == "Gemm":
            plain = attributes.get("alpha", 1.0) == 1.0 and attributes.get("beta", 1.0) == 1.0
            if attributes.get("transA", 0) or not plain:
                return False
        if not attributes.get("transB", 0):
            weights = weights.transposed()
        operator = Linear(int(weights.values.shape[0]), bias=False)
    if weights.axis != 0 and weights.scales.size > 1:
        return False
    with np.errstate(over="ignore", under="ignore"):
        scales = np.asarray(x.scale * weights.scales.astype(np.float32), np.float32)
    require_scales("product of two scales", scales)
    given = None
    if t.operand(node, 2):
        value = t.value(node, 2)
        channels = int(weights.values.shape[0])
        if value is None or value.size not in (1, channels):
            return False
        given = _bias(np.broadcast_to(value.reshape(-1), (channels,)), scales)
    t.pending[node.output[0]] = _sums(
        t, node_name(node), operator, x.integers, weights, given, scales
    )
    return True


@handles("QLinearConv")
def _qlinear_conv(t: Translation, node: Any) -> None:
    zeros, _ = zeros_of(t, node, 5, "uint8")
    weights = weights_of(
        node.input[3], t.weight(node, 3, "weight"), zeros, scales_of(t, node, 4, "weight scale"), 0
    )
    x = centred(t, node.input[0], zero_of(t, node, 2, "uint8")[0])
    operator = convolution(t, node, weights.values, bias=False)
    bias = t.weight(node, 8, "bias").astype(np.int64) if t.operand(node, 8) else None
    y_zero, kind = zero_of(t, node, 7, "uint8")
    factors = scale_of(t, node, 1, "input scale") * weights.scales / scale_of(t, node, 6, "scale")
    sums = _sums(t, node_name(node), operator, x, weights, bias, factors)
    _give_rescaled(t, node, sums, factors, y_zero, kind)


def _give_rescaled(
    t: Translation, node: Any, sums: Sums, factors: NDArray[Any], zero: int, kind: str
) -> None:
    """Rescale sums as ONNX's QLinear operators do, which add the zero point before they round."""
    low, high = (each - zero for each in RANGES[kind])
    layer = sums.rescaled(t, node_name(node), factors, (low, high), zero)
    t.pending[node.output[0]] = Integers(layer, zero, (low, high))


@handles("QLinearMatMul")
def _qlinear_matmul(t: Translation, node: Any) -> None:
    zeros, _ = zeros_of(t, node, 5, "uint8")
    scales = scales_of(t, node, 4, "weight scale")
    integers = t.weight(node, 3, "weight")
    x = centred(t, node.input[0], zero_of(t, node, 2, "uint8")[0])
    zero, kind = zero_of(t, node, 7, "uint8")
    factors = scale_of(t, node, 1, "input scale") * scales / scale_of(t, node, 6, "scale")
    low, high = (each - zero for each in RANGES[kind])

    def run(name: str, part: Integers, matrix: NDArray[Any]) -> str:
        weights = weights_of(node.input[3], matrix, zeros, scales, 1).transposed()
        operator = Linear(int(weights.values.shape[0]), bias=False)
        sums = _sums(t, name, operator, part, weights, None, factors)
        return sums.rescaled(t, name, factors, (low, high), zero)

    layer = _by_matrix(t, node, x, integers, run)
    t.pending[node.output[0]] = Integers(layer, zero, (low, high))


def _by_matrix(t: Translation, node: Any, x: Integers, integers: NDArray[Any], run: Any) -> str:
    """Multiply by a matrix, or by one matrix for each index along the first axis."""
    name = node_name(node)
    if integers.ndim == 2:
        return str(run(name, x, integers))
    shape = x.tensor(t).shape
    if integers.ndim != 3 or len(shape) != 3 or len(integers) != shape[0]:
        raise Unsupported(
            f"only a matrix as weight, or one for each of the first axis, not {integers.shape} "
            f"for {list(shape)}"
        )
    parts = []
    for index, matrix in enumerate(integers):
        own = f"{name}.{index}"
        part = t.add(f"{own}.slice", Slice(0, index, index + 1), x.name)
        flat = t.add(f"{own}.flat", Reshape(shape[1:]), part)
        found = run(own, replace(x, name=flat), matrix)
        parts.append(t.add(f"{own}.part", Reshape((1, *t.builder.tensor(found).shape)), found))
    return t.add(name, Concat(0), *parts)


@handles("ConvInteger")
def _conv_integer(t: Translation, node: Any) -> None:
    zeros, _ = zeros_of(t, node, 3, "uint8")
    weights = weights_of(node.input[1], t.weight(node, 1, "weight"), zeros, np.ones(1), 0)
    x = centred(t, node.input[0], zero_of(t, node, 2, "uint8")[0])
    operator = convolution(t, node, weights.values, bias=False)
    sums = _sums(t, node_name(node), operator, x, weights, None, np.ones(1))
    t.give(node, t.add(node_name(node), sums.rescale, sums.name))


@handles("MatMulInteger")
def _matmul_integer(t: Translation, node: Any) -> None:
    zeros, _ = zeros_of(t, node, 3, "uint8")
    integers = t.weight(node, 1, "weight")
    x = centred(t, node.input[0], zero_of(t, node, 2, "uint8")[0])

    def run(name: str, part: Integers, matrix: NDArray[Any]) -> str:
        weights = weights_of(node.input[1], matrix, zeros, np.ones(1), 1).transposed()
        operator = Linear(int(weights.values.shape[0]), bias=False)
        sums = _sums(t, name, operator, part, weights, None, np.ones(1))
        return t.add(name, sums.rescale, sums.name)

    t.give(node, _by_matrix(t, node, x, integers, run))


# ---------------------------------------------------------------------- quantising and back


@handles("QuantizeLinear")
def _quantize_linear(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    _refuse_blocks(attributes)
    scales = scales_of(t, node, 1, "scale")
    given = attributes.get("output_dtype", 0)
    if given not in (0, 2, 3):  # TensorProto.UINT8 and INT8
        raise Unsupported("only integers of eight bits")
    zeros, kind = zeros_of(t, node, 2, "int8" if given == 3 else "uint8")
    if kind not in RANGES or scales.dtype != np.float32 or attributes.get("precision", 0) > 1:
        raise Unsupported("only integers of eight bits, with scales of FP32")
    low, high = RANGES[kind]
    name = node_name(node)
    if scales.size == zeros.size == 1:
        zero = int(zeros[0])
        found = quantised_input(t, node, name, scales[0], (low - zero, high - zero))
        t.pending[node.output[0]] = replace(found, zero=zero)
        return

    def run(own: str, part: str, index: int) -> str:
        zero = int(np.broadcast_to(zeros, scales.shape)[index])
        operator = Quantise(float(scales[index]), (low - zero, high - zero))
        layer = t.add(own, operator, part)
        return t.add(f"{own}.whole", Affine(1.0, float(zero)), layer) if zero else layer

    layer = _by_channel(t, name, t.layer(node.input[0]), attributes, scales.size, run)
    t.pending[node.output[0]] = Integers(layer, 0, (low, high))


@handles("DequantizeLinear")
def _dequantize_linear(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    _refuse_blocks(attributes)
    scales = scales_of(t, node, 1, "scale")
    zeros, kind = zeros_of(t, node, 2, "uint8")
    if kind not in RANGES or scales.dtype != np.float32:
        raise Unsupported("only integers of eight bits, with scales of FP32")
    if scales.size == zeros.size == 1:
        integers = centred(t, node.input[0], int(zeros[0]))
        t.pending[node.output[0]] = Real(integers, scales[0])
        return
    whole = centred(t, node.input[0], 0)

    def run(own: str, part: str, index: int) -> str:
        zero = int(np.broadcast_to(zeros, scales.shape)[index])
        layer = t.add(f"{own}.centred", Affine(1.0, -float(zero)), part) if zero else part
        return t.add(own, Dequantise((float(scales[index]),)), layer)

    name = node_name(node)
    t.give(node, _by_channel(t, name, whole.name, attributes, scales.size, run))


def _refuse_blocks(attributes: dict[str, Any]) -> None:
    if attributes.get("block_size", 0):
        raise Unsupported("only one scale, or one for each index along an axis, not blocks")


def _by_channel(
    t: Translation, name: str, x: str, attributes: dict[str, Any], count: int, run: Any
) -> str:
    """Run each index along an axis by itself."""
    shape = t.builder.tensor(x).shape
    axis = normalise_axis(attributes.get("axis", 1), len(shape))
    if count != shape[axis] or count > MOST_SLICES:
        raise Unsupported(
            f"its {count} scales must be one for each index along axis {axis} of {list(shape)}, "
            f"at most {MOST_SLICES}"
        )
    parts = []
    for index in range(count):
        own = f"{name}.{index}"
        part = t.add(f"{own}.slice", Slice(axis, index, index + 1), x)
        parts.append(run(own, part, index))
    return t.add(name, Concat(axis), *parts)


# ---------------------------------------------------------------------- what works on integers


@attempts("Relu")
def _relu(t: Translation, node: Any) -> bool:
    found = t.pending.get(node.input[0])
    if isinstance(found, Sums | Total) and reads_alone(t, node):
        t.pending[node.output[0]] = replace(found, is_positive=True)
        return True
    return _on_integers(t, node)


@attempts("Flatten", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
def _moved(t: Translation, node: Any) -> bool:
    return _on_integers(t, node)


def _on_integers(t: Translation, node: Any) -> bool:
    """Let an operator that keeps the order of numbers work on the integers of its input."""
    found = t.pending.get(node.input[0])
    integers = found.integers if isinstance(found, Real) else found
    if not isinstance(integers, Integers) or (node.op_type == "Relu" and integers is found):
        return False
    t.stands_for(node.input[0], integers.name, lambda: HANDLERS[node.op_type](t, node))
    low, high = integers.limits
    if node.op_type == "Relu":
        low = max(low, 0)
    moved = replace(integers, name=t.taken(node.output[0]), limits=(low, max(high, low)))
    t.pending[node.output[0]] = replace(found, integers=moved) if isinstance(found, Real) else moved
    return True


@attempts("Add")
def _add(t: Translation, node: Any) -> bool:
    a, b = (t.pending.get(name) for name in node.input)
    if any(_with_bias(t, node, node.input[i], t.value(node, 1 - i)) for i in (0, 1)):
        return True
    if not (isinstance(a, Real) and isinstance(b, Real)):
        return False
    if a.tensor(t).shape != b.tensor(t).shape:
        return False
    t.pending[node.output[0]] = Total((a, b))
    return True


def _with_bias(t: Translation, node: Any, name: str, value: NDArray[Any] | None) -> bool:
    """Let the sum of a product and numbers of its channels be that product with a bias."""
    found = t.pending.get(name)
    if value is None or not isinstance(found, Sums) or found.is_positive or found.rescale.bias:
        return False
    shape = found.tensor(t).shape
    axis = found.rescale.axis
    own = (1,) * (len(shape) - value.ndim) + value.shape
    if len(own) != len(shape) or any(size != 1 for i, size in enumerate(own) if i != axis):
        return False
    if t.sole_reader(name) is None:
        return False
    bias = _bias(np.broadcast_to(value.reshape(-1), (shape[axis],)), found.scales)
    rescale = replace(found.rescale, bias=tuple(int(each) for each in bias))
    t.pending[node.output[0]] = replace(found, rescale=rescale)
    return True


@attempts("AveragePool", "GlobalAveragePool")
def _average(t: Translation, node: Any) -> bool:
    found = t.pending.get(node.input[0])
    if not isinstance(found, Real):
        return False
    shape = found.tensor(t).shape
    if len(shape) != 4:
        return False
    operator: Operator
    if node.op_type == "GlobalAveragePool":
        operator = GlobalPool("average")
        window = WindowSum(shape[2:], (1, 1), ((0, 0), (0, 0)))
    else:
        operator = pool = pooling(t, node)
        counts = pool.count_include_pad or not any(map(any, pool.padding))
        if pool.ceil_mode or set(pool.dilation) != {1} or not counts:
            return False
        window = WindowSum(pool.kernel, pool.stride, pool.padding)
    t.pending[node.output[0]] = Windows(found, window, operator)
    return True
