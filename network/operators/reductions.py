"""Operators that reduce: pooling, normalisation, softmax, loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fpgapipe.network.operators.base import (
    Operator,
    ParameterSpec,
    require_float,
    require_positive,
    require_rank,
)
from fpgapipe.network.operators.tensors import ShapeError, Tensor, normalise_axis
from fpgapipe.network.operators.windows import Padding, window_counts

REDUCTIONS = ("mean", "sum", "max", "min")


@dataclass(frozen=True)
class Pool(Operator):
    """Maximum or average over sliding windows.

    Parameters
    ----------
    function : str
        ``max`` or ``average``.
    kernel, stride, dilation : tuple of int
        One number for each spatial axis.
    padding : tuple of (int, int)
        Numbers of elements before and after the data, for each spatial axis; less than the window.
    ceil_mode : bool
        Whether a last, partly filled window counts.
    count_include_pad : bool
        Whether padding counts in the number of elements by which an average divides.
    """

    function: str
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]
    ceil_mode: bool = False
    count_include_pad: bool = True

    @property
    def kind(self) -> str:  # type: ignore[override]
        """``max_pool`` or ``average_pool``."""
        return f"{self.function}_pool"

    def __post_init__(self) -> None:
        if self.function not in ("max", "average"):
            raise ShapeError(f"pool function must be max or average, not {self.function!r}")
        require_positive(self.kind, kernel=self.kernel, stride=self.stride, dilation=self.dilation)
        if {len(self.stride), len(self.padding), len(self.dilation)} != {len(self.kernel)}:
            raise ShapeError(
                f"{self.kind} kernel, stride, padding and dilation must have one entry an axis"
            )
        for pair, k, d in zip(self.padding, self.kernel, self.dilation, strict=True):
            if any(not 0 <= side < d * (k - 1) + 1 for side in pair):
                raise ShapeError(
                    f"{self.kind} padding must be at least 0 and below the window, "
                    f"not {self.padding}"
                )

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """``N, C, spatial...`` to ``N, C, windows...``."""
        (x,) = inputs
        rank = len(self.kernel) + 2
        require_rank(self.kind, x, rank, rank)
        windows = window_counts(
            self.kind,
            x.shape[2:],
            self.kernel,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
        )
        return x.with_shape((*x.shape[:2], *windows))


@dataclass(frozen=True)
class GlobalPool(Operator):
    """Maximum or average over all spatial axes, which remain with size 1."""

    function: str

    @property
    def kind(self) -> str:  # type: ignore[override]
        """``global_max_pool`` or ``global_average_pool``."""
        return f"global_{self.function}_pool"

    def __post_init__(self) -> None:
        if self.function not in ("max", "average"):
            raise ShapeError(f"pool function must be max or average, not {self.function!r}")

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """``N, C, spatial...`` to ``N, C, 1...``."""
        (x,) = inputs
        require_rank(self.kind, x, 3)
        return x.with_shape((*x.shape[:2], *(1 for _ in x.shape[2:])))


@dataclass(frozen=True)
class Reduce(Operator):
    """Mean, sum, maximum or minimum over some axes."""

    function: str
    axes: tuple[int, ...]
    keep_axes: bool = False

    @property
    def kind(self) -> str:  # type: ignore[override]
        """``reduce_`` and the function."""
        return f"reduce_{self.function}"

    def __post_init__(self) -> None:
        if self.function not in REDUCTIONS:
            raise ShapeError(
                f"reduction must be one of {', '.join(REDUCTIONS)}, not {self.function!r}"
            )

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape without the reduced axes, or with size 1 for each of them."""
        (x,) = inputs
        axes = {normalise_axis(axis, len(x.shape)) for axis in self.axes}
        if self.keep_axes:
            return x.with_shape([1 if i in axes else size for i, size in enumerate(x.shape)])
        return x.with_shape([size for i, size in enumerate(x.shape) if i not in axes])


@dataclass(frozen=True)
class BatchNorm(Operator):
    """Normalisation of each channel over batch and positions, with a learned scale and shift.

    Parameters
    ----------
    epsilon : float
        Number added to the variance.
    momentum : float
        Share of the present batch in the running statistics, as in PyTorch; ONNX has 1 minus this
        number.
    affine : bool
        Whether scale and shift are learned.
    """

    kind: ClassVar[str] = "batch_norm"
    averages: ClassVar[tuple[str, ...]] = ("running_mean", "running_var")

    epsilon: float = 1e-5
    momentum: float = 0.1
    affine: bool = True

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        require_rank("batch_norm", inputs[0], 2)
        require_float("batch_norm", inputs[0])
        return inputs[0]

    def parameters(self, inputs: Sequence[Tensor]) -> tuple[ParameterSpec, ...]:
        """Scale and shift, which are learned, and running mean and variance, which are not."""
        channels = (inputs[0].shape[1],)
        learned = (ParameterSpec("weight", channels), ParameterSpec("bias", channels))
        return (
            *(learned if self.affine else ()),
            *(ParameterSpec(role, channels, trainable=False) for role in self.averages),
        )


@dataclass(frozen=True)
class LayerNorm(Operator):
    """Normalisation over the last `num_axes` axes, then a learned scale and shift.

    If it is not `centred`, no mean is subtracted: elements are divided by the root of the mean of
    their squares (RMS normalisation).
    """

    kind: ClassVar[str] = "layer_norm"

    num_axes: int = 1
    epsilon: float = 1e-5
    affine: bool = True
    bias: bool = True
    centred: bool = True

    def __post_init__(self) -> None:
        require_positive("layer_norm", num_axes=self.num_axes)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        require_rank("layer_norm", inputs[0], self.num_axes)
        require_float("layer_norm", inputs[0])
        return inputs[0]

    def parameters(self, inputs: Sequence[Tensor]) -> tuple[ParameterSpec, ...]:
        """Scale and shift of the normalised axes' shape."""
        shape = inputs[0].shape[-self.num_axes :]
        roles = ("weight", "bias")[: (2 if self.bias else 1) if self.affine else 0]
        return tuple(ParameterSpec(role, shape) for role in roles)


@dataclass(frozen=True)
class LocalResponseNorm(Operator):
    """AlexNet's normalisation over `size` neighbouring channels.

    If the size is even, the extra channel lies before the own one, as in PyTorch, or after it
    (`upper`), as in ONNX.
    """

    kind: ClassVar[str] = "local_response_norm"

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    upper: bool = False

    def __post_init__(self) -> None:
        require_positive("local_response_norm", size=self.size)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        require_rank("local_response_norm", inputs[0], 3)
        return inputs[0]


@dataclass(frozen=True)
class Softmax(Operator):
    """Softmax, or its logarithm, along one axis.

    Parameters
    ----------
    axis : int
        Axis along which the results add up to 1.
    log : bool
        Whether the result is the logarithm of the softmax.
    causal : bool
        Whether row `i` of the last two axes sees only columns ``0..i`` (a decoder's
        self-attention).
    empty : bool
        Whether rows of -infinity only give zeros; else they give NaN.
    """

    axis: int = -1
    log: bool = False
    causal: bool = False
    empty: bool = False

    @property
    def kind(self) -> str:  # type: ignore[override]
        """``softmax`` or ``log_softmax``."""
        return "log_softmax" if self.log else "softmax"

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        require_float(self.kind, inputs[0])
        normalise_axis(self.axis, len(inputs[0].shape))
        return inputs[0]


@dataclass(frozen=True)
class CrossEntropy(Operator):
    """Softmax and negative log-likelihood of integer labels, averaged over the batch.

    Inputs are logits (``N, classes, ...``) and labels (``N, ...``).
    """

    kind: ClassVar[str] = "cross_entropy"
    arity: ClassVar[tuple[int, int | None]] = (2, 2)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """A scalar."""
        logits, labels = inputs
        require_rank("cross_entropy", logits, 2)
        require_float("cross_entropy", logits)
        if labels.dtype.is_float or labels.shape != (logits.shape[0], *logits.shape[2:]):
            raise ShapeError(
                f"cross_entropy labels must be integers of shape "
                f"{[logits.shape[0], *logits.shape[2:]]}, not {labels.dtype} {list(labels.shape)}"
            )
        return logits.with_shape(())

    def is_differentiable(self, index: int) -> bool:
        """Gradients flow to the logits, but not to the labels."""
        return index == 0
