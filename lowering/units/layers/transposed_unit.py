"""The unit of a transposed convolution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels import activation
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of
from fpgapipe.lowering.units.layers.matrix_parts import Part, multiply_parts
from fpgapipe.lowering.units.layouts import Layout, channels_last, with_channels_last
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.products.conv import Pass
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch


@dataclass(frozen=True)
class TransposedUnit(Unit):
    """A transposed convolution and its bias, by the passes of the convolution behind it.

    Its forward pass is that convolution's input gradient, its input gradient is the forward pass;
    the weight's gradient is the same with the roles of input and output exchanged.
    """

    engine: ClassVar = "array"

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        conv_of(self.layers[0])

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self.inputs[0]: channels_last(self.in_shape)}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return channels_last(self.out_shape)

    @property
    def _groups(self) -> int:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.ConvTranspose)
        return operator.groups

    def target(self, step: MicroBatch, y: Tensor) -> Tensor:
        """The matrix of positions by channels to which the products write the result."""
        return _matrix(y, self.out_shape[1])

    def reached(self, step: MicroBatch, images: Tensor, y: Tensor) -> None:
        """Add the kernels that make the result from the matrix, if it is another."""

    def read(self, step: MicroBatch, dy: Tensor) -> Tensor:
        """The gradient of the result as the matrix that the products read."""
        return _matrix(dy, self.out_shape[1])

    def _add(
        self,
        step: MicroBatch,
        which: Pass,
        tensors: tuple[Tensor, Tensor, Tensor],
        weight: int,
        *,
        is_weight: bool = False,
    ) -> None:
        """Add a pass of the convolution behind, group by group; `weight` is the weight's place."""
        layer, groups = self.layers[0], self._groups
        conv = conv_of(layer)
        for group in range(groups):
            one, other, result = (
                Part.of(tensor, group, groups)
                if place == weight
                else Part.of_columns(tensor, group, groups)
                for place, tensor in enumerate(tensors)
            )
            name = f"{layer.name}.{which}.{group}"
            multiply_parts(step, name, conv, which, (one, other, result), is_weight=is_weight)

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        layer = self.layers[0]
        x = _matrix(step.take(self, layer.inputs[0]), self.in_shape[1])
        bias = step.parameter(layer, "bias")
        shape = with_channels_last(self.out_shape)
        y = step.activation(self.name, shape)
        z = y if bias is None else step.tensor(f"{layer.name}.sums", shape, FP32)
        images = self.target(step, z)
        self._add(step, "input", (x, step.weight(layer), images), 1)
        self.reached(step, images, z)
        if bias is not None:
            rows = _matrix(z, shape[-1])
            step.add(activation.add_bias(f"{layer.name}.bias", rows, bias, y, step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        layer = self.layers[0]
        taken = step.take(self, layer.inputs[0])
        x = _matrix(taken, self.in_shape[1])
        bias = step.parameter(layer, "bias")
        db = step.gradient_of(bias) if bias is not None else None
        if db is not None:
            rows = _matrix(dy, self.out_shape[1])
            kernel = activation.bias_gradient(f"{layer.name}.db", rows, db, step.region)
            step.add(kernel, is_weight=True)
        weight = step.weight(layer)
        given = self.read(step, dy)
        if 0 in step.graph.input_gradients(layer.name):
            dx = step.activation(f"{layer.name}.dx", taken.shape)
            self._add(step, "forward", (given, weight, _matrix(dx, self.in_shape[1])), 1)
            step.give_gradient(self, layer.inputs[0], dx)
        dw = step.gradient_of(weight)
        if dw is not None:
            self._add(step, "weight", (given, x, dw), 2, is_weight=True)


def _matrix(x: Tensor, channels: int) -> Tensor:
    """View images as a matrix of positions by channels."""
    return replace(x, shape=(x.elements // channels, channels))
