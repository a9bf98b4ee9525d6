"""Views: values whose elements lie in another value, at places that loops over its axes give."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.network import operators as ops
from fpgapipe.network.operators.tensors import normalise_axis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.network.graph import Layer
    from fpgapipe.network.operators import Operator

MOVERS = (ops.Transpose, ops.Reshape, ops.Flatten, ops.Slice)
"""Operators whose results may be views."""


@dataclass(frozen=True)
class View:
    """Where the elements of a value lie in another one, which is in the order of the network.

    Attributes
    ----------
    shape : tuple of int
    steps : tuple of int
        Elements of the other value from one index of an axis to the next.
    first : int
        Number of the first element.
    """

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    first: int = 0

    @classmethod
    def whole(cls, shape: Sequence[int]) -> View:
        """All elements in their order."""
        return cls(tuple(shape), tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))))

    def of(self, operator: Operator, shape: tuple[int, ...]) -> View | None:
        """The result of an operator, whose shape is given; None if it is no view."""
        if isinstance(operator, ops.Transpose):
            order = operator.order
            sizes = tuple(self.shape[axis] for axis in order)
            return View(sizes, tuple(self.steps[axis] for axis in order), self.first)
        if isinstance(operator, ops.Slice):
            axis = normalise_axis(operator.axis, len(self.shape))
            first = self.first + operator.start * self.steps[axis]
            apart = list(self.steps)
            apart[axis] *= operator.step
            return View(shape, tuple(apart), first)
        if isinstance(operator, ops.Reshape | ops.Flatten):
            return self._reshaped(shape)
        return None

    def _reshaped(self, shape: tuple[int, ...]) -> View | None:
        """The same elements in another shape, if loops over its axes give them.

        Axes are taken from the end, in groups of as many elements in both shapes; those of a group
        must follow one another.
        """
        old = [(n, step) for n, step in zip(self.shape, self.steps, strict=True) if n > 1]
        steps: list[int] = []
        left, step = 1, 1  # elements of the group that are not given to an axis yet, and their step
        for size in reversed(shape):
            if size == 1:
                steps.append(0)
                continue
            if left == 1:
                left, step = old.pop()
            while left % size:
                more, apart = old.pop() if old else (1, 0)
                if more == 1 or apart != left * step:
                    return None
                left *= more
            steps.append(step)
            left, step = left // size, step * size
        return View(shape, tuple(reversed(steps)), self.first)


def view_of(layers: Sequence[Layer], shape: Sequence[int]) -> View | None:
    """Where the result of layers lies in a value; each layer reads the one before.

    The result is None if it is no view.
    """
    view: View | None = View.whole(shape)
    for layer in layers:
        view = view and view.of(layer.operator, layer.output.shape)
    return view
