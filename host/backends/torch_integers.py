"""INT8 operators in PyTorch: what is exact in integers is computed in integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.hw.hls_models.numerics.int8 import Rounding, Scale, rescaled
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def _quantised(x: torch.Tensor, scale: float, limits: tuple[int, int]) -> torch.Tensor:
    """ONNX's QuantizeLinear, whose quotient has FP32, less the zero point."""
    import torch

    return torch.round(x.float() / scale).clamp(*limits).to(x.dtype)


def _quantise(o: ops.Quantise, own: Any, args: list[torch.Tensor], training: bool) -> Any:
    return _quantised(args[0], o.scale, o.range)


def _dequantise(o: ops.Dequantise, own: Any, args: list[torch.Tensor], training: bool) -> Any:
    (x,) = args
    return x * x.new_tensor(o.scales).reshape(_along(o.axis, x, len(o.scales)))


def _integer_add(o: ops.IntegerAdd, own: Any, args: list[torch.Tensor], training: bool) -> Any:
    a, b = (x.float() * scale for x, scale in zip(args, o.scales, strict=True))
    return _quantised(a + b, o.scale, o.range).to(args[0].dtype)


def _rescale(o: ops.Rescale, own: Any, args: list[torch.Tensor], training: bool) -> Any:
    import torch

    (x,) = args
    totals = x.round()
    if o.bias:
        totals = totals + x.new_tensor(o.bias).reshape(_along(o.axis, x, len(o.bias)))
    if not o.multipliers:
        return totals
    numbers = np.moveaxis(totals.cpu().numpy().astype(np.int64), o.axis, 0)
    found = np.empty_like(numbers)
    scales = [Scale(*each) for each in zip(o.multipliers, o.shifts, strict=True)]
    rounding = Rounding(o.rounding)
    if len(scales) == 1:
        found[...] = rescaled(numbers, scales[0], rounding, *o.range, o.zero)
    else:
        for channel, scale in enumerate(scales):
            found[channel] = rescaled(numbers[channel], scale, rounding, *o.range, o.zero)
    whole = torch.from_numpy(np.ascontiguousarray(np.moveaxis(found, 0, o.axis)))
    return whole.to(x)


def _along(axis: int, x: torch.Tensor, count: int) -> list[int]:
    """Shape in which numbers of the channels are broadcast."""
    shape = [1] * x.ndim
    shape[axis] = count
    return shape


def _window_sum(o: ops.WindowSum, own: Any, args: list[torch.Tensor], training: bool) -> Any:
    from torch.nn import functional

    sides = [side for pair in reversed(o.padding) for side in pair]
    x = functional.pad(args[0], sides)
    average = (functional.avg_pool1d, functional.avg_pool2d)[len(o.kernel) - 1]
    taps = int(np.prod(o.kernel))
    return (average(x.double(), o.kernel, o.stride) * taps).round().to(x.dtype)


INTEGER_RUNS: dict[type[ops.Operator], Callable[..., Any]] = {
    ops.Centre: lambda o, own, args, training: args[0].float() - o.zero,
    ops.Dequantise: _dequantise,
    ops.IntegerAdd: _integer_add,
    ops.Quantise: _quantise,
    ops.Rescale: _rescale,
    ops.WindowSum: _window_sum,
}
"""Functions of the operators, for `torch_reference`."""
