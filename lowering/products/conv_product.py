"""A pass of a convolution before it is cut: what its pieces are, and how each is read or written.

A pass is one matrix product, or several that share their tensors (the input gradient of a strided
convolution). Its rows, columns and reduction are cut into pieces; every pair of a piece of the rows
and one of the columns is an instruction for each piece of the reduction. What is loaded for a piece
does not depend on the other pieces, so a search for cuts looks at each piece once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Generic, TypeVar

from fpgapipe.hw.hls_models.isa.address import BLOCK, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.model.datapath import ACC_CYCLES
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.products.conv_parts import Cut, Op
from fpgapipe.lowering.tiling.tile import Tile

Range = tuple[int, int]
"""The first, and one after the last."""

Row = TypeVar("Row")
Column = TypeVar("Column")


class Product(ABC, Generic[Row, Column]):
    """A pass, or a part of it, as one matrix product.

    Parameters
    ----------
    core : CoreSpec
    a_fp32, b_fp32 : bool
        Whether elements of the streamed and of the stationary operand are FP32.
    a_transposed, b_transposed : bool
        As in `OperandPattern`.
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
    def rows(self, cut: Cut) -> list[Row]:
        """Pieces of the rows, whose vectors are streamed."""

    @abstractmethod
    def columns(self, cut: Cut) -> list[Column]:
        """Pieces of the columns."""

    @abstractmethod
    def slices(self, cut: Cut) -> list[Range]:
        """Pieces of the reduction."""

    @abstractmethod
    def vectors(self, row: Row) -> int:
        """Vectors of a piece of the rows."""

    @abstractmethod
    def array_tiles(self, column: Column) -> int:
        """Columns of tiles of a piece of the columns."""

    @abstractmethod
    def depth(self, part: Range) -> int:
        """Tiles that are added up in a piece of the reduction."""

    @abstractmethod
    def streamed(self, row: Row, part: Range) -> Tile:
        """What is loaded of the streamed operand."""

    @abstractmethod
    def stationary(self, column: Column, part: Range) -> Tile:
        """What is loaded of the stationary operand."""

    @abstractmethod
    def result(self, row: Row, column: Column) -> Tile:
        """What is stored."""

    @abstractmethod
    def streamed_pattern(self, row: Row, array_tiles: int, part: Range) -> OperandPattern:
        """How the streamed operand is read, once a column of tiles."""

    @abstractmethod
    def stationary_pattern(self, column: Column, part: Range) -> OperandPattern:
        """How the stationary operand is read."""

    @abstractmethod
    def result_pattern(self, row: Row, column: Column) -> ResultPattern:
        """How results are written."""

    def check(self, rows: Sequence[Row], columns: Sequence[Column], number: int) -> None:
        """Refuse pieces whose sums the accumulators have no room for; `number` of the reduction.

        Raises
        ------
        ValueError
        """
        m = max(map(self.vectors, rows))
        n = max(map(self.array_tiles, columns)) if number > 1 else 1
        if m * n > self.core.acc_depth:
            raise ValueError(
                f"{m} vectors by {n} columns of tiles must fit {self.core.acc_depth} accumulators"
            )

    def work(self, rows: Sequence[Row], columns: Sequence[Column], parts: Sequence[Range]) -> int:
        """Cycles for which operands are read, or sums added, roughly."""
        loaded = max(_reads(*self._b, self.core.cols), ACC_CYCLES)
        streamed = sum(max(_reads(*self._a, self.vectors(row)), loaded) for row in rows)
        return streamed * sum(map(self.array_tiles, columns)) * sum(map(self.depth, parts))

    def operations(self, cut: Cut) -> Iterator[Op]:
        """All instructions, in order.

        Raises
        ------
        ValueError
            If the cut does not suit the core.
        """
        rows, columns, parts = self.rows(cut), self.columns(cut), self.slices(cut)
        self.check(rows, columns, len(parts))
        # Many instructions have the same piece of an operand.
        streamed, stationary = cache(self.streamed), cache(self.stationary)
        streams, stays = cache(self.streamed_pattern), cache(self.stationary_pattern)
        for row, column in _ordered(cut.n_outer, rows, columns):
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
    """Cycles in which an operand's vectors are read, about."""
    words = -(-vectors // BLOCK) * BLOCK if transposed else vectors
    return words * (2 if fp32 else 1)


def _ordered(
    outer_n: bool, rows: Sequence[Row], columns: Sequence[Column]
) -> Iterator[tuple[Row, Column]]:
    """All pairs of a piece of the rows and one of the columns, with either as the outer loop."""
    if outer_n:
        yield from ((i, j) for j in columns for i in rows)
    else:
        yield from ((i, j) for i in rows for j in columns)
