"""Element-wise operators and sources of constants."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fpgapipe.network.operators.base import (
    Operator,
    ParameterSpec,
    require_float,
)
from fpgapipe.network.operators.tensors import DType, ShapeError, Tensor, broadcast, normalise_axis

ACTIVATIONS = (
    "relu",
    "relu6",
    "leaky_relu",
    "prelu",
    "elu",
    "hardsigmoid",
    "hardswish",
    "sigmoid",
    "tanh",
    "gelu",
    "gelu_tanh",
    "silu",
    "softplus",
    "mish",
)
"""Activation functions, which have one argument."""

BINARIES = ("add", "sub", "mul", "div", "pow", "max", "min")
"""Element-wise functions of two arguments."""

UNARIES = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "erf")
"""Further element-wise functions of one argument. Exporters decompose other functions into them."""


class Elementwise(Operator):
    """An operator whose result has the broadcast shape of its inputs."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The name of the function."""
        return self.function

    function: str

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The broadcast shape, in the type of the first floating-point input."""
        dtype = next((x.dtype for x in inputs if x.dtype.is_float), inputs[0].dtype)
        return Tensor(broadcast([x.shape for x in inputs]), dtype)


@dataclass(frozen=True)
class Activation(Elementwise):
    """An activation function.

    Parameters
    ----------
    function : str
        One of `ACTIVATIONS`.
    alpha : float
        Slope of leaky_relu below zero, or scale of elu; other functions ignore it.
    one_slope : bool
        Whether prelu learns one slope for all channels.
    """

    function: str
    alpha: float = 0.01
    one_slope: bool = False

    def __post_init__(self) -> None:
        if self.function not in ACTIVATIONS:
            raise ShapeError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, not {self.function!r}"
            )

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        require_float(self.function, inputs[0])
        return inputs[0]

    def parameters(self, inputs: Sequence[Tensor]) -> tuple[ParameterSpec, ...]:
        """Prelu learns one slope for each channel, or one for all."""
        if self.function != "prelu":
            return ()
        apart = len(inputs[0].shape) > 1 and not self.one_slope
        channels = inputs[0].shape[1] if apart else 1
        return (ParameterSpec("weight", (channels,)),)


@dataclass(frozen=True)
class Unary(Elementwise):
    """An element-wise function of one argument that is no activation function."""

    function: str

    def __post_init__(self) -> None:
        if self.function not in UNARIES:
            raise ShapeError(f"function must be one of {', '.join(UNARIES)}, not {self.function!r}")


@dataclass(frozen=True)
class Binary(Elementwise):
    """An element-wise function of two tensors, with broadcasting."""

    arity: ClassVar[tuple[int, int | None]] = (2, 2)

    function: str

    def __post_init__(self) -> None:
        if self.function not in BINARIES:
            raise ShapeError(
                f"function must be one of {', '.join(BINARIES)}, not {self.function!r}"
            )


@dataclass(frozen=True)
class Affine(Operator):
    """``scale * x + offset`` with two fixed numbers."""

    kind: ClassVar[str] = "affine"

    scale: float = 1.0
    offset: float = 0.0

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        return inputs[0]


@dataclass(frozen=True)
class Clamp(Operator):
    """The nearest number that is within bounds, which are fixed.

    Parameters
    ----------
    low, high : float or None
        The bounds; None for none.
    strict : bool
        Whether an element that equals a bound has the gradient 0, as in PyTorch's hardtanh. It has
        that of an element inside otherwise.
    """

    kind: ClassVar[str] = "clamp"

    low: float | None = None
    high: float | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if not low <= high:
            raise ShapeError(f"clamp must have a low bound of at most {high}, not {low}")

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        require_float(self.kind, inputs[0])
        return inputs[0]


@dataclass(frozen=True)
class Power(Operator):
    """``x ** exponent`` with a fixed exponent."""

    kind: ClassVar[str] = "power"

    exponent: float

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        require_float(self.kind, inputs[0])
        return inputs[0]


@dataclass(frozen=True)
class Dropout(Operator):
    """Dropout: zeros a share of the elements in training and scales the rest.

    In inference it is the identity.

    Parameters
    ----------
    rate : float
        Share of the elements that are zeroed.
    together : tuple of int
        Axes along which elements are dropped together: all but the first for stochastic depth of
        samples, all after the channels for dropout of channels.
    """

    kind: ClassVar[str] = "dropout"

    rate: float = 0.5
    together: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ShapeError(f"dropout rate must be at least 0 and below 1, not {self.rate}")

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        for axis in self.together:
            normalise_axis(axis, len(inputs[0].shape))
        return inputs[0]


@dataclass(frozen=True)
class Constant(Operator):
    """A tensor that does not depend on the inputs: a learned parameter or a fixed value."""

    kind: ClassVar[str] = "constant"
    arity: ClassVar[tuple[int, int | None]] = (0, 0)

    shape: tuple[int, ...]
    dtype: DType = DType.FLOAT32
    trainable: bool = False

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The tensor itself."""
        return Tensor(self.shape, self.dtype)

    def parameters(self, inputs: Sequence[Tensor]) -> tuple[ParameterSpec, ...]:
        """The tensor, as a parameter or as a fixed value."""
        return (ParameterSpec("value", self.shape, self.trainable, self.dtype),)
