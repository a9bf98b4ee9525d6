"""The unit of a depthwise convolution, and its bias."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels import activation
from fpgapipe.lowering.kernels.depthwise import depthwise, depthwise_input, depthwise_weight
from fpgapipe.lowering.kernels.pooling import Pool
from fpgapipe.lowering.units.layouts import Layout, channels_last, with_channels_last
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch


def is_depthwise(operator: ops.Operator, shape: tuple[int, ...]) -> bool:
    """Whether an operator has one window for each of several channels, of one axis or two.

    Parameters
    ----------
    operator : Operator
    shape : tuple of int
        Shape of its first input.
    """
    if not isinstance(operator, ops.Conv) or operator.groups == 1 or len(operator.kernel) > 2:
        return False
    return operator.groups == shape[1] == operator.out_channels


@dataclass(frozen=True)
class DepthwiseUnit(Unit):
    """A convolution that has one window for each channel, and its bias.

    It runs on the vector engine, in FP32.
    """

    @property
    def _operator(self) -> ops.Conv:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Conv)
        return operator

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self.inputs[0]: channels_last(self.in_shape)}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return channels_last(self.out_shape)

    @property
    def _window(self) -> Pool:
        """Taps, stride and padding; with one axis, images have one row."""
        operator = self._operator
        one: tuple[int, ...] = (1,) * (2 - len(operator.kernel))
        (top, bottom), (left, right) = ((0, 0),) * len(one) + operator.padding
        high, wide = one + operator.kernel
        down, across = one + operator.stride
        apart = (one + operator.dilation)[-2:]
        return Pool(
            (high, wide),
            (down, across),
            (top, left, bottom, right),
            dilation=(apart[0], apart[1]),
        )

    def _images(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """View a value of a shape in the network as images with two spatial axes."""
        samples, channels, *sizes = shape
        rows, columns = (1, *sizes)[-2:]
        return replace(x, shape=(samples, rows, columns, channels))

    def _taps(self, weight: Tensor) -> Tensor:
        """View the weight as rows and columns of taps."""
        return replace(weight, shape=(1, *self._window.kernel, self.in_shape[1]))

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        layer = self.layers[0]
        x = self._images(step.take(self, layer.inputs[0]), self.in_shape)
        weight = self._taps(step.weight(layer))
        bias = step.parameter(layer, "bias")
        shape = with_channels_last(self.out_shape)
        y = step.activation(self.name, shape)
        z = y if bias is None else step.tensor(f"{layer.name}.sums", shape, FP32)
        images = self._images(z, self.out_shape)
        step.add(depthwise(f"{layer.name}.forward", self._window, x, weight, images, step.region))
        if bias is not None:
            step.add(activation.add_bias(f"{layer.name}.bias", z, bias, y, step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        layer, window = self.layers[0], self._window
        taken = step.take(self, layer.inputs[0])
        x, dy = self._images(taken, self.in_shape), self._images(dy, self.out_shape)
        bias = step.parameter(layer, "bias")
        db = step.gradient_of(bias) if bias is not None else None
        if db is not None:
            kernel = activation.bias_gradient(f"{layer.name}.db", dy, db, step.region)
            step.add(kernel, is_weight=True)
        weight = step.weight(layer)
        if 0 in step.graph.input_gradients(layer.name):
            dx = step.activation(f"{layer.name}.dx", taken.shape)
            images = self._images(dx, self.in_shape)
            name, taps = f"{layer.name}.input", self._taps(weight)
            step.add(depthwise_input(name, window, dy, taps, images, step.region))
            step.give_gradient(self, layer.inputs[0], dx)
        dw = step.gradient_of(weight)
        if dw is not None:
            name, taps = f"{layer.name}.weight", self._taps(dw)
            kernel = depthwise_weight(name, window, x, dy, taps, step.region)
            step.add(kernel, is_weight=True)
