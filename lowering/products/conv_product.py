"""A pass of a convolution before it is tiled: its pieces, and how each is read or written.

A pass is one matrix product, or several that share their tensors (the input gradient of a strided
convolution). Its rows, columns and reduction are divided into pieces. There is one instruction for
each combination of a piece of the rows, one of the columns and one of the reduction. What is loaded
of an operand for a piece does not depend on the pieces of other dimensions, so a search for tilings
examines each piece only once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Generic, TypeVar

from fpgapipe.hw.hls_models.isa.address import BLOCK, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.model.datapath import ACC_CYCLES
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.products.conv_parts import Op, Tiling
from fpgapipe.lowering.tiling.tile import Tile

Range = tuple[int, int]
"""First index, and the index after the last."""

Row = TypeVar("Row")
Column = TypeVar("Column")


class Product(ABC, Generic[Row, Column]):
    """A pass, or a part of a pass, as one matrix product.

    Parameters
    ----------
    core : CoreSpec
    a_fp32, b_fp32 : bool
        Whether elements of the streamed and of the stationary operand are FP32.
    a_transposed, b_transposed : bool
        Whether the operands are transposed, as in `OperandPattern`.
    """

    def __init__(
        self,
        core: CoreSpec,
        *,
        a_fp32: bool,
        b_fp32: bool,
        a_transposed: bool = False,
        b_transposed: bool = False,
    ) -> None:
        self.core = core
        self._a = a_transposed, a_fp32
        self._b = b_transposed, b_fp32

    @abstractmethod
    def rows(self, tiling: Tiling) -> list[Row]:
        """Divide the rows, whose vectors are streamed, into pieces."""

    @abstractmethod
    def columns(self, tiling: Tiling) -> list[Column]:
        """Divide the columns into pieces."""

    @abstractmethod
    def slices(self, tiling: Tiling) -> list[Range]:
        """Divide the reduction into pieces."""

    @abstractmethod
    def vectors(self, row: Row) -> int:
        """Number of vectors of a piece of the rows."""

    @abstractmethod
    def array_tiles(self, column: Column) -> int:
        """Number of columns of array tiles in a piece of the columns."""

    @abstractmethod
    def depth(self, part: Range) -> int:
        """Number of array tiles that are added up in a piece of the reduction."""

    @abstractmethod
    def streamed(self, row: Row, part: Range) -> Tile:
        """Tile of the streamed operand."""

    @abstractmethod
    def stationary(self, column: Column, part: Range) -> Tile:
        """Tile of the stationary operand."""

    @abstractmethod
    def result(self, row: Row, column: Column) -> Tile:
        """Tile of the result, which is stored."""

    @abstractmethod
    def streamed_pattern(self, row: Row, array_tiles: int, part: Range) -> OperandPattern:
        """Pattern that reads the streamed operand once for each column of array tiles."""

    @abstractmethod
    def stationary_pattern(self, column: Column, part: Range) -> OperandPattern:
        """Pattern that reads the stationary operand."""

    @abstractmethod
    def result_pattern(self, row: Row, column: Column) -> ResultPattern:
        """Pattern that writes the results."""

    def check(self, rows: Sequence[Row], columns: Sequence[Column], number: int) -> None:
        """Refuse pieces whose sums do not fit the accumulators.

        Parameters
        ----------
        rows, columns : sequence of pieces
        number : int
            Number of pieces of the reduction.

        Raises
        ------
        ValueError
            If there are too few accumulators.
        """
        m = max(map(self.vectors, rows))
        n = max(map(self.array_tiles, columns)) if number > 1 else 1
        if m * n > self.core.acc_depth:
            raise ValueError(
                f"{m} vectors by {n} columns of tiles must fit {self.core.acc_depth} accumulators"
            )

    def work(self, rows: Sequence[Row], columns: Sequence[Column], parts: Sequence[Range]) -> int:
        """Rough estimate of the cycles in which operands are read or sums are added."""
        loaded = max(_reads(*self._b, self.core.cols), ACC_CYCLES)
        streamed = sum(max(_reads(*self._a, self.vectors(row)), loaded) for row in rows)
        return streamed * sum(map(self.array_tiles, columns)) * sum(map(self.depth, parts))

    def operations(self, tiling: Tiling) -> Iterator[Op]:
        """Yield all instructions, in order.

        Raises
        ------
        ValueError
            If the tiling does not suit the core.
        """
        rows, columns, parts = self.rows(tiling), self.columns(tiling), self.slices(tiling)
        self.check(rows, columns, len(parts))
        # Many instructions share a piece of an operand.
        streamed, stationary = cache(self.streamed), cache(self.stationary)
        streams, stays = cache(self.streamed_pattern), cache(self.stationary_pattern)
        for row, column in _ordered(tiling.n_outer, rows, columns):
            m, n = self.vectors(row), self.array_tiles(column)
            result, target = self.result(row, column), self.result_pattern(row, column)
            step = m if len(parts) > 1 else 0
            for index, part in enumerate(parts):
                yield Op(
                    streamed(row, part), stationary(column, part), result,
                    streams(row, n, part), stays(column, part), target,
                    m, self.depth(part), n, index == 0, index == len(parts) - 1, step,
                )  # fmt: skip


def _reads(transposed: bool, fp32: bool, vectors: int) -> int:
    """Approximate number of cycles in which the vectors of an operand are read."""
    words = -(-vectors // BLOCK) * BLOCK if transposed else vectors
    return words * (2 if fp32 else 1)


def _ordered(
    outer_n: bool, rows: Sequence[Row], columns: Sequence[Column]
) -> Iterator[tuple[Row, Column]]:
    """All pairs of a row piece and a column piece, with either of them as the outer loop."""
    if outer_n:
        yield from ((i, j) for j in columns for i in rows)
    else:
        yield from ((i, j) for i in rows for j in columns)
