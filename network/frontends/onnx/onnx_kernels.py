"""Kernels that ONNX's reference evaluator lacks, or computes otherwise than the operator's text.

The evaluator has the newest versions of the operators, some of the older ones, and faults. With the
kernels here it runs models of every opset that is read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx.defs import get_schema, onnx_opset_version
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_batch_normalization, op_dequantize_linear

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.floating[Any]]


class LRN(OpRun):  # type: ignore[misc]
    """Normalisation over neighbouring channels; an even size has one more channel after the own.

    The evaluator's kernel computes only as many channels as there are samples.
    """

    op_schema = get_schema("LRN")

    def _run(self, x: Array, *, alpha: float, beta: float, bias: float, size: int) -> tuple[Array]:
        before, after = (size - 1) // 2, size // 2
        squares = np.square(x)
        sums = [
            squares[:, max(channel - before, 0) : channel + after + 1].sum(axis=1)
            for channel in range(x.shape[1])
        ]
        return ((x / (bias + alpha / size * np.stack(sums, 1)) ** beta).astype(x.dtype),)


class DequantizeLinear(op_dequantize_linear.DequantizeLinear_19):  # type: ignore[misc]
    """Versions 10 and 13; version 19 only has more types."""

    op_schema = get_schema("DequantizeLinear", 13)


class BatchNormalization(op_batch_normalization.BatchNormalization_14):  # type: ignore[misc]
    """Versions 7 and 9 in evaluation; the evaluator's own kernels mix in the batch's statistics."""

    op_schema = get_schema("BatchNormalization", 13)

    def _run(self, *tensors: Array, epsilon: float, **_: Any) -> tuple[Array, ...]:
        found: tuple[Array, ...] = super()._run(*tensors, epsilon=epsilon, training_mode=0)
        return found


class LogSoftmax(OpRun):  # type: ignore[misc]
    """Versions 1 and 11, which run over all axes from `axis` on together."""

    op_schema = get_schema("LogSoftmax", 11)

    def _run(self, x: Array, *, axis: int) -> tuple[Array]:
        rows = x.reshape(math.prod(x.shape[:axis]), -1)
        rows = rows - rows.max(axis=1, keepdims=True)
        return ((rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))).reshape(x.shape),)


class Softmax(LogSoftmax):
    """Versions 1 and 11."""

    op_schema = get_schema("Softmax", 11)

    def _run(self, x: Array, *, axis: int) -> tuple[Array]:
        return (np.exp(super()._run(x, axis=axis)[0]),)


_KERNELS: tuple[tuple[float, Any], ...] = (
    (math.inf, LRN),
    (19, DequantizeLinear),
    (14, BatchNormalization),
    (13, LogSoftmax),
    (13, Softmax),
)
"""Kernels, each with the first opset that does without it."""


def opset_of(model: Any) -> int:
    """The version of ONNX's own operators that a model uses; the newest if it does not say."""
    own = (each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    return int(next(own, onnx_opset_version()))


def session(model: Any) -> Any:
    """Make a reference evaluator (`onnx.reference.ReferenceEvaluator`) for a model."""
    opset = opset_of(model)
    return ReferenceEvaluator(model, new_ops=[kernel for end, kernel in _KERNELS if opset < end])
