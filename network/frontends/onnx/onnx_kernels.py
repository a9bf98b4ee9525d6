"""Kernels that ONNX's reference evaluator lacks, or computes otherwise than the operator's text.

The evaluator has the newest versions of the operators, some of the older ones, and faults. With the
kernels here it runs models of every opset that is read.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx.defs import get_schema, onnx_opset_version
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_batch_normalization, op_dequantize_linear, op_resize

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


class ConvTranspose(OpRun):  # type: ignore[misc]
    """A transposed convolution: each element of the input adds the weight's taps to the result.

    The evaluator's kernel ignores ``output_shape`` where ``auto_pad`` is not given, and computes
    groups wrongly.
    """

    def _run(
        self,
        x: NDArray[Any],
        weight: NDArray[Any],
        bias: NDArray[Any] | None = None,
        auto_pad: str = "NOTSET",
        dilations: list[int] | None = None,
        group: int = 1,
        kernel_shape: list[int] | None = None,
        output_padding: list[int] | None = None,
        output_shape: list[int] | None = None,
        pads: list[int] | None = None,
        strides: list[int] | None = None,
    ) -> tuple[NDArray[Any]]:
        kernel, sizes = weight.shape[2:], x.shape[2:]
        rank = len(kernel)
        step, apart = strides or [1] * rank, dilations or [1] * rank
        more = output_padding or [0] * rank
        whole = [
            step[i] * (sizes[i] - 1) + more[i] + (kernel[i] - 1) * apart[i] + 1 for i in range(rank)
        ]
        if output_shape is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            output_shape = [sizes[i] * step[i] for i in range(rank)]
        begins = (pads or [0] * rank)[:rank]
        ends = (pads or [0] * 2 * rank)[rank:]
        if output_shape is not None:
            total = [whole[i] - output_shape[i - rank] for i in range(rank)]
            begins = [each // 2 if auto_pad == "SAME_UPPER" else each - each // 2 for each in total]
            ends = [total[i] - begins[i] for i in range(rank)]
        samples, channels = x.shape[:2]
        grouped = x.reshape(samples, group, channels // group, *sizes)
        taps = weight.reshape(group, channels // group, *weight.shape[1:])
        result = np.zeros((samples, group, weight.shape[1], *whole), x.dtype)
        for place in product(*map(range, kernel)):
            at = tuple(
                slice(place[i] * apart[i], place[i] * apart[i] + step[i] * sizes[i], step[i])
                for i in range(rank)
            )
            own: Any = (..., *place)
            tap = taps[own]
            result[(slice(None),) * 3 + at] += np.einsum("ngc...,gco->ngo...", grouped, tap)
        result = result.reshape(samples, -1, *whole)
        cut = tuple(slice(begins[i], whole[i] - ends[i]) for i in range(rank))
        result = result[(slice(None),) * 2 + cut]
        if bias is not None:
            result = result + bias.reshape(-1, *(1,) * rank)
        return (result,)


class Resize(op_resize.Resize):  # type: ignore[misc]
    """Interpolation along axes that may be counted from the last one, which the evaluator lacks."""

    op_schema = get_schema("Resize")

    def _run(
        self, x: NDArray[Any], *more: Any, axes: list[int] | None = None, **settings: Any
    ) -> tuple[NDArray[Any]]:
        own = None if axes is None else [axis % x.ndim for axis in axes]
        found: tuple[NDArray[Any]] = super()._run(x, *more, axes=own, **settings)
        return found


class GroupNormalization(OpRun):  # type: ignore[misc]
    """Group normalisation, with scales and shifts of groups (version 18) or of channels.

    The evaluator has no kernel for the former.
    """

    def _run(
        self,
        x: NDArray[Any],
        scale: NDArray[Any],
        bias: NDArray[Any],
        num_groups: int = 1,
        epsilon: float = 1e-5,
        **_: Any,
    ) -> tuple[NDArray[Any]]:
        samples, channels = x.shape[:2]
        rows = x.reshape(samples, num_groups, -1)
        centred = rows - rows.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
        each = np.stack((scale, bias)).repeat(channels // len(scale), axis=1)
        own_scale, own_bias = each.reshape(2, channels, *(1 for _ in x.shape[2:]))
        return (normal.reshape(x.shape) * own_scale + own_bias,)


_KERNELS: tuple[tuple[float, Any], ...] = (
    (math.inf, LRN),
    (math.inf, ConvTranspose),
    (math.inf, GroupNormalization),
    (math.inf, Resize),
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
