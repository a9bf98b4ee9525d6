"""Units of functions of two tensors that are repeated to one shape, and of repetitions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.lowering.kernels.broadcast import broadcast, expand, sum_of_repeated
from fpgapipe.lowering.kernels.pointwise import unary
from fpgapipe.lowering.units.layouts import PLAIN, Layout, channels_last, with_channels_last
from fpgapipe.lowering.units.registry import runs_alone
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch


@dataclass(frozen=True)
class BroadcastUnit(Unit):
    """The sum, the difference or the product of two tensors whose shapes differ.

    Values are read with their channels last if the largest one lies so, and in the order of the
    network otherwise.
    """

    @property
    def _function(self) -> str:
        operator = self.layers[-1].operator
        assert isinstance(operator, ops.Binary)
        return operator.function

    @property
    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of both inputs, with as many axes as the result."""
        one, other = (
            aligned(each.shape, len(self.out_shape)) for each in self.layers[-1].input_tensors
        )
        return one, other

    def passes_gradient(self, name: str) -> bool:
        """See `Unit`."""
        number = self.inputs.index(name)
        is_whole = self._shapes[number] == self.out_shape
        return is_whole and (self._function == "add" or (self._function, number) == ("sub", 0))

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        pairs = list(zip(self.inputs, self._shapes, strict=True))
        largest = max(prod(shape) for _, shape in pairs)
        is_last = any(
            prod(shape) == largest and given[name] != PLAIN and given[name] == channels_last(shape)
            for name, shape in pairs
        )
        return {name: channels_last(shape) if is_last else PLAIN for name, shape in pairs}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        is_last = any(each != PLAIN for each in wanted.values())
        return channels_last(self.out_shape) if is_last else PLAIN

    def _in_memory(self, step: MicroBatch, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape with the axes in the order of memory."""
        is_last = any(each != PLAIN for each in step.wanted(self).values())
        return with_channels_last(shape) if is_last else shape

    def _in_order(self, step: MicroBatch, y: Tensor) -> Tensor:
        """View a result, or its gradient, with the axes in the order of memory."""
        return replace(y, shape=self._in_memory(step, self.out_shape))

    def _operands(self, step: MicroBatch) -> list[Tensor]:
        return [
            replace(step.take(self, name), shape=self._in_memory(step, shape))
            for name, shape in zip(self.inputs, self._shapes, strict=True)
        ]

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        a, b = self._operands(step)
        y = step.activation(self.name, self._in_memory(step, self.out_shape))
        step.add(broadcast(self.name, self._function, a, b, y, step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        operands = self._operands(step)
        dy = self._in_order(step, dy)
        for number in sorted(step.graph.input_gradients(self.layers[0].name)):
            own, other = operands[number], operands[1 - number]
            is_product, is_negated = self._function == "mul", self._function == "sub" and number
            gradient = dy
            if own.shape != dy.shape or is_product or is_negated:
                gradient = step.activation(f"{self.name}.dx{number}", own.shape)
                name = f"{self.name}.gradient{number}"
                if own.shape != dy.shape:
                    factor = other if is_product else None
                    kernel = sum_of_repeated(
                        name, dy, factor, gradient, step.region, negate=bool(is_negated)
                    )
                elif is_product:
                    kernel = broadcast(name, "mul", dy, other, gradient, step.region)
                else:
                    kernel = unary(name, "neg", dy, gradient, step.region)
                step.add(kernel)
            step.give_gradient(self, self.inputs[number], gradient)


@runs_alone("expand")
@dataclass(frozen=True)
class ExpandUnit(Unit):
    """A tensor that is repeated along some axes."""

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self.inputs[0]: PLAIN}

    @property
    def _shape(self) -> tuple[int, ...]:
        return aligned(self.in_shape, len(self.out_shape))

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = replace(step.take(self, self.inputs[0]), shape=self._shape)
        y = step.activation(self.name, self.out_shape)
        step.add(expand(self.name, x, y, step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        if self._shape != self.out_shape:
            dx = step.activation(f"{self.name}.dx", self._shape)
            name, given = f"{self.name}.gradient", replace(dy, shape=self.out_shape)
            step.add(sum_of_repeated(name, given, None, dx, step.region, negate=False))
            dy = dx
        step.give_gradient(self, self.inputs[0], dy)


def aligned(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """A shape with axes of one element in front, so that it has as many axes as another one."""
    return (*(1,) * (rank - len(shape)), *shape)
