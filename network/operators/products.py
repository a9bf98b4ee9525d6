"""Operators that multiply matrices (convolution, linear, matmul), and the embedding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fpgapipe.network.operators.base import (
    Gemm,
    Operator,
    ParameterSpec,
    require_float,
    require_positive,
    require_rank,
)
from fpgapipe.network.operators.tensors import DType, ShapeError, Tensor, broadcast
from fpgapipe.network.operators.windows import Padding, window_counts


@dataclass(frozen=True)
class Conv(Operator):
    """Convolution over one, two or three spatial axes.

    The weight has the shape ``C_out, C_in / groups, *kernel``.

    Parameters
    ----------
    out_channels : int
        Channels of the output.
    kernel, stride, dilation : tuple of int
        One number for each spatial axis.
    padding : tuple of (int, int)
        Numbers of zeros before and after the data, for each spatial axis.
    groups : int
        Number of groups; it must divide the channels of input and output.
    bias : bool
        Whether the operator has a bias.
    """

    kind: ClassVar[str] = "conv"

    out_channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]
    groups: int = 1
    bias: bool = True

    def __post_init__(self) -> None:
        require_positive(
            "conv",
            out_channels=self.out_channels,
            kernel=self.kernel,
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
        )
        rank = len(self.kernel)
        if not 1 <= rank <= 3:
            raise ShapeError(f"conv has 1..3 spatial axes, not {rank}")
        if {len(self.stride), len(self.padding), len(self.dilation)} != {rank}:
            raise ShapeError(
                "conv kernel, stride, padding and dilation must have one entry an axis"
            )
        if any(side < 0 for pair in self.padding for side in pair):
            raise ShapeError(f"conv padding must not be negative: {self.padding}")
        if self.out_channels % self.groups:
            raise ShapeError(
                f"conv out_channels must be a multiple of groups={self.groups}, "
                f"not {self.out_channels}"
            )

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """``N, C_in, spatial...`` to ``N, C_out, spatial...``."""
        (x,) = inputs
        rank = len(self.kernel) + 2
        require_rank("conv", x, rank, rank)
        require_float("conv", x)
        if x.shape[1] % self.groups:
            raise ShapeError(
                f"conv input channels must be a multiple of groups={self.groups}, not {x.shape[1]}"
            )
        windows = window_counts(
            "conv", x.shape[2:], self.kernel, self.stride, self.padding, self.dilation
        )
        return x.with_shape((x.shape[0], self.out_channels, *windows))

    def parameters(self, inputs: Sequence[Tensor]) -> tuple[ParameterSpec, ...]:
        """Weight and, if asked for, bias."""
        weight = (self.out_channels, inputs[0].shape[1] // self.groups, *self.kernel)
        return _weight_and_bias(weight, self.out_channels if self.bias else None)

    def gemms(self, inputs: Sequence[Tensor], output: Tensor) -> tuple[Gemm, ...]:
        """One product per group; m, k and n are positions, taps times channels, output channels."""
        positions = output.shape[0] * math.prod(output.shape[2:])
        reduction = inputs[0].shape[1] // self.groups * math.prod(self.kernel)
        return (Gemm(positions, reduction, self.out_channels // self.groups, count=self.groups),)


@dataclass(frozen=True)
class ConvTranspose(Operator):
    """Transposed convolution: what the input gradient of a convolution computes.

    Each element of the input adds its products with the weight's taps to the window that it has in
    the output. The weight has the shape ``C_in, C_out / groups, *kernel``.

    Parameters
    ----------
    out_channels : int
        Channels of the output.
    kernel, stride, dilation : tuple of int
        Size of the window, distance between windows in the output, and between their taps; one
        number for each spatial axis.
    padding : tuple of (int, int)
        Numbers of elements that are cut off before and after, for each spatial axis.
    output_padding : tuple of int
        Numbers of elements added at the end of each spatial axis; fewer than the stride.
    groups : int
        Number of groups; it must divide the channels of input and output.
    bias : bool
        Whether the operator has a bias.
    """

    kind: ClassVar[str] = "conv_transpose"

    out_channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Padding
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    bias: bool = True

    def __post_init__(self) -> None:
        require_positive(
            self.kind,
            out_channels=self.out_channels,
            kernel=self.kernel,
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
        )
        each = (self.kernel, self.stride, self.padding, self.output_padding, self.dilation)
        if len({len(numbers) for numbers in each}) != 1 or len(self.kernel) > 3:
            raise ShapeError(
                "conv_transpose kernel, stride, padding, output_padding and dilation must have one "
                "entry for each of 1..3 axes"
            )
        if any(side < 0 for pair in self.padding for side in pair):
            raise ShapeError(f"conv_transpose padding must not be negative: {self.padding}")
        if any(
            not 0 <= more < stride
            for more, stride in zip(self.output_padding, self.stride, strict=True)
        ):
            raise ShapeError(
                f"conv_transpose output_padding must be at least 0 and less than the stride "
                f"{list(self.stride)}, not {list(self.output_padding)}"
            )
        if self.out_channels % self.groups:
            raise ShapeError(
                f"conv_transpose out_channels must be a multiple of groups={self.groups}, not "
                f"{self.out_channels}"
            )

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """``N, C_in, spatial...`` to ``N, C_out, spatial...``."""
        (x,) = inputs
        rank = len(self.kernel) + 2
        require_rank(self.kind, x, rank, rank)
        require_float(self.kind, x)
        if x.shape[1] % self.groups:
            raise ShapeError(
                f"conv_transpose input channels must be a multiple of groups={self.groups}, not "
                f"{x.shape[1]}"
            )
        sizes = tuple(
            (size - 1) * stride + (kernel - 1) * dilation + 1 + more - before - after
            for size, stride, kernel, dilation, more, (before, after) in zip(
                x.shape[2:],
                self.stride,
                self.kernel,
                self.dilation,
                self.output_padding,
                self.padding,
                strict=True,
            )
        )
        if min(sizes) < 1:
            raise ShapeError(f"conv_transpose cuts off all elements: {list(sizes)} are left")
        return x.with_shape((x.shape[0], self.out_channels, *sizes))

    def parameters(self, inputs: Sequence[Tensor]) -> tuple[ParameterSpec, ...]:
        """Weight and, if asked for, bias."""
        weight = (inputs[0].shape[1], self.out_channels // self.groups, *self.kernel)
        return _weight_and_bias(weight, self.out_channels if self.bias else None)

    def gemms(self, inputs: Sequence[Tensor], output: Tensor) -> tuple[Gemm, ...]:
        """One product per group; m, k and n are positions, input channels, taps times outputs."""
        x = inputs[0]
        positions = x.elements // x.shape[1]
        outputs = self.out_channels // self.groups * math.prod(self.kernel)
        return (Gemm(positions, x.shape[1] // self.groups, outputs, count=self.groups),)


@dataclass(frozen=True)
class Linear(Operator):
    """Product of the last axis with a weight of ``out_features, in_features``."""

    kind: ClassVar[str] = "linear"

    out_features: int
    bias: bool = True

    def __post_init__(self) -> None:
        require_positive("linear", out_features=self.out_features)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """``..., in_features`` to ``..., out_features``."""
        (x,) = inputs
        require_rank("linear", x, 1)
        require_float("linear", x)
        return x.with_shape((*x.shape[:-1], self.out_features))

    def parameters(self, inputs: Sequence[Tensor]) -> tuple[ParameterSpec, ...]:
        """Weight and, if asked for, bias."""
        weight = (self.out_features, inputs[0].shape[-1])
        return _weight_and_bias(weight, self.out_features if self.bias else None)

    def gemms(self, inputs: Sequence[Tensor], output: Tensor) -> tuple[Gemm, ...]:
        """One product over all leading axes together."""
        x = inputs[0]
        return (Gemm(math.prod(x.shape[:-1]), x.shape[-1], self.out_features),)


@dataclass(frozen=True)
class MatMul(Operator):
    """Batched product of two activations, by numpy's rules for ``@``."""

    kind: ClassVar[str] = "matmul"
    arity: ClassVar[tuple[int, int | None]] = (2, 2)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """``..., m, k`` times ``..., k, n``; a vector's missing axis is not in the result."""
        a, b = inputs
        require_rank("matmul", a, 1)
        require_rank("matmul", b, 1)
        left = a.shape if len(a.shape) > 1 else (1, *a.shape)
        right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
        if left[-1] != right[-2]:
            raise ShapeError(
                f"matmul of {list(a.shape)} and {list(b.shape)} has unequal inner sizes"
            )
        shape = broadcast([left[:-2], right[:-2]])
        rows = (left[-2],) if len(a.shape) > 1 else ()
        columns = (right[-1],) if len(b.shape) > 1 else ()
        return a.with_shape((*shape, *rows, *columns))

    def gemms(self, inputs: Sequence[Tensor], output: Tensor) -> tuple[Gemm, ...]:
        """One product for each combination of leading indices."""
        a, b = inputs
        m = a.shape[-2] if len(a.shape) > 1 else 1
        n = b.shape[-1] if len(b.shape) > 1 else 1
        return (Gemm(m, a.shape[-1], n, count=output.elements // (m * n), weights=False),)


@dataclass(frozen=True)
class Embedding(Operator):
    """Rows of a table of shape ``num_embeddings, features``, selected by integer indices.

    Parameters
    ----------
    num_embeddings, features : int
        Rows and columns of the table.
    padding : int or None
        Index of a row that is not learned.
    """

    kind: ClassVar[str] = "embedding"
    reads_integers: ClassVar[bool] = True

    num_embeddings: int
    features: int
    padding: int | None = None

    def __post_init__(self) -> None:
        require_positive("embedding", num_embeddings=self.num_embeddings, features=self.features)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """Indices of shape ``...`` to ``..., features``."""
        (x,) = inputs
        if x.dtype.is_float or x.dtype is DType.BOOL:
            raise ShapeError(f"embedding needs integer indices, not {x.dtype}")
        return Tensor((*x.shape, self.features))

    def parameters(self, inputs: Sequence[Tensor]) -> tuple[ParameterSpec, ...]:
        """The table."""
        return (ParameterSpec("weight", (self.num_embeddings, self.features)),)

    def is_differentiable(self, index: int) -> bool:
        """No gradient flows to indices."""
        return False


def _weight_and_bias(weight: tuple[int, ...], bias: int | None) -> tuple[ParameterSpec, ...]:
    specs = (ParameterSpec("weight", weight),)
    return specs if bias is None else (*specs, ParameterSpec("bias", (bias,)))
