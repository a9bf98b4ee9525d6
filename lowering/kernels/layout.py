"""Transposition of tensors in memory."""

from collections.abc import Iterator
from itertools import product
from math import prod

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import Source, Target, VectorOp
from fpgapipe.lowering.tiling.elementwise import flat_tile
from fpgapipe.lowering.tiling.kernel import (
    Buffer,
    Move,
    Piece,
    Region,
    Step,
    Tensor,
    VectorKernel,
    room_of,
)
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.tile import Tile, tile_of

PIECE_ELEMENTS = 1 << 13
"""Approximate number of elements of a piece; each element takes one vector operation."""

LEAST_ROWS = 1 << 7
"""Least rows of a piece of a divided matrix, if they fit; they become runs of the result."""


@made_once
def transpose(name: str, x: Tensor, y: Tensor, region: Region) -> VectorKernel:
    """Compute ``y = x.T`` for one matrix or several, one element per cycle; formats may differ.

    A matrix product needs no transposed copy of its operands, since its reader has a transposer.

    Parameters
    ----------
    name : str
    x, y : Tensor
        Tensors of shape ``... x rows x columns`` and ``... x columns x rows``.
    region : Region

    Raises
    ------
    ValueError
        If the shapes do not agree, or the region is too small.
    """
    *several, rows, columns = x.shape
    if y.shape != (*several, columns, rows):
        expected = " x ".join(map(str, (*several, columns, rows)))
        raise ValueError(f"transposed tensor {y.name} must be {expected}, not {y.shape}")
    number, size = prod(several), rows * columns
    group = min(max(PIECE_ELEMENTS // size, 1), number)
    while group > 1 and room_of(_whole(x, y, group * size)) > region.size_bytes:
        group = -(-group // 2)
    buffers = _whole(x, y, group * size)
    if size <= PIECE_ELEMENTS and room_of(buffers) <= region.size_bytes:
        pieces = _matrices(x, y, number, group)
    else:
        high = min(rows, max(LEAST_ROWS, PIECE_ELEMENTS // columns))
        wide = min(columns, max(PIECE_ELEMENTS // high, 1))
        while max(high, wide) > 1 and room_of(_tile(x, y, high, wide)) > region.size_bytes:
            high, wide = (-(-high // 2), wide) if high > wide else (high, -(-wide // 2))
        buffers = _tile(x, y, high, wide)
        pieces = _tiles(x, y, number, (high, wide))
    return VectorKernel(name, buffers, tuple(pieces), region)


def _whole(x: Tensor, y: Tensor, elements: int) -> dict[str, Buffer]:
    """Buffers of whole matrices, which may begin anywhere within a word."""
    return {
        name: Buffer(elements * tensor.element_bytes + WORD_BYTES)
        for name, tensor in (("x", x), ("y", y))
    }


def _matrices(x: Tensor, y: Tensor, number: int, group: int) -> Iterator[Piece]:
    """Pieces that consist of several matrices each."""
    rows, columns = x.shape[-2:]
    size = rows * columns
    pitches = columns * x.element_bytes, rows * y.element_bytes
    for first in range(0, number, group):
        count = min(group, number - first)
        source = flat_tile(x, first * size, count * size)
        target = flat_tile(y, first * size, count * size)
        yield _piece(x, y, source, target, pitches, (rows, columns, count))


def _tile(x: Tensor, y: Tensor, rows: int, columns: int) -> dict[str, Buffer]:
    """Buffers of a part of a matrix, with room for the gaps between its rows on chip."""
    return {
        name: Buffer(number * (width * tensor.element_bytes + 3 * WORD_BYTES) + WORD_BYTES)
        for name, tensor, number, width in (("x", x, rows, columns), ("y", y, columns, rows))
    }


def _tiles(x: Tensor, y: Tensor, number: int, tile: tuple[int, int]) -> Iterator[Piece]:
    """Pieces that consist of a part of a matrix each, of at most the tile's rows and columns."""
    rows, columns = x.shape[-2:]
    high, wide = tile
    for matrix, row, column in product(
        range(number), range(0, rows, high), range(0, columns, wide)
    ):
        begin = matrix * rows * columns
        down, across = min(high, rows - row), min(wide, columns - column)
        source = _part(x, begin + row * columns + column, down, across, columns)
        target = _part(y, begin + column * rows + row, across, down, rows, stored=True)
        pitches = source.pitches[0], target.pitches[0]
        yield _piece(x, y, source, target, pitches, (down, across, 1))


def _part(
    tensor: Tensor, first: int, rows: int, columns: int, pitch: int, *, stored: bool = False
) -> Tile:
    """Tile of a part of a matrix; `first` and `pitch` are numbers of elements."""
    size = tensor.element_bytes
    dims = [(rows, pitch * size)]
    return tile_of(tensor.name, first * size, columns * size, dims, stored=stored)


def _piece(
    x: Tensor,
    y: Tensor,
    source: Tile,
    target: Tile,
    pitches: tuple[int, int],
    counts: tuple[int, int, int],
) -> Piece:
    """Piece that reads the columns one after the other, of one matrix after the other.

    Parameters
    ----------
    x, y : Tensor
    source, target : Tile
    pitches : (int, int)
        Bytes from one row to the next on chip, for source and target.
    counts : (int, int, int)
        Number of rows, columns and matrices.
    """
    rows, columns, _ = counts
    pitch, result_pitch = pitches
    op = VectorOp(
        counts,
        Source(
            source.shift,
            (pitch, x.element_bytes, rows * pitch),
            u_limit=1,
            format=Format.of(x.format),
            broadcast=True,
        ),
        Target(
            target.shift,
            (y.element_bytes, result_pitch, columns * result_pitch),
            u_limit=1,
            format=Format.of(y.format),
        ),
    )
    return Piece((Step(op, "x", "y"),), (Move(source, "x"),), (Move(target, "y"),))
