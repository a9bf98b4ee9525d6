"""Tensors in another order."""

from fpgapipe.hw.hls_models.isa import WORD_BYTES
from fpgapipe.hw.hls_models.kernels.elementwise import flat_slab
from fpgapipe.hw.hls_models.kernels.kernel import (
    Buffer,
    Move,
    Piece,
    Region,
    Step,
    Tensor,
    VectorKernel,
    room_of,
)
from fpgapipe.hw.hls_models.slab import slab_of
from fpgapipe.hw.hls_models.vector_fields import Format
from fpgapipe.hw.hls_models.vector_op import Source, Target, VectorOp

PIECE_ELEMENTS = 1 << 13
"""Elements of a piece, about; each takes a vector of its own."""

MOST_ROWS = 1 << 16
"""Iterations of a loop."""


def transpose(name: str, x: Tensor, y: Tensor, region: Region) -> VectorKernel:
    """``y = x.T``, one element a cycle; formats may differ.

    A matrix product needs no transposed copy of its operands: its reader has a transposer.

    Parameters
    ----------
    name : str
    x, y : Tensor
        ``rows x columns`` and ``columns x rows``.
    region : Region

    Raises
    ------
    ValueError
        If shapes do not agree, there are more than `MOST_ROWS` rows, or the region is too small for
        a column.
    """
    rows, columns = x.shape
    if y.shape != (columns, rows):
        raise ValueError(f"transposed tensor {y.name} must be {columns} x {rows}, not {y.shape}")
    if rows > MOST_ROWS:
        raise ValueError(
            f"transposed tensor {x.name} must have at most {MOST_ROWS} rows, not {rows}"
        )
    size, pitch = x.element_bytes, columns * x.element_bytes

    def buffers(width: int) -> dict[str, Buffer]:
        # A row of a column's slab takes up to two words more than its elements.
        row_bytes = width * size + 3 * WORD_BYTES
        result_bytes = width * rows * y.element_bytes + WORD_BYTES
        return {"x": Buffer(rows * row_bytes + WORD_BYTES), "y": Buffer(result_bytes)}

    width = min(max(PIECE_ELEMENTS // rows, 1), columns)
    while width > 1 and room_of(buffers(width)) > region.size_bytes:
        width = -(-width // 2)
    pieces = []
    for first in range(0, columns, width):
        count = min(width, columns - first)
        source = slab_of(x.name, first * size, count * size, [(rows, pitch)])
        target = flat_slab(y, first * rows, count * rows)
        op = VectorOp(
            (rows, count),
            Source(
                source.shift,
                (source.pitches[0], size),
                u_limit=1,
                format=Format.of(size),
                broadcast=True,
            ),
            Target(
                target.shift,
                (y.element_bytes, rows * y.element_bytes),
                u_limit=1,
                format=Format.of(y.element_bytes),
            ),
        )
        step = Step(op, "x", "y")
        pieces.append(Piece((step,), (Move(source, "x"),), (Move(target, "y"),)))
    return VectorKernel(name, buffers(width), tuple(pieces), region)
