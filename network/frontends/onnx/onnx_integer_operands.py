"""Operands of quantised ONNX nodes: scales, zero points, integers, and weights of integers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.onnx.onnx_integer_values import (
    RANGES,
    Integers,
    Real,
    Sums,
    Total,
    Windows,
)
from fpgapipe.network.frontends.onnx.onnx_translation import Translation
from fpgapipe.network.operators import Affine, Centre, Quantise
from fpgapipe.network.operators.tensors import DType, normalise_axis

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_SCALE, MOST_SCALE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""Least and greatest scale."""


def scales_of(t: Translation, node: Any, index: int, what: str) -> NDArray[np.floating[Any]]:
    """A constant scale, or several, each a normal number of FP32, whose reciprocal there is."""
    value = np.asarray(t.weight(node, index, what)).reshape(-1)
    if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
        raise Unsupported(f"its {what} is of {value.dtype}")
    require_scales(what, value)
    return value


def require_scales(what: str, value: NDArray[np.floating[Any]]) -> None:
    """Refuse scales that are no positive normal numbers of FP32; cores take others for 0."""
    exact = value.astype(np.float64)
    wrong = exact[~((exact >= LEAST_SCALE) & (exact <= MOST_SCALE))]
    if wrong.size:
        raise Unsupported(
            f"its {what} must be positive and in {LEAST_SCALE:.8g}..{MOST_SCALE:.8g}, the normal "
            f"numbers of FP32, not {wrong[0]:g}; quantise with another scale"
        )


def scale_of(t: Translation, node: Any, index: int, what: str) -> NDArray[np.floating[Any]]:
    """A constant scale, as an array of one element."""
    value = scales_of(t, node, index, what)
    if value.size != 1:
        raise Unsupported(f"its {what} is no single number but {value.size}")
    return value


def zeros_of(t: Translation, node: Any, index: int, default: str) -> tuple[NDArray[Any], str]:
    """Constant zero points, and their type; 0 of a default type if they are left out."""
    if not t.operand(node, index):
        return np.zeros(1, np.int64), default
    value = np.asarray(t.weight(node, index, "zero point"))
    if value.dtype.name not in (*RANGES, "int32"):
        raise Unsupported(f"only integers of eight bits, not {value.dtype.name}")
    return value.reshape(-1).astype(np.int64), value.dtype.name


def zero_of(t: Translation, node: Any, index: int, default: str) -> tuple[int, str]:
    """A constant zero point that is one number, and its type."""
    value, kind = zeros_of(t, node, index, default)
    if value.size != 1:
        raise Unsupported(f"its zero point is no single number but {value.size}")
    return int(value[0]), kind


def centred(t: Translation, name: str, zero: int) -> Integers:
    """A tensor's integers less a zero point."""
    found = t.pending.get(name)
    if isinstance(found, Integers):
        if found.zero == zero:
            return found
        moved = found.zero - zero
        layer = t.add(f"{name}.moved", Affine(1.0, float(moved)), found.name)
        low, high = found.limits
        return Integers(layer, zero, (low + moved, high + moved))
    tensor = t.tensor(name)
    if tensor.dtype not in (DType.INT8, DType.UINT8) or t.constants.is_constant(name):
        raise Unsupported(f"{name!r} holds no integers of eight bits that the network computes")
    low, high = RANGES[tensor.dtype.value]
    layer = t.add(f"{name}.centred", Centre(zero), t.layer(name))
    return Integers(layer, zero, (low - zero, high - zero))


@dataclass(frozen=True)
class Weights:
    """Integers less their zero points, and their scales along an axis."""

    source: str
    values: NDArray[np.int64]
    scales: NDArray[np.floating[Any]]
    axis: int

    def transposed(self) -> Weights:
        """The matrix with its axes swapped."""
        return replace(self, values=self.values.T, axis=1 - self.axis)

    @property
    def limits(self) -> tuple[int, int]:
        """Least and greatest integer."""
        return min(int(self.values.min()), 0), max(int(self.values.max()), 0)


def weights_of(
    name: str, integers: NDArray[Any], zeros: NDArray[Any], scales: NDArray[Any], axis: int
) -> Weights:
    """Take the zero points away."""
    if integers.dtype.name not in RANGES:
        raise Unsupported(f"weights {name!r} must be integers of eight bits, not {integers.dtype}")
    values = integers.astype(np.int64)
    axis = normalise_axis(axis, max(values.ndim, 1))
    if scales.size > 1 and (values.ndim == 0 or scales.size != values.shape[axis]):
        raise Unsupported(f"weights {name!r} have {scales.size} scales for {values.shape}")
    return Weights(name, values - along(zeros, axis, values.ndim), scales, axis)


def along(numbers: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """Numbers in the shape in which they are broadcast along an axis."""
    shape = [1] * rank
    if numbers.size > 1:
        shape[axis] = numbers.size
    return numbers.reshape(shape)


def dequantised_weights(t: Translation, name: str) -> Weights | None:
    """The integers that a constant of real numbers was made from, if it was."""
    if name in t.quantised_weights:
        return t.quantised_weights[name]  # type: ignore[no-any-return]
    node = t.makers.get(name)
    if node is None:
        return None
    if node.op_type == "Transpose" and list(t.attributes(node).get("perm", (1, 0))) == [1, 0]:
        found = dequantised_weights(t, node.input[0])
        return found.transposed() if found is not None and found.values.ndim == 2 else None
    if node.op_type != "DequantizeLinear" or t.attributes(node).get("block_size", 0):
        return None
    integers = t.value(node, 0)
    if integers is None or integers.dtype.name not in RANGES:
        return None
    zeros, _ = zeros_of(t, node, 2, integers.dtype.name)
    scales = scales_of(t, node, 1, "scale")
    axis = t.attributes(node).get("axis", 1) if scales.size > 1 else 0
    return weights_of(name, integers, zeros, scales, axis)


def reads_alone(t: Translation, node: Any) -> bool:
    """Whether only a node reads its first input."""
    return t.sole_reader(node.input[0]) is node


def quantised_input(
    t: Translation, node: Any, name: str, scale: np.float32, limits: tuple[int, int]
) -> Integers:
    """Quantise a node's input to integers, less their zero point, in a layer of a given name."""
    source = node.input[0]
    found = t.pending.get(source)
    low, high = limits
    if isinstance(found, Real) and found.scale == scale:
        least, greatest = found.integers.limits
        if low <= least and greatest <= high:
            return replace(found.integers, zero=0)
    if isinstance(found, Sums | Total | Windows) and reads_alone(t, node):
        return Integers(found.quantised(t, name, scale, limits), 0, limits)
    layer = t.add(name, Quantise(float(scale), limits), t.layer(source))
    return Integers(layer, 0, limits)
