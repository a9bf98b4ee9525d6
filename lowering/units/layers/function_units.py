"""Units of activation functions other than ReLU, and of functions of two tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.lowering.kernels.functions import FUNCTIONS, affine, apply, gradient
from fpgapipe.lowering.kernels.pointwise import binary, unary
from fpgapipe.lowering.units.layers.broadcast_unit import BroadcastUnit
from fpgapipe.lowering.units.layouts import Layout, channels_last
from fpgapipe.lowering.units.registry import Surroundings, runs
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


@dataclass(frozen=True)
class FunctionUnit(Unit):
    """An activation function of `FUNCTIONS`."""

    @property
    def _operator(self) -> ops.Activation:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Activation)
        return operator

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, x.shape)
        operator = self._operator
        step.add(apply(self.name, operator.function, x, y, step.region, alpha=operator.alpha))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        operator = self._operator
        x = step.take(self, self.inputs[0])
        dx = step.activation(f"{self.name}.dx", dy.shape)
        step.add(
            gradient(
                f"{self.name}.gradient",
                operator.function,
                dy,
                x,
                dx,
                step.region,
                alpha=operator.alpha,
            )
        )
        step.give_gradient(self, self.inputs[0], dx)


@dataclass(frozen=True)
class AffineUnit(Unit):
    """A product with a fixed number, and a fixed summand."""

    @property
    def _operator(self) -> ops.Affine:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Affine)
        return operator

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, x.shape)
        scale, offset = self._operator.scale, self._operator.offset
        step.add(affine(self.name, x, y, step.region, scale=scale, offset=offset))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        dx = step.activation(f"{self.name}.dx", dy.shape)
        scale, name = self._operator.scale, f"{self.name}.gradient"
        step.add(affine(name, dy, dx, step.region, scale=scale, offset=0.0))
        step.give_gradient(self, self.inputs[0], dx)


@dataclass(frozen=True)
class BinaryUnit(Unit):
    """The difference or the product of two values of one shape."""

    @property
    def _function(self) -> str:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Binary)
        return operator.function

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`; if the layouts differ, both inputs are read with their channels last."""
        found = {given[name] for name in self.inputs}
        layout = found.pop() if len(found) == 1 else channels_last(self.in_shape)
        return dict.fromkeys(self.inputs, layout)

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        a, b = (step.take(self, name) for name in self.inputs)
        y = step.activation(self.name, a.shape)
        step.add(binary(self.name, self._function, a, b, y, step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        name, (one, other) = f"{self.name}.gradient", self.inputs
        if self._function == "sub":
            step.give_gradient(self, one, dy)
            dx = step.activation(f"{self.name}.dx", dy.shape)
            step.add(unary(name, "neg", dy, dx, step.region))
            step.give_gradient(self, other, dx)
            return
        for number, (own, factor) in enumerate(((one, other), (other, one))):
            dx = step.activation(f"{self.name}.dx{number}", dy.shape)
            x = step.take(self, factor)
            step.add(binary(f"{name}{number}", "mul", dy, x, dx, step.region))
            step.give_gradient(self, own, dx)


@runs("affine")
def _affine(layer: Layer, around: Surroundings) -> Unit:
    return AffineUnit((layer,))


@runs("sub", "mul")
def _binary(layer: Layer, around: Surroundings) -> Unit:
    if len({tensor.shape for tensor in layer.input_tensors}) > 1:
        return BroadcastUnit((layer,))
    return BinaryUnit((layer,))


@runs(*FUNCTIONS)
def _function(layer: Layer, around: Surroundings) -> Unit:
    return FunctionUnit((layer,))
