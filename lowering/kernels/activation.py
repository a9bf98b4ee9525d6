"""Bias, activation and residual sums, forward and backward."""

from typing import Any

from fpgapipe.hw.hls_models.isa.vector_op import (
    Addend,
    Choice,
    Constant,
    Factor,
    Left,
    Outcome,
    Right,
)
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
