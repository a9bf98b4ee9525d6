"""Copies of parts of tensors: rows of elements of one tensor to rows of another one."""

from __future__ import annotations

from dataclasses import dataclass

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import LANES, Source, Target, VectorOp
from fpgapipe.lowering.tiling.elementwise import MANY_ELEMENTS
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


@dataclass(frozen=True)
class Rows:
    """Where rows lie within a tensor.

    Attributes
    ----------
    first : int
        First element of the first row.
    pitch : int
        Elements from one row to the next.
    """

    first: int
    pitch: int


@made_once
def zero_rows(
    name: str, y: Tensor, size: tuple[int, int], written: Rows, region: Region
) -> VectorKernel:
    """Write zeros to rows of a tensor.

    Parameters
    ----------
    name : str
    y : Tensor
        FP32 or BF16.
    size : (int, int)
        Number of rows, and elements of each.
    written : Rows
        Where the rows lie in `y`.
    region : Region

    Raises
    ------
    ValueError
        If the rows are not within the tensor, or the region is too small.
    """
    return _rows_kernel(name, None, y, size, written, written, region)


@made_once
def copy_rows(
    name: str,
    x: Tensor,
    y: Tensor,
    size: tuple[int, int],
    read: Rows,
    written: Rows,
    region: Region,
) -> VectorKernel:
    """Copy rows of a tensor to rows of another one; formats may differ.

    A row takes a cycle for each 16 elements, and at least one.

    Parameters
    ----------
    name : str
    x, y : Tensor
        FP32 or BF16.
    size : (int, int)
        Number of rows, and elements of each.
    read, written : Rows
        Where the rows lie in `x` and in `y`.
    region : Region

    Raises
    ------
    ValueError
        If the rows are not within the tensors, or the region is too small.
    """
    return _rows_kernel(name, x, y, size, read, written, region)


def _rows_kernel(
    name: str,
    x: Tensor | None,
    y: Tensor,
    size: tuple[int, int],
    read: Rows,
    written: Rows,
    region: Region,
) -> VectorKernel:
    """Copy rows, or write zeros if there is nothing to copy."""
    rows, width = size
    tensors = {"y": y} if x is None else {"x": x, "y": y}
    for which, tensor in tensors.items():
        where = read if which == "x" else written
        last = where.first + (rows - 1) * where.pitch + width
        if where.pitch < width or where.first < 0 or last > tensor.elements:
            raise ValueError(
                f"{rows} rows of {width} elements, {where.pitch} apart from element {where.first} "
                f"on, are no part of {tensor.name} of {tensor.elements} elements"
            )
    if read.pitch == written.pitch == width:
        rows, width = 1, rows * width
    wide, high = min(width, MANY_ELEMENTS), 1

    def buffers() -> dict[str, Buffer]:
        return {
            which: Buffer(_bytes(tensor, wide) + WORD_BYTES)
            if high == 1
            else Buffer(high * (_bytes(tensor, wide) + 3 * WORD_BYTES) + WORD_BYTES)
            for which, tensor in tensors.items()
        }

    while wide > LANES and room_of(buffers()) > region.size_bytes:
        wide = max(wide // 2, LANES)
    if wide == width:
        high = min(rows, max(MANY_ELEMENTS // wide, 1))
        while high > 1 and room_of(buffers()) > region.size_bytes:
            high = -(-high // 2)
    pieces = []
    for row in range(0, rows, high):
        for column in range(0, width, wide):
            counts = min(high, rows - row), min(wide, width - column)
            target = _tile(y, written, row, column, counts, stored=True)
            # No lane of a source without a limit is valid, so that all elements are zeros.
            given, loads = Source(base=target.shift, u_limit=0), []
            if x is not None:
                source = _tile(x, read, row, column, counts)
                loads.append(Move(source, "x"))
                given = Source(
                    base=source.shift,
                    steps=(_bytes(x, LANES), source.pitches[0]),
                    u_steps=(LANES, 0),
                    u_limit=counts[1],
                    format=Format.of(x.format),
                )
            op = VectorOp(
                (-(-counts[1] // LANES), counts[0]),
                given,
                Target(
                    base=target.shift,
                    steps=(_bytes(y, LANES), target.pitches[0]),
                    u_steps=(LANES, 0),
                    u_limit=counts[1],
                    format=Format.of(y.format),
                ),
            )
            step = Step(op, "x" if loads else "y", "y")
            pieces.append(Piece((step,), tuple(loads), (Move(target, "y"),)))
    return VectorKernel(name, buffers(), tuple(pieces), region)


def _bytes(tensor: Tensor, elements: int) -> int:
    return elements * tensor.element_bytes


def _tile(
    tensor: Tensor,
    where: Rows,
    row: int,
    column: int,
    counts: tuple[int, int],
    *,
    stored: bool = False,
) -> Tile:
    begin = where.first + row * where.pitch + column
    dims = [(counts[0], _bytes(tensor, where.pitch))]
    return tile_of(
        tensor.name, _bytes(tensor, begin), _bytes(tensor, counts[1]), dims, stored=stored
    )
