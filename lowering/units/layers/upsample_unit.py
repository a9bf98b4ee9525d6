"""The unit that repeats the pixels of images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe.lowering.kernels.pooling import Pool, sum_pool, sum_pool_gradient
from fpgapipe.lowering.units.layouts import Layout, channels_last, with_channels_last
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch


@dataclass(frozen=True)
class UpsampleUnit(Unit):
    """Repetition of pixels, whose gradient adds up what became of each.

    It is the opposite of sums over windows: a pixel becomes all pixels of its window.
    """

    @property
    def _window(self) -> Pool:
        """Pixels that a pixel becomes; with one axis, images have one row."""
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Upsample)
        down, across = (1, *operator.factors)[-2:]
        return Pool((down, across), (down, across))

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self.inputs[0]: channels_last(self.in_shape)}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return channels_last(self.out_shape)

    def _images(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """View a value of a shape in the network as images with two spatial axes."""
        samples, channels, *sizes = shape
        return replace(x, shape=(samples, *(1, *sizes)[-2:], channels))

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = self._images(step.take(self, self.inputs[0]), self.in_shape)
        result = step.activation(self.name, with_channels_last(self.out_shape))
        y = self._images(result, self.out_shape)
        step.add(sum_pool_gradient(self.name, self._window, x, y, step.region))
        return result

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        gradient = step.activation(f"{self.name}.dx", with_channels_last(self.in_shape))
        dx = self._images(gradient, self.in_shape)
        dy = self._images(dy, self.out_shape)
        step.add(sum_pool(f"{self.name}.gradient", self._window, dy, dx, step.region))
        step.give_gradient(self, self.inputs[0], gradient)
