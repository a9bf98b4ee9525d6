"""Tensors of integers of eight bits, and what stands for real numbers, in the ONNX translation.

They are *pending*: their layers are added when it is known what reads them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.onnx.onnx_translation import Translation
from fpgapipe.network.operators import (
    Activation,
    Affine,
    Binary,
    Dequantise,
    IntegerAdd,
    Rescale,
    WindowSum,
)
from fpgapipe.network.operators.integers import exact_factor
from fpgapipe.network.operators.tensors import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.network.operators import Operator

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
"""Integers of the types that are quantised to."""


@dataclass(frozen=True)
class Integers:
    """A tensor of integers of eight bits.

    Attributes
    ----------
    name : str
        Name of the layer that has them less their zero point.
    zero : int
    limits : (int, int)
        Least and greatest integer less the zero point.
    """

    name: str
    zero: int
    limits: tuple[int, int]

    def layer(self, t: Translation, name: str) -> str:
        """Add the zero point."""
        if self.zero == 0:
            return self.name
        return t.add(f"{name}.whole", Affine(1.0, float(self.zero)), self.name)

    def tensor(self, t: Translation) -> Tensor:
        """See `Pending`."""
        return t.builder.tensor(self.name)


@dataclass(frozen=True)
class Real:
    """Real numbers that integers stand for."""

    integers: Integers
    scale: np.float32

    def layer(self, t: Translation, name: str) -> str:
        """Dequantise."""
        return t.add(f"{name}.real", Dequantise((float(self.scale),)), self.integers.name)

    def tensor(self, t: Translation) -> Tensor:
        """See `Pending`."""
        return self.integers.tensor(t)


@dataclass(frozen=True)
class Sums:
    """Real numbers that exact sums of products of integers stand for.

    Attributes
    ----------
    name : str
        Name of the layer of the sums.
    rescale : Rescale
        What is known of them, the bias included, without multipliers.
    scales : float32 array
        Products of the scales of inputs and weights, one or one for each channel.
    is_positive : bool
        Whether negative numbers become zeros (ReLU).
    """

    name: str
    rescale: Rescale
    scales: NDArray[np.float32]
    is_positive: bool = False

    def layer(self, t: Translation, name: str) -> str:
        """Dequantise the sums."""
        sums = t.add(f"{name}.whole", self.rescale, self.name)
        scales = tuple(float(each) for each in self.scales)
        return positive(
            t, name, t.add(f"{name}.real", Dequantise(scales, self.rescale.axis), sums),
            self.is_positive,
        )  # fmt: skip

    def tensor(self, t: Translation) -> Tensor:
        """See `Pending`."""
        return t.builder.tensor(self.name)

    def quantised(
        self, t: Translation, name: str, scale: np.float32, limits: tuple[int, int]
    ) -> str:
        """Rescale the sums."""
        return self.rescaled(t, name, self.scales / scale, limits)

    def rescaled(
        self,
        t: Translation,
        name: str,
        factors: NDArray[np.floating[Any]],
        limits: tuple[int, int],
        zero: int = 0,
    ) -> str:
        """Rescale the sums by factors of their own; see `Rescale`."""
        low, high = limits
        pairs = [exact(float(factor)) for factor in factors]
        operator = replace(
            self.rescale,
            range=(min(max(low, 0), high) if self.is_positive else low, high),
            multipliers=tuple(multiplier for multiplier, _ in pairs),
            shifts=tuple(shift for _, shift in pairs),
            zero=zero,
        )
        return t.add(name, operator, self.name)


@dataclass(frozen=True)
class Total:
    """Real numbers that are the sum of two tensors of integers."""

    summands: tuple[Real, Real]
    is_positive: bool = False

    def layer(self, t: Translation, name: str) -> str:
        """Dequantise both, and add them."""
        a, b = (each.layer(t, f"{name}.{side}") for side, each in enumerate(self.summands))
        return positive(t, name, t.add(f"{name}.sum", Binary("add"), a, b), self.is_positive)

    def tensor(self, t: Translation) -> Tensor:
        """See `Pending`."""
        return self.summands[0].tensor(t)

    def quantised(
        self, t: Translation, name: str, scale: np.float32, limits: tuple[int, int]
    ) -> str:
        """Add and quantise."""
        low, high = limits
        if self.is_positive:
            low = min(max(low, 0), high)
        first, second = (float(each.scale) for each in self.summands)
        operator = IntegerAdd((first, second), float(scale), (low, high))
        return t.add(name, operator, *(each.integers.name for each in self.summands))


@dataclass(frozen=True)
class Windows:
    """Averages over windows of integers."""

    real: Real
    window: WindowSum
    operator: Operator

    def layer(self, t: Translation, name: str) -> str:
        """Average the real numbers."""
        return t.add(f"{name}.average", self.operator, self.real.layer(t, name))

    def tensor(self, t: Translation) -> Tensor:
        """See `Pending`."""
        windows: Operator = self.operator
        return windows.output([self.real.tensor(t)])

    def quantised(
        self, t: Translation, name: str, scale: np.float32, limits: tuple[int, int]
    ) -> str:
        """Add up and rescale."""
        taps = math.prod(self.window.kernel)
        sums = t.add(f"{name}.sums", self.window, self.real.integers.name)
        multiplier, shift = exact(float(np.float32(self.real.scale / (taps * float(scale)))))
        inputs = self.real.integers.limits
        operator = Rescale(inputs, (1, 1), taps, taps, limits, (), (multiplier,), (shift,))
        return t.add(name, operator, sums)


def positive(t: Translation, name: str, layer: str, is_positive: bool) -> str:
    """Add a ReLU, if there is one."""
    return t.add(f"{name}.positive", Activation("relu"), layer) if is_positive else layer


def exact(factor: float) -> tuple[int, int]:
    """Multiplier and shift of a factor; see `exact_factor`."""
    if not 0 < factor < math.inf:
        raise Unsupported(f"its scales give a factor of {factor}, which must be positive")
    return exact_factor(factor)
