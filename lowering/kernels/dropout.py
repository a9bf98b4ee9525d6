"""Dropout: elements are kept by chance; the factors of many elements can be drawn together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    Choice,
    Constant,
    Factor,
    Random,
)
from fpgapipe.hw.hls_models.numerics.threefry import lane_bits
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel

_NONE = Constant(0.0)


@dataclass(frozen=True)
class Draw:
    """Random numbers that drop elements.

    Attributes
    ----------
    rate : float
        Share of dropped elements, rounded to a multiple of 1/65,536.
    stream : int
        Number of the sequence of random numbers; each layer has its own.
    key : int
        Number of the first of the two scalar registers that hold seed and step.
    first : int
        Number of vectors of 16 random numbers to skip at the beginning of the sequence.
    """

    rate: float
    stream: int
    key: int
    first: int = 0

    @property
    def factor(self) -> float:
        """Factor of the elements that are kept."""
        return (1 << 16) / kept_of(self.rate)

    def settings(self, vector: int = 0) -> dict[str, Any]:
        """Settings of an instruction that keeps its result or gives 0, from a vector on."""
        first = (self.stream << 36) + self.first + vector
        return {
            "test": Random(kept_of(self.rate), first, self.key),
            "then": Choice.S,
            "otherwise": Choice.ZERO,
        }


def drop(
    name: str,
    x: Tensor,
    y: Tensor,
    region: Region,
    draw: Draw,
) -> VectorKernel:
    """Apply dropout: keep an element with probability ``1 - rate``, and divide it by that.

    The gradient is the same operation on `dy`.
    """
    settings = {
        "factor": Factor.CONSTANT,
        "constants": (_NONE, Constant(draw.factor)),
        **draw.settings(),
    }
    return flat_kernel(name, {"x": x}, {"y": y}, [FlatStep("x", "y", None, settings)], region)


def draw_factors(
    name: str,
    x: Tensor,
    factors: Tensor,
    region: Region,
    draw: Draw,
) -> VectorKernel:
    """Draw factors as those by which `drop` multiplies.

    Parameters
    ----------
    name : str
    x : Tensor
        Any tensor of as many elements or more: the vector engine reads while it draws.
    factors : Tensor
        FP32.
    region : Region
    draw : Draw
    """
    settings = {
        **draw.settings(),
        "constants": (_NONE, _NONE, _NONE, Constant(draw.factor)),
        "then": Choice.CONSTANT,
    }
    read = replace(x, shape=factors.shape)
    step = FlatStep("x", "factors", None, settings)
    return flat_kernel(name, {"x": read}, {"factors": factors}, [step], region)


def drop_factors(
    elements: int, rate: float, stream: int, key: Sequence[int], *, first: int = 0
) -> NDArray[np.float32]:
    """Compute the factor by which `drop` multiplies each element.

    Parameters
    ----------
    elements : int
    rate, stream, first
        See `Draw`.
    key : sequence of int
        Contents of the two scalar registers.
    """
    kept = kept_of(rate)
    bits = lane_bits((key[0], key[1]), (stream << 36) + first, -(-elements // LANES)).reshape(-1)
    factors = np.where(bits[:elements] < kept, np.float32((1 << 16) / kept), np.float32(0))
    return factors.astype(np.float32)


def kept_of(rate: float) -> int:
    """Number of elements, out of 65,536, that are kept.

    Raises
    ------
    ValueError
        If none or all of them are kept.
    """
    kept = round((1 - rate) * (1 << 16))
    if not 0 < kept < 1 << 16:
        raise ValueError(f"dropout rate must be above 0 and below 1, not {rate}")
    return kept
