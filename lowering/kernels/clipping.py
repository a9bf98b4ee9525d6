"""Clipping of gradients by the norm of all: sums of squares, and the factor that follows from them.

The squares of each gradient are added up to a vector of 16 sums, one for each lane, and the vectors
of all gradients are added up one after the other. The order of the additions is thus that of the
gradients, whichever devices have them: a device that goes on where another one stopped begins with
that one's sum.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    VECTOR_BYTES,
    Addend,
    Choice,
    Constant,
    Factor,
    Left,
    Outcome,
    Right,
    Source,
    Target,
)
from fpgapipe.hw.hls_models.numerics.element_format import ElementFormat
from fpgapipe.hw.hls_models.numerics.function import Function
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
from fpgapipe.lowering.tiling.nest import VectorLoop, nest

PIECE_ELEMENTS = 1 << 14
"""Number of elements of a piece of a gradient.

It is fixed because the last bits of a sum depend on it. A scratchpad that is too small for such
pieces has pieces of half as many elements, or of a quarter, and so on.
"""

LEAST_ELEMENTS = 1 << 10
"""Least number of elements of a piece."""

SLICES = 8
"""Number of concurrent sums of squares, which hide the latency of an adder."""

MOST_SUMS = 64
"""Most gradients whose sums one kernel computes, and most sums that are on chip at a time."""

CLIP_EPSILON = 1e-6
"""Number that is added to a norm before the division, as in PyTorch."""

_ONE = Constant(1.0)
_ZERO = Constant(0.0)


def sums_of(count: int, name: str) -> Tensor:
    """The tensor for the sums of squares of some gradients, 16 numbers for each."""
    return Tensor(name, (count, LANES))


def square_sums(
    name: str, gradients: Sequence[Tensor], sums: Tensor, region: Region, first: int = 0
) -> list[VectorKernel]:
    """Kernels that add up the squares of each of some gradients.

    Parameters
    ----------
    name : str
    gradients : sequence of Tensor
    sums : Tensor
        Result of `sums_of`, which gets the sums.
    region : Region
    first : int
        Row of `sums` for the first gradient; the others follow.

    Raises
    ------
    NoRoom
        If the region is too small.
    """
    return [
        _square_sums(name, gradients[at : at + MOST_SUMS], sums, region, first + at)
        for at in range(0, len(gradients), MOST_SUMS)
    ]


def _square_sums(
    name: str, gradients: Sequence[Tensor], sums: Tensor, region: Region, first: int
) -> VectorKernel:
    most = max(tensor.elements for tensor in gradients)
    size = max(tensor.element_bytes for tensor in gradients)

    def buffers(elements: int) -> dict[str, Buffer]:
        return {
            "gradient": Buffer(min(most, elements) * size),
            "slices": Buffer(SLICES * VECTOR_BYTES, kept=True),
            "part": Buffer(SLICES * VECTOR_BYTES, kept=True),
            "sums": Buffer(len(gradients) * VECTOR_BYTES, kept=True),
        }

    elements = PIECE_ELEMENTS
    while elements > LEAST_ELEMENTS and room_of(buffers(elements)) > region.size_bytes:
        elements //= 2
    pieces: list[Piece] = []
    for number, tensor in enumerate(gradients):
        begins = range(0, tensor.elements, elements)
        for begin in begins:
            count = min(elements, tensor.elements - begin)
            steps = [_squares(count, tensor.format, "part" if begin else "slices")]
            if begin:
                vector = (VECTOR_BYTES, 0, 0)
                vectors = VectorLoop(SLICES, vector, vector, (VECTOR_BYTES, 0))
                op = nest([vectors], [], Source(0), Target(0), Source(0), addend=Addend.Y)
                steps.append(Step(op, "slices", "slices", "part"))
            if begin == begins[-1]:
                steps.append(_added("slices", SLICES, "sums", number * VECTOR_BYTES))
            pieces.append(Piece(tuple(steps), (Move(flat_tile(tensor, begin, count), "gradient"),)))
    result = flat_tile(sums, first * LANES, len(gradients) * LANES)
    pieces[-1] = replace(pieces[-1], stores=(Move(result, "sums"),))
    return VectorKernel(name, buffers(elements), tuple(pieces), region)


def total_of_sums(name: str, sums: Tensor, total: Tensor, region: Region) -> VectorKernel:
    """Add up the rows of `sums` one after the other.

    Parameters
    ----------
    name : str
    sums : Tensor
        Sums of squares, from `square_sums`; the first row may be another device's total.
    total : Tensor
        FP32 tensor of 16 numbers, one for each lane.
    region : Region

    Raises
    ------
    NoRoom
        If the region is too small.
    """
    pieces = _rows_added(sums)
    pieces[-1] = replace(pieces[-1], stores=(Move(flat_tile(total, 0, LANES), "total"),))
    return VectorKernel(name, _buffers(sums), tuple(pieces), region)


def clip_coefficient(
    name: str,
    sums: Tensor,
    coefficient: Tensor,
    region: Region,
    *,
    max_norm: Constant,
    scale: Constant = _ONE,
    norm: Tensor | None = None,
) -> VectorKernel:
    """Compute the factor of the gradients with which their total norm is at most `max_norm`.

    It is ``max_norm / (norm + 1e-6)``, but at most 1, times `scale`.

    Parameters
    ----------
    name : str
    sums : Tensor
        As for `total_of_sums`.
    coefficient : Tensor
        FP32 tensor for 16 copies of the factor.
    region : Region
    max_norm : Constant
    scale : Constant
        Factor by which gradients are multiplied in any case; the norm is that of the products.
    norm : Tensor, optional
        FP32 tensor for 16 copies of the norm.

    Raises
    ------
    NoRoom
        If the region is too small.
    """
    pieces = _rows_added(sums)
    results = {"coefficient": coefficient} | ({"norm": norm} if norm else {})
    stores = tuple(Move(flat_tile(tensor, 0, LANES), each) for each, tensor in results.items())
    steps = (*pieces[-1].steps, *_clipped(max_norm, scale))
    pieces[-1] = replace(pieces[-1], steps=steps, stores=stores)
    more = {each: Buffer(VECTOR_BYTES, kept=True) for each in ("norm", "coefficient")}
    return VectorKernel(name, _buffers(sums) | more, tuple(pieces), region)


def _buffers(sums: Tensor) -> dict[str, Buffer]:
    rows = min(sums.shape[0], MOST_SUMS + 1)
    return {"sums": Buffer(rows * VECTOR_BYTES), "total": Buffer(VECTOR_BYTES, kept=True)}


def _rows_added(sums: Tensor) -> list[Piece]:
    """Pieces that add up rows; each begins with the total of those before, if there are any."""
    pieces = []
    for first in range(0, sums.shape[0], MOST_SUMS):
        count = min(MOST_SUMS, sums.shape[0] - first)
        steps = []
        if first:
            # The row before, which was added already, makes room for the total.
            first, count = first - 1, count + 1
            steps.append(Step(nest([], [], Source(0), Target(0)), "total", "sums"))
        steps.append(_added("sums", count, "total"))
        tile = flat_tile(sums, first * LANES, count * LANES)
        pieces.append(Piece(tuple(steps), (Move(tile, "sums"),)))
    return pieces


def _added(x: str, count: int, target: str, to: int = 0) -> Step:
    """Add up contiguous vectors one after the other."""
    vectors = VectorLoop(count, (VECTOR_BYTES, 0, 0))
    return Step(nest([], [vectors], Source(0), Target(to)), x, target)


def _squares(count: int, element: ElementFormat, target: str) -> Step:
    """Add up squares in slices, each over every eighth vector."""
    vector = LANES * element.element_bytes
    op = nest(
        [VectorLoop(SLICES, (vector, 0, LANES), target=(VECTOR_BYTES, 0))],
        [VectorLoop(-(-count // (LANES * SLICES)), (SLICES * vector, 0, SLICES * LANES))],
        Source(0, u_limit=count, format=Format.of(element)),
        Target(0),
        factor=Factor.SELF,
    )
    return Step(op, "gradient", target)


def _clipped(max_norm: Constant, scale: Constant) -> Iterator[Step]:
    """Instructions that compute the norm and the coefficient from the sums of the lanes."""

    def step(x: str, target: str, **settings: Any) -> Step:
        return Step(nest([], [], Source(0), Target(0), **settings), x, target)

    lanes = nest(
        [],
        [VectorLoop(LANES, (4, 0, 0))],
        Source(0, broadcast=True),
        Target(0),
        function=Function.SQRT,
    )
    yield Step(lanes, "total", "norm")
    yield step("norm", "norm", factor=Factor.CONSTANT, constants=(_ZERO, scale))
    yield step(
        "norm",
        "coefficient",
        addend=Addend.CONSTANT,
        constants=(Constant(CLIP_EPSILON),),
        function=Function.RECIPROCAL,
    )
    yield step(
        "coefficient",
        "coefficient",
        factor=Factor.CONSTANT,
        constants=(_ZERO, max_norm, _ZERO, _ONE),
        test=(Left.S, Outcome.GREATER, Right.CONSTANT),
        then=Choice.CONSTANT,
    )
    yield step("coefficient", "coefficient", factor=Factor.CONSTANT, constants=(_ZERO, scale))
