"""Functions of two tensors that are repeated to a common shape, repetitions, and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.isa.vector_op import LANES, Addend, Factor
from fpgapipe.lowering.tiling.blocks import PIECE_ELEMENTS, Axis, Blocks, Part, merged, nests
from fpgapipe.lowering.tiling.kernel import Buffer, Move, Piece, Step, Tensor, VectorKernel, room_of
from fpgapipe.lowering.tiling.nest import VectorLoop
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.repeated_sums import RepeatedSum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fpgapipe.lowering.tiling.kernel import Region

BROADCAST: Mapping[str, Mapping[str, Any]] = {
    "add": {"addend": Addend.Y},
    "sub": {"addend": Addend.Y, "negate_addend": True},
    "mul": {"factor": Factor.Y},
}
"""Functions of two tensors, with the settings of their instruction."""


@made_once
def broadcast(
    name: str, function: str, a: Tensor, b: Tensor, y: Tensor, region: Region
) -> VectorKernel:
    """Compute ``y = function(a, b)``.

    Parameters
    ----------
    name : str
    function : str
        A key of `BROADCAST`.
    a, b, y : Tensor
        Tensors of one rank; each axis of `a` and of `b` has the size of that of `y`, or 1.
    region : Region

    Raises
    ------
    ValueError
        If shapes do not fit together, or the region is too small.
    """
    return spread(name, {"a": a, "b": b}, y, BROADCAST[function], region)


@made_once
def expand(name: str, x: Tensor, y: Tensor, region: Region) -> VectorKernel:
    """Repeat `x` along the axes of `y` along which it has one element; see `broadcast`."""
    return spread(name, {"x": x}, y, {}, region)


@made_once
def sum_of_repeated(
    name: str, dy: Tensor, factor: Tensor | None, total: Tensor, region: Region, *, negate: bool
) -> VectorKernel:
    """Add up `dy`, or ``dy * factor``, over the axes along which `total` has one element.

    This is a gradient of `broadcast`; the order of the sum is that of `tiling.repeated_sums`.

    Parameters
    ----------
    name : str
    dy : Tensor
    factor : Tensor, optional
        Tensor that may be repeated to the shape of `dy`.
    total : Tensor
        What is written; at least one of its axes is shorter than that of `dy`.
    region : Region
    negate : bool
        Whether the sums of ``-dy`` are computed.

    Raises
    ------
    ValueError
        If shapes do not fit together, or the region is too small.
    """
    tensors = {"dy": dy, "total": total, **({"factor": factor} if factor else {})}
    axes = merged([tensor.shape for tensor in tensors.values()])
    return RepeatedSum(axes, tensors, negate=negate).kernel(name, region)


def spread(
    name: str,
    sources: Mapping[str, Tensor],
    y: Tensor,
    settings: Mapping[str, Any],
    region: Region,
) -> VectorKernel:
    """Build a kernel whose result has all axes, of one source or two."""
    tensors = {"y": y, **sources}
    axes = merged([tensor.shape for tensor in tensors.values()])
    read = dict(enumerate(sources.values(), 1))

    def buffers(blocks: Blocks) -> dict[str, Buffer]:
        return {
            each: blocks.room(which, tensor, stored=which == 0)
            for which, (each, tensor) in enumerate(tensors.items())
        }

    def is_large(blocks: Blocks) -> bool:
        too_large = room_of(buffers(blocks)) > region.size_bytes
        return blocks.elements > PIECE_ELEMENTS or too_large

    blocks = Blocks.whole(axes)
    while is_large(blocks) and (able := blocks.able()):
        blocks = min((blocks.cut(number) for number in able), key=lambda each: each.loaded(read))
    pieces = [_piece(tensors, axes, places, settings) for places in blocks.pieces(range(len(axes)))]
    return VectorKernel(name, buffers(blocks), tuple(pieces), region)


def _piece(
    tensors: Mapping[str, Tensor],
    axes: tuple[Axis, ...],
    places: Mapping[int, tuple[int, int]],
    settings: Mapping[str, Any],
) -> Piece:
    """A piece, given the first index and the count along each axis; the target comes first."""
    begins, counts = zip(*places.values(), strict=True)
    target, x, *others = (
        Part.of(tensor, axes, which, begins, counts, stored=which == 0)
        for which, tensor in enumerate(tensors.values())
    )
    other = others[0] if others else None

    def loop(axis: int) -> VectorLoop:
        last = axis == len(axes) - 1
        by = LANES if last else 1
        count = -(-counts[axis] // LANES) if last else counts[axis]
        moved = other.moved(axis, by) if other else (0, 0, 0)
        return VectorLoop(count, x.moved(axis, by), moved, target.moved(axis, by)[::2])

    loops = [loop(axis) for axis in reversed(range(len(axes)))]
    source = other.source() if other else None
    y, first, *second = tensors
    steps = tuple(
        Step(op, first, y, second[0] if second else None)
        for op in nests(loops, [], x.source(), target.target(), source, settings)
    )
    names = zip((first, *second), (x, *others), strict=True)
    loads = tuple(Move(part.tile, each) for each, part in names)
    return Piece(steps, loads, (Move(target.tile, y),))
