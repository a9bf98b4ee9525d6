"""Kernels on the rows of a matrix, whose pieces are some of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_op import VECTOR_BYTES
from fpgapipe.lowering.tiling.channels import padded
from fpgapipe.lowering.tiling.elementwise import flat_tile
from fpgapipe.lowering.tiling.kernel import Buffer, Move, Piece, Region, Tensor, VectorKernel
from fpgapipe.lowering.tiling.rows import Rows, piece_rows, reduction_buffers, seen_columns
from fpgapipe.lowering.tiling.tile import tile_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from fpgapipe.lowering.tiling.kernel import Step


def row_kernel(
    name: str,
    region: Region,
    sources: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    steps: Callable[[Rows], Iterable[Step]],
    *,
    work: Collection[str] = (),
    numbers: Collection[str] = (),
    number_sources: Mapping[str, Tensor] | None = None,
    number_targets: Mapping[str, Tensor] | None = None,
    tables: Mapping[str, Tensor] | None = None,
    vectors: Collection[str] = (),
    causal: bool = False,
    partial: Collection[str] = (),
) -> VectorKernel:
    """Build a kernel whose instructions process whole rows.

    Parameters
    ----------
    name : str
    region : Region
    sources, targets : mapping of str to Tensor
        Tensors of one shape, ``... x width``, by the names that the steps use; no name is in both.
    steps : callable
        Returns the instructions of a piece, given its rows.
    work : collection of str
        Names of further matrices of a piece, in FP32.
    numbers : collection of str
        Names of arrays of one FP32 number for each row of a piece.
    number_sources, number_targets : mapping of str to Tensor
        FP32 tensors of one number for each row.
    tables : mapping of str to Tensor
        FP32 tensors of one row, which stay on chip.
    vectors : collection of str
        Names of arrays of one vector for each row of a piece.
    causal : bool
        Whether row `i` of the last two axes ends with column `i`; there are no more rows than
        columns then.
    partial : collection of str
        Names of causal tensors of which only those columns of a piece are loaded or stored that its
        rows have elements in, if these are whole words of memory.

    Raises
    ------
    ValueError
        If the region is too small for a row.
    """
    tensors = {**sources, **targets}
    columns = {**(number_sources or {}), **(number_targets or {})}
    tables = tables or {}
    shape = next(iter(tensors.values())).shape
    width, high = shape[-1], shape[-2] if causal else 0
    total = next(iter(tensors.values())).elements // width

    def buffers(rows: int) -> dict[str, Buffer]:
        found = {
            each: Buffer(rows * width * tensor.element_bytes + WORD_BYTES)
            for each, tensor in tensors.items()
        }
        found |= {each: Buffer(4 * padded(rows) + WORD_BYTES) for each in columns}
        found |= {each: Buffer(4 * rows * width, kept=True) for each in work}
        found |= {each: Buffer(4 * padded(rows), kept=True) for each in numbers}
        found |= {each: Buffer(VECTOR_BYTES * rows, kept=True) for each in vectors}
        found |= {each: Buffer(4 * padded(width), kept=True) for each in tables}
        return found | reduction_buffers(rows, width)

    # A causal piece has rows of a single matrix.
    rows = piece_rows(high or total, width, buffers, region)
    pieces = []
    firsts = [
        (begin, min(rows, begin + (high or total) - begin - offset))
        for begin, offset in (
            (matrix + offset, offset)
            for matrix in range(0, total, high or total)
            for offset in range(0, high or total, rows)
        )
    ]
    for first, count in firsts:
        diagonal = first % high if causal else None
        seen = seen_columns(width, count, diagonal)
        tiles, pitches = {}, dict.fromkeys(work, 4 * seen)
        for each, tensor in tensors.items():
            size = tensor.element_bytes
            if each in partial and seen < width and width * size % WORD_BYTES == 0:
                tiles[each] = tile_of(
                    tensor.name, first * width * size, seen * size, [(count, width * size)],
                    stored=each in targets,
                )  # fmt: skip
                pitches[each] = tiles[each].pitches[0]
            else:
                tiles[each] = flat_tile(tensor, first * width, count * width)
        tiles |= {each: flat_tile(tensor, first, count) for each, tensor in columns.items()}
        view = Rows(
            count,
            width,
            {each: tile.shift for each, tile in tiles.items()},
            {each: tensor.format for each, tensor in tensors.items()},
            diagonal,
            pitches,
            first,
        )
        loads = [Move(tiles[each], each) for each in (*sources, *(number_sources or ()))]
        if first == 0:
            whole = (Move(flat_tile(each, 0, each.elements), at) for at, each in tables.items())
            loads = [*whole, *loads]
        stores = [Move(tiles[each], each) for each in (*targets, *(number_targets or ()))]
        pieces.append(Piece(tuple(steps(view)), tuple(loads), tuple(stores)))
    return VectorKernel(name, buffers(rows), tuple(pieces), region)
