"""Conversion of tensors to another format: FP32, BF16, blocks of MXINT8."""

from dataclasses import replace
from math import prod

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import LANES, Source, Steps, Target, VectorOp
from fpgapipe.hw.hls_models.numerics.element_format import MXINT8
from fpgapipe.hw.hls_models.numerics.mx import BLOCK_BYTES, MX_BLOCK
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
from fpgapipe.lowering.tiling.tile import tile_of

MOST_ROWS = 1 << 16
"""Largest number of iterations of a loop."""


def blocks_of(tensor: Tensor, name: str) -> Tensor:
    """Return the tensor that holds another tensor as MXINT8.

    Every row, along the last axis, has its own blocks; the last one is filled with zeros.
    """
    return replace(tensor, name=name, format=MXINT8)


@made_once
def cast(name: str, x: Tensor, y: Tensor, region: Region) -> VectorKernel:
    """Compute ``y = x`` in another format.

    Parameters
    ----------
    name : str
    x, y : Tensor
        FP32 or BF16, ``... x width``. One of them may be MXINT8 if the core has `VectorSpec.mx`.
    region : Region

    Raises
    ------
    ValueError
        If the shapes do not agree, both tensors are blocks, or the region is too small for a row
        (or for a block, if rows consist of whole blocks).
    """
    plain = y if x.format.has_blocks else x
    if plain.format.has_blocks:
        raise ValueError(f"cast from {x.name} to {y.name} must have a side that is not of blocks")
    for tensor in (x, y):
        if tensor.shape != plain.shape:
            raise ValueError(f"cast tensor {tensor.name} must be {plain.shape}, not {tensor.shape}")
    *rows, width = plain.shape
    number = prod(rows)
    if width % MX_BLOCK == 0:
        # Blocks of consecutive rows are contiguous, so a piece may begin with any block.
        number, width = number * width // MX_BLOCK, MX_BLOCK
    blocks = -(-width // MX_BLOCK)

    def row_bytes(tensor: Tensor) -> int:
        return tensor.format.size_bytes((width,))

    def buffers(count: int) -> dict[str, Buffer]:
        # The first word may begin before the first row, and the last word may end after the last.
        return {
            which: Buffer(count * row_bytes(tensor) + WORD_BYTES)
            for which, tensor in (("x", x), ("y", y))
        }

    most = min(max(MANY_ELEMENTS // (blocks * MX_BLOCK), 1), number, MOST_ROWS)
    while most > 1 and room_of(buffers(most)) > region.size_bytes:
        most //= 2
    pieces = []
    for first in range(0, number, most):
        count = min(most, number - first)
        source, target = (
            tile_of(tensor.name, first * row_bytes(tensor), count * row_bytes(tensor), [])
            for tensor in (x, y)
        )
        lanes: Steps = (LANES, MX_BLOCK, 0)
        op = VectorOp(
            (2, blocks, count),
            Source(source.shift, _steps(x, width), 0, 0, (), lanes, 1, width, Format.of(x.format)),
            Target(target.shift, _steps(y, width), 0, lanes, width, Format.of(y.format)),
        )
        pieces.append(Piece((Step(op, "x", "y"),), (Move(source, "x"),), (Move(target, "y"),)))
    return VectorKernel(name, buffers(most), tuple(pieces), region)


def _steps(tensor: Tensor, width: int) -> Steps:
    """Bytes from one half of a block to the other, from block to block, and from row to row."""
    if tensor.format.has_blocks:
        return 1, BLOCK_BYTES, -(-width // MX_BLOCK) * BLOCK_BYTES
    size = tensor.element_bytes
    return LANES * size, MX_BLOCK * size, width * size
