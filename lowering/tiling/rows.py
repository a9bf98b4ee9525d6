"""Instructions on the rows of a matrix: on all elements, on one number per row, and reductions.

Rows are reduced in two steps: first the vectors of a row to one vector, then its lanes to one
number. Long rows are divided into slices first. The number of rows of a piece changes no bit of a
result.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    MAX_SUMS,
    VECTOR_BYTES,
    Addend,
    Coefficients,
    Constant,
    Factor,
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

SLICES, MANY_GROUPS = 8, 64
"""Number of slices of a long row, and number of vectors above which a row is long.

Each slice consists of every eighth vector. The slices of a row are reduced concurrently, and then
their results to one. Only few long rows fit on chip, and the slices hide the latency of an adder.
"""

MINUS_Y: Mapping[str, Any] = {"addend": Addend.Y, "negate_addend": True}
"""Settings for ``X - Y``."""


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
    rows = min(max(PIECE_ELEMENTS // width, 1), number)
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
    """

    count: int
    width: int
    shifts: Mapping[str, int]
    formats: Mapping[str, ElementFormat]
    diagonal: int | None = None

    @property
    def _groups(self) -> int:
        return padded(self.width) // LANES

    def _format(self, name: str) -> ElementFormat:
        return self.formats.get(name, FP32)

    @property
    def _down(self) -> int:
        """Movement of the column from row to row: where rows end earlier, they begin later."""
        return 0 if self.diagonal is None else -1

    def _column(self, row: int) -> int:
        """Column at which a row begins; all rows end at the width."""
        return 0 if self.diagonal is None else self.width - 1 - self.diagonal - row

    def _along(self, name: str, *, stored: bool = False) -> dict[str, Any]:
        """Settings to access the matrix; the first loop is over rows, the last over vectors."""
        size = self._format(name).element_bytes
        return {
            "base": self.shifts.get(name, 0),
            "steps": (self.width * size, 0, 0, 0, 0, LANES * size),
            "u": 0 if stored else self._column(0),
            "u_steps": (0 if stored else self._down, 0, 0, 0, 0, LANES),
            "u_limit": self.width,
            "format": Format.of(self._format(name)),
        }

    def exponentials(self, x: str, target: str) -> Iterator[Step]:
        """Compute ``target = exp(x - maximum)``; also fills the buffers ``maximum`` and ``sum``."""
        yield from self.reduce(x, "maximum", takes_maximum=True)
        yield self.each(x, target, "maximum", function=Function.EXP, **MINUS_Y)
        yield from self.reduce(target, "sum")

    def shares(self, work: str, target: str, scale: float = 1) -> Iterator[Step]:
        """Compute ``target = work / sum * scale``; also fills the buffer ``share``."""
        yield self.row(
            "sum",
            None,
            "share",
            factor=Factor.CONSTANT,
            constants=(Constant(), Constant(1 / scale)),
            function=Function.RECIPROCAL,
        )
        yield self.each(work, target, "share", factor=Factor.Y)

    def each(
        self, x: str, target: str, y: str | None, table: str | None = None, **settings: Any
    ) -> Step:
        """Process all elements; `y` has one number per row, and k0..k3 are a row of `table`."""
        op = VectorOp(
            counts=(self.count, 1, 1, 1, 1, self._groups),
            x=Source(**self._along(x)),
            y=Source(self.shifts.get(y, 0), (4,), broadcast=True) if y else None,
            target=Target(**self._along(target, stored=True)),
            coefficients=Coefficients(0, 0, VECTOR_BYTES, 4) if table else Coefficients(),
            **settings,
        )
        return Step(op, x, target, y, table)

    def spread(self, numbers: str, target: str, table: str | None = None, **settings: Any) -> Step:
        """Process, for each element, the number of its row; k0..k3 are a row of `table`."""
        op = VectorOp(
            counts=(self.count, 1, 1, 1, 1, self._groups),
            x=Source(self.shifts.get(numbers, 0), (4,), broadcast=True),
            target=Target(**self._along(target, stored=True)),
            coefficients=Coefficients(0, 0, VECTOR_BYTES, 4) if table else Coefficients(),
            **settings,
        )
        return Step(op, numbers, target, None, table)

    def both(self, x: str, target: str, y: str, **settings: Any) -> Step:
        """Process all elements of two matrices."""
        op = VectorOp(
            counts=(self.count, 1, 1, 1, 1, self._groups),
            x=Source(**self._along(x)),
            y=Source(**self._along(y)),
            target=Target(**self._along(target, stored=True)),
            **settings,
        )
        return Step(op, x, target, y)

    def reduce(
        self, x: str, target: str, *, takes_maximum: bool = False, squares: bool = False
    ) -> Iterator[Step]:
        """Reduce each row to one number: a sum of elements or of their squares, or the maximum."""
        settings: dict[str, Any] = {"takes_maximum": takes_maximum}
        first = settings | ({"factor": Factor.SELF} if squares else {})
        element, lanes, buffer, base = self._format(x), self.width, x, self.shifts.get(x, 0)
        size = element.element_bytes
        pitch = self.width * size
        if self._groups > MANY_GROUPS:
            vector, all_slices = LANES * size, SLICES * VECTOR_BYTES
            op = nest(
                [
                    VectorLoop(SLICES, (vector, 0, LANES), target=(VECTOR_BYTES, 0)),
                    VectorLoop(self.count, (pitch, 0, self._down), target=(all_slices, 0)),
                ],
                [VectorLoop(-(-self._groups // SLICES), (SLICES * vector, 0, SLICES * LANES))],
                Source(base, u=self._column(0), u_limit=self.width, format=Format.of(element)),
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
        elif self._groups > 1:
            for begin, count in self._spans():
                op = nest(
                    [VectorLoop(count, (pitch, 0, self._down), target=(VECTOR_BYTES, 0))],
                    [VectorLoop(self._groups, (LANES * size, 0, LANES))],
                    Source(
                        base + begin * pitch,
                        u=self._column(begin),
                        u_limit=self.width,
                        format=Format.of(element),
                    ),
                    Target(begin * VECTOR_BYTES),
                    **first,
                )
                yield Step(op, x, "lanes")
        limit, down = self.width, self._down
        if self._groups > 1:
            element, lanes, buffer, base, pitch = FP32, LANES, "lanes", 0, VECTOR_BYTES
            limit, down = LANES, 0
        for begin, count in self._spans():
            op = nest(
                [VectorLoop(count, (pitch, down, 0), target=(4, 0))],
                [VectorLoop(lanes, (element.element_bytes, 1, 0))],
                Source(
                    base + begin * pitch,
                    y=self._column(begin) if down else 0,
                    y_limit=limit,
                    format=Format.of(element),
                    broadcast=True,
                ),
                Target(4 * begin + self.shifts.get(target, 0), u_limit=1),
                **(settings if self._groups > 1 else first),
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
