"""Activation functions other than ReLU, forward and backward, as short programs on elements.

The error function is that of Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26:
``erfc(z) = t (a1 + t (a2 + ...)) exp(-z**2)`` for ``z >= 0``, where ``t = 1 / (1 + p z)``. Its
error is 1.5e-7 at most.
"""

from __future__ import annotations

import math
from functools import cache

from fpgapipe.hw.hls_models.isa.vector_op import (
    Addend,
    Choice,
    Constant,
    Factor,
    Left,
    Outcome,
    Right,
)
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.kernels.elements.formula import (
    NONE,
    Formula,
    fourth,
    inside,
    looked_up,
    plus_product,
    plus_times,
    scaled,
    step,
    temporaries,
    times,
)
from fpgapipe.lowering.kernels.pointwise import UNARY
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel
from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel

ERF_SCALE = 0.3275911
"""``p`` of the error function."""

ERF_COEFFICIENTS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""``a1`` to ``a5`` of the error function."""

GELU_CUBE = 0.044715
"""Factor of the cube in the tanh form of GELU."""

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
    "softplus",
    "mish",
)
"""Functions with a formula; they are defined as in PyTorch."""


@cache
def activation(function: str, alpha: float = 1.0) -> Formula:
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
        "softplus": _softplus,
        "mish": _mish,
    }[function]()


def affine(
    name: str, x: Tensor, y: Tensor, region: Region, *, scale: float, offset: float
) -> VectorKernel:
    """Compute ``y = scale * x + offset``."""
    steps = []
    if scale != 1 or not offset:
        steps.append(scaled("x", "work" if offset else "y", scale))
    if offset:
        plus = {"addend": Addend.CONSTANT, "constants": (Constant(offset),)}
        steps.append(FlatStep("work" if steps else "x", "y", None, plus))
    return flat_kernel(name, {"x": x}, {"y": y}, steps, region, temporaries(tuple(steps), "xy"))


# ---------------------------------------------------------------------- functions


def _relu6() -> Formula:
    below = (Left.X, Outcome.LESS | Outcome.UNORDERED, Right.CONSTANT)
    forward = step("x", "y", test=below, then=Choice.X, otherwise=Choice.CONSTANT, relu=True,
                    constants=fourth(6.0))  # fmt: skip
    return Formula((forward,), inside("dy", "dx", 0.0, 6.0))


def _elu(alpha: float) -> Formula:
    """``alpha (exp(x) - 1)`` below 0; the derivative there is the result plus alpha."""
    above = (Left.Y, Outcome.GREATER, Right.CONSTANT)
    forward = (
        looked_up("x", "work", Function.EXP),
        step(
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
        looked_up("x", "work", Function.EXP),
        step("work", "work", factor=Factor.CONSTANT, constants=(NONE, Constant(alpha))),
        times("dy", "work", "work"),
        step("dy", "same", "x", test=above, then=Choice.X, otherwise=Choice.ZERO),
        step("work", "work", "x", test=above, then=Choice.ZERO, otherwise=Choice.X),
        step("same", "dx", "work", addend=Addend.Y),
    )
    return Formula(forward, backward)


def _clamped(target: str) -> FlatStep:
    """``x / 6 + 1 / 2``, between 0 and 1."""
    return scaled(
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
    constants += (NONE,) * (3 - len(constants)) + (Constant(1.0),)
    return FlatStep(step.x, step.target, step.y, {**step.settings, "constants": constants})


def _hardsigmoid() -> Formula:
    """The derivative is 1/6 where the argument is between -3 and 3."""
    backward = (scaled("dy", "work", 1 / 6), *inside("work", "dx", -3.0, 3.0))
    return Formula((_one_where(_clamped("y")),), backward)


def _hardswish() -> Formula:
    """``x`` times the hard sigmoid; between -3 and 3 the derivative is ``x / 3 + 1 / 2``."""
    high = (Left.Y, Outcome.LESS | Outcome.UNORDERED, Right.CONSTANT)
    zeroed = {"test": high, "then": Choice.ZERO, "otherwise": Choice.X}
    backward = (
        scaled("x", "work", 1 / 3, 1.5),
        times("dy", "work", "work"),
        *inside("work", "work", -3.0, 3.0),
        step("dy", "same", "x", constants=fourth(3.0), **zeroed),
        step("work", "dx", "same", addend=Addend.Y),
    )
    return Formula((_one_where(_clamped("work")), times("x", "work", "y")), backward)


def _sigmoid() -> Formula:
    """The derivative is ``s (1 - s)``."""
    backward = (
        looked_up("x", "share", Function.SIGMOID),
        plus_times("share", 1.0, "share", "work", negate=True),
        times("dy", "work", "dx"),
    )
    return Formula((looked_up("x", "y", Function.SIGMOID),), backward)


def _tanh() -> Formula:
    """The derivative is ``(1 - t) (1 + t)``."""
    backward = (
        looked_up("x", "share", Function.TANH),
        step("share", "work", negate_x=True, addend=Addend.CONSTANT, constants=(Constant(1.0),)),
        plus_times("share", 1.0, "work", "work"),
        times("dy", "work", "dx"),
    )
    return Formula((looked_up("x", "y", Function.TANH),), backward)


def _silu() -> Formula:
    """``x s``, where s is the sigmoid; the derivative is ``s (1 + x (1 - s))``."""
    backward = (
        looked_up("x", "share", Function.SIGMOID),
        plus_times("share", 1.0, "x", "work", negate=True),
        plus_times("work", 1.0, "share", "work"),
        times("dy", "work", "dx"),
    )
    forward = (looked_up("x", "work", Function.SIGMOID), times("x", "work", "y"))
    return Formula(forward, backward)


def _gelu_tanh() -> Formula:
    """``x s``, where s is the sigmoid of ``2 sqrt(2 / pi) (x + 0.044715 x**3)``."""
    scale = 2 * math.sqrt(2 / math.pi)
    share = (
        step("x", "work", factor=Factor.SELF),
        scaled("work", "work", GELU_CUBE * scale, 1 / GELU_CUBE),
        times("work", "x", "share", function=Function.SIGMOID),
    )
    backward = (
        *share,
        # The inner derivative times x: scale * (1 + 3 * 0.044715 x**2) * x.
        step("x", "work", factor=Factor.SELF),
        scaled("work", "work", 3 * GELU_CUBE * scale, 1 / (3 * GELU_CUBE)),
        times("work", "x", "work"),
        # s (1 + (1 - s) * that)
        plus_times("share", 1.0, "work", "work", negate=True),
        plus_times("work", 1.0, "share", "work"),
        times("dy", "work", "dx"),
    )
    return Formula((*share, times("x", "share", "y")), backward)


def _normal_share() -> tuple[FlatStep, ...]:
    """Instructions that give ``bell = exp(-x**2 / 2)``, and ``share``, the normal distribution."""
    a1, a2, a3, a4, a5 = (each / 2 for each in ERF_COEFFICIENTS)
    scale = ERF_SCALE / math.sqrt(2)
    above = (Left.Y, Outcome.GREATER, Right.CONSTANT)
    return (
        FlatStep("x", "work", None, UNARY["abs"]),
        scaled("work", "work", scale, 1 / scale, function=Function.RECIPROCAL),
        scaled("work", "share", a5, a4 / a5),
        times("share", "work", "share"),
        plus_times("share", a3, "work", "share"),
        plus_times("share", a2, "work", "share"),
        plus_times("share", a1, "work", "share"),
        scaled("x", "bell", -0.5),
        times("bell", "x", "bell", function=Function.EXP),
        times("share", "bell", "share"),
        step(
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
        times("bell", "x", "bell"),
        plus_product("share", "bell", 1 / math.sqrt(2 * math.pi), "work"),
        times("dy", "work", "dx"),
    )
    return Formula((*share, times("x", "share", "y")), backward)


def _softplus() -> Formula:
    """``log(1 + exp(x))``; the derivative is the sigmoid.

    It is ``max(x, 0) + log(u)`` with ``u = 1 + e`` and ``e = exp(-|x|)``. The rounding of u is
    corrected by ``e / (u - 1)``, so that the result is exact to some units in the last place where
    it is small as well; where u is 1, the logarithm is e.
    """
    one = (Left.Y, Outcome.EQUAL, Right.CONSTANT)
    forward = (
        FlatStep("x", "work", None, UNARY["abs"]),
        scaled("work", "share", -1.0, function=Function.EXP),
        step("share", "work", addend=Addend.CONSTANT, constants=(Constant(1.0),)),
        looked_up("work", "log", Function.LOG),
        times("log", "share", "log"),
        step("work", "rest", addend=Addend.CONSTANT, constants=(Constant(-1.0),),
             function=Function.RECIPROCAL),
        times("log", "rest", "log"),
        step("share", "share", "work", test=one, then=Choice.X, otherwise=Choice.ZERO,
             constants=fourth(1.0)),
        step("log", "log", "work", test=one, then=Choice.ZERO, otherwise=Choice.X,
             constants=fourth(1.0)),
        step("log", "log", "share", addend=Addend.Y),
        step("x", "work", relu=True),
        step("work", "y", "log", addend=Addend.Y),
    )  # fmt: skip
    backward = (looked_up("x", "share", Function.SIGMOID), times("dy", "share", "dx"))
    return Formula(forward, backward)


def _mish() -> Formula:
    """``x t``, where t is the hyperbolic tangent of softplus; the derivative is x s (1 - t t) + t.

    With the sigmoid s of x and w of -x, t is ``s (1 + w) / (1 + w w)``.
    """
    share = (
        looked_up("x", "share", Function.SIGMOID),
        scaled("x", "other", -1.0, function=Function.SIGMOID),
        step("other", "bell", factor=Factor.SELF),
        step("bell", "bell", addend=Addend.CONSTANT, constants=(Constant(1.0),),
             function=Function.RECIPROCAL),
        plus_times("other", 1.0, "share", "other"),
        times("other", "bell", "other"),
    )  # fmt: skip
    backward = (
        *share,
        plus_times("other", 1.0, "share", "work", negate=True),
        plus_times("other", 1.0, "work", "work"),
        times("work", "x", "work"),
        step("work", "work", "other", addend=Addend.Y),
        times("dy", "work", "dx"),
    )
    return Formula((*share, times("x", "other", "y")), backward)
