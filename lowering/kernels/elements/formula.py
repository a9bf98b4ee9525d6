"""Functions of elements as short programs, forward and backward, and kernels that run them.

Each function is a list of vector instructions on the elements of a piece. The gradient is computed
from the argument: results that lie in memory in BF16 are too coarse where a function saturates.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
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
from fpgapipe.hw.hls_models.numerics.element_format import FP32, ElementFormat
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel
from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel

NONE = Constant(0.0)


@dataclass(frozen=True)
class Formula:
    """A function of elements as instructions.

    Attributes
    ----------
    forward : tuple of FlatStep
        From ``x`` to ``y``.
    backward : tuple of FlatStep
        From ``dy`` and ``x`` to ``dx``.
    """

    forward: tuple[FlatStep, ...]
    backward: tuple[FlatStep, ...]

    @property
    def lane_operations(self) -> tuple[int, int]:
        """Vector operations on each element, forward and backward."""
        return len(self.forward), len(self.backward)

    @property
    def table_functions(self) -> tuple[int, int]:
        """Those of these operations that look a function up in a table."""
        forward, backward = (
            sum("function" in each.settings for each in steps)
            for steps in (self.forward, self.backward)
        )
        return forward, backward

    @property
    def keeps_argument(self) -> bool:
        """Whether the gradient depends on the argument, which is kept for it."""
        return any("x" in (each.x, each.y) for each in self.backward)


def applied(name: str, formula: Formula, x: Tensor, y: Tensor, region: Region) -> VectorKernel:
    """Compute the function of each element of `x`."""
    steps = formula.forward
    return flat_kernel(name, {"x": x}, {"y": y}, steps, region, temporaries(steps, "xy"))


def derived(
    name: str, formula: Formula, dy: Tensor, x: Tensor, dx: Tensor, region: Region
) -> VectorKernel:
    """Compute the gradient of the argument `x` from that of the result."""
    steps = formula.backward
    work = temporaries(steps, ("dy", "x", "dx"))
    return flat_kernel(name, {"dy": dy, "x": x}, {"dx": dx}, steps, region, work)


def temporaries(steps: Sequence[FlatStep], tensors: Collection[str]) -> dict[str, ElementFormat]:
    """Names that the steps use besides the tensors, with their format."""
    used = dict.fromkeys(step.target for step in steps)
    return {name: FP32 for name in used if name not in tensors}


# ---------------------------------------------------------------------- instructions


def step(x: str, target: str, y: str | None = None, **settings: Any) -> FlatStep:
    """An instruction with some settings."""
    return FlatStep(x, target, y, settings)


def times(x: str, y: str, target: str, **settings: Any) -> FlatStep:
    """``x * y``."""
    return step(x, target, y, factor=Factor.Y, **settings)


def scaled(x: str, target: str, factor: float, plus: float = 0.0, **settings: Any) -> FlatStep:
    """``(x + plus) * factor``."""
    addend = Addend.CONSTANT if plus else Addend.NOTHING
    given = {"addend": addend, "factor": Factor.CONSTANT, **settings}
    return step(x, target, constants=(Constant(plus), Constant(factor)), **given)


def plus_times(x: str, plus: float, y: str, target: str, *, negate: bool = False) -> FlatStep:
    """``(x + plus) * y``, or ``(plus - x) * y``."""
    return step(
        x,
        target,
        y,
        negate_x=negate,
        addend=Addend.CONSTANT,
        factor=Factor.Y,
        constants=(Constant(plus),),
    )


def plus_product(x: str, y: str, factor: float, target: str) -> FlatStep:
    """``x + y * factor``."""
    constants = NONE, NONE, Constant(factor)
    return step(x, target, y, second=Second.CONSTANT, constants=constants)


def looked_up(x: str, target: str, function: Function) -> FlatStep:
    """A function from the table."""
    return step(x, target, function=function)


def fourth(value: float) -> tuple[Constant, ...]:
    """Constants of which the one for tests and choices is given."""
    return NONE, NONE, NONE, Constant(value)


def inside(
    source: str,
    target: str,
    least: float | None,
    most: float | None,
    *,
    strict: bool = True,
) -> tuple[FlatStep, ...]:
    """The source where x is between two numbers, else 0; unless strict, also where x is either."""
    also = Outcome.UNORDERED if strict else Outcome.UNORDERED | Outcome.EQUAL
    bounds = [
        (outcome | also, bound)
        for outcome, bound in ((Outcome.GREATER, least), (Outcome.LESS, most))
        if bound is not None
    ]
    return tuple(
        step(
            source if number == 0 else "work",
            target if number == len(bounds) - 1 else "work",
            "x",
            test=(Left.Y, outcome, Right.CONSTANT),
            then=Choice.X,
            otherwise=Choice.ZERO,
            constants=fourth(bound),
        )
        for number, (outcome, bound) in enumerate(bounds)
    )
