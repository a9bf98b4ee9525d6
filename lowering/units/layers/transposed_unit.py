"""The unit of a transposed convolution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels import activation
from fpgapipe.lowering.kernels.products import product_kernel
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of
from fpgapipe.lowering.units.layouts import Layout, channels_last, with_channels_last
from fpgapipe.lowering.units.registry import Surroundings, runs
from fpgapipe.lowering.units.unit import Unit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.products.conv import Pass
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


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

    def _add(
        self,
        step: MicroBatch,
        name: str,
        which: Pass,
        tensors: tuple[Tensor, Tensor, Tensor],
        *,
        is_weight: bool = False,
    ) -> None:
        """Add a pass of the convolution behind."""
        layer = self.layers[0]
        kernel = product_kernel(
            f"{layer.name}.{name}",
            conv_of(layer),
            which,
            tensors,
            step.product_core,
            step.memory,
            step.product_region,
        )
        step.add(kernel, is_weight=is_weight)

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        layer = self.layers[0]
        x = step.take(self, layer.inputs[0])
        bias = step.parameter(layer, "bias")
        shape = with_channels_last(self.out_shape)
        y = step.activation(self.name, shape)
        z = y if bias is None else step.tensor(f"{layer.name}.sums", shape, FP32)
        self._add(step, "forward", "input", (x, step.weight(layer), z))
        if bias is not None:
            rows = replace(z, shape=(z.elements // shape[-1], shape[-1]))
            step.add(activation.add_bias(f"{layer.name}.bias", rows, bias, y, step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        layer = self.layers[0]
        x = step.take(self, layer.inputs[0])
        bias = step.parameter(layer, "bias")
        db = step.gradient_of(bias) if bias is not None else None
        if db is not None:
            kernel = activation.bias_gradient(f"{layer.name}.db", dy, db, step.region)
            step.add(kernel, is_weight=True)
        weight = step.weight(layer)
        if 0 in step.graph.input_gradients(layer.name):
            dx = step.activation(f"{layer.name}.dx", x.shape)
            self._add(step, "input", "forward", (dy, weight, dx))
            step.give_gradient(self, layer.inputs[0], dx)
        dw = step.gradient_of(weight)
        if dw is not None:
            self._add(step, "weight", "weight", (dy, x, dw), is_weight=True)


@runs("conv_transpose")
def _transposed(layer: Layer, around: Surroundings) -> Unit:
    return TransposedUnit((layer,))
