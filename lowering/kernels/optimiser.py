"""Optimisers and gradient accumulation.

Numbers that change from step to step are read from scalar registers, so that one program serves all
steps. Numbers that do not change may be constant values. All formulas are those of PyTorch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from fpgapipe.hw.hls_models.isa.vector_op import (
    Addend,
    Constant,
    Factor,
    Initial,
    Second,
)
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel
from fpgapipe.lowering.tiling.kernel import (
    Region,
    Tensor,
    VectorKernel,
)

_ONE = Constant(1.0)
_ZERO = Constant(0.0)


def is_value(constant: Constant, value: float) -> bool:
    """Whether a constant is a fixed value, not a register, and equal to `value`."""
    return constant.register is None and constant.value == value


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent; each number is a fixed value or is read from a register.

    Parameters
    ----------
    learning_rate : Constant
    momentum : Constant or None
        Momentum; without it (None) there is no velocity.
    weight_decay : Constant or None
    nesterov : bool
    scale : Constant
        Factor of the gradients, applied before everything else.
    """

    learning_rate: Constant
    momentum: Constant | None = None
    weight_decay: Constant | None = None
    nesterov: bool = False
    scale: Constant = _ONE

    def __post_init__(self) -> None:
        if self.nesterov and self.momentum is None:
            raise ValueError("SGD must have a momentum if it is Nesterov's")


@dataclass(frozen=True)
class Adam:
    """Adam or AdamW; each number is a fixed value or is read from a register.

    Parameters
    ----------
    step_size, inverse_correction, decay : Constant
        Numbers that `adam_numbers` computes for each step, usually in registers.
    betas : (float, float)
    epsilon : float
    weight_decay : Constant or None
        Multiple of the weights that is added to the gradient; None for AdamW, which uses `decay`.
    scale : Constant
        Factor of the gradients, applied before everything else.
    """

    step_size: Constant
    inverse_correction: Constant
    decay: Constant = _ONE
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: Constant | None = None
    scale: Constant = _ONE


def adam_numbers(
    step: int,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
) -> tuple[float, float, float]:
    """Compute the step size, the inverse bias correction and the decay of a step.

    Parameters
    ----------
    step : int
        Number of the step, from 1.
    learning_rate : float
    betas : (float, float)
    weight_decay : float
        Weight decay of AdamW.
    """
    return (
        learning_rate / (1 - betas[0] ** step),
        1 / sqrt(1 - betas[1] ** step),
        1 - learning_rate * weight_decay,
    )


def sgd(
    name: str,
    settings: Sgd,
    weights: Tensor,
    gradient: Tensor,
    region: Region,
    *,
    velocity: Tensor | None = None,
    clip: Tensor | None = None,
    updated: Tensor | None = None,
) -> VectorKernel:
    """Update weights and velocity in place by a step of SGD.

    Parameters
    ----------
    name, settings, weights, gradient, region
    velocity : Tensor, optional
        Velocity of the momentum; it must be zero before the first step.
    clip : Tensor, optional
        Factor of the gradients instead of `scale`, from `lowering.kernels.clipping`.
    updated : Tensor, optional
        Where the updated weights go, if not in the place of `weights`.

    Raises
    ------
    ValueError
        If there is a velocity without momentum or a momentum without velocity, if there are both a
        clip and a scale, or if the region is too small.
    """
    if (velocity is None) != (settings.momentum is None):
        raise ValueError("SGD must have a velocity if it has a momentum, and none otherwise")
    steps, step = _prepared(settings.scale, settings.weight_decay, clip)
    if velocity:
        assert settings.momentum is not None
        moved = _plus(settings.momentum)
        steps.append(FlatStep(step, "new velocity", "velocity", moved))
        if settings.nesterov:
            steps.append(FlatStep(step, "work", "new velocity", moved))
            step = "work"
        else:
            step = "new velocity"
    steps.append(
        FlatStep("weights", "new weights", step, _plus(settings.learning_rate, negate=True))
    )
    tensors = {"weights": weights} | ({"velocity": velocity} if velocity else {})
    return _update(name, tensors, gradient, steps, region, clip, updated)


def adam(
    name: str,
    settings: Adam,
    weights: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    region: Region,
    *,
    clip: Tensor | None = None,
) -> VectorKernel:
    """Update weights and moments in place by a step of Adam.

    Parameters
    ----------
    name, settings, weights, gradient, region
    moments : (Tensor, Tensor)
        Running averages of the gradients and of their squares; zero before the first step.
    clip : Tensor, optional
        See `sgd`.

    Raises
    ------
    ValueError
        If there are a clip and a scale, or the region is too small.
    """
    steps, step = _prepared(settings.scale, settings.weight_decay, clip)
    first, second = settings.betas
    steps += [
        FlatStep(
            step,
            "new first",
            "first",
            {
                "factor": Factor.CONSTANT,
                "second": Second.CONSTANT,
                "constants": (_ZERO, Constant(1 - first), Constant(first)),
            },
        ),
        # The second moment moves towards the squared gradient by the fraction 1 - beta.
        FlatStep(
            step,
            "new second",
            "second",
            {"factor": Factor.SELF, "second": Second.Y, "negate_second": True},
        ),
        FlatStep("second", "new second", "new second", _plus(Constant(1 - second))),
        FlatStep("new second", "work", None, {"function": Function.SQRT}),
        FlatStep("work", "work", None, _inverse(settings.inverse_correction, settings.epsilon)),
        FlatStep("new first", "work", "work", {"factor": Factor.Y}),
        FlatStep(
            "weights",
            "new weights",
            "work",
            _plus(settings.step_size, factor=settings.decay, negate=True),
        ),
    ]
    tensors = {"weights": weights, "first": moments[0], "second": moments[1]}
    return _update(name, tensors, gradient, steps, region, clip)


def accumulate(name: str, total: Tensor, gradient: Tensor, region: Region) -> VectorKernel:
    """Compute ``total = total + gradient``."""
    step = FlatStep("total", "sum", "gradient", {"addend": Addend.Y})
    sources = {"total": total, "gradient": gradient}
    return flat_kernel(name, sources, {"sum": total}, [step], region)


def _prepared(
    scale: Constant, weight_decay: Constant | None, clip: Tensor | None
) -> tuple[list[FlatStep], str]:
    """Steps that scale, clip and decay the gradient, and the name of their result."""
    scaled = not is_value(scale, 1)
    if clip and scaled:
        raise ValueError("a clip coefficient has a scale of its own; the optimiser's must be 1")
    if not (clip or scaled or weight_decay):
        return [], "gradient"
    factor = Factor.CONSTANT if scaled else Factor.ONE
    settings = {
        "factor": Factor.COEFFICIENT if clip else factor,
        "second": Second.CONSTANT if weight_decay else Second.NOTHING,
        "constants": (_ZERO, scale, weight_decay or _ZERO),
    }
    y, coefficients = "weights" if weight_decay else None, "clip" if clip else None
    return [FlatStep("gradient", "work", y, settings, coefficients)], "work"


def _plus(times: Constant, *, factor: Constant = _ONE, negate: bool = False) -> dict[str, Any]:
    """Settings for ``X * factor + Y * times``, or ``X * factor - Y * times``."""
    return {
        "factor": Factor.ONE if is_value(factor, 1) else Factor.CONSTANT,
        "second": Second.CONSTANT,
        "negate_second": negate,
        "constants": (_ZERO, factor, times),
    }


def _inverse(factor: Constant, epsilon: float) -> dict[str, Any]:
    """Settings for ``1 / (X * factor + epsilon)``."""
    return {
        "factor": Factor.CONSTANT,
        "initial": Initial.CONSTANT,
        "constants": (_ZERO, factor, _ZERO, _ZERO, Constant(epsilon)),
        "function": Function.RECIPROCAL,
    }


def _update(
    name: str,
    tensors: Mapping[str, Tensor],
    gradient: Tensor,
    steps: Sequence[FlatStep],
    region: Region,
    clip: Tensor | None,
    updated: Tensor | None = None,
) -> VectorKernel:
    """Build the kernel that updates some tensors in place, or weights to another place."""
    used = {each for step in steps for each in (step.x, step.y, step.target)}
    moved = {"weights": updated} if updated else {}
    return flat_kernel(
        name,
        {**tensors, "gradient": gradient},
        {f"new {each}": tensor for each, tensor in {**tensors, **moved}.items()},
        steps,
        region,
        temporaries={each: FP32 for each in ("work", "rate") if each in used},
        coefficients={"clip": clip} if clip else {},
    )
