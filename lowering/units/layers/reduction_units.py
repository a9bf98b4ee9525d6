"""Units of pooling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.element_format import BF16
from fpgapipe.lowering.kernels import global_pooling, pooling
from fpgapipe.lowering.units.layouts import Layout, channels_last, with_channels_last
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch


@dataclass(frozen=True)
class PoolUnit(Unit):
    """Pooling over windows, or over all positions."""

    @property
    def _function(self) -> str:
        operator = self.layers[0].operator
        if isinstance(operator, ops.Reduce):
            return "average"
        assert isinstance(operator, ops.Pool | ops.GlobalPool)
        return operator.function

    @property
    def _plane(self) -> tuple[int, int]:
        """Rows and columns of an image; all spatial axes but the last are merged into the rows."""
        return prod(self.in_shape[2:-1]), self.in_shape[-1]

    def _pool(self) -> pooling.Pool | None:
        """The windows, or None for an average over all positions."""
        operator = self.layers[0].operator
        plane = self._plane
        if not isinstance(operator, ops.Pool):
            return None if self._function == "average" else pooling.Pool(plane, plane)
        # With one axis, images have one row.
        one: tuple[int, ...] = (1,) * (2 - len(operator.kernel))
        sides: tuple[tuple[int, int], ...] = ((0, 0),) * len(one)
        windows = replace(
            operator,
            kernel=one + operator.kernel,
            stride=one + operator.stride,
            padding=sides + operator.padding,
            dilation=one + operator.dilation,
        )
        return windows_of(windows, plane, one + self.out_shape[2:])

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        pool = self._pool()
        if pool and self._function == "max":
            pool.check_maximum()

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self.inputs[0]: channels_last(self.in_shape)}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return channels_last(self.out_shape)

    def _images(self, x: Tensor) -> Tensor:
        """View the input, or its gradient, as images with two spatial axes."""
        return replace(x, shape=(self.in_shape[0], *self._plane, self.in_shape[1]))

    def _pooled(self, y: Tensor) -> Tensor:
        """View the result, or its gradient, as images with two spatial axes."""
        samples, channels, *sizes = self.out_shape
        return replace(y, shape=(samples, prod(sizes[:-1]), *(sizes[-1:] or (1,)), channels))

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = self._images(step.take(self, self.inputs[0]))
        pool = self._pool()
        shape = self.out_shape
        result = step.activation(self.name, with_channels_last(shape) if len(shape) > 2 else shape)
        y = self._pooled(result)
        if pool is None:
            step.add(global_pooling.global_average(self.name, x, y, step.region))
        elif self._function == "max":
            trains = step.options.train
            index = step.tensor(f"{self.name}.index", y.shape, BF16) if trains else None
            step.add(pooling.max_pool(self.name, pool, x, y, step.region, index=index))
        else:
            step.add(pooling.average_pool(self.name, pool, x, y, step.region))
        return result

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        pool = self._pool()
        name = f"{self.name}.gradient"
        dy = self._pooled(dy)
        gradient = step.activation(f"{self.name}.dx", x.shape)
        dx = self._images(gradient)
        if pool is None:
            step.add(global_pooling.global_average_gradient(name, dy, dx, step.region))
        elif self._function == "max":
            index = step.from_earlier_pass(f"{self.name}.index")
            step.add(pooling.max_pool_gradient(name, pool, dy, index, dx, step.region))
        else:
            step.add(pooling.average_pool_gradient(name, pool, dy, dx, step.region))
        step.give_gradient(self, self.inputs[0], gradient)


def windows_of(
    operator: ops.Pool, sizes: tuple[int, ...], results: tuple[int, ...]
) -> pooling.Pool:
    """The windows of a pooling along two axes, given their sizes before and behind it."""
    kernel, stride, dilation = operator.kernel, operator.stride, operator.dilation
    (top, bottom), (left, right) = operator.padding
    # A window at the end may reach beyond the padding where the number of windows is rounded up.
    down, across = (
        (results[axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1 - sizes[axis]
        for axis in (0, 1)
    )
    counted = (top, left, bottom, right) if operator.count_include_pad else (0, 0, 0, 0)
    pad = (top, left, max(bottom, down - top), max(right, across - left))
    return pooling.Pool(
        (kernel[0], kernel[1]), (stride[0], stride[1]), pad, counted, (dilation[0], dilation[1])
    )
