"""The unit of a transposition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.lowering.kernels.layout import transpose
from fpgapipe.lowering.kernels.parts import Rows, copy_rows
from fpgapipe.lowering.units.layouts import PLAIN, Layout
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel
    from fpgapipe.lowering.units.microbatch import MicroBatch

MOST_COPIES = 4096
"""Most copies of a transposition, each of which is a kernel."""


@dataclass(frozen=True)
class TransposeUnit(Unit):
    """A permutation of axes, as copies of rows and transpositions of matrices.

    Rows along a last axis that stays last are copied, 16 elements in a cycle; other elements take
    a cycle each.
    """

    @property
    def _order(self) -> tuple[int, ...]:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Transpose)
        return operator.order

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        shape, order = merged(self.in_shape, self._order)
        copies = prod(shape[:-1]) // max(shape[:-1], default=1)
        if copies > MOST_COPIES and order[-1] != len(order) - 1:
            raise NotImplementedError(
                f"a transposition must take at most {MOST_COPIES:,} copies, not {copies:,}"
            )

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self.inputs[0]: PLAIN}

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, self.out_shape)
        add_permutation(step, self.name, replace(x, shape=self.in_shape), y, self._order)
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        dx = step.activation(f"{self.name}.dx", self.in_shape)
        order = sorted(range(len(self._order)), key=self._order.__getitem__)
        name = f"{self.name}.gradient"
        add_permutation(step, name, replace(dy, shape=self.out_shape), dx, order)
        step.give_gradient(self, self.inputs[0], dx)


def merged(shape: Sequence[int], order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same permutation of fewer axes: those that stay together are one, and none has size 1.

    Returns
    -------
    shape, order : tuple of int
        At least one axis.
    """
    kept = [axis for axis in order if shape[axis] > 1]
    groups: list[list[int]] = []
    for axis in kept:
        # Axes of size 1 between two axes do not keep them apart.
        before = groups[-1][-1] if groups else None
        between = range(axis) if before is None else range(before + 1, axis)
        if before is not None and before < axis and all(shape[each] == 1 for each in between):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if not groups:
        return (1,), (0,)
    firsts = sorted(group[0] for group in groups)
    sizes = {group[0]: prod(shape[axis] for axis in group) for group in groups}
    return (
        tuple(sizes[first] for first in firsts),
        tuple(firsts.index(group[0]) for group in groups),
    )


def add_permutation(
    step: MicroBatch, name: str, x: Tensor, y: Tensor, order: Sequence[int]
) -> None:
    """Add kernels after which axis `i` of `y` is axis ``order[i]`` of `x`."""
    sizes, order = merged(x.shape, order)
    if order[-1] != len(order) - 1:
        # The axis that is last in the result goes to the end first.
        last = order[-1]
        high, wide = sizes[last], prod(sizes[last + 1 :])
        several = prod(sizes[:last])
        order = tuple(len(sizes) - 1 if axis == last else axis - (axis > last) for axis in order)
        sizes = (*sizes[:last], *sizes[last + 1 :], high)
        done = order == tuple(range(len(order)))
        target = y if done else step.activation(f"{name}.rows", sizes)
        matrices = replace(x, shape=(several, high, wide))
        turned = replace(target, shape=(several, wide, high))
        step.add(transpose(f"{name}.matrices", matrices, turned, step.region))
        if done:
            return
        x = target
    for kernel in _copies(name, replace(x, shape=sizes), y, order, step.region):
        step.add(kernel)


def _copies(
    name: str, x: Tensor, y: Tensor, order: Sequence[int], region: Region
) -> Iterator[VectorKernel]:
    """Copies of rows along the last axis, which stays last."""
    *outer, width = x.shape
    read = [width * prod(outer[axis + 1 :]) for axis in range(len(outer))]
    written = [0] * len(outer)
    pitch = width
    for axis in reversed(order[:-1]):
        written[axis], pitch = pitch, pitch * outer[axis]
    long = max(range(len(outer)), key=outer.__getitem__, default=None)
    others = [range(size) if axis != long else range(1) for axis, size in enumerate(outer)]
    rows = 1 if long is None else outer[long]
    for number, index in enumerate(product(*others)):
        first = sum(at * pitch for at, pitch in zip(index, read, strict=True))
        to = sum(at * pitch for at, pitch in zip(index, written, strict=True))
        yield copy_rows(
            f"{name}.{number}",
            x,
            y,
            (rows, width),
            Rows(first, width if long is None else read[long]),
            Rows(to, width if long is None else written[long]),
            region,
        )
