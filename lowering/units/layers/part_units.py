"""Units of concatenations and slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.lowering.kernels.parts import Rows, copy_rows, zero_rows
from fpgapipe.lowering.units.gradient_parts import Axis, Stretch
from fpgapipe.lowering.units.layouts import PLAIN, Layout, channels_last, with_channels_last
from fpgapipe.lowering.units.registry import runs_alone
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops
from fpgapipe.network.operators.tensors import normalise_axis

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch


@dataclass(frozen=True)
class _Copy:
    """A copy of rows between a tensor and a part of it.

    Attributes
    ----------
    size : (int, int)
        Number of rows, and elements of each.
    whole, part : Rows
        Where they lie in the tensor, and in the part.
    """

    size: tuple[int, int]
    whole: Rows
    part: Rows


def _every(axis: Axis, first: int, step: int, count: int) -> Iterator[_Copy]:
    """Copies of the elements at every `step`-th index of an axis, of which there are `count`."""
    rows, size, inner = axis.rows, axis.size, axis.inner
    if step == 1:
        yield _Copy((rows, count * inner), axis.part(first), Rows(0, count * inner))
    elif count * step == size:  # the steps go on across the rows
        yield _Copy((rows * count, inner), Rows(first * inner, step * inner), Rows(0, inner))
    elif rows < count:
        for row in range(rows):
            read = Rows((row * size + first) * inner, step * inner)
            yield _Copy((count, inner), read, Rows(row * count * inner, inner))
    else:
        for index in range(count):
            read = axis.part(first + index * step)
            yield _Copy((rows, inner), read, Rows(index * inner, count * inner))


def _is_last(shapes: Mapping[str, tuple[int, ...]], layouts: Mapping[str, Layout]) -> bool:
    """Whether values have their channels last."""
    return all(layouts[name] == channels_last(shape) for name, shape in shapes.items())


@dataclass(frozen=True)
class PartUnit(Unit):
    """A layer that copies parts of tensors, along one axis.

    Values are copied as they lie, if all of them have their channels last or all are in the order
    of the network; otherwise they are read with their channels last.
    """

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs in the network."""
        layer = self.layers[0]
        pairs = zip(layer.inputs, layer.input_tensors, strict=True)
        return {name: tensor.shape for name, tensor in pairs}

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        plain = all(given[name] == PLAIN for name in self.inputs)
        if plain and not _is_last(self.shapes, given):
            return dict.fromkeys(self.inputs, PLAIN)
        return {name: channels_last(shape) for name, shape in self.shapes.items()}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return channels_last(self.out_shape) if _is_last(self.shapes, wanted) else PLAIN

    def lies_last(self, step: MicroBatch) -> bool:
        """Whether the channels of the values lie last in memory."""
        return _is_last(self.shapes, step.wanted(self))

    def memory_shape(self, shape: tuple[int, ...], *, last: bool) -> tuple[int, ...]:
        """Shape of a value in memory."""
        return with_channels_last(shape) if last and len(shape) > 2 else shape


@runs_alone("concat")
@dataclass(frozen=True)
class ConcatUnit(PartUnit):
    """A concatenation: each input is copied to its place in the result."""

    @property
    def _axis(self) -> int:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Concat)
        return normalise_axis(operator.axis, len(self.out_shape))

    def _places(self, *, last: bool) -> list[tuple[str, Axis, Rows]]:
        """For each input in turn, its axis, and where its rows lie in the result."""
        whole = Axis.of(self.out_shape, self._axis, last=last)
        found, first = [], 0
        layer = self.layers[0]
        for name, tensor in zip(layer.inputs, layer.input_tensors, strict=True):
            axis = Axis.of(tensor.shape, self._axis, last=last)
            found.append((name, axis, whole.part(first)))
            first += axis.size
        return found

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        last = self.lies_last(step)
        y = step.activation(self.name, self.memory_shape(self.out_shape, last=last))
        for name, axis, place in self._places(last=last):
            x = step.take(self, name)
            size = axis.rows, axis.size * axis.inner
            step.add(copy_rows(self.name, x, y, size, axis.part(0), place, step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        last = self.lies_last(step)
        for number, (name, axis, place) in enumerate(self._places(last=last)):
            dx = step.activation(f"{self.name}.dx{number}", step.take(self, name).shape)
            size = axis.rows, axis.size * axis.inner
            kernel = copy_rows(
                f"{self.name}.gradient", dy, dx, size, place, axis.part(0), step.region
            )
            step.add(kernel)
            step.give_gradient(self, name, dx)


@runs_alone("slice", "split")
@dataclass(frozen=True)
class SliceUnit(PartUnit):
    """A slice, or a piece of a split; backward, the elements outside it get zeros."""

    @property
    def _operator(self) -> ops.Slice:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Slice)
        return operator

    def _axes(self, step: MicroBatch) -> tuple[Axis, Axis, bool]:
        """The axis of the input and of the result, and whether channels lie last."""
        last = self.lies_last(step)
        axis = normalise_axis(self._operator.axis, len(self.in_shape))
        return (
            Axis.of(self.in_shape, axis, last=last),
            Axis.of(self.out_shape, axis, last=last),
            last,
        )

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        _, _, last = self._axes(step)
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, self.memory_shape(self.out_shape, last=last))
        for each in self._copies(step):
            step.add(copy_rows(self.name, x, y, each.size, each.whole, each.part, step.region))
        return y

    def _copies(self, step: MicroBatch) -> list[_Copy]:
        """Copies that take the slice out of the tensor."""
        whole, part, _ = self._axes(step)
        return list(_every(whole, self._operator.start, self._operator.step, part.size))

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        whole, part, _ = self._axes(step)
        start, name = self._operator.start, f"{self.name}.gradient"
        alone = self._operator.step > 1
        if alone:
            # The elements between its own are zeros at first, too.
            dx = step.activation(f"{self.name}.dx", step.take(self, self.inputs[0]).shape)
            all_rows = Rows(0, dx.elements)
            step.add(zero_rows(f"{name}.zeros", dx, (1, dx.elements), all_rows, step.region))
        else:
            read = Stretch(whole, start, start + part.size)
            dx = step.part_of_gradient(self, self.inputs[0], read)
        for each in self._copies(step):
            step.add(copy_rows(name, dy, dx, each.size, each.part, each.whole, step.region))
        if alone:
            step.give_gradient(self, self.inputs[0], dx)
