"""Translation of QONNX's Quant, which quantises numbers and dequantises them again.

Source: A. Pappalardo et al., "QONNX: Representing Arbitrary-Precision Quantized Neural Networks",
arXiv 2206.07527, 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.onnx.onnx_integer_operands import (
    Weights,
    along,
    quantised_input,
    scales_of,
)
from fpgapipe.network.frontends.onnx.onnx_integer_values import RANGES, Real
from fpgapipe.network.frontends.onnx.onnx_translation import Translation, handles, node_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_ZERO = 255
"""Largest magnitude of a zero point of eight bits."""


@handles("Quant", domains=("qonnx.custom_op.general", "finn.custom_op.general", "onnx.brevitas"))
def _quant(t: Translation, node: Any) -> None:
    """QONNX's Quant: quantises and dequantises again."""
    attributes = t.attributes(node)
    scales = scales_of(t, node, 1, "scale").astype(np.float32)
    zeros = np.asarray(t.weight(node, 2, "zero point")).reshape(-1)
    bits = t.number(node, 3, "bit width")
    if bits != 8:
        raise Unsupported(
            f"Quant must have 8 bits, not {bits:g}; other widths need a core with such operands"
        )
    rounding = attributes.get("rounding_mode", b"ROUND").decode()
    if rounding != "ROUND":
        raise Unsupported(f"Quant must have rounding_mode ROUND, not {rounding}")
    if not (np.abs(zeros) <= MOST_ZERO).all() or (zeros != np.rint(zeros)).any():
        raise Unsupported(
            f"Quant must have whole numbers in {-MOST_ZERO}..{MOST_ZERO} as zero points, not "
            f"{zeros[:4].tolist()}"
        )
    is_signed = bool(attributes.get("signed", 1))
    low, high = RANGES["int8" if is_signed else "uint8"]
    if attributes.get("narrow", 0):
        low, high = (low + 1, high) if is_signed else (low, high - 1)
    value = t.value(node, 0)
    if value is not None:
        t.constants.put(node.output[0], _quantised_weight(t, node, value, scales, zeros, low, high))
        return
    if scales.size != 1 or zeros.size != 1:
        raise Unsupported("Quant of activations must have one scale and one zero point")
    zero = int(zeros[0])
    if zero % 2:
        raise Unsupported(
            f"Quant of activations must have an even zero point, not {zero}: QONNX adds it before "
            "ties are rounded to even"
        )
    found = quantised_input(t, node, node_name(node), scales[0], (low - zero, high - zero))
    t.pending[node.output[0]] = Real(found, scales[0])


def _quantised_weight(
    t: Translation,
    node: Any,
    value: NDArray[Any],
    scales: NDArray[np.float32],
    zeros: NDArray[Any],
    low: int,
    high: int,
) -> NDArray[np.float32]:
    """Quantise a constant; the integers are kept beside the real numbers."""
    given = np.asarray(t.weight(node, 1, "scale"))
    axes = [axis for axis, size in enumerate(given.shape) if size > 1]
    axis = axes[0] + value.ndim - given.ndim if axes else 0
    rank = value.ndim
    q = value.astype(np.float32) / along(scales, axis, rank) + along(zeros, axis, rank)
    integers = np.rint(np.clip(q, low, high)).astype(np.int64) - along(zeros, axis, rank).astype(
        np.int64
    )
    name = node.output[0]
    t.quantised_weights[name] = Weights(name, integers, scales, axis)
    return np.asarray(integers * along(scales, axis, rank), np.float32)
