"""Normalisation of the rows of a matrix, forward and backward, in FP32.

Where no mean is given, none is subtracted: rows are divided by the root of the mean of their
squares.

Sources: J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", 2016; B. Zhang, R. Sennrich,
"Root Mean Square Layer Normalization", NeurIPS 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.vector_op import Addend, Constant, Factor
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.tiling.channels import SumStep, channel_kernel
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.row_kernel import row_kernel
from fpgapipe.lowering.tiling.rows import MINUS_Y, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.lowering.tiling.kernel import Region, Step, Tensor, VectorKernel


@made_once
def layer_norm(
    name: str,
    x: Tensor,
    y: Tensor,
    mean: Tensor | None,
    deviation: Tensor,
    region: Region,
    *,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-5,
) -> VectorKernel:
    """Normalise each row, then scale and shift its elements.

    Mean and variance are computed one after the other, so a large mean costs no precision.

    Parameters
    ----------
    name : str
    x, y : Tensor
        Tensors of ``... x width``.
    mean, deviation : Tensor
        FP32 tensors of one number for each row, which are written: the mean, if it is subtracted,
        and one over the standard deviation.
    region : Region
    gamma, beta : Tensor, optional
        FP32 tensors of one number for each column: the scale and the shift.
    epsilon : float
        What is added to the variance.

    Raises
    ------
    ValueError
        If the region is too small for a row.
    """
    width = x.shape[-1]

    def steps(rows: Rows) -> Iterator[Step]:
        centred = "work" if mean else "x"
        if mean:
            yield from rows.reduce("x", "sum")
            yield _scaled(rows, "sum", "mean", 1 / width)
            yield rows.each("x", "work", "mean", **MINUS_Y)
        yield from rows.reduce(centred, "sum", squares=True)
        # The variance is the sum over the width.
        constants = Constant(width * epsilon), Constant(1 / width)
        yield rows.row(
            "sum",
            None,
            "deviation",
            addend=Addend.CONSTANT,
            factor=Factor.CONSTANT,
            constants=constants,
            function=Function.RSQRT,
        )
        scaled = "work" if gamma or beta else "y"
        yield rows.each(centred, scaled, "deviation", factor=Factor.Y)
        if gamma:
            target = "work" if beta else "y"
            yield rows.each("work", target, None, "gamma", factor=Factor.COEFFICIENT)
        if beta:
            yield rows.each("work", "y", None, "beta", addend=Addend.COEFFICIENT)

    return row_kernel(
        name,
        region,
        {"x": x},
        {"y": y},
        steps,
        work=("work",),
        numbers=("sum",),
        number_targets=({"mean": mean} if mean else {}) | {"deviation": deviation},
        tables={each: at for each, at in (("gamma", gamma), ("beta", beta)) if at},
    )


@made_once
def layer_norm_gradient(
    name: str,
    x: Tensor,
    dy: Tensor,
    normalised: Tensor,
    dx: Tensor,
    mean: Tensor | None,
    deviation: Tensor,
    region: Region,
    *,
    gamma: Tensor | None = None,
) -> VectorKernel:
    """Compute ``dx = (g - mean(g) - n * mean(g * n)) / deviation``.

    Here ``g = dy * gamma``, and ``n`` is the normalised row, which is written as well: the
    gradients of scale and shift need it. Without a mean, ``mean(g)`` is left out.

    Parameters
    ----------
    name : str
    x, dy, normalised, dx : Tensor
        Tensors of ``... x width``; the last two are written.
    mean, deviation : Tensor
        What the forward pass has written.
    region : Region
    gamma : Tensor, optional
        The scale.

    Raises
    ------
    ValueError
        As for `layer_norm`.
    """
    width = x.shape[-1]

    def steps(rows: Rows) -> Iterator[Step]:
        if mean:
            yield rows.each("x", "centred", "mean", **MINUS_Y)
        yield rows.each("centred" if mean else "x", "centred", "deviation", factor=Factor.Y)
        yield rows.each("centred", "normalised", None)
        given = "dy"
        if gamma:
            yield rows.each("dy", "given", None, "gamma", factor=Factor.COEFFICIENT)
            given = "given"
        if mean:
            yield from rows.reduce(given, "sum")
            yield _scaled(rows, "sum", "shift", 1 / width)
        yield rows.both(given, "part", "centred", factor=Factor.Y)
        yield from rows.reduce("part", "sum")
        yield _scaled(rows, "sum", "sum", 1 / width)
        yield rows.each("centred", "part", "sum", factor=Factor.Y)
        yield rows.both(given, "part", "part", **MINUS_Y)
        if mean:
            yield rows.each("part", "part", "shift", **MINUS_Y)
        yield rows.each("part", "dx", "deviation", factor=Factor.Y)

    return row_kernel(
        name,
        region,
        {"x": x, "dy": dy},
        {"normalised": normalised, "dx": dx},
        steps,
        work=("centred", "part", *(("given",) if gamma else ())),
        numbers=("sum", "shift") if mean else ("sum",),
        number_sources=({"mean": mean} if mean else {}) | {"deviation": deviation},
        tables={"gamma": gamma} if gamma else {},
    )


def parameter_gradient(
    name: str, dy: Tensor, normalised: Tensor | None, total: Tensor, region: Region
) -> VectorKernel:
    """Add up `dy`, or ``dy * normalised``, over all rows, into `total`.

    The first is the gradient of the shift, the second that of the scale.
    """
    width = dy.shape[-1]
    settings = {"factor": Factor.Y} if normalised else {}
    y = "normalised" if normalised else None
    return channel_kernel(
        name,
        (dy.elements // width, width),
        region,
        sources={"dy": dy} | ({"normalised": normalised} if normalised else {}),
        steps=[SumStep("dy", "total", y=y, settings=settings)],
        small_targets={"total": total},
    )


def _scaled(rows: Rows, x: str, target: str, factor: float) -> Step:
    constants = Constant(), Constant(factor)
    return rows.row(x, None, target, factor=Factor.CONSTANT, constants=constants)
