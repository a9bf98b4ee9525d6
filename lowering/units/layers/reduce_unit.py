"""The unit of sums and means over some axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels.broadcast import expand, sum_of_repeated
from fpgapipe.lowering.kernels.elements.functions import affine
from fpgapipe.lowering.units.layers.reduction_units import PoolUnit
from fpgapipe.lowering.units.layouts import PLAIN, Layout, channels_last, with_channels_last
from fpgapipe.lowering.units.registry import Surroundings, runs, runs_alone
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops
from fpgapipe.network.operators.tensors import normalise_axis

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


@runs_alone("reduce_sum")
@dataclass(frozen=True)
class ReduceUnit(Unit):
    """A sum or a mean over some axes, in FP32; the gradient is repeated along these.

    Values are read as they lie, with their channels last or in the order of the network.
    """

    @property
    def _operator(self) -> ops.Reduce:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Reduce)
        return operator

    @property
    def _kept(self) -> tuple[int, ...]:
        """Shape of the result with an axis of one element for each one that is reduced."""
        rank = len(self.in_shape)
        gone = {normalise_axis(axis, rank) for axis in self._operator.axes}
        return tuple(1 if axis in gone else size for axis, size in enumerate(self.in_shape))

    @property
    def _scale(self) -> float:
        """Number with which the sum is multiplied."""
        terms = prod(self.in_shape) // prod(self._kept)
        return 1 / terms if self._operator.function == "mean" else 1.0

    def passes_gradient(self, name: str) -> bool:
        """See `Unit`; axes of one element may be reduced alone."""
        return self._kept == self.in_shape

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        name, last = self.inputs[0], channels_last(self.in_shape)
        return {name: last if given[name] == last else PLAIN}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return PLAIN if wanted[self.inputs[0]] == PLAIN else channels_last(self._kept)

    def _in_memory(self, step: MicroBatch, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape with the axes in the order of memory."""
        lies_last = step.wanted(self)[self.inputs[0]] != PLAIN
        return with_channels_last(shape) if lies_last else shape

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        whole, kept = (self._in_memory(step, each) for each in (self.in_shape, self._kept))
        x = replace(step.take(self, self.inputs[0]), shape=whole)
        y = step.activation(self.name, self._result_shape(step))
        total = x
        if whole != kept:
            total = step.tensor(f"{self.name}.sum", kept, FP32)
            step.add(sum_of_repeated(f"{self.name}.sum", x, None, total, step.region, negate=False))
        flat = replace(total, shape=y.shape)
        step.add(affine(self.name, flat, y, step.region, scale=self._scale, offset=0.0))
        return y

    def _result_shape(self, step: MicroBatch) -> tuple[int, ...]:
        shape = self.out_shape
        if step.wanted(self)[self.inputs[0]] == PLAIN or len(shape) < 3:
            return shape
        return with_channels_last(shape) if self._operator.keep_axes else shape

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        whole, kept = (self._in_memory(step, each) for each in (self.in_shape, self._kept))
        given = replace(dy, shape=kept)
        name = f"{self.name}.gradient"
        if self._scale != 1:
            scaled = step.tensor(f"{name}.scaled", kept, FP32)
            kernel = affine(scaled.name, given, scaled, step.region, scale=self._scale, offset=0.0)
            step.add(kernel)
            given = scaled
        dx = given
        if whole != kept:
            dx = step.activation(f"{self.name}.dx", whole)
            step.add(expand(name, given, dx, step.region))
        step.give_gradient(self, self.inputs[0], dx)


@runs("reduce_mean")
def _mean(layer: Layer, around: Surroundings) -> Unit:
    """A mean over all spatial axes of images is global pooling; exporters write it so."""
    operator = layer.operator
    assert isinstance(operator, ops.Reduce)
    rank = len(layer.input_tensors[0].shape)
    axes = sorted(normalise_axis(axis, rank) for axis in operator.axes)
    if rank > 3 and axes == list(range(2, rank)):
        return PoolUnit((layer,))
    return ReduceUnit((layer,))
