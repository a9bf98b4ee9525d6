"""Fixed linear maps of an axis: each row of the result is a sum of rows times fixed factors.

Tensors are ``outer x rows x inner``. Rows that have the same factors, at indices that move on
evenly, are computed by the same instruction: enlarging by whole factors takes a few instructions.
The transposed map is the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    Addend,
    Constant,
    Factor,
    Second,
    Source,
    Target,
)
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.tiling.channels import padded
from fpgapipe.lowering.tiling.elementwise import MANY_ELEMENTS
from fpgapipe.lowering.tiling.kernel import Buffer, Move, Piece, Step, VectorKernel, room_of
from fpgapipe.lowering.tiling.nest import VectorLoop, nest
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.tile import Tile, tile_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fpgapipe.hw.hls_models.numerics.element_format import ElementFormat
    from fpgapipe.lowering.tiling.kernel import Region, Tensor

Taps = tuple[tuple[int, float], ...]
Range = tuple[int, int]

_NONE = Constant(0.0)

MANY_TAPS = 3
"""Number of equal taps that follow one another evenly from which on they are a loop."""


@dataclass(frozen=True)
class RowMap:
    """A map of rows.

    Parameters
    ----------
    size : int
        Rows of the source.
    taps : tuple of taps
        For each row of the result, the rows of the source and their factors.
    value : float
        Elements of a row that has no taps.
    """

    size: int
    taps: tuple[Taps, ...]
    value: float = 0.0

    def transposed(self) -> RowMap:
        """The map of the gradients."""
        found: list[list[tuple[int, float]]] = [[] for _ in range(self.size)]
        for row, taps in enumerate(self.taps):
            for index, factor in taps:
                found[index].append((row, factor))
        return RowMap(len(self.taps), tuple(map(tuple, found)))

    @property
    def is_selection(self) -> bool:
        """Whether each row is a row of the source, or has none."""
        return all(not taps or (len(taps) == 1 and taps[0][1] == 1) for taps in self.taps)

    def reach(self, rows: Range) -> Range:
        """Range of the source's rows that a range of rows reads; empty if these have no taps."""
        places = [index for taps in self.taps[rows[0] : rows[1]] for index, _ in taps]
        return (min(places), max(places) + 1) if places else (0, 0)


@dataclass(frozen=True)
class _Run:
    """Rows of the result that one sequence of instructions computes.

    Attributes
    ----------
    first, step, count : int
        First row, distance of the rows, and their number.
    source, source_step : int
        First row of the source that the first row reads, and its distance from that of the next.
    taps : taps
        Distances from `source`, with their factors.
    """

    first: int
    step: int
    count: int
    source: int
    source_step: int
    taps: Taps


def runs_of(rows: RowMap, part: Range) -> list[_Run]:
    """Group rows of the result that have the same factors at indices that move on evenly."""
    alike: dict[Taps, list[tuple[int, int]]] = {}
    for row in range(*part):
        taps = rows.taps[row]
        first = taps[0][0] if taps else 0
        key = tuple((index - first, float(np.float32(factor))) for index, factor in taps)
        alike.setdefault(key, []).append((row, first))
    found = []
    for taps, places in alike.items():
        at = 0
        while at < len(places):
            end = at + 1
            step = source_step = 0
            if end < len(places):
                step, source_step = (b - a for a, b in zip(places[at], places[end], strict=True))
                while end < len(places) and places[end] == (
                    places[end - 1][0] + step,
                    places[end - 1][1] + source_step,
                ):
                    end += 1
            row, source = places[at]
            found.append(_Run(row, step, end - at, source, source_step, taps))
            at = end
    return sorted(found, key=lambda run: run.first)


@made_once
def map_rows(name: str, rows: RowMap, x: Tensor, y: Tensor, region: Region) -> VectorKernel:
    """Compute the rows of the result, in FP32.

    Parameters
    ----------
    name : str
    rows : RowMap
    x : Tensor
        ``outer x rows.size x inner``.
    y : Tensor
        ``outer x len(rows.taps) x inner``.
    region : Region

    Raises
    ------
    ValueError
        If the shapes do not fit the map, or the region is too small.
    """
    outer, size, inner = x.shape
    if size != rows.size or y.shape != (outer, len(rows.taps), inner):
        raise ValueError(
            f"a map from {rows.size} to {len(rows.taps)} rows does not fit {x.shape} and {y.shape}"
        )
    chains = any(len(run.taps) >= MANY_TAPS for run in runs_of(rows, (0, len(rows.taps))))

    def buffers(high: int, number: int, wide: int) -> dict[str, Buffer]:
        most = max(
            end - begin
            for begin, end in (rows.reach(part) for part in _parts(len(rows.taps), number))
        )
        found = {
            which: Buffer(high * (count * (wide * tensor.element_bytes + 3 * WORD_BYTES)
                                  + 3 * WORD_BYTES) + WORD_BYTES)
            for which, tensor, count in (("x", x, max(most, 1)), ("y", y, number))
        }  # fmt: skip
        if chains:
            found["sums"] = Buffer(4 * high * number * padded(wide), kept=True)
        return found

    high, number, wide = _piece(outer, len(rows.taps), inner, buffers, region)
    pieces = []
    for part in _parts(len(rows.taps), number):
        runs = runs_of(rows, part)
        for first in range(0, outer, high):
            for column in range(0, inner, wide):
                span = (first, min(first + high, outer)), (column, min(column + wide, inner))
                pieces.append(_one_piece(rows, runs, part, x, y, *span))
    return VectorKernel(name, buffers(high, number, wide), tuple(pieces), region)


def _parts(total: int, number: int) -> list[Range]:
    return [(first, min(first + number, total)) for first in range(0, total, number)]


def _piece(
    outer: int,
    rows: int,
    inner: int,
    buffers: Callable[[int, int, int], Mapping[str, Buffer]],
    region: Region,
) -> tuple[int, int, int]:
    """Numbers of the outer axis, of rows and of the inner axis in a piece."""
    wide = min(inner, MANY_ELEMENTS)
    number = min(rows, max(MANY_ELEMENTS // wide, 1))
    high = min(outer, max(MANY_ELEMENTS // (wide * number), 1))
    while room_of(buffers(high, number, wide)) > region.size_bytes:
        if high > 1:
            high = -(-high // 2)
        elif number > 1:
            number = -(-number // 2)
        elif wide > LANES:
            wide = max(wide // 2 // LANES * LANES, LANES)
        else:
            break  # the kernel says what is missing
    return high, number, wide


def _one_piece(
    rows: RowMap, runs: list[_Run], part: Range, x: Tensor, y: Tensor, images: Range, columns: Range
) -> Piece:
    """Instructions for some rows of the result, of a part of the outer and of the inner axis."""
    read = rows.reach(part)
    source = _tile(x, images, read, columns) if read[0] < read[1] else None
    target = _tile(y, images, part, columns, stored=True)
    work = _Work(source, target, x.format, y.format, read[0], part, images, columns)
    steps = tuple(step for run in runs for step in work.steps(run, rows.value))
    loads = (Move(source, "x"),) if source else ()
    return Piece(steps, loads, (Move(target, "y"),))


def _tile(
    tensor: Tensor, images: Range, rows: Range, columns: Range, *, stored: bool = False
) -> Tile:
    _, size, inner = tensor.shape
    element = tensor.element_bytes
    offset = ((images[0] * size + rows[0]) * inner + columns[0]) * element
    dims = [(rows[1] - rows[0], inner * element), (images[1] - images[0], size * inner * element)]
    return tile_of(tensor.name, offset, (columns[1] - columns[0]) * element, dims, stored=stored)


class _Work:
    """Instructions of a piece."""

    def __init__(
        self,
        source: Tile | None,
        target: Tile,
        read: ElementFormat,
        written: ElementFormat,
        first: int,
        part: Range,
        images: Range,
        columns: Range,
    ) -> None:
        self._width = columns[1] - columns[0]
        self._images = images[1] - images[0]
        self._first, self._part = first, part
        self._source, self._target = source, target
        self._read, self._written = Format.of(read), Format.of(written)
        self._read_bytes, self._written_bytes = read.element_bytes, written.element_bytes

    def steps(self, run: _Run, value: float) -> Iterator[Step]:
        """The instructions of a run, one for each tap behind the first two."""
        taps = run.taps
        if not taps:
            source = Source(self._target.shift, u_limit=0)
            settings: dict[str, Any] = {"addend": Addend.CONSTANT, "constants": (Constant(value),)}
            yield Step(nest(self._loops(run, None, "y"), [], source, self._at(run, "y"),
                            **settings), "y", "y")  # fmt: skip
            return
        if len(taps) >= MANY_TAPS and _is_even(taps):
            yield self._sum(run)
            return
        factor = taps[0][1]
        settings = {}
        if factor != 1:
            settings = {"factor": Factor.CONSTANT, "constants": (_NONE, Constant(factor))}
        if len(taps) == 1:
            loops = self._loops(run, "x", "y")
            op = nest(loops, [], self._from(run, taps[0][0]), self._at(run, "y"), **settings)
            yield Step(op, "x", "y")
            return
        for number, (place, other) in enumerate(taps[1:]):
            target = "y" if number == len(taps) - 2 else "sums"
            given = "sums" if number else "x"
            constants = (_NONE, Constant(1.0 if number else factor), Constant(other))
            settings = {"second": Second.CONSTANT, "constants": constants}
            if not number:
                settings["factor"] = Factor.CONSTANT
            loops = self._loops(run, given, target, "x")
            x = self._from(run, taps[0][0]) if not number else self._sums(run)
            op = nest(loops, [], x, self._at(run, target), self._from(run, place), **settings)
            yield Step(op, given, target, "x")

    def _sum(self, run: _Run) -> Step:
        """The instruction of a run whose taps are a loop."""
        assert self._source is not None
        distance = run.taps[1][0] - run.taps[0][0]
        loop = VectorLoop(len(run.taps), (distance * self._source.pitches[0], 0, 0))
        op = nest(
            self._loops(run, "x", "y"),
            [loop],
            self._from(run, 0),
            self._at(run, "y"),
            factor=Factor.CONSTANT,
            constants=(_NONE, Constant(run.taps[0][1])),
        )
        return Step(op, "x", "y")

    def _steps_of(self, which: str | None, run: _Run) -> tuple[int, int, int]:
        """Bytes from vector to vector, from row to row of a run, and along the outer axis."""
        if which is None:
            return 0, 0, 0
        if which == "sums":
            row = 4 * padded(self._width)
            return 4 * LANES, run.step * row, (self._part[1] - self._part[0]) * row
        if which == "x":
            assert self._source is not None
            row, image = self._source.pitches
            return LANES * self._read_bytes, run.source_step * row, image
        row, image = self._target.pitches
        return LANES * self._written_bytes, run.step * row, image

    def _loops(
        self, run: _Run, x: str | None, target: str, y: str | None = None
    ) -> list[VectorLoop]:
        """Loops over the vectors of a row, over the rows of a run, and over the outer axis."""
        counts = -(-self._width // LANES), run.count, self._images
        moves = (self._steps_of(each, run) for each in (x, y, target))
        return [
            VectorLoop(
                count,
                (given, 0, LANES if vectors else 0),
                (other, 0, LANES if vectors else 0),
                (into, LANES if vectors else 0),
            )
            for count, given, other, into, vectors in zip(
                counts, *moves, (True, False, False), strict=True
            )
        ]

    def _from(self, run: _Run, place: int) -> Source:
        assert self._source is not None
        row = run.source + place - self._first
        base = self._source.shift + row * self._source.pitches[0]
        return Source(base, u_limit=self._width, format=self._read)

    def _sums(self, run: _Run) -> Source:
        base = (run.first - self._part[0]) * 4 * padded(self._width)
        return Source(base, u_limit=self._width, format=Format.of(FP32))

    def _at(self, run: _Run, which: str) -> Target:
        row = run.first - self._part[0]
        if which == "sums":
            return Target(row * 4 * padded(self._width), u_limit=self._width)
        base = self._target.shift + row * self._target.pitches[0]
        return Target(base, u_limit=self._width, format=self._written)


def _is_even(taps: Taps) -> bool:
    """Whether taps have one factor, and are all as far from the next."""
    distance = taps[1][0] - taps[0][0]
    return all(
        factor == taps[0][1] and place == taps[0][0] + number * distance
        for number, (place, factor) in enumerate(taps)
    )
