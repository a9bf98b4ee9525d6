"""Units of pooling: along one axis or two, or along three as two poolings one behind the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels import pooling
from fpgapipe.lowering.units.layers.reduction_units import PoolUnit, windows_of
from fpgapipe.lowering.units.layouts import with_channels_last
from fpgapipe.lowering.units.registry import Surroundings, runs
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.lowering.units.unit import Unit
    from fpgapipe.network.graph import Layer


@dataclass(frozen=True)
class VolumePoolUnit(PoolUnit):
    """Pooling of volumes: of each plane, then along the planes.

    The first of equal largest elements is the same as if a window were searched as a whole, and an
    average of averages is that of all, since each window of planes counts the same elements.
    """

    @property
    def _pools(self) -> tuple[pooling.Pool, pooling.Pool]:
        """The windows of planes, and those along them."""
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Pool)
        planes = replace(
            operator,
            kernel=operator.kernel[1:],
            stride=operator.stride[1:],
            padding=operator.padding[1:],
            dilation=operator.dilation[1:],
        )
        along = replace(
            operator,
            kernel=(operator.kernel[0], 1),
            stride=(operator.stride[0], 1),
            padding=(operator.padding[0], (0, 0)),
            dilation=(operator.dilation[0], 1),
        )
        return (
            windows_of(planes, self.in_shape[3:], self.out_shape[3:]),
            windows_of(along, (self.in_shape[2], 1), (self.out_shape[2], 1)),
        )

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        for pool in self._pools:
            if self._function == "max":
                pool.check_maximum()

    @property
    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The planes as images, before and behind the first pooling."""
        samples, channels, planes, *sizes = self.in_shape
        return (samples * planes, *sizes, channels), (
            samples * planes,
            *self.out_shape[3:],
            channels,
        )

    def _stacked(self, x: Tensor, planes: int) -> Tensor:
        """View volumes as images whose rows are planes, with the channels of all positions."""
        samples, channels = self.out_shape[:2]
        return replace(x, shape=(samples, planes, 1, prod(self.out_shape[3:]) * channels))

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, with_channels_last(self.out_shape))
        before, behind = self._shapes
        given = replace(x, shape=before)
        maximum = self._function == "max"
        middle = step.tensor(f"{self.name}.planes", behind, x.format if maximum else FP32)
        stacked = self._stacked(middle, self.in_shape[2])
        result = self._stacked(y, self.out_shape[2])
        planes, along = self._pools
        for name, pool, source, target in (
            (f"{self.name}.planes", planes, given, middle),
            (self.name, along, stacked, result),
        ):
            if not maximum:
                step.add(pooling.average_pool(name, pool, source, target, step.region))
                continue
            trains = step.options.train
            index = step.tensor(f"{name}.index", target.shape, BF16) if trains else None
            step.add(pooling.max_pool(name, pool, source, target, step.region, index=index))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        before, behind = self._shapes
        dx = step.activation(f"{self.name}.dx", step.take(self, self.inputs[0]).shape)
        middle = step.tensor(f"{self.name}.dplanes", behind, FP32)
        planes, along = self._pools
        for name, pool, source, target in (
            (
                self.name,
                along,
                self._stacked(dy, self.out_shape[2]),
                self._stacked(middle, self.in_shape[2]),
            ),
            (f"{self.name}.planes", planes, middle, replace(dx, shape=before)),
        ):
            label = f"{name}.gradient"
            if self._function == "max":
                index = step.from_earlier_pass(f"{name}.index")
                step.add(pooling.max_pool_gradient(label, pool, source, index, target, step.region))
            else:
                step.add(pooling.average_pool_gradient(label, pool, source, target, step.region))
        step.give_gradient(self, self.inputs[0], dx)


@runs("max_pool", "average_pool", "global_max_pool", "global_average_pool")
def _pooling(layer: Layer, around: Surroundings) -> Unit:
    operator = layer.operator
    if isinstance(operator, ops.Pool) and len(operator.kernel) > 2:
        return VolumePoolUnit((layer,))
    return PoolUnit((layer,))
