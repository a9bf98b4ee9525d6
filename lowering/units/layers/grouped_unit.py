"""The unit of a convolution with groups of channels, and its bias."""

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

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch


@dataclass(frozen=True)
class GroupedUnit(Unit):
    """A convolution whose groups of channels are convolutions by themselves, and its bias.

    The array computes one group after the other. The channels of a group are copied from the
    images, and its results are copied to the images' channels.
    """

    engine: ClassVar = "array"

    @property
    def _groups(self) -> int:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Conv)
        return operator.groups

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        conv_of(self.layers[0])

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self.inputs[0]: channels_last(self.in_shape)}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return channels_last(self.out_shape)

    def read(self, step: MicroBatch, x: Tensor) -> Tensor:
        """The input as the matrix of positions by channels that the products read."""
        return _matrix(x, self.in_shape[1])

    def read_again(self, step: MicroBatch, x: Tensor) -> Tensor:
        """The same in the backward pass."""
        return self.read(step, x)

    def target(self, step: MicroBatch, dx: Tensor) -> Tensor:
        """The matrix to which the products write the gradient of the input."""
        return _matrix(dx, self.in_shape[1])

    def reached(self, step: MicroBatch, images: Tensor, dx: Tensor) -> None:
        """Add the kernels that make the gradient of the input from the matrix, if it is another."""

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        layer, groups = self.layers[0], self._groups
        conv = conv_of(layer)
        x = self.read(step, step.take(self, layer.inputs[0]))
        weight, bias = step.weight(layer), step.parameter(layer, "bias")
        shape = with_channels_last(self.out_shape)
        y = step.activation(self.name, shape)
        z = y if bias is None else step.tensor(f"{layer.name}.sums", shape, FP32)
        sums = _matrix(z, self.out_shape[1])
        for group in range(groups):
            parts = (
                Part.of_columns(x, group, groups),
                Part.of(weight, group, groups),
                Part.of_columns(sums, group, groups),
            )
            multiply_parts(step, f"{layer.name}.forward.{group}", conv, "forward", parts)
        if bias is not None:
            step.add(activation.add_bias(f"{layer.name}.bias", sums, bias, y, step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        layer, groups = self.layers[0], self._groups
        conv, name = conv_of(layer), layer.name
        taken = step.take(self, layer.inputs[0])
        x, dy = self.read_again(step, taken), _matrix(dy, self.out_shape[1])
        bias = step.parameter(layer, "bias")
        db = step.gradient_of(bias) if bias is not None else None
        if db is not None:
            step.add(activation.bias_gradient(f"{name}.db", dy, db, step.region), is_weight=True)
        weight = step.weight(layer)
        if 0 in step.graph.input_gradients(name):
            dx = step.activation(f"{name}.dx", taken.shape)
            images = self.target(step, dx)
            for group in range(groups):
                parts = (
                    Part.of_columns(dy, group, groups),
                    Part.of(weight, group, groups),
                    Part.of_columns(images, group, groups),
                )
                multiply_parts(step, f"{name}.input.{group}", conv, "input", parts)
            self.reached(step, images, dx)
            step.give_gradient(self, layer.inputs[0], dx)
        dw = step.gradient_of(weight)
        if dw is None:
            return
        for group in range(groups):
            parts = (
                Part.of_columns(x, group, groups),
                Part.of_columns(dy, group, groups),
                Part.of(dw, group, groups),
            )
            multiply_parts(step, f"{name}.weight.{group}", conv, "weight", parts, is_weight=True)


def _matrix(x: Tensor, channels: int) -> Tensor:
    """View images as a matrix of positions by channels."""
    return replace(x, shape=(x.elements // channels, channels))
