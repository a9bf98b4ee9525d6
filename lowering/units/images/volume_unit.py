"""Units of convolutions with three axes, by convolutions of two axes on planes.

The image of each plane of the result has the channels of all planes that its taps read
(`lowering.kernels.images.depth`). It stays in memory for the gradient of the weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels.images.depth import Depth, fold_depth, unfold_depth
from fpgapipe.lowering.units.layers.grouped_unit import GroupedUnit
from fpgapipe.lowering.units.layers.transposed_unit import TransposedUnit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


def depth_of(layer: Layer) -> Depth:
    """The first axis of a convolution with three axes, or of the one behind a transposed one."""
    operator = layer.operator
    assert isinstance(operator, ops.Conv | ops.ConvTranspose)
    volumes, results = layer.input_tensors[0].shape, layer.output.shape
    if isinstance(operator, ops.ConvTranspose):
        volumes, results = results, volumes
    return Depth(
        batch=volumes[0],
        planes=volumes[2],
        results=results[2],
        positions=prod(volumes[3:]),
        channels=volumes[1],
        groups=operator.groups,
        taps=operator.kernel[0],
        stride=operator.stride[0],
        dilation=operator.dilation[0],
        before=operator.padding[0][0],
    )


def _unfolded(step: MicroBatch, layer: Layer, name: str, x: Tensor) -> Tensor:
    """Add the kernels that copy planes to channels; the result is a matrix of positions."""
    depth = depth_of(layer)
    shape = (depth.batch * depth.results * depth.positions, depth.width)
    images = step.tensor(name, shape, x.format)
    for kernel in unfold_depth(name, depth, x, images, step.region):
        step.add(kernel)
    return images


def _images(step: MicroBatch, layer: Layer, name: str) -> Tensor:
    """A matrix of positions to be folded, in FP32."""
    depth = depth_of(layer)
    shape = (depth.batch * depth.results * depth.positions, depth.width)
    return step.tensor(name, shape, FP32)


@dataclass(frozen=True)
class VolumeUnit(GroupedUnit):
    """A convolution with three axes and one group or several, and its bias."""

    def read(self, step: MicroBatch, x: Tensor) -> Tensor:
        """See `GroupedUnit`."""
        return _unfolded(step, self.layers[0], f"{self.layers[0].name}.unfolded", x)

    def read_again(self, step: MicroBatch, x: Tensor) -> Tensor:
        """See `GroupedUnit`."""
        return step.from_earlier_pass(f"{self.layers[0].name}.unfolded")

    def target(self, step: MicroBatch, dx: Tensor) -> Tensor:
        """See `GroupedUnit`."""
        return _images(step, self.layers[0], f"{self.layers[0].name}.dunfolded")

    def reached(self, step: MicroBatch, images: Tensor, dx: Tensor) -> None:
        """See `GroupedUnit`."""
        layer = self.layers[0]
        step.add(fold_depth(f"{layer.name}.fold", depth_of(layer), images, dx, step.region))


@dataclass(frozen=True)
class TransposedVolumeUnit(TransposedUnit):
    """A transposed convolution with three axes, and its bias."""

    def target(self, step: MicroBatch, y: Tensor) -> Tensor:
        """See `TransposedUnit`."""
        return _images(step, self.layers[0], f"{self.layers[0].name}.images")

    def reached(self, step: MicroBatch, images: Tensor, y: Tensor) -> None:
        """See `TransposedUnit`."""
        layer = self.layers[0]
        step.add(fold_depth(f"{layer.name}.fold", depth_of(layer), images, y, step.region))

    def read(self, step: MicroBatch, dy: Tensor) -> Tensor:
        """See `TransposedUnit`."""
        return _unfolded(step, self.layers[0], f"{self.layers[0].name}.unfolded", dy)
