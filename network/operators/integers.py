"""Operators of INT8 inference with static scales; values between them are centred integers.

A centred integer is ``q - zero``, the integer of eight bits less its zero point. Graphs hold it as
a number of floating point, which is exact. Convolutions and linear layers between these operators
are the plain ones, with integers as weights; a `Rescale` follows each and says what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fpgapipe.network.operators.base import Operator, require_float, require_positive, require_rank
from fpgapipe.network.operators.tensors import DType, ShapeError, Tensor, normalise_axis
from fpgapipe.network.operators.windows import Padding, window_counts

Range = tuple[int, int]
"""Least and greatest integer of a tensor."""

RoundingName = Literal["even", "up", "double"]
"""Roundings; see `fpgapipe.hw.hls_models.numerics.int8.Rounding`."""

MAX_CENTRED = 255
"""Largest magnitude of a centred integer of eight bits."""


def exact_factor(factor: float) -> tuple[int, int]:
    """Multiplier and shift of a positive number, exactly: ``multiplier * 2**-shift``."""
    numerator, denominator = factor.as_integer_ratio()
    twos = (numerator & -numerator).bit_length() - 1
    return numerator >> twos, denominator.bit_length() - 1 - twos


def require_range(kind: str, name: str, given: Range) -> None:
    """Raise `ShapeError` for a range that centred integers of eight bits cannot have."""
    low, high = given
    if not -MAX_CENTRED <= low <= high <= MAX_CENTRED:
        raise ShapeError(
            f"{kind} {name} must be within {-MAX_CENTRED}..{MAX_CENTRED} (integers of eight bits "
            f"less their zero point), not {low}..{high}"
        )


def require_scale(kind: str, scale: float) -> None:
    """Raise `ShapeError` for a scale that is not positive and finite."""
    if not 0 < scale < float("inf"):
        raise ShapeError(f"{kind} scale must be positive and finite, not {scale}")


@dataclass(frozen=True)
class Centre(Operator):
    """Integers of eight bits to centred integers: ``q - zero``.

    Parameters
    ----------
    zero : int
    """

    kind: ClassVar[str] = "centre"
    reads_integers: ClassVar[bool] = True

    zero: int

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape, as floating-point numbers."""
        if inputs[0].dtype not in (DType.INT8, DType.UINT8):
            raise ShapeError(f"centre needs integers of eight bits, not {inputs[0].dtype}")
        return Tensor(inputs[0].shape)


@dataclass(frozen=True)
class Quantise(Operator):
    """Real numbers to centred integers: ``x / scale``, rounded to even, then saturated.

    Parameters
    ----------
    scale : float
        An FP32 number.
    range : (int, int)
        Least and greatest centred integer.
    """

    kind: ClassVar[str] = "quantise"
    reads_exactly: ClassVar[bool] = True

    scale: float
    range: Range

    def __post_init__(self) -> None:
        require_scale(self.kind, self.scale)
        require_range(self.kind, "range", self.range)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        require_float(self.kind, inputs[0])
        return inputs[0]


@dataclass(frozen=True)
class Dequantise(Operator):
    """Centred integers, or sums of their products, to real numbers: ``scale * x``.

    Parameters
    ----------
    scales : tuple of float
        One FP32 number, or one for each channel.
    axis : int
        Axis of the channels.
    """

    kind: ClassVar[str] = "dequantise"

    scales: tuple[float, ...]
    axis: int = 1

    def __post_init__(self) -> None:
        for scale in self.scales:
            require_scale(self.kind, scale)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        require_float(self.kind, inputs[0])
        if len(self.scales) != 1:
            _require_channels(self.kind, "scales", len(self.scales), self.axis, inputs[0])
        return inputs[0]


@dataclass(frozen=True)
class Rescale(Operator):
    """Sums of products of centred integers to centred integers, in exact arithmetic.

    The bias is added, the sum is multiplied by ``multiplier * 2**-shift``, rounded and saturated.
    Without multipliers the sum is the result.

    Parameters
    ----------
    inputs, weights : (int, int)
        Least and greatest of the integers that are multiplied.
    reach : int
        Largest sum of the magnitudes of the weights of a result: times the largest input, it bounds
        every sum.
    terms : int
        Number of products in a sum.
    range : (int, int)
        Least and greatest result.
    bias : tuple of int
        One number for each channel, one for all channels, or none.
    multipliers, shifts : tuple of int
        One pair for each channel, one for all channels, or none.
    rounding : str
        As `Rounding` names it.
    zero : int
        Zero point that is added before ties are rounded to even; 0 if it is added afterwards.
    axis : int
        Axis of the channels.
    """

    kind: ClassVar[str] = "rescale"

    inputs: Range
    weights: Range
    reach: int
    terms: int
    range: Range
    bias: tuple[int, ...] = ()
    multipliers: tuple[int, ...] = ()
    shifts: tuple[int, ...] = ()
    rounding: RoundingName = "even"
    zero: int = 0
    axis: int = 1

    def __post_init__(self) -> None:
        require_range(self.kind, "inputs", self.inputs)
        require_range(self.kind, "weights", self.weights)
        if self.multipliers:
            require_range(self.kind, "range", self.range)
        if len(self.multipliers) != len(self.shifts):
            raise ShapeError(
                f"rescale needs a shift for each multiplier, not {len(self.shifts)} for "
                f"{len(self.multipliers)}"
            )
        if any(each < 1 for each in self.multipliers):
            raise ShapeError("rescale multipliers must be positive")

    @property
    def bound(self) -> int:
        """A bound for the magnitude of every sum, with its bias."""
        largest = max(abs(each) for each in self.inputs)
        return largest * self.reach + max((abs(each) for each in self.bias), default=0)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        require_float(self.kind, inputs[0])
        for name, count in (("bias", len(self.bias)), ("multipliers", len(self.multipliers))):
            if count > 1:
                _require_channels(self.kind, name, count, self.axis, inputs[0])
        return inputs[0]


@dataclass(frozen=True)
class IntegerAdd(Operator):
    """The sum of two tensors of centred integers: each dequantised, added in FP32, quantised.

    Parameters
    ----------
    scales : (float, float)
        FP32 scales of the summands.
    scale : float
        FP32 scale of the result.
    range : (int, int)
        Least and greatest centred integer of the result.
    """

    kind: ClassVar[str] = "integer_add"
    arity: ClassVar[tuple[int, int | None]] = (2, 2)

    scales: tuple[float, float]
    scale: float
    range: Range

    def __post_init__(self) -> None:
        for scale in (*self.scales, self.scale):
            require_scale(self.kind, scale)
        require_range(self.kind, "range", self.range)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The shape of both inputs, which must be the same."""
        if inputs[0].shape != inputs[1].shape:
            raise ShapeError(
                f"integer_add needs two tensors of one shape, not {list(inputs[0].shape)} and "
                f"{list(inputs[1].shape)}"
            )
        return inputs[0]


@dataclass(frozen=True)
class WindowSum(Operator):
    """Sums over the windows of an average pooling; a `Rescale` that follows divides them.

    Parameters
    ----------
    kernel, stride : tuple of int
        One number for each of two spatial axes.
    padding : tuple of (int, int)
        Numbers of zeros before and after the data, for each spatial axis.
    """

    kind: ClassVar[str] = "window_sum"

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Padding

    def __post_init__(self) -> None:
        require_positive(self.kind, kernel=self.kernel, stride=self.stride)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """Samples and channels, and the number of windows along each axis."""
        require_float(self.kind, inputs[0])
        require_rank(self.kind, inputs[0], 2 + len(self.kernel), 2 + len(self.kernel))
        samples, channels, *sizes = inputs[0].shape
        ones = (1,) * len(self.kernel)
        counts = window_counts(self.kind, sizes, self.kernel, self.stride, self.padding, ones)
        return inputs[0].with_shape((samples, channels, *counts))


def _require_channels(kind: str, name: str, count: int, axis: int, tensor: Tensor) -> None:
    """Raise `ShapeError` unless there is one number for each index along an axis."""
    channels = tensor.shape[normalise_axis(axis, len(tensor.shape))]
    if count != channels:
        raise ShapeError(f"{kind} {name} must be 1 or {channels} (channels), not {count}")
