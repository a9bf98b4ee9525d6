"""Rows of an image that the windows of an operator need."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.network.operators import Conv, Pool

if TYPE_CHECKING:
    from fpgapipe.lowering.shards.degrees import Range
    from fpgapipe.network.operators import Operator


def window_rows(operator: Operator, axis: int, rows: Range) -> Range:
    """Indices of the input, padding included, that some indices of the output need.

    Parameters
    ----------
    operator : Operator
    axis : int
        Spatial axis, 0 for the height.
    rows : Range
        Indices of the output.

    Returns
    -------
    Range
        Below 0, and from the size of the input on, is padding.
    """
    if not isinstance(operator, Conv | Pool):
        return rows
    stride, before = operator.stride[axis], operator.padding[axis][0]
    reach = operator.dilation[axis] * (operator.kernel[axis] - 1) + 1
    return rows[0] * stride - before, (rows[1] - 1) * stride - before + reach


def needed_rows(operator: Operator, axis: int, size: int, rows: Range) -> Range:
    """Indices of the input along a spatial axis that some indices of the output need.

    Parameters
    ----------
    operator, axis, rows
        As for `window_rows`.
    size : int
        Size of the input along the axis.
    """
    first, last = window_rows(operator, axis, rows)
    return max(first, 0), min(last, size)


def with_rows(operator: Operator, size: int, rows: Range) -> Operator:
    """The operator that computes some rows of the output from the rows that these need.

    Parameters
    ----------
    operator : Operator
    size : int
        Rows of the input of `operator`.
    rows : Range
        Rows of the output.
    """
    if not isinstance(operator, Conv | Pool):
        return operator
    first, last = window_rows(operator, 0, rows)
    padding = (max(-first, 0), max(last - size, 0)), *operator.padding[1:]
    return replace(operator, padding=padding)
