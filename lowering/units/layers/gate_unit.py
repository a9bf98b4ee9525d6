"""The unit of a sum or a product of two tensors, one of which is repeated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.lowering.kernels.gate import GATED, gate_gradient, gated
from fpgapipe.lowering.kernels.pointwise import unary
from fpgapipe.lowering.units.layers.constant_units import repeats
from fpgapipe.lowering.units.layouts import (
    PLAIN,
    Layout,
    channels_last,
    with_channels_last,
)
from fpgapipe.lowering.units.unit import Unit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


@dataclass(frozen=True)
class GateUnit(Unit):
    """A function of images and of numbers: of images' channels, or of a tensor that is repeated.

    In the second case, the numbers are a tensor that is repeated along the first axes of the other
    one. That is then treated as one image whose rows are these axes, and whose channels are all
    others. Numbers of channels that all images share are treated alike.

    Attributes
    ----------
    function : str
        A key of `GATED`.
    place : int
        Place of the images among the inputs.
    repeated : int
        How often the numbers are repeated along the first axes; 0 if they belong to channels.
    shared : bool
        Whether all images have the same numbers of channels.
    """

    function: str
    place: int
    repeated: int = 0
    shared: bool = False

    @property
    def _sources(self) -> tuple[str, str]:
        """Names of the images and of the numbers."""
        one, other = self.layers[0].inputs
        return (one, other) if self.place == 0 else (other, one)

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        images, numbers = self._sources
        return {images: PLAIN if self.repeated else channels_last(self.out_shape), numbers: PLAIN}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return wanted[self._sources[0]]

    def _images(self, x: Tensor) -> Tensor:
        """View a value as images with two spatial axes."""
        if self.repeated:
            return replace(x, shape=(1, self.repeated, 1, x.elements // self.repeated))
        samples, channels, *sizes = self.out_shape
        rows = prod(sizes[:-1])
        if self.shared:
            samples, rows = 1, samples * rows
        return replace(x, shape=(samples, rows, sizes[-1], channels))

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x, numbers = self._operands(step)
        shape = self.out_shape
        y = step.activation(self.name, shape if self.repeated else with_channels_last(shape))
        kernel = gated(
            self.name, self.function, self._images(x), numbers, self._images(y), step.region
        )
        step.add(kernel)
        return y

    def _operands(self, step: MicroBatch) -> tuple[Tensor, Tensor]:
        """The images, and the numbers as a matrix of images by channels."""
        x, numbers = (step.take(self, name) for name in self._sources)
        rows = 1 if self.repeated or self.shared else self.out_shape[0]
        return x, replace(numbers, shape=(rows, numbers.elements // rows))

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        x, numbers = self._operands(step)
        given, is_product = self._images(dy), self.function == "mul"
        images, gate = self._sources
        needed = step.graph.input_gradients(self.layers[0].name)
        if 1 - self.place in needed:
            sums = step.activation(f"{self.name}.sums", numbers.shape)
            factor = self._images(x) if is_product else None
            step.add(gate_gradient(f"{self.name}.gate", given, factor, sums, step.region))
            if self.function == "sub":
                negated = step.activation(f"{self.name}.dgate", numbers.shape)
                step.add(unary(f"{self.name}.negated", "neg", sums, negated, step.region))
                sums = negated
            step.give_gradient(self, gate, sums)
        if self.place not in needed:
            return
        if not is_product:
            step.give_gradient(self, images, dy)
            return
        dx = step.activation(f"{self.name}.dx", dy.shape)
        step.add(gated(f"{self.name}.images", "mul", given, numbers, self._images(dx), step.region))
        step.give_gradient(self, images, dx)


def gate_of(layer: Layer) -> GateUnit | None:
    """The unit of a function of two tensors, one of which is repeated; None if there is none."""
    if layer.op not in GATED:
        return None
    for place in (0, 1) if layer.op != "sub" else (0,):
        image, numbers = (layer.input_tensors[index].shape for index in (place, 1 - place))
        if image != layer.output.shape:
            continue
        if len(image) > 2 and numbers == (*image[:2], *(1 for _ in image[2:])):
            return GateUnit((layer,), layer.op, place)
        aligned = (*(1 for _ in image[len(numbers) :]), *numbers)
        if len(image) > 2 and aligned == (1, image[1], *(1 for _ in image[2:])):
            return GateUnit((layer,), layer.op, place, shared=True)
        if repeats(numbers, image):
            return GateUnit((layer,), layer.op, place, prod(image) // max(prod(numbers), 1))
    return None
