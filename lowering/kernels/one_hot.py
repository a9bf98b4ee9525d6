"""Rows with a single one, which select rows of a table in a matrix product."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.vector_op import Choice, Constant, Left, Outcome, Right
from fpgapipe.lowering.kernels.loss import MOST_CLASSES, class_numbers, class_numbers_content
from fpgapipe.lowering.tiling.channels import small
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.row_kernel import row_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.lowering.tiling.kernel import Region, Step, Tensor, VectorKernel
    from fpgapipe.lowering.tiling.rows import Rows

MOST_ROWS = MOST_CLASSES
"""Largest number of rows of a table: a loop has no more iterations."""

_NONE = Constant(0.0)


def row_numbers(rows: int, left_out: int | None = None) -> Tensor:
    """The tensor of row numbers with which indices are compared.

    Parameters
    ----------
    rows : int
        Number of rows of the table.
    left_out : int, optional
        A row that no index selects.
    """
    if left_out is None:
        return class_numbers(rows)
    return small(f"row numbers {rows} without {left_out}", 1, rows)


def row_numbers_content(rows: int, left_out: int | None = None) -> NDArray[np.float32]:
    """Contents of the tensor of row numbers; an index is never -1."""
    found = class_numbers_content(rows)
    if left_out is not None:
        found[0, left_out] = -1
    return found


def check_rows(rows: int, what: str = "an embedding") -> None:
    """Refuse a table with too many rows."""
    if not 1 <= rows <= MOST_ROWS:
        raise ValueError(f"{what} must have a table of 1..{MOST_ROWS} rows, not {rows}")


@made_once
def one_hot(
    name: str, indices: Tensor, y: Tensor, region: Region, *, left_out: int | None = None
) -> VectorKernel:
    """Write 1 where the number of a column is the index of the row, and 0 elsewhere.

    Parameters
    ----------
    name : str
    indices : Tensor
        FP32 tensor of one whole number for each row of `y`.
    y : Tensor
        Tensor of ``... x columns``.
    region : Region
    left_out : int, optional
        An index whose rows are all zeros.

    Raises
    ------
    ValueError
        If there are more than `MOST_ROWS` columns, or the region is too small for a row.
    """
    columns = y.shape[-1]
    check_rows(columns)

    def steps(rows: Rows) -> Iterator[Step]:
        yield rows.spread(
            "indices",
            "y",
            "table",
            test=(Left.X, Outcome.EQUAL, Right.COEFFICIENT),
            then=Choice.CONSTANT,
            otherwise=Choice.ZERO,
            constants=(_NONE, _NONE, _NONE, Constant(1.0)),
        )

    return row_kernel(
        name,
        region,
        {},
        {"y": y},
        steps,
        number_sources={"indices": indices},
        tables={"table": row_numbers(columns, left_out)},
    )
