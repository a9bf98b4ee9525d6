"""Functions of elements that are no activation functions, forward and backward, as short programs.

The error function is 1 less twice what `functions` has for the normal distribution beyond the
element times sqrt(2); its error is 3e-7 at most.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from fpgapipe.hw.hls_models.isa.vector_op import (
    Addend,
    Choice,
    Constant,
    Left,
    Outcome,
    Right,
)
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.kernels.elements.formula import (
    Formula,
    fourth,
    inside,
    looked_up,
    plus_times,
    scaled,
    step,
    times,
)
from fpgapipe.lowering.kernels.elements.functions import ERF_COEFFICIENTS, ERF_SCALE
from fpgapipe.lowering.kernels.pointwise import UNARY
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel
from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel

MOST_EXPONENT = 8
"""Largest magnitude of an exponent."""

_SIGN_TEST = (Left.Y, Outcome.GREATER, Right.CONSTANT)
_ZERO_TEST = (Left.Y, Outcome.EQUAL, Right.CONSTANT)


@cache
def elementary(function: str) -> Formula:
    """The formula of a function of `UNARIES`."""
    backward = {
        "neg": (step("dy", "dx", negate_x=True),),
        "abs": (
            step("dy", "work", "x", negate_x=True, test=_SIGN_TEST, then=Choice.X,
                 otherwise=Choice.S),
            step("work", "dx", "x", test=_ZERO_TEST, then=Choice.ZERO, otherwise=Choice.X),
        ),
        "exp": (looked_up("x", "work", Function.EXP), times("dy", "work", "dx")),
        "log": (looked_up("x", "work", Function.RECIPROCAL), times("dy", "work", "dx")),
        "sqrt": (
            looked_up("x", "work", Function.RSQRT),
            times("dy", "work", "work"),
            scaled("work", "dx", 0.5),
        ),
        "rsqrt": (
            looked_up("x", "share", Function.RSQRT),
            times("dy", "share", "work"),
            times("work", "share", "work"),
            times("work", "share", "work"),
            scaled("work", "dx", -0.5),
        ),
        "reciprocal": (
            looked_up("x", "share", Function.RECIPROCAL),
            times("dy", "share", "work", negate_x=True),
            times("work", "share", "dx"),
        ),
        "erf": (
            *_bell(),
            times("dy", "bell", "work"),
            scaled("work", "dx", 2 / math.sqrt(math.pi)),
        ),
    }[function]  # fmt: skip
    forward = _erf() if function == "erf" else (FlatStep("x", "y", None, UNARY[function]),)
    return Formula(forward, backward)


def _bell() -> tuple[FlatStep, FlatStep]:
    """``bell = exp(-x * x)``."""
    return scaled("x", "bell", -1.0), times("bell", "x", "bell", function=Function.EXP)


def _erf() -> tuple[FlatStep, ...]:
    """``1 - erfc(|x|)`` with the sign of x; see `functions` for the polynomial."""
    a1, a2, a3, a4, a5 = ERF_COEFFICIENTS
    return (
        FlatStep("x", "work", None, UNARY["abs"]),
        scaled("work", "work", ERF_SCALE, 1 / ERF_SCALE, function=Function.RECIPROCAL),
        scaled("work", "share", a5, a4 / a5),
        times("share", "work", "share"),
        plus_times("share", a3, "work", "share"),
        plus_times("share", a2, "work", "share"),
        plus_times("share", a1, "work", "share"),
        *_bell(),
        times("share", "bell", "share"),
        step("share", "share", negate_x=True, addend=Addend.CONSTANT, constants=(Constant(1.0),)),
        step("share", "y", "x", negate_x=True, test=_SIGN_TEST, then=Choice.X, otherwise=Choice.S),
    )


@cache
def clamp(low: float | None, high: float | None, *, strict: bool) -> Formula:
    """The nearest number within bounds; see `network.operators.Clamp`."""
    bounds = [
        ((Left.X, outcome, Right.CONSTANT), bound)
        for outcome, bound in ((Outcome.LESS, low), (Outcome.GREATER, high))
        if bound is not None
    ]
    forward = tuple(
        step("x" if number == 0 else "work", "y" if number == len(bounds) - 1 else "work",
             test=test, then=Choice.CONSTANT, otherwise=Choice.X, constants=fourth(bound))
        for number, (test, bound) in enumerate(bounds)
    )  # fmt: skip
    backward = inside("dy", "dx", low, high, strict=strict)
    return Formula(forward or (step("x", "y"),), backward or (step("dy", "dx"),))


@cache
def power(exponent: float) -> Formula:
    """``x ** exponent`` by squares, square roots, and a reciprocal where the exponent is negative.

    Raises
    ------
    NotImplementedError
        If the exponent is no multiple of 1/4, or larger than `MOST_EXPONENT`.
    """
    if not (abs(exponent) <= MOST_EXPONENT and float(4 * exponent).is_integer()):
        raise NotImplementedError(
            f"the exponent of a power must be a multiple of 1/4 from -{MOST_EXPONENT} to "
            f"{MOST_EXPONENT}, not {exponent:g}"
        )
    return Formula(
        _power(exponent, "y"),
        (
            *_power(exponent - 1, "share"),
            times("dy", "share", "work"),
            scaled("work", "dx", exponent),
        ),
    )


def _power(exponent: float, target: str) -> tuple[FlatStep, ...]:
    """Instructions of a power of x."""
    quarters = round(4 * abs(exponent))
    steps: list[FlatStep] = []
    factors = []  # names of the tensors whose product is the power
    if quarters % 4:
        steps.append(looked_up("x", "root", Function.SQRT))
    if quarters % 4 & 2:
        factors.append("root")
    if quarters % 4 & 1:
        steps.append(looked_up("root", "quarter", Function.SQRT))
        factors.append("quarter")
    whole, square = quarters // 4, "x"
    for place in range(whole.bit_length()):
        if place:
            name = f"square{place}"
            steps.append(times(square, square, name))
            square = name
        if whole >> place & 1:
            factors.append(square)
    if not factors:
        return (scaled("x", target, 0.0, function=Function.EXP),)
    inverted: dict[str, Any] = {"function": Function.RECIPROCAL} if exponent < 0 else {}
    if len(factors) == 1:
        return (*steps, step(factors[0], target, **inverted))
    product = factors[0]
    for other in factors[1:-1]:
        steps.append(times(product, other, "product"))
        product = "product"
    return (*steps, times(product, factors[-1], target, **inverted))


# ---------------------------------------------------------------------- two tensors


def quotient_gradient(
    name: str, dy: Tensor, a: Tensor, b: Tensor, da: Tensor, db: Tensor, region: Region
) -> VectorKernel:
    """Compute the gradients of ``a / b``: ``da = dy / b`` and ``db = -dy * a / b**2``."""
    steps = (
        looked_up("b", "work", Function.RECIPROCAL),
        times("dy", "work", "share"),
        step("share", "da"),
        times("share", "a", "share", negate_x=True),
        times("share", "work", "db"),
    )
    work = {"work": FP32, "share": FP32}
    sources = {"dy": dy, "a": a, "b": b}
    return flat_kernel(name, sources, {"da": da, "db": db}, steps, region, work)


def extreme_gradient(
    name: str,
    function: str,
    dy: Tensor,
    a: Tensor,
    b: Tensor,
    da: Tensor,
    db: Tensor,
    region: Region,
) -> VectorKernel:
    """Compute the gradients of the larger (``max``) or the smaller number (``min``).

    The number that was taken has the gradient; two equal ones have half of it each.
    """
    outcome = Outcome.GREATER if function == "max" else Outcome.LESS
    chosen = {"then": Choice.CONSTANT, "otherwise": Choice.ZERO}
    steps = (
        step("a", "work", "b", test=(Left.X, outcome, Right.Y), constants=fourth(1.0), **chosen),
        step("a", "share", "b", test=(Left.X, Outcome.EQUAL, Right.Y), constants=fourth(0.5),
             **chosen),
        step("work", "work", "share", addend=Addend.Y),
        times("dy", "work", "da"),
        plus_times("work", 1.0, "dy", "db", negate=True),
    )  # fmt: skip
    work = {"work": FP32, "share": FP32}
    sources = {"dy": dy, "a": a, "b": b}
    return flat_kernel(name, sources, {"da": da, "db": db}, steps, region, work)
