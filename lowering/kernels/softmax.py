"""Softmax along the last axis, its logarithm, and their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.vector_op import Factor
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.row_kernel import row_kernel
from fpgapipe.lowering.tiling.rows import MINUS_Y, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.lowering.tiling.kernel import Region, Step, Tensor, VectorKernel

MOST_ELEMENTS = 1 << 16
"""Largest number of elements of a row, which is the largest number of iterations of a loop."""


@made_once
def softmax(
    name: str, x: Tensor, y: Tensor, region: Region, *, log: bool = False, causal: bool = False
) -> VectorKernel:
    """``y = exp(x) / sum(exp(x))`` along the last axis, or the logarithm of that.

    Elements of -infinity give 0. An element of +infinity or NaN makes its row NaN, and so does a
    row that contains only -infinity.

    Parameters
    ----------
    name, x, y, region
        `x` and `y` have the same shape.
    log : bool
        Whether to compute the logarithm.
    causal : bool
        Whether row `i` of the last two axes sees only columns ``0..i``; the others give 0.

    Raises
    ------
    ValueError
        If a row has more than `MOST_ELEMENTS`, the region is too small for a row, or `causal` goes
        with `log` or with more rows than columns.
    """
    check_softmax(x.shape, log=log, causal=causal)
    # Intermediate values must be FP32; if `y` is not, they need their own buffer.
    work = "y" if y.format is FP32 else "work"

    def steps(rows: Rows) -> Iterator[Step]:
        yield from rows.exponentials("x", work)
        if log:
            # Two subtractions, because in maximum + log(sum) a small logarithm would be lost.
            yield rows.row("sum", None, "share", function=Function.LOG)
            yield rows.each("x", work, "maximum", **MINUS_Y)
            yield rows.each(work, "y", "share", **MINUS_Y)
        else:
            yield from rows.shares(work, "y")

    return row_kernel(
        name,
        region,
        {"x": x},
        {"y": y},
        steps,
        work=() if work == "y" else (work,),
        numbers=("maximum", "sum", "share"),
        causal=causal,
    )


@made_once
def softmax_gradient(
    name: str, dy: Tensor, y: Tensor, dx: Tensor, region: Region, *, log: bool = False
) -> VectorKernel:
    """``dx = y * (dy - sum(dy * y))``, or ``dy - exp(y) * sum(dy)`` of the logarithm.

    Parameters
    ----------
    name : str
    dy, y, dx : Tensor
        Tensors of the shape of the result, `y`.
    region : Region
    log : bool
        Whether `y` is the logarithm of a softmax.

    Raises
    ------
    ValueError
        As for `softmax`.
    """
    check_softmax(y.shape, log=log)

    def steps(rows: Rows) -> Iterator[Step]:
        if log:
            yield from rows.reduce("dy", "sum")
            yield rows.each("y", "work", None, function=Function.EXP)
            yield rows.each("work", "work", "sum", factor=Factor.Y)
            yield rows.both("dy", "dx", "work", **MINUS_Y)
        else:
            yield rows.both("dy", "work", "y", factor=Factor.Y)
            yield from rows.reduce("work", "sum")
            yield rows.each("dy", "work", "sum", **MINUS_Y)
            yield rows.both("work", "dx", "y", factor=Factor.Y)

    return row_kernel(
        name, region, {"dy": dy, "y": y}, {"dx": dx}, steps, work=("work",), numbers=("sum",)
    )


def check_softmax(shape: tuple[int, ...], *, log: bool = False, causal: bool = False) -> None:
    """Refuse rows with too many elements, and causal ones that make no sense."""
    if not 1 <= shape[-1] <= MOST_ELEMENTS:
        raise ValueError(f"softmax must have rows of 1..{MOST_ELEMENTS} elements, not {shape[-1]}")
    if causal and (log or len(shape) < 2 or shape[-2] > shape[-1]):
        raise ValueError(
            "a causal softmax must be no logarithm, and have no more rows than columns, not "
            f"{list(shape[-2:])}"
        )
