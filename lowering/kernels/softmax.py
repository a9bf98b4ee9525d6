"""Softmax along the last axis, its logarithm, and their gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.isa.vector_op import LANES, Factor, Second
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.row_kernel import row_kernel
from fpgapipe.lowering.tiling.rows import MINUS_Y, Rows, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.lowering.tiling.draw import Draw
    from fpgapipe.lowering.tiling.kernel import Region, Step, Tensor, VectorKernel

MOST_ELEMENTS = 1 << 16
"""Largest number of elements of a row, which is the largest number of iterations of a loop."""


@made_once
def softmax(
    name: str,
    x: Tensor,
    y: Tensor,
    region: Region,
    *,
    log: bool = False,
    causal: bool = False,
    empty: bool = False,
    scale: float = 1,
    dropped: Tensor | None = None,
    draw: Draw | None = None,
) -> VectorKernel:
    """``y = exp(scale x) / sum(exp(scale x))`` along the last axis, or the logarithm of that.

    Elements of -infinity give 0. An element of +infinity or NaN makes its row NaN. A row that
    contains only -infinity is NaN as well, or zeros if `empty`.

    Parameters
    ----------
    name, x, y, region
        `x` and `y` have the same shape.
    log : bool
        Whether to compute the logarithm.
    causal : bool
        Whether row `i` of the last two axes sees only columns ``0..i``; the others give 0.
    empty : bool
        Whether rows of -infinity only give zeros; that does not go with `log`.
    scale : float
        Factor of `x`, above 0.
    dropped, draw : Tensor and Draw, optional
        Tensor for the result after dropout, and the random numbers. Of a causal `y`, only elements
        that rows see, and some more, are then written.

    Raises
    ------
    ValueError
        If a row has more than `MOST_ELEMENTS`, the region is too small for a row, the scale is not
        above 0, `causal` or `empty` goes with `log`, `causal` goes with more rows than columns, or
        rows that are dropped are no whole vectors.
    """
    drops = draw is not None
    check_softmax(x.shape, log=log, causal=causal, empty=empty, scale=scale, drops=drops)
    # Intermediate values must be FP32; if `y` is not, they need their own buffer.
    work = "y" if y.format is FP32 else "work"

    def steps(rows: Rows) -> Iterator[Step]:
        yield from rows.exponentials("x", work, scale, empty=empty)
        if log:
            # Two subtractions, because in maximum + log(sum) a small logarithm would be lost.
            yield rows.row("sum", None, "share", function=Function.LOG)
            settings = {**MINUS_Y, **times(scale)}
            yield rows.each("x", work, "maximum", **settings)
            yield rows.each(work, "y", "share", **MINUS_Y)
            return
        if draw is not None:
            yield rows.share(draw.factor)
            drawn = draw.settings(rows.first * x.shape[-1] // LANES)
            yield rows.each(
                work, "dropped", "share", whole=True, by_row=True, factor=Factor.Y, **drawn
            )
            yield rows.share()
            yield rows.each(work, "y", "share", factor=Factor.Y)
            return
        yield from rows.shares(work, "y")

    return row_kernel(
        name,
        region,
        {"x": x},
        {"y": y} if dropped is None else {"y": y, "dropped": dropped},
        steps,
        work=() if work == "y" else (work,),
        numbers=("maximum", "sum", "share"),
        causal=causal,
        partial=("x",) if draw is None else ("x", "y"),
    )


@made_once
def softmax_gradient(
    name: str,
    dy: Tensor,
    y: Tensor,
    dx: Tensor,
    region: Region,
    *,
    log: bool = False,
    causal: bool = False,
    scale: float = 1,
    draw: Draw | None = None,
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
    causal, scale, draw
        As for `softmax`; `dy` is the gradient of the result after dropout.

    Raises
    ------
    ValueError
        As for `softmax`.
    """
    check_softmax(y.shape, log=log, causal=causal, scale=scale, drops=draw is not None)
    factor = scale * (1 if draw is None else draw.factor)

    def steps(rows: Rows) -> Iterator[Step]:
        if log:
            yield from rows.reduce("dy", "sum")
            yield rows.each("y", "work", None, function=Function.EXP)
            yield rows.each("work", "work", "sum", factor=Factor.Y)
            settings: dict[str, Any] = {**MINUS_Y, **times(scale)}
            yield rows.both("dy", "dx", "work", **settings)
            return
        drawn = {}
        if draw is not None:
            drawn = draw.settings(rows.first * y.shape[-1] // LANES)
        yield rows.both("dy", "work", "y", by_row=True, every=bool(drawn), factor=Factor.Y, **drawn)
        yield from rows.reduce("work", "sums", vectors=True, scale=factor)
        yield rows.both(
            "work", "dx", "y", "sums", whole=True, by_row=True,
            second=Second.COEFFICIENT, negate_second=True, **times(factor),
        )  # fmt: skip

    return row_kernel(
        name,
        region,
        {"dy": dy, "y": y},
        {"dx": dx},
        steps,
        work=("work",),
        numbers=("sum",) if log else (),
        vectors=() if log else ("sums",),
        causal=causal,
        partial=("dy", "y"),
    )


def check_softmax(
    shape: tuple[int, ...],
    *,
    log: bool = False,
    causal: bool = False,
    empty: bool = False,
    scale: float = 1,
    drops: bool = False,
) -> None:
    """Refuse rows with too many elements, and what makes no sense; see `softmax`."""
    if not 1 <= shape[-1] <= MOST_ELEMENTS:
        raise ValueError(f"softmax must have rows of 1..{MOST_ELEMENTS} elements, not {shape[-1]}")
    if causal and (log or len(shape) < 2 or shape[-2] > shape[-1]):
        raise ValueError(
            "a causal softmax must be no logarithm, and have no more rows than columns, not "
            f"{list(shape[-2:])}"
        )
    if log and empty:
        raise ValueError("a row of -infinity only has no logarithm of its softmax")
    if not 0 < scale < math.inf:
        raise ValueError(f"the scale of a softmax must be above 0 and finite, not {scale}")
    if drops and (log or shape[-1] % LANES):
        raise ValueError(
            f"a softmax with dropout must be no logarithm, and have rows of a multiple of {LANES} "
            f"elements, not {shape[-1]}"
        )
