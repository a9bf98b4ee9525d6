"""Gradients of values that several units write, each a part of them.

The pieces of a split, for instance, have parts of the gradient of what was split. They are written
where they belong, so nothing has to be added up; what no unit writes gets zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.lowering.kernels.parts import Rows, zero_rows
from fpgapipe.lowering.units.layouts import with_channels_last
from fpgapipe.network.operators.tensors import normalise_axis

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel
    from fpgapipe.lowering.units.layouts import Layout
    from fpgapipe.network import operators as ops


@dataclass(frozen=True)
class Axis:
    """An axis of a tensor in memory.

    Attributes
    ----------
    rows : int
        Product of the sizes of the axes outside it.
    size : int
    inner : int
        Product of the sizes of the axes inside it.
    """

    rows: int
    size: int
    inner: int

    @classmethod
    def of(cls, shape: Sequence[int], axis: int, *, last: bool) -> Axis:
        """The axis of a value of some shape, whose channels may lie last."""
        place = axis
        if last and axis > 0:
            place = len(shape) - 1 if axis == 1 else axis - 1
            shape = with_channels_last(tuple(shape))
        return cls(prod(shape[:place]), shape[place], prod(shape[place + 1 :]))

    def part(self, first: int) -> Rows:
        """Where rows of a part lie that begins at an index of the axis."""
        return Rows(first * self.inner, self.size * self.inner)


@dataclass(frozen=True)
class Stretch:
    """Indices of an axis that follow one another, up to the one before `end`."""

    axis: Axis
    first: int
    end: int

    @classmethod
    def of_slice(cls, operator: ops.Slice, shape: Sequence[int], *, last: bool) -> Stretch:
        """Part of a value that a slice without steps reads."""
        axis = Axis.of(shape, normalise_axis(operator.axis, len(shape)), last=last)
        return cls(axis, operator.start, operator.stop)

    @property
    def size(self) -> tuple[int, int]:
        """Number of rows, and elements of each."""
        return self.axis.rows, (self.end - self.first) * self.axis.inner

    @property
    def place(self) -> Rows:
        """Where the rows lie in the whole tensor."""
        return self.axis.part(self.first)


@dataclass
class GradientOfParts:
    """A gradient of which units write parts.

    Attributes
    ----------
    tensor : Tensor
    layout : Layout
    parts : list of Stretch
        What units write, all along one axis and without overlap.
    """

    tensor: Tensor
    layout: Layout
    parts: list[Stretch] = field(default_factory=list)

    def takes(self, part: Stretch, layout: Layout) -> bool:
        """Whether a part can be added."""
        return layout == self.layout and all(
            each.axis == part.axis and (each.end <= part.first or part.end <= each.first)
            for each in self.parts
        )

    def zeros(self, region: Region) -> Iterator[VectorKernel]:
        """Kernels that write zeros where no unit writes."""
        axis = self.parts[0].axis
        at = 0
        for part in sorted(self.parts, key=lambda each: each.first):
            yield from self._zeros(Stretch(axis, at, part.first), region)
            at = part.end
        yield from self._zeros(Stretch(axis, at, axis.size), region)

    def _zeros(self, gap: Stretch, region: Region) -> Iterator[VectorKernel]:
        if gap.first < gap.end:
            name = f"{self.tensor.name}.zeros{gap.first}"
            yield zero_rows(name, self.tensor, gap.size, gap.place, region)
