"""Comparisons with a number, and tensors of which a mask hides elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.isa.vector_op import (
    Addend,
    Choice,
    Constant,
    Left,
    Outcome,
    Right,
)
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels.broadcast import spread
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.rows import times

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel

OUTCOMES: Mapping[str, Outcome] = {
    "eq": Outcome.EQUAL,
    "ne": Outcome.LESS | Outcome.GREATER | Outcome.UNORDERED,
    "lt": Outcome.LESS,
    "le": Outcome.LESS | Outcome.EQUAL,
    "gt": Outcome.GREATER,
    "ge": Outcome.GREATER | Outcome.EQUAL,
}
"""Comparisons, each with the outcomes for which it holds; NaN is unequal to every number."""

LEAST_COMPARED = 2.0**-100
"""Least magnitude, but for 0, of a number to compare with: differences must not become 0."""


def check_compared(number: float) -> None:
    """Refuse a number with which `compare` could not compare exactly."""
    if not (number == 0 or LEAST_COMPARED <= abs(number) < math.inf):
        raise ValueError(
            f"a number to compare with must be 0, or of a finite magnitude of at least "
            f"{LEAST_COMPARED:.3g}, not {number:g}"
        )


@made_once
def compare(
    name: str,
    function: str,
    x: Tensor,
    y: Tensor,
    region: Region,
    *,
    number: float,
    then: float = 1.0,
    otherwise: float = 0.0,
) -> VectorKernel:
    """Write `then` where a comparison of `x` with a number holds, and `otherwise` elsewhere.

    Parameters
    ----------
    name : str
    function : str
        A key of `OUTCOMES`.
    x, y : Tensor
        Tensors with the same number of elements.
    region : Region
    number, then, otherwise : float

    Raises
    ------
    ValueError
        As `check_compared`.
    """
    check_compared(number)
    # The sign of an FP32 difference is exact, and the counter stands at 0.
    test = (Left.S, OUTCOMES[function], Right.COUNTER)
    first, second = Choice.CONSTANT, Choice.ZERO
    value = then
    if not then:
        first, second, value = Choice.ZERO, Choice.CONSTANT, otherwise
    both = bool(then and otherwise)
    steps = [
        FlatStep("x", "work" if both else "y", None, {
            "addend": Addend.CONSTANT, "test": test, "then": first, "otherwise": second,
            "constants": (Constant(-number), Constant(), Constant(), Constant(value)),
        })
    ]  # fmt: skip
    if both:
        nothing = (Left.X, Outcome.EQUAL, Right.COUNTER)
        steps.append(
            FlatStep("work", "y", None, {
                "test": nothing, "then": Choice.CONSTANT, "otherwise": Choice.X,
                "constants": (Constant(), Constant(), Constant(), Constant(otherwise)),
            })
        )  # fmt: skip
    temporaries = {"work": FP32} if both else {}
    return flat_kernel(name, {"x": x}, {"y": y}, steps, region, temporaries=temporaries)


@made_once
def masked_fill(
    name: str,
    x: Tensor,
    mask: Tensor,
    y: Tensor,
    region: Region,
    *,
    value: float,
    keeps: bool,
    scale: float = 1,
) -> VectorKernel:
    """Write ``scale * x``, and a number where a mask hides it.

    Its gradient is the same kernel, of the result's gradient and with a value of 0.

    Parameters
    ----------
    name : str
    x, mask, y : Tensor
        Tensors of one rank; each axis of `mask` has the size of that of `y`, or 1.
    region : Region
    value : float
    keeps : bool
        Whether elements whose mask is not 0 are kept; else those are hidden.
    scale : float

    Raises
    ------
    ValueError
        As for `fpgapipe.lowering.kernels.broadcast.broadcast`.
    """
    settings: dict[str, Any] = {
        **times(scale),
        "test": (Left.Y, Outcome.EQUAL, Right.COUNTER),
        "then": Choice.CONSTANT if keeps else Choice.S,
        "otherwise": Choice.S if keeps else Choice.CONSTANT,
        "constants": (Constant(), Constant(scale), Constant(), Constant(value)),
    }
    return spread(name, {"x": x, "mask": mask}, y, settings, region)
