"""Units of tensors that do not depend on the network's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.lowering.kernels.parts import Rows, copy_rows
from fpgapipe.lowering.units.layouts import PLAIN, Layout
from fpgapipe.lowering.units.registry import Surroundings, runs
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


@dataclass(frozen=True)
class ConstantUnit(Unit):
    """A learned tensor, or fixed numbers: a copy in the format of activations.

    Attributes
    ----------
    is_result : bool
        Whether it is a result of the network.
    """

    is_result: bool = False

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        if self.is_result:
            raise NotImplementedError("a fixed or learned tensor must be no result of the network")

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return PLAIN

    def _value(self, step: MicroBatch) -> Tensor:
        value = step.parameter(self.layers[0], "value")
        assert value is not None
        return value

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        value = self._value(step)
        # The parameter may have the layer's name.
        y = step.activation(f"{self.name}.copy", self.out_shape)
        whole = Rows(0, value.elements)
        size = 1, value.elements
        step.add(copy_rows(self.name, value, y, size, whole, whole, step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        value = self._value(step)
        gradient = step.gradient_of(value)
        if gradient is not None:
            whole = Rows(0, value.elements)
            name, size = f"{self.name}.gradient", (1, value.elements)
            kernel = copy_rows(name, dy, gradient, size, whole, whole, step.region)
            step.add(kernel, is_weight=True)


@runs("constant")
def _constant(layer: Layer, around: Surroundings) -> Unit:
    operator = layer.operator
    assert isinstance(operator, ops.Constant)
    if not operator.dtype.is_float:
        raise NotImplementedError(
            f"fixed tensors must have floating-point numbers, not {operator.dtype.value}"
        )
    return ConstantUnit((layer,), layer.name in around.graph.outputs)
