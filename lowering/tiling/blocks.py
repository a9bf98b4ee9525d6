"""Tensors that are repeated to a common shape, cut into pieces along the axes of that shape.

Shapes are those of numpy's rules of broadcasting, with as many axes each: an axis of a tensor has
the size of the result's, or one element.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import NUM_VECTOR_LOOPS, Format
from fpgapipe.hw.hls_models.isa.vector_op import LANES, Source, Target, VectorOp
from fpgapipe.lowering.tiling.kernel import Buffer, Tensor
from fpgapipe.lowering.tiling.nest import VectorLoop, nest
from fpgapipe.lowering.tiling.tile import Tile, tile_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PIECE_ELEMENTS = 1 << 15
"""Most elements of a piece of the largest tensor."""

LONG_RUN = 1 << 9
"""Elements of the last axis below which a piece is not cut along it while there are other axes."""


@dataclass(frozen=True)
class Axis:
    """Neighbouring axes that the same tensors have.

    Attributes
    ----------
    size : int
    has : tuple of bool
        Whether each tensor has it; the others are repeated along it.
    """

    size: int
    has: tuple[bool, ...]


def merged(shapes: Sequence[Sequence[int]]) -> tuple[Axis, ...]:
    """Join neighbouring axes that the same tensors have, and leave out those of one element.

    Parameters
    ----------
    shapes : sequence of sequence of int
        Shapes of one rank, the first of which has all axes.

    Raises
    ------
    ValueError
        If a tensor's axis has neither the size of the first tensor's nor one element.
    """
    found: list[Axis] = []
    for size, *others in zip(*shapes, strict=True):
        sizes = size, *others
        if {*others} - {1, size}:
            raise ValueError(f"an axis must have {size} elements or one, not {max(others)}")
        has = tuple(each == size for each in sizes)
        if size == 1:
            continue
        if found and found[-1].has == has:
            found[-1] = replace(found[-1], size=found[-1].size * size)
        else:
            found.append(Axis(size, has))
    return tuple(found) or (Axis(1, (True,) * len(shapes)),)


@dataclass(frozen=True)
class Part:
    """A part of a tensor on chip.

    Attributes
    ----------
    tile : Tile
    steps : tuple of int
        Bytes from one index of each axis to the next; 0 where the tensor is repeated.
    width : int
        Elements of a row along the last axis; 0 if there is one for the whole row.
    format : Format
    """

    tile: Tile
    steps: tuple[int, ...]
    width: int
    format: Format

    @classmethod
    def of(
        cls,
        tensor: Tensor,
        axes: Sequence[Axis],
        which: int,
        begins: Sequence[int],
        counts: Sequence[int],
        *,
        stored: bool,
    ) -> Part:
        """Part of tensor number `which`, given the first index and the count of each axis."""
        size = tensor.element_bytes
        own = [number for number, axis in enumerate(axes) if axis.has[which]]
        pitch, pitches = size, {}
        for number in reversed(own):
            pitches[number] = pitch
            pitch *= axes[number].size
        offset = sum(begins[number] * pitches[number] for number in own)
        run = counts[own[-1]] if own else 1
        dims = [(counts[number], pitches[number]) for number in reversed(own[:-1])]
        tile = tile_of(tensor.name, offset, run * size, dims, stored=stored)
        on_chip = dict(zip(reversed(own), (size, *tile.pitches), strict=True)) if own else {}
        steps = tuple(on_chip.get(number, 0) for number in range(len(axes)))
        width = counts[-1] if axes[-1].has[which] else 0
        return cls(tile, steps, width, Format.of(tensor.format))

    def source(self) -> Source:
        """The first vector as a source."""
        if not self.width:
            return Source(self.tile.shift, format=self.format, broadcast=True)
        return Source(self.tile.shift, u_limit=self.width, format=self.format)

    def target(self) -> Target:
        """The first vector as a target."""
        return Target(self.tile.shift, u_limit=self.width, format=self.format)

    def moved(self, axis: int, by: int = 1) -> tuple[int, int, int]:
        """Movement along an axis as change of the address and of the coordinates y and u.

        Along the last axis, `by` is the number of elements.
        """
        lanes = by if self.width and axis == len(self.steps) - 1 else 0
        return by * self.steps[axis], 0, lanes


@dataclass(frozen=True)
class Blocks:
    """How the axes are cut into pieces.

    Attributes
    ----------
    axes : tuple of Axis
    counts : tuple of int
        Indices of each axis in a piece.
    """

    axes: tuple[Axis, ...]
    counts: tuple[int, ...]

    @classmethod
    def whole(cls, axes: tuple[Axis, ...]) -> Blocks:
        """One piece."""
        return cls(axes, tuple(axis.size for axis in axes))

    @property
    def elements(self) -> int:
        """Elements of a piece of the largest tensor."""
        return prod(self.counts)

    def cut(self, number: int) -> Blocks:
        """Halve an axis; along the last one, pieces consist of whole vectors."""
        half = -(-self.counts[number] // 2)
        if number == len(self.axes) - 1:
            half = -(-half // LANES) * LANES
        counts = (*self.counts[:number], half, *self.counts[number + 1 :])
        return replace(self, counts=counts)

    def able(self) -> list[int]:
        """Axes that can be halved; the last one only if it is long or the only one."""
        last = len(self.axes) - 1
        found = [number for number in range(last) if self.counts[number] > 1]
        if self.counts[last] > LONG_RUN or (not found and self.counts[last] > LANES):
            found.append(last)
        return found

    def loaded(self, tensors: Mapping[int, Tensor]) -> int:
        """Bytes that all pieces load of tensors, by the tensors' numbers."""
        pieces = [
            -(-axis.size // count) for axis, count in zip(self.axes, self.counts, strict=True)
        ]
        return sum(
            tensor.size_bytes
            * prod(n for n, axis in zip(pieces, self.axes, strict=True) if not axis.has[which])
            for which, tensor in tensors.items()
        )

    def room(self, which: int, tensor: Tensor, *, stored: bool) -> Buffer:
        """Buffer for a piece of a tensor wherever it begins."""
        begins = (0,) * len(self.axes)
        part = Part.of(tensor, self.axes, which, begins, self.counts, stored=stored)
        # A tile that begins at the end of a word is the largest.
        tile = part.tile
        runs = list(zip(tile.counts, tile.memory_pitches, strict=True))
        late = tile_of(
            tensor.name, WORD_BYTES - tensor.element_bytes, tile.run_bytes, runs, stored=stored
        )
        return Buffer(max(tile.size_bytes, late.size_bytes))

    def pieces(self, numbers: Sequence[int]) -> Iterator[dict[int, tuple[int, int]]]:
        """First index and count along some axes, for one piece after the other."""
        for begins in product(*(range(0, self.axes[n].size, self.counts[n]) for n in numbers)):
            yield {
                number: (begin, min(self.counts[number], self.axes[number].size - begin))
                for number, begin in zip(numbers, begins, strict=True)
            }


def nests(
    loops: Sequence[VectorLoop],
    reduced: Sequence[VectorLoop],
    x: Source,
    target: Target,
    y: Source | None,
    settings: Mapping[str, Any],
) -> Iterator[VectorOp]:
    """Instructions for a nest, whose outermost loops over results may be too many for one."""
    inner = [loop for loop in loops if loop.count > 1]
    taps = max(sum(loop.count > 1 for loop in reduced), len(reduced[:1]))
    outer = inner[NUM_VECTOR_LOOPS - taps :]
    inner = inner[: NUM_VECTOR_LOOPS - taps]
    for at in product(*(range(loop.count) for loop in outer)):
        pairs = list(zip(at, outer, strict=True))
        yield nest(
            inner,
            reduced,
            replace(x, base=x.base + sum(i * loop.x[0] for i, loop in pairs)),
            replace(target, base=target.base + sum(i * loop.target[0] for i, loop in pairs)),
            replace(y, base=y.base + sum(i * loop.y[0] for i, loop in pairs)) if y else None,
            **settings,
        )
