"""Activation functions other than ReLU, forward and backward, as short programs on elements.

Each function is a list of vector instructions on the elements of a piece. The gradient is computed
from the argument: results that lie in memory in BF16 are too coarse where a function saturates.

The error function is that of Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26:
``erfc(z) = t (a1 + t (a2 + ...)) exp(-z**2)`` for ``z >= 0``, where ``t = 1 / (1 + p z)``. Its
error is 1.5e-7 at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from fpgapipe.hw.hls_models.isa.vector_op import (
    Addend,
    Choice,
    Constant,
    Factor,
    Left,
    Outcome,
    Right,
    Second,
)
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.kernels.pointwise import UNARY
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel
from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel

ERF_SCALE = 0.3275911
"""``p`` of the error function."""

ERF_COEFFICIENTS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""``a1`` to ``a5`` of the error function."""

GELU_CUBE = 0.044715
"""Factor of the cube in the tanh form of GELU."""

_NONE = Constant(0.0)


@dataclass(frozen=True)
class Formula:
    """An activation function as instructions.

    Attributes
    ----------
    forward : tuple of FlatStep
        From ``x`` to ``y``.
    backward : tuple of FlatStep
        From ``dy`` and ``x`` to ``dx``.
    """

    forward: tuple[FlatStep, ...]
    backward: tuple[FlatStep, ...]


FUNCTIONS = (
    "relu6",
    "elu",
    "hardsigmoid",
    "hardswish",
    "sigmoid",
    "tanh",
    "silu",
    "gelu",
    "gelu_tanh",
)
"""Functions with a formula; they are defined as in PyTorch."""


def lane_operations(function: str) -> tuple[int, int]:
    """Vector operations on each element, forward and backward."""
    formula = formula_of(function)
    return len(formula.forward), len(formula.backward)


@cache
def formula_of(function: str, alpha: float = 1.0) -> Formula:
    """The formula of a function of `FUNCTIONS`; `alpha` is the scale of elu."""
    if function == "elu":
        return _elu(alpha)
    return {
        "relu6": _relu6,
        "hardsigmoid": _hardsigmoid,
        "hardswish": _hardswish,
        "sigmoid": _sigmoid,
        "tanh": _tanh,
        "silu": _silu,
        "gelu": _gelu,
        "gelu_tanh": _gelu_tanh,
    }[function]()


def apply(
    name: str, function: str, x: Tensor, y: Tensor, region: Region, *, alpha: float = 1.0
) -> VectorKernel:
    """Compute ``y = function(x)``.

    Parameters
    ----------
    name : str
    function : str
        One of `FUNCTIONS`.
    x, y, region
    alpha : float
        Scale of elu.
    """
    steps = formula_of(function, alpha).forward
    return flat_kernel(name, {"x": x}, {"y": y}, steps, region, _temporaries(steps, "xy"))


def affine(
    name: str, x: Tensor, y: Tensor, region: Region, *, scale: float, offset: float
) -> VectorKernel:
    """Compute ``y = scale * x + offset``."""
    steps = []
    if scale != 1 or not offset:
        steps.append(_scaled("x", "work" if offset else "y", scale))
    if offset:
        plus = {"addend": Addend.CONSTANT, "constants": (Constant(offset),)}
        steps.append(FlatStep("work" if steps else "x", "y", None, plus))
    return flat_kernel(name, {"x": x}, {"y": y}, steps, region, _temporaries(tuple(steps), "xy"))


def gradient(
    name: str,
    function: str,
    dy: Tensor,
    x: Tensor,
    dx: Tensor,
    region: Region,
    *,
    alpha: float = 1.0,
) -> VectorKernel:
    """Compute ``dx = dy * function'(x)``.

    Parameters
    ----------
    name, function, alpha
        As for `apply`.
    dy, x, dx, region
    """
    steps = formula_of(function, alpha).backward
    temporaries = _temporaries(steps, ("dy", "x", "dx"))
    return flat_kernel(name, {"dy": dy, "x": x}, {"dx": dx}, steps, region, temporaries)


def _temporaries(steps: tuple[FlatStep, ...], tensors: Any) -> dict[str, Any]:
    """Names that the steps use besides the tensors, with their format."""
    used = dict.fromkeys(step.target for step in steps)
    return {name: FP32 for name in used if name not in tensors}


# ---------------------------------------------------------------------- instructions


def _step(x: str, target: str, y: str | None = None, **settings: Any) -> FlatStep:
    return FlatStep(x, target, y, settings)


def _times(x: str, y: str, target: str, **settings: Any) -> FlatStep:
    """``x * y``."""
    return _step(x, target, y, factor=Factor.Y, **settings)


def _scaled(x: str, target: str, factor: float, plus: float = 0.0, **settings: Any) -> FlatStep:
    """``(x + plus) * factor``."""
    addend = Addend.CONSTANT if plus else Addend.NOTHING
    given = {"addend": addend, "factor": Factor.CONSTANT, **settings}
    return _step(x, target, constants=(Constant(plus), Constant(factor)), **given)


def _plus_times(x: str, plus: float, y: str, target: str, *, negate: bool = False) -> FlatStep:
    """``(x + plus) * y``, or ``(plus - x) * y``."""
    return _step(
        x,
        target,
        y,
        negate_x=negate,
        addend=Addend.CONSTANT,
        factor=Factor.Y,
        constants=(Constant(plus),),
    )


def _plus_product(x: str, y: str, factor: float, target: str) -> FlatStep:
    """``x + y * factor``."""
    constants = _NONE, _NONE, Constant(factor)
    return _step(x, target, y, second=Second.CONSTANT, constants=constants)


def _function(x: str, target: str, function: Function) -> FlatStep:
    return _step(x, target, function=function)


# ---------------------------------------------------------------------- functions


def _relu6() -> Formula:
    below = (Left.X, Outcome.LESS | Outcome.UNORDERED, Right.CONSTANT)
    forward = _step("x", "y", test=below, then=Choice.X, otherwise=Choice.CONSTANT, relu=True,
                    constants=_fourth(6.0))  # fmt: skip
    return Formula((forward,), _inside("dy", "dx", 0.0, 6.0))


def _elu(alpha: float) -> Formula:
    """``alpha (exp(x) - 1)`` below 0; the derivative there is the result plus alpha."""
    above = (Left.Y, Outcome.GREATER, Right.CONSTANT)
    forward = (
        _function("x", "work", Function.EXP),
        _step(
            "work",
            "y",
            "x",
            addend=Addend.CONSTANT,
            factor=Factor.CONSTANT,
            constants=(Constant(-1.0), Constant(alpha)),
            test=above,
            then=Choice.Y,
            otherwise=Choice.S,
        ),
    )
    backward = (
        _function("x", "work", Function.EXP),
        _step("work", "work", factor=Factor.CONSTANT, constants=(_NONE, Constant(alpha))),
        _times("dy", "work", "work"),
        _step("dy", "same", "x", test=above, then=Choice.X, otherwise=Choice.ZERO),
        _step("work", "work", "x", test=above, then=Choice.ZERO, otherwise=Choice.X),
        _step("same", "dx", "work", addend=Addend.Y),
    )
    return Formula(forward, backward)


def _clamped(target: str) -> FlatStep:
    """``x / 6 + 1 / 2``, between 0 and 1."""
    return _scaled(
        "x",
        target,
        1 / 6,
        3.0,
        test=(Left.S, Outcome.LESS | Outcome.UNORDERED, Right.CONSTANT),
        then=Choice.S,
        otherwise=Choice.CONSTANT,
        relu=True,
    )


def _one_where(step: FlatStep) -> FlatStep:
    """The instruction with a fourth constant of 1."""
    constants = tuple(step.settings["constants"])
    constants += (_NONE,) * (3 - len(constants)) + (Constant(1.0),)
    return FlatStep(step.x, step.target, step.y, {**step.settings, "constants": constants})


def _inside(source: str, target: str, least: float, most: float) -> tuple[FlatStep, FlatStep]:
    """The source where x is between two numbers, else 0."""
    low = (Left.Y, Outcome.GREATER | Outcome.UNORDERED, Right.CONSTANT)
    high = (Left.Y, Outcome.LESS | Outcome.UNORDERED, Right.CONSTANT)
    kept = {"then": Choice.X, "otherwise": Choice.ZERO}
    return (
        _step(source, "work", "x", test=low, constants=_fourth(least), **kept),
        _step("work", target, "x", test=high, constants=_fourth(most), **kept),
    )


def _fourth(value: float) -> tuple[Constant, ...]:
    """Constants of which the one for tests and choices is given."""
    return _NONE, _NONE, _NONE, Constant(value)


def _hardsigmoid() -> Formula:
    """The derivative is 1/6 where the argument is between -3 and 3."""
    backward = (_scaled("dy", "work", 1 / 6), *_inside("work", "dx", -3.0, 3.0))
    return Formula((_one_where(_clamped("y")),), backward)


def _hardswish() -> Formula:
    """``x`` times the hard sigmoid; between -3 and 3 the derivative is ``x / 3 + 1 / 2``."""
    high = (Left.Y, Outcome.LESS | Outcome.UNORDERED, Right.CONSTANT)
    zeroed = {"test": high, "then": Choice.ZERO, "otherwise": Choice.X}
    backward = (
        _scaled("x", "work", 1 / 3, 1.5),
        _times("dy", "work", "work"),
        *_inside("work", "work", -3.0, 3.0),
        _step("dy", "same", "x", constants=_fourth(3.0), **zeroed),
        _step("work", "dx", "same", addend=Addend.Y),
    )
    return Formula((_one_where(_clamped("work")), _times("x", "work", "y")), backward)


def _sigmoid() -> Formula:
    """The derivative is ``s (1 - s)``."""
    backward = (
        _function("x", "share", Function.SIGMOID),
        _plus_times("share", 1.0, "share", "work", negate=True),
        _times("dy", "work", "dx"),
    )
    return Formula((_function("x", "y", Function.SIGMOID),), backward)


def _tanh() -> Formula:
    """The derivative is ``(1 - t) (1 + t)``."""
    backward = (
        _function("x", "share", Function.TANH),
        _step("share", "work", negate_x=True, addend=Addend.CONSTANT, constants=(Constant(1.0),)),
        _plus_times("share", 1.0, "work", "work"),
        _times("dy", "work", "dx"),
    )
    return Formula((_function("x", "y", Function.TANH),), backward)


def _silu() -> Formula:
    """``x s``, where s is the sigmoid; the derivative is ``s (1 + x (1 - s))``."""
    backward = (
        _function("x", "share", Function.SIGMOID),
        _plus_times("share", 1.0, "x", "work", negate=True),
        _plus_times("work", 1.0, "share", "work"),
        _times("dy", "work", "dx"),
    )
    forward = (_function("x", "work", Function.SIGMOID), _times("x", "work", "y"))
    return Formula(forward, backward)


def _gelu_tanh() -> Formula:
    """``x s``, where s is the sigmoid of ``2 sqrt(2 / pi) (x + 0.044715 x**3)``."""
    scale = 2 * math.sqrt(2 / math.pi)
    share = (
        _step("x", "work", factor=Factor.SELF),
        _scaled("work", "work", GELU_CUBE * scale, 1 / GELU_CUBE),
        _times("work", "x", "share", function=Function.SIGMOID),
    )
    backward = (
        *share,
        # The inner derivative times x: scale * (1 + 3 * 0.044715 x**2) * x.
        _step("x", "work", factor=Factor.SELF),
        _scaled("work", "work", 3 * GELU_CUBE * scale, 1 / (3 * GELU_CUBE)),
        _times("work", "x", "work"),
        # s (1 + (1 - s) * that)
        _plus_times("share", 1.0, "work", "work", negate=True),
        _plus_times("work", 1.0, "share", "work"),
        _times("dy", "work", "dx"),
    )
    return Formula((*share, _times("x", "share", "y")), backward)


def _normal_share() -> tuple[FlatStep, ...]:
    """Instructions that give ``bell = exp(-x**2 / 2)``, and ``share``, the normal distribution."""
    a1, a2, a3, a4, a5 = (each / 2 for each in ERF_COEFFICIENTS)
    scale = ERF_SCALE / math.sqrt(2)
    above = (Left.Y, Outcome.GREATER, Right.CONSTANT)
    return (
        FlatStep("x", "work", None, UNARY["abs"]),
        _scaled("work", "work", scale, 1 / scale, function=Function.RECIPROCAL),
        _scaled("work", "share", a5, a4 / a5),
        _times("share", "work", "share"),
        _plus_times("share", a3, "work", "share"),
        _plus_times("share", a2, "work", "share"),
        _plus_times("share", a1, "work", "share"),
        _scaled("x", "bell", -0.5),
        _times("bell", "x", "bell", function=Function.EXP),
        _times("share", "bell", "share"),
        _step(
            "share",
            "share",
            "x",
            negate_x=True,
            addend=Addend.CONSTANT,
            constants=(Constant(1.0),),
            test=above,
            then=Choice.S,
            otherwise=Choice.X,
        ),
    )


def _gelu() -> Formula:
    """``x P(x)`` with the normal distribution P, whose density is ``bell / sqrt(2 pi)``."""
    share = _normal_share()
    backward = (
        *share,
        _times("bell", "x", "bell"),
        _plus_product("share", "bell", 1 / math.sqrt(2 * math.pi), "work"),
        _times("dy", "work", "dx"),
    )
    return Formula((*share, _times("x", "share", "y")), backward)
