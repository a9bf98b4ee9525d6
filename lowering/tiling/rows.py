"""Instructions on the rows of a matrix: on all elements, on one number per row, and reductions.

Rows are reduced in two steps: first the vectors of a row to one vector, then its lanes to one
number. Long rows are divided into slices first. The number of rows of a piece changes no bit of a
result.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    MAX_SUMS,
    VECTOR_BYTES,
    Addend,
    Choice,
    Coefficients,
    Constant,
    Factor,
    Left,
    Outcome,
    Right,
    Source,
    Target,
    VectorOp,
)
from fpgapipe.hw.hls_models.numerics.element_format import FP32, ElementFormat
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.tiling.channels import padded
from fpgapipe.lowering.tiling.kernel import Buffer, Region, Step, room_of
from fpgapipe.lowering.tiling.nest import VectorLoop, nest

PIECE_ELEMENTS = 1 << 15
"""Approximate number of elements of a piece."""

LEAST_ROWS = 16
"""Rows of a piece of long rows, if they fit. A vector of a table, such as numbers of classes, is
read once for all rows of a piece, and takes as long as ten rows or so."""

WORD_ELEMENTS = 32
"""Elements of which a number fills whole words of memory, in BF16 and in FP32."""

SLICES, MANY_GROUPS = 8, 64
"""Number of slices of a long row, and number of vectors above which a row is long.

Each slice consists of every eighth vector. The slices of a row are reduced concurrently, and then
their results to one. Only few long rows fit on chip, and the slices hide the latency of an adder.
"""

LARGEST = (2 - 2.0**-23) * 2.0**127
"""Largest finite number of FP32."""

MINUS_Y: Mapping[str, Any] = {"addend": Addend.Y, "negate_addend": True}
"""Settings for ``X - Y``."""


def times(scale: float) -> dict[str, Any]:
    """Settings for a product with a number; none for 1."""
    if scale == 1:
        return {}
    return {"factor": Factor.CONSTANT, "constants": (Constant(), Constant(scale))}


def seen_columns(width: int, count: int, diagonal: int | None) -> int:
    """Columns of a piece behind which no row has an element: whole words, or all columns.

    Parameters
    ----------
    width, count, diagonal
        See `Rows`.
    """
    if diagonal is None:
        return width
    return min(-(-(diagonal + count) // WORD_ELEMENTS) * WORD_ELEMENTS, width)


def reduction_buffers(rows: int, width: int) -> dict[str, Buffer]:
    """Buffers that `Rows.reduce` needs in addition to source and target."""
    many = width > LANES * MANY_GROUPS
    return {
        "lanes": Buffer(VECTOR_BYTES * rows, kept=True),
        "slices": Buffer(SLICES * VECTOR_BYTES * rows if many else 0, kept=True),
    }


def piece_rows(
    number: int, width: int, buffers: Callable[[int], Mapping[str, Buffer]], region: Region
) -> int:
    """Number of rows of a piece.

    Parameters
    ----------
    number, width : int
        Number of rows of the matrix, and elements of a row.
    buffers : callable
        Buffers that a piece of a given number of rows needs.
    region : Region
    """
    rows = min(max(PIECE_ELEMENTS // width, LEAST_ROWS), number)
    while rows > 1 and room_of(buffers(rows)) > region.size_bytes:
        rows //= 2
    return rows - rows % MAX_SUMS if rows > MAX_SUMS else rows


@dataclass(frozen=True)
class Rows:
    """The rows of a piece.

    Attributes
    ----------
    count, width : int
        Number of rows, and elements of a row.
    shifts : mapping of str to int
        Byte at which each tensor begins in its buffer.
    formats : mapping of str to ElementFormat
        Format of each tensor; what is not named is FP32.
    diagonal : int, optional
        If given, row ``i`` of the piece ends with column ``diagonal + i``, below the width: what
        lies behind is left out by reductions, and is zero to other instructions.
    pitches : mapping of str to int
        Bytes from one row of a matrix to the next; what is not named has rows without gaps.
    first : int
        Number of the piece's first row among all rows.
    """

    count: int
    width: int
    shifts: Mapping[str, int]
    formats: Mapping[str, ElementFormat]
    diagonal: int | None = None
    pitches: Mapping[str, int] = field(default_factory=dict)
    first: int = 0

    @property
    def seen(self) -> int:
        """Number of columns behind which no row has an element."""
        return seen_columns(self.width, self.count, self.diagonal)

    @property
    def _groups(self) -> int:
        """Number of vectors of the columns that rows have elements in."""
        return padded(self.seen) // LANES

    @property
    def _is_long(self) -> bool:
        return padded(self.width) // LANES > MANY_GROUPS

    def _pitch(self, name: str) -> int:
        return self.pitches.get(name, self.width * self._format(name).element_bytes)

    def _format(self, name: str) -> ElementFormat:
        return self.formats.get(name, FP32)

    @property
    def _down(self) -> int:
        """Movement of the column from row to row: where rows end earlier, they begin later."""
        return 0 if self.diagonal is None else -1

    def _column(self, row: int) -> int:
        """Column at which a row begins; all rows end at the width."""
        return 0 if self.diagonal is None else self.seen - 1 - self.diagonal - row

    def _along(
        self, name: str, *, stored: bool = False, whole: bool = False, by_row: bool = False
    ) -> dict[str, Any]:
        """Settings to access the matrix.

        Parameters
        ----------
        name : str
        stored : bool
            Whether the matrix is the target.
        whole : bool
            Whether the target has all columns.
        by_row : bool
            Whether the first loop is over vectors and the last over rows, instead of the reverse.
        """
        size = self._format(name).element_bytes

        def loops(row: int, vector: int) -> tuple[int, ...]:
            return (vector, 0, 0, 0, 0, row) if by_row else (row, 0, 0, 0, 0, vector)

        return {
            "base": self.shifts.get(name, 0),
            "steps": loops(self._pitch(name), LANES * size),
            "u": 0 if stored else self._column(0),
            "u_steps": loops(0 if stored else self._down, LANES),
            "u_limit": self.width if whole else self.seen,
            "format": Format.of(self._format(name)),
        }

    def _counts(self, *, whole: bool, by_row: bool = False) -> tuple[int, ...]:
        groups = padded(self.width) // LANES if whole else self._groups
        return (groups, 1, 1, 1, 1, self.count) if by_row else (self.count, 1, 1, 1, 1, groups)

    def exponentials(
        self, x: str, target: str, scale: float = 1, *, empty: bool = False
    ) -> Iterator[Step]:
        """Compute ``target = exp((x - maximum) * scale)``, and fill ``maximum`` and ``sum``.

        With `empty`, rows of -infinity only give zeros, and their ``sum`` is 1.
        """
        settings = {**MINUS_Y, **times(scale)}
        yield from self.reduce(x, "maximum", takes_maximum=True)
        if empty:
            yield self._replaced("maximum", (Left.X, Outcome.LESS, Right.CONSTANT), -LARGEST)
        yield self.each(x, target, "maximum", function=Function.EXP, **settings)
        yield from self.reduce(target, "sum")
        if empty:
            yield self._replaced("sum", (Left.X, Outcome.EQUAL, Right.COUNTER), 1.0)

    def _replaced(self, name: str, test: tuple[Left, Outcome, Right], value: float) -> Step:
        """Write a number in the place of those numbers of rows for which a test is true."""
        constants = (Constant(), Constant(), Constant(), Constant(value))
        chosen = {"then": Choice.CONSTANT, "otherwise": Choice.X}
        return self.row(name, None, name, test=test, constants=constants, **chosen)

    def shares(self, work: str, target: str, scale: float = 1) -> Iterator[Step]:
        """Compute ``target = work / sum * scale``; also fills the buffer ``share``."""
        yield self.share(scale)
        yield self.each(work, target, "share", whole=True, factor=Factor.Y)

    def share(self, scale: float = 1) -> Step:
        """Compute ``share = scale / sum``, for each row."""
        return self.row(
            "sum",
            None,
            "share",
            factor=Factor.CONSTANT,
            constants=(Constant(), Constant(1 / scale)),
            function=Function.RECIPROCAL,
        )

    def each(
        self,
        x: str,
        target: str,
        y: str | None,
        table: str | None = None,
        *,
        whole: bool = False,
        by_row: bool = False,
        **settings: Any,
    ) -> Step:
        """Process all elements; `y` has one number per row, and k0..k3 are a row of `table`.

        With `whole`, the target gets zeros in the columns behind those that rows have. With
        `by_row`, the vectors of a row follow one another, as random numbers do.
        """
        moves = (0, 0, 0, 0, 0, 4) if by_row else (4,)
        op = VectorOp(
            counts=self._counts(whole=whole, by_row=by_row),
            x=Source(**self._along(x, by_row=by_row)),
            y=Source(self.shifts.get(y, 0), moves, broadcast=True) if y else None,
            target=Target(**self._along(target, stored=True, whole=whole, by_row=by_row)),
            coefficients=Coefficients(0, 0, VECTOR_BYTES, 4) if table else Coefficients(),
            **settings,
        )
        return Step(op, x, target, y, table)

    def spread(self, numbers: str, target: str, table: str | None = None, **settings: Any) -> Step:
        """Process, for each element, the number of its row; k0..k3 are a row of `table`."""
        op = VectorOp(
            counts=self._counts(whole=False),
            x=Source(self.shifts.get(numbers, 0), (4,), broadcast=True),
            target=Target(**self._along(target, stored=True)),
            coefficients=Coefficients(0, 0, VECTOR_BYTES, 4) if table else Coefficients(),
            **settings,
        )
        return Step(op, numbers, target, None, table)

    def both(
        self,
        x: str,
        target: str,
        y: str,
        vectors: str | None = None,
        *,
        whole: bool = False,
        by_row: bool = False,
        every: bool = False,
        **settings: Any,
    ) -> Step:
        """Process all elements of two matrices; see `each`.

        With `vectors`, k0..k3 are the vector that a row has there; that goes with `by_row`. With
        `every`, the columns that rows do not have are gone through but not written, so that random
        numbers are those of the elements.
        """
        op = VectorOp(
            counts=self._counts(whole=whole or every, by_row=by_row),
            x=Source(**self._along(x, by_row=by_row)),
            y=Source(**self._along(y, by_row=by_row)),
            target=Target(**self._along(target, stored=True, whole=whole, by_row=by_row)),
            coefficients=Coefficients(0, 0, VECTOR_BYTES, 4) if vectors else Coefficients(),
            **settings,
        )
        return Step(op, x, target, y, vectors)

    def reduce(
        self,
        x: str,
        target: str,
        *,
        takes_maximum: bool = False,
        squares: bool = False,
        vectors: bool = False,
        scale: float = 1,
    ) -> Iterator[Step]:
        """Reduce each row to one number: a sum of elements or of their squares, or the maximum.

        With `vectors`, the target has a vector for each row, all of whose elements are the number.
        What is reduced at last, of a sum of elements, is multiplied by `scale` before.
        """
        settings: dict[str, Any] = {"takes_maximum": takes_maximum}
        first = settings | ({"factor": Factor.SELF} if squares else {})
        element, lanes, buffer, base = self._format(x), self.width, x, self.shifts.get(x, 0)
        size = element.element_bytes
        pitch = self._pitch(x)
        several = self.width > LANES
        if self._is_long:
            vector, all_slices = LANES * size, SLICES * VECTOR_BYTES
            op = nest(
                [
                    VectorLoop(SLICES, (vector, 0, LANES), target=(VECTOR_BYTES, 0)),
                    VectorLoop(self.count, (pitch, 0, self._down), target=(all_slices, 0)),
                ],
                [VectorLoop(-(-self._groups // SLICES), (SLICES * vector, 0, SLICES * LANES))],
                Source(base, u=self._column(0), u_limit=self.seen, format=Format.of(element)),
                Target(0),
                **first,
            )
            yield Step(op, x, "slices")
            op = nest(
                [VectorLoop(self.count, (all_slices, 0, 0), target=(VECTOR_BYTES, 0))],
                [VectorLoop(SLICES, (VECTOR_BYTES, 0, 0))],
                Source(0),
                Target(0),
                **settings,
            )
            yield Step(op, "slices", "lanes")
        elif several:
            for begin, count in self._spans():
                op = nest(
                    [VectorLoop(count, (pitch, 0, self._down), target=(VECTOR_BYTES, 0))],
                    [VectorLoop(self._groups, (LANES * size, 0, LANES))],
                    Source(
                        base + begin * pitch,
                        u=self._column(begin),
                        u_limit=self.seen,
                        format=Format.of(element),
                    ),
                    Target(begin * VECTOR_BYTES),
                    **first,
                )
                yield Step(op, x, "lanes")
        limit, down = self.seen, self._down
        if several:
            element, lanes, buffer, base, pitch = FP32, LANES, "lanes", 0, VECTOR_BYTES
            limit, down = LANES, 0
        number = VECTOR_BYTES if vectors else 4
        last = settings if several else first
        if scale != 1:
            last = last | times(scale)
        for begin, count in self._spans():
            op = nest(
                [VectorLoop(count, (pitch, down, 0), target=(number, 0))],
                [VectorLoop(lanes, (element.element_bytes, 1, 0))],
                Source(
                    base + begin * pitch,
                    y=self._column(begin) if down else 0,
                    y_limit=limit,
                    format=Format.of(element),
                    broadcast=True,
                ),
                Target(
                    number * begin + self.shifts.get(target, 0), u_limit=LANES if vectors else 1
                ),
                **last,
            )
            yield Step(op, buffer, target)

    def _spans(self) -> list[tuple[int, int]]:
        """First row and number of rows per instruction: a multiple of 64 rows, then the rest."""
        whole = self.count // MAX_SUMS * MAX_SUMS
        parts = ((0, whole), (whole, self.count - whole))
        return [(begin, count) for begin, count in parts if count]

    def row(
        self, x: str, y: str | None, target: str, to: int = 0, at: int = 0, **settings: Any
    ) -> Step:
        """Process one number per row; `at` and `to` are the bytes where X and the target begin."""
        vectors = VectorLoop(
            -(-self.count // LANES),
            (VECTOR_BYTES, 0, LANES),
            (VECTOR_BYTES, 0, LANES),
            (VECTOR_BYTES, LANES),
        )
        op = nest(
            [vectors],
            [],
            Source(at + self.shifts.get(x, 0), u_limit=self.count),
            Target(to + self.shifts.get(target, 0), u_limit=self.count),
            Source(self.shifts.get(y, 0), u_limit=self.count) if y else None,
            **settings,
        )
        return Step(op, x, target, y)
