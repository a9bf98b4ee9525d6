"""Sums over the axes along which a tensor was repeated.

The sum has one order. Within a piece, the elements of a result are added in the order of memory,
those of a last axis in 16 lanes; then pieces are added in the order of memory, and the lanes at
last. Long sums consist of `SLICES` sums, each over every eighth index of the longest axis. Pieces
depend on the shapes alone, unless the region is too small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    VECTOR_BYTES,
    Addend,
    Factor,
    Source,
    Target,
    VectorOp,
)
from fpgapipe.lowering.tiling.blocks import PIECE_ELEMENTS, Axis, Blocks, Part, nests
from fpgapipe.lowering.tiling.channels import SLICES
from fpgapipe.lowering.tiling.kernel import Buffer, Move, Piece, Step, Tensor, VectorKernel, room_of
from fpgapipe.lowering.tiling.nest import ENOUGH_SUMS, VectorLoop, nest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fpgapipe.lowering.tiling.kernel import Region

MANY_TERMS = 64
"""Number of terms from which on a sum has slices."""


class RepeatedSum:
    """A sum over the axes that the second tensor, the total, does not have."""

    def __init__(
        self, axes: tuple[Axis, ...], tensors: Mapping[str, Tensor], *, negate: bool
    ) -> None:
        self._axes = axes
        self._tensors = tensors
        self._kept = [number for number, axis in enumerate(axes) if axis.has[1]]
        self._summed = [number for number, axis in enumerate(axes) if not axis.has[1]]
        self._last = len(axes) - 1
        self._lanes_summed = self._last in self._summed
        self._settings: dict[str, Any] = {"negate_x": negate}
        if "factor" in tensors:
            self._settings["factor"] = Factor.Y
        self._blocks = self._of_shape()
        self._sliced = self._axis_of_slices()

    def _vectors(self, number: int, counts: Sequence[int]) -> int:
        """Iterations of the loop along an axis."""
        return -(-counts[number] // LANES) if number == self._last else counts[number]

    def _results(self, blocks: Blocks) -> int:
        """Vectors of results of a piece."""
        return prod(self._vectors(number, blocks.counts) for number in self._kept)

    def _of_shape(self) -> Blocks:
        """Cut into pieces as the shapes suggest.

        Cutting kept axes costs nothing as long as there are sums enough to hide the latency of an
        adder.
        """
        blocks = Blocks.whole(self._axes)
        while blocks.elements > PIECE_ELEMENTS and (able := blocks.able()):
            free = [
                number
                for number in able
                if number in self._kept and self._results(blocks.cut(number)) >= ENOUGH_SUMS
            ]
            summed = [number for number in able if number in self._summed]
            blocks = blocks.cut((free or summed or able)[0])
        return blocks

    def _axis_of_slices(self) -> int | None:
        """The axis along which a long sum, or one of few, has slices."""
        counts = self._blocks.counts
        found = max(self._summed, key=lambda number: self._vectors(number, counts))
        terms = prod(self._vectors(number, counts) for number in self._summed)
        few = self._results(self._blocks) < ENOUGH_SUMS
        if self._vectors(found, counts) < SLICES or not (terms >= MANY_TERMS or few):
            return None
        return found

    def _buffers(self, blocks: Blocks) -> dict[str, Buffer]:
        found = {
            each: blocks.room(which, tensor, stored=each == "total")
            for which, (each, tensor) in enumerate(self._tensors.items())
        }
        size = VECTOR_BYTES * self._results(blocks) * (1 if self._sliced is None else SLICES)
        found["sums"] = Buffer(size, kept=True)
        found["part"] = Buffer(size if self._num_summed(blocks) > 1 else 0, kept=True)
        return found

    def _num_summed(self, blocks: Blocks) -> int:
        """Pieces that are added up."""
        return prod(-(-self._axes[n].size // blocks.counts[n]) for n in self._summed)

    def kernel(self, name: str, region: Region) -> VectorKernel:
        """Build the kernel."""
        blocks = self._blocks
        while room_of(self._buffers(blocks)) > region.size_bytes and (able := blocks.able()):
            first = [number for number in able if number in self._kept]
            blocks = blocks.cut((first or able)[0])
        pieces: list[Piece] = []
        for kept in blocks.pieces(self._kept):
            along = list(blocks.pieces(self._summed))
            pieces += [
                self._piece({**kept, **places}, number, len(along))
                for number, places in enumerate(along)
            ]
        return VectorKernel(name, self._buffers(blocks), tuple(pieces), region)

    def _piece(self, places: Mapping[int, tuple[int, int]], number: int, pieces: int) -> Piece:
        """A piece; the first of those that are added up begins a sum, and the last one stores."""
        begins, counts = zip(*(places[axis] for axis in range(len(self._axes))), strict=True)
        parts = {
            each: Part.of(tensor, self._axes, which, begins, counts, stored=each == "total")
            for which, (each, tensor) in enumerate(self._tensors.items())
        }
        on_chip = _Sums.of(self._kept, [self._vectors(axis, counts) for axis in self._kept],
                           len(self._axes), is_sliced=self._sliced is not None)  # fmt: skip
        total = parts["total"]
        is_direct = pieces == 1 and self._sliced is None and not self._lanes_summed
        where = "part" if number else "sums"
        if is_direct:
            steps = [*self._added(parts, counts, total, "total")]
        else:
            steps = [*self._added(parts, counts, on_chip, where)]
            if number:
                steps.append(on_chip.summed("part"))
            if number == pieces - 1:
                lanes = min(LANES, self._axes[-1].size) if self._lanes_summed else 0
                steps += on_chip.stored(total, counts, lanes)
        loads = [Move(parts[each].tile, each) for each in self._tensors if each != "total"]
        stores = [Move(total.tile, "total")] if number == pieces - 1 else []
        return Piece(tuple(steps), tuple(loads), tuple(stores))

    def _added(
        self, parts: Mapping[str, Part], counts: Sequence[int], into: Part | _Sums, where: str
    ) -> Iterator[Step]:
        """Add up a piece."""
        x, y = parts["dy"], parts.get("factor")

        def loop(axis: int, count: int, by: int = 1) -> VectorLoop:
            by *= LANES if axis == self._last else 1
            moved = into.moved(axis, by)[::2] if axis in self._kept else (0, 0)
            return VectorLoop(
                count, x.moved(axis, by), y.moved(axis, by) if y else (0, 0, 0), moved
            )

        loops = [loop(axis, self._vectors(axis, counts)) for axis in reversed(self._kept)]
        reduced = [
            loop(axis, self._vectors(axis, counts))
            for axis in reversed(self._summed)
            if axis != self._sliced
        ]
        source = x.source()
        if self._sliced is not None:
            assert isinstance(into, _Sums), "slices are summed on chip"
            count = self._vectors(self._sliced, counts)
            one, many = loop(self._sliced, SLICES), loop(self._sliced, -(-count // SLICES), SLICES)
            one, many = (
                replace(each, x=(each.x[0], by, each.x[2]))
                for each, by in ((one, 1), (many, SLICES))
            )
            loops.insert(0, replace(one, target=(into.slice_bytes, 0)))
            reduced.insert(0, many)
            source = replace(source, y_limit=count)
        target = into.target()
        for op in nests(loops, reduced, source, target, y.source() if y else None, self._settings):
            yield Step(op, "dy", where, "factor" if y else None)


@dataclass(frozen=True)
class _Sums:
    """Sums on chip in FP32: slices of results, each of one vector or a part of a row.

    Attributes
    ----------
    steps : tuple of int
        Bytes from one index of each axis to the next; along the last axis, from vector to vector.
    slices, slice_bytes : int
        Number of slices, and bytes of each.
    """

    steps: tuple[int, ...]
    slices: int
    slice_bytes: int

    @classmethod
    def of(
        cls, kept: Sequence[int], vectors: Sequence[int], rank: int, *, is_sliced: bool
    ) -> _Sums:
        """Lay out sums with some iterations along the kept axes."""
        steps, pitch = [0] * rank, VECTOR_BYTES
        for axis, count in zip(reversed(kept), reversed(vectors), strict=True):
            steps[axis] = pitch
            pitch *= count
        return cls(tuple(steps), SLICES if is_sliced else 1, pitch)

    def moved(self, axis: int, by: int = 1) -> tuple[int, int, int]:
        """Movement along an axis; along the last one, `by` is the number of elements."""
        step = self.steps[axis]
        return (by // LANES if axis == len(self.steps) - 1 else by) * step, 0, 0

    def target(self) -> Target:
        """The first vector as a target."""
        return Target(0)

    def summed(self, part: str) -> Step:
        """Add the sums of a piece to those of the pieces before."""
        op = VectorOp(
            counts=(self.slices * self.slice_bytes // VECTOR_BYTES,),
            x=Source(0, (VECTOR_BYTES,)),
            y=Source(0, (VECTOR_BYTES,)),
            target=Target(0, (VECTOR_BYTES,)),
            addend=Addend.Y,
        )
        return Step(op, "sums", "sums", part)

    def stored(self, total: Part, counts: Sequence[int], lanes: int) -> Iterator[Step]:
        """Add up slices, and lanes if there are any, and write the results.

        Parameters
        ----------
        total : Part
        counts : sequence of int
            Indices of each axis in the piece.
        lanes : int
            Number of lanes that are added up; 0 if each is a result.
        """
        slices = VectorLoop(self.slices, (self.slice_bytes, 0, 0))
        if lanes and self.slices > 1:
            vectors = VectorLoop(
                self.slice_bytes // VECTOR_BYTES, (VECTOR_BYTES, 0, 0), target=(VECTOR_BYTES, 0)
            )
            yield Step(nest([vectors], [slices], Source(0), Target(0)), "sums", "sums")
        last = len(self.steps) - 1
        by = 1 if lanes else LANES
        loops = [
            VectorLoop(
                -(-counts[axis] // LANES) if axis == last else counts[axis],
                self.moved(axis, LANES if axis == last else 1),
                target=total.moved(axis, by if axis == last else 1)[::2],
            )
            for axis in reversed(range(len(self.steps)))
            if self.steps[axis]
        ]
        source, reduced, width = Source(0), slices, total.width
        if lanes:
            source = Source(0, broadcast=True)
            reduced, width = VectorLoop(lanes, (4, 0, 0)), 1
        target = Target(total.tile.shift, u_limit=width, format=total.format)
        for op in nests(loops, [reduced], source, target, None, {}):
            yield Step(op, "sums", "total")
