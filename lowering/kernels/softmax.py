"""Softmax along the last axis, and its logarithm."""

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.tiling.channels import padded
from fpgapipe.lowering.tiling.elementwise import flat_tile
from fpgapipe.lowering.tiling.kernel import (
    Buffer,
    Move,
    Piece,
    Region,
    Tensor,
    VectorKernel,
)
from fpgapipe.lowering.tiling.rows import MINUS_Y, Rows, piece_rows, reduction_buffers

MOST_ELEMENTS = 1 << 16
"""Largest number of elements of a row, which is the largest number of iterations of a loop."""


def softmax(name: str, x: Tensor, y: Tensor, region: Region, *, log: bool = False) -> VectorKernel:
    """``y = exp(x) / sum(exp(x))`` along the last axis, or the logarithm of that.

    Elements of -infinity give 0. An element of +infinity or NaN makes its row NaN, and so does a
    row that contains only -infinity.

    Parameters
    ----------
    name, x, y, region
        `x` and `y` have the same shape.
    log : bool
        Whether to compute the logarithm.

    Raises
    ------
    ValueError
        If a row has more than `MOST_ELEMENTS`, or the region is too small for a row.
    """
    width = x.shape[-1]
    number = x.elements // width
    check_width(width)
    tensors = {"x": x, "y": y}
    # Intermediate values must be FP32; if `y` is not, they need their own buffer.
    work = "y" if y.format is FP32 else "work"

    def buffers(rows: int) -> dict[str, Buffer]:
        found = {
            each: Buffer(rows * width * tensor.element_bytes + 64)
            for each, tensor in tensors.items()
        }
        if work == "work":
            found[work] = Buffer(4 * rows * width, kept=True)
        for each in ("maximum", "sum", "share"):
            found[each] = Buffer(4 * padded(rows), kept=True)
        return found | reduction_buffers(rows, width)

    rows = piece_rows(number, width, buffers, region)
    pieces = []
    for first in range(0, number, rows):
        count = min(rows, number - first)
        tiles = {
            each: flat_tile(tensor, first * width, count * width)
            for each, tensor in tensors.items()
        }
        view = Rows(
            count,
            width,
            {each: tile.shift for each, tile in tiles.items()},
            {each: tensor.format for each, tensor in tensors.items()},
        )
        steps = list(view.exponentials("x", work))
        if log:
            # Two subtractions, because in maximum + log(sum) a small logarithm would be lost.
            steps += [
                view.row("sum", None, "share", function=Function.LOG),
                view.each("x", work, "maximum", **MINUS_Y),
                view.each(work, "y", "share", **MINUS_Y),
            ]
        else:
            steps += view.shares(work, "y")
        pieces.append(Piece(tuple(steps), (Move(tiles["x"], "x"),), (Move(tiles["y"], "y"),)))
    return VectorKernel(name, buffers(rows), tuple(pieces), region)


def check_width(width: int) -> None:
    """Refuse rows with too many elements."""
    if not 1 <= width <= MOST_ELEMENTS:
        raise ValueError(f"softmax must have rows of 1..{MOST_ELEMENTS} elements, not {width}")
