"""Units that reduce: pooling and softmax."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.element_format import BF16
from fpgapipe.lowering.kernels import global_pooling, pooling
from fpgapipe.lowering.kernels.softmax import check_softmax, softmax, softmax_gradient
from fpgapipe.lowering.units.layouts import PLAIN, Layout, channels_last, with_channels_last
from fpgapipe.lowering.units.registry import Surroundings, runs
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops
from fpgapipe.network.operators.tensors import normalise_axis

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


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
        if len(operator.kernel) > 2 or set(operator.dilation) != {1}:
            raise NotImplementedError("pooling must have one axis or two, and no dilation")
        # With one axis, images have one row.
        one: tuple[int, ...] = (1,) * (2 - len(operator.kernel))
        (height, width), (rows, columns) = plane, one + self.out_shape[2:]
        kernel, stride = one + operator.kernel, one + operator.stride
        (top, bottom), (left, right) = ((0, 0),) * len(one) + operator.padding
        # A window at the end may reach beyond the padding where the number of windows is rounded
        # up.
        down = (rows - 1) * stride[0] + kernel[0] - height - top
        across = (columns - 1) * stride[1] + kernel[1] - width - left
        counted = (top, left, bottom, right) if operator.count_include_pad else (0, 0, 0, 0)
        pad = (top, left, max(bottom, down), max(right, across))
        return pooling.Pool((kernel[0], kernel[1]), (stride[0], stride[1]), pad, counted)

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


@dataclass(frozen=True)
class SoftmaxUnit(Unit):
    """Softmax or its logarithm.

    Attributes
    ----------
    is_last : bool
        Whether it gives a result of the network.
    """

    is_last: bool = False

    @property
    def _operator(self) -> ops.Softmax:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Softmax)
        return operator

    @property
    def _axis(self) -> int:
        return normalise_axis(self._operator.axis, len(self.in_shape))

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        if train and self.is_last:
            raise NotImplementedError(
                f"a network that trains must not end in a {self._operator.kind}; leave it out, "
                "since the loss has a softmax of its own"
            )
        if self._axis != len(self.in_shape) - 1 and self._axis != 1:
            raise NotImplementedError(
                f"{self._operator.kind} must be along the channels or the last axis, not axis "
                f"{self._axis} of {len(self.in_shape)}"
            )
        last = self._axis == len(self.in_shape) - 1
        if self._operator.causal and not last:
            raise NotImplementedError("a causal softmax must be along the last axis")
        check_softmax(
            (*self.in_shape[-2:-1], self.in_shape[self._axis]),
            log=self._operator.log,
            causal=self._operator.causal,
        )

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`; the axis of the softmax must lie last in memory."""
        last = self._axis == len(self.in_shape) - 1
        return {self.inputs[0]: PLAIN if last else channels_last(self.in_shape)}

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        result = step.activation(self.name, x.shape)
        step.add(
            softmax(
                self.name,
                self._rows(x),
                self._rows(result),
                step.region,
                log=self._operator.log,
                causal=self._operator.causal,
            )
        )
        return result

    def _rows(self, x: Tensor) -> Tensor:
        """View a value as a matrix, or as matrices, whose rows are along the axis."""
        if self._operator.causal:
            return replace(x, shape=self.in_shape)
        width = self.in_shape[self._axis]
        return replace(x, shape=(x.elements // width, width))

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        result = step.values[self.name].tensor
        dx = step.activation(f"{self.name}.dx", dy.shape)
        log = self._operator.log
        dy, y, gradient = (self._rows(each) for each in (dy, result, dx))
        name = f"{self.name}.gradient"
        step.add(softmax_gradient(name, dy, y, gradient, step.region, log=log))
        step.give_gradient(self, self.inputs[0], dx)


@runs("max_pool", "average_pool", "global_max_pool", "global_average_pool")
def _pooling(layer: Layer, around: Surroundings) -> Unit:
    return PoolUnit((layer,))


@runs("softmax", "log_softmax")
def _softmax(layer: Layer, around: Surroundings) -> Unit:
    return SoftmaxUnit((layer,), layer.name in around.graph.outputs)
