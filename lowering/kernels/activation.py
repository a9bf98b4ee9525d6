"""Bias, activation, residual sums and dropout, forward and backward."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    Addend,
    Choice,
    Constant,
    Factor,
    Left,
    Outcome,
    Random,
    Right,
)
from fpgapipe.hw.hls_models.numerics.threefry import lane_bits
from fpgapipe.lowering.tiling.channels import EachStep, SumStep, channel_kernel
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel
from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel

_NONE = Constant(0.0)


def positions_by_channels(tensor: Tensor) -> tuple[int, int]:
    """Numbers of positions and of channels, which are the last axis."""
    return tensor.elements // tensor.shape[-1], tensor.shape[-1]


def positive_only(slope: float = 0) -> dict[str, Any]:
    """Settings that give X where Y is above 0, and ``slope * X`` elsewhere."""
    return {
        "factor": Factor.CONSTANT,
        "constants": (_NONE, Constant(slope)),
        "test": (Left.Y, Outcome.GREATER, Right.CONSTANT),
        "then": Choice.X,
        "otherwise": Choice.S if slope else Choice.ZERO,
    }


def add_bias(
    name: str, z: Tensor, bias: Tensor, y: Tensor, region: Region, *, relu: bool = False
) -> VectorKernel:
    """Compute ``y = z + bias``; with `relu`, negative values become zeros."""
    step = EachStep("z", "y", None, "bias", {"addend": Addend.COEFFICIENT, "relu": relu})
    return channel_kernel(
        name,
        positions_by_channels(z),
        region,
        sources={"z": z},
        steps=[step],
        targets={"y": y},
        small_sources={"bias": bias},
    )


def bias_gradient(name: str, dy: Tensor, db: Tensor, region: Region) -> VectorKernel:
    """Compute ``db``, which is `dy` summed over positions."""
    return channel_kernel(
        name,
        positions_by_channels(dy),
        region,
        sources={"dy": dy},
        steps=[SumStep("dy", "db")],
        small_targets={"db": db},
    )


def activate(name: str, x: Tensor, y: Tensor, region: Region, *, slope: float = 0) -> VectorKernel:
    """Compute ReLU or leaky ReLU: ``y = x`` where `x` is above 0, and ``slope * x`` elsewhere."""
    settings = {
        "factor": Factor.CONSTANT,
        "constants": (_NONE, Constant(slope)),
        "test": (Left.X, Outcome.LESS | Outcome.EQUAL, Right.CONSTANT),
        "then": Choice.S,
        "otherwise": Choice.X,
    }
    step = FlatStep("x", "y", None, settings if slope else {"relu": True})
    return flat_kernel(name, {"x": x}, {"y": y}, [step], region)


def activation_gradient(
    name: str,
    dy: Tensor,
    y: Tensor,
    dx: Tensor,
    region: Region,
    *,
    slope: float = 0,
    db: Tensor | None = None,
) -> VectorKernel:
    """Compute ``dx = dy`` where `y` is above 0, else ``slope * dy``; `db` sums `dx` over positions.

    `y` is the kept result of the activation, which is above 0 exactly where its argument was.
    """
    settings = positive_only(slope)
    if db is None:
        step = FlatStep("dy", "dx", "y", settings)
        return flat_kernel(name, {"dy": dy, "y": y}, {"dx": dx}, [step], region)
    return channel_kernel(
        name,
        positions_by_channels(dy),
        region,
        sources={"dy": dy, "y": y},
        steps=[EachStep("dy", "dx", "y", None, settings), SumStep("dx", "db")],
        targets={"dx": dx},
        small_targets={"db": db},
    )


def add(
    name: str, a: Tensor, b: Tensor, y: Tensor, region: Region, *, relu: bool = False
) -> VectorKernel:
    """Compute ``y = a + b``, a residual sum or the sum of the gradients of branches."""
    step = FlatStep("a", "y", "b", {"addend": Addend.Y, "relu": relu})
    return flat_kernel(name, {"a": a, "b": b}, {"y": y}, [step], region)


def drop(
    name: str,
    x: Tensor,
    y: Tensor,
    region: Region,
    *,
    rate: float,
    stream: int,
    key: int,
    first: int = 0,
) -> VectorKernel:
    """Apply dropout: keep an element with probability ``1 - rate``, and divide it by that.

    The gradient is the same operation on `dy`.

    Parameters
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
    kept = kept_of(rate)
    settings = {
        "factor": Factor.CONSTANT,
        "constants": (_NONE, Constant((1 << 16) / kept)),
        "test": Random(kept, (stream << 36) + first, key),
        "then": Choice.S,
        "otherwise": Choice.ZERO,
    }
    return flat_kernel(name, {"x": x}, {"y": y}, [FlatStep("x", "y", None, settings)], region)


def drop_factors(
    elements: int, rate: float, stream: int, key: Sequence[int], *, first: int = 0
) -> NDArray[np.float32]:
    """Compute the factor by which `drop` multiplies each element.

    Parameters
    ----------
    elements : int
    rate, stream, first
        See `drop`.
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
