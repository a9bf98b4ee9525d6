"""Units of products, normalisation, sums, activations and views, with their passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels import activation, normalisation
from fpgapipe.lowering.kernels.products import product_kernel
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.late_gradients import add_late_gradient, is_late
from fpgapipe.lowering.units.layers.broadcast_unit import BroadcastUnit
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of
from fpgapipe.lowering.units.layouts import PLAIN, Layout, channels_last, with_channels_last
from fpgapipe.lowering.units.registry import Surroundings, runs, runs_alone
from fpgapipe.lowering.units.rounded_weights import product_of_weight
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.products.conv import ConvSpec
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer, Parameter


def check_slope(slope: float | None) -> None:
    """Refuse a slope with which the sign of an activation's result is not that of its argument."""
    if slope is not None and not slope >= 0:
        raise NotImplementedError(
            f"a leaky ReLU that trains must have a slope of at least 0, not {slope:g}"
        )


def matrix(tensor: Tensor, channels: int) -> Tensor:
    """View a tensor as a matrix of positions by channels."""
    return replace(tensor, shape=(tensor.elements // channels, channels))


@dataclass(frozen=True)
class ProductUnit(Unit):
    """A convolution or linear layer, its bias, and the activation that follows."""

    engine: ClassVar = "array"

    slope: float | None = None

    @property
    def _is_linear(self) -> bool:
        return isinstance(self.layers[0].operator, ops.Linear)

    @property
    def _weight(self) -> Parameter:
        (found,) = (each for each in self.layers[0].parameters if each.spec.role == "weight")
        return found

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        conv_of(self.layers[0])
        if train:
            check_slope(self.slope)

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`; a linear layer's weight takes the layout of its input if no run is split."""
        (name,) = self.inputs
        if not self._is_linear:
            return {name: channels_last(self.in_shape)}
        within = given[name].within(self.in_shape[-1])
        return {name: PLAIN if within is None or self._weight.name in rigid else within}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return PLAIN if self._is_linear else channels_last(self.out_shape)

    def arranges(self, wanted: Mapping[str, Layout]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self._weight.name: wanted[self.inputs[0]]} if self._is_linear else {}

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        layer = self.layers[0]
        x = step.take(self, layer.inputs[0])
        conv = conv_of(layer)
        shape = self.out_shape if self._is_linear else with_channels_last(self.out_shape)
        weight = step.weight(layer)
        bias = step.parameter(layer, "bias")
        y = step.activation(self.name, shape)
        after = bias is not None or self.slope is not None
        z = step.tensor(f"{layer.name}.sums", shape, FP32) if after else y
        name = f"{layer.name}.forward"
        step.add(product_of_weight(step, name, conv, "forward", (x, weight, z)))
        if bias is not None:
            plain = self.slope in (None, 0)
            to = y if plain else step.tensor(f"{layer.name}.biased", shape, FP32)
            step.add(activation.add_bias(f"{layer.name}.bias", matrix(z, conv.cout), bias, to,
                                         step.region, relu=self.slope == 0))  # fmt: skip
            z = to
        if self.slope is not None and (bias is None or self.slope):
            step.add(activation.activate(self.name, z, y, step.region, slope=self.slope))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        layer = self.layers[0]
        x = step.take(self, layer.inputs[0])
        conv = conv_of(layer)
        bias = step.parameter(layer, "bias")
        db = step.gradient_of(bias) if bias else None
        dy = matrix(dy, conv.cout)
        if self.slope is not None:
            dz = step.activation(f"{layer.name}.dsums", dy.shape)
            step.add(activation.activation_gradient(
                f"{self.name}.gradient", dy, step.values[self.name].tensor, dz, step.region,
                slope=self.slope, db=db))  # fmt: skip
            dy = dz
        elif db:
            step.add(activation.bias_gradient(f"{layer.name}.db", dy, db, step.region),
                     is_weight=True)  # fmt: skip
        weight = step.weight(layer)
        if 0 in step.graph.input_gradients(layer.name):
            dx = step.activation(f"{layer.name}.dx", x.shape)
            name = f"{layer.name}.input"
            step.add(product_of_weight(step, name, conv, "input", (dy, weight, dx)))
            step.give_gradient(self, layer.inputs[0], dx)
        if self._is_late(step, conv, x, dy, weight):
            add_late_gradient(step, layer.name, conv, weight, x, dy)
            return
        dw = step.gradient_of(weight)
        if dw:
            step.add(product_kernel(f"{layer.name}.weight", conv, "weight", (x, dy, dw),
                                    step.product_core, step.memory, step.product_region),
                     is_weight=True)  # fmt: skip

    def _is_late(
        self, step: MicroBatch, conv: ConvSpec, x: Tensor, dy: Tensor, weight: Tensor
    ) -> bool:
        """Whether the gradient of the weight is computed once for all micro-batches."""
        if not (step.options.late_gradients and self._weight.spec.trainable):
            return False
        layers = step.graph.layers.values()
        readers = sum(each.name == weight.name for layer in layers for each in layer.parameters)
        dw = Tensor("", weight.shape)
        return readers == 1 and is_late(conv, step.num_microbatches, x, dy, dw)


@dataclass(frozen=True)
class NormUnit(Unit):
    """Batch normalisation, with the residual sum and the ReLU that follow."""

    residual: str | None = None
    relu: bool = False

    def passes_gradient(self, name: str) -> bool:
        """See `Unit`."""
        return name == self.residual and not self.relu

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        operator = self.layers[0].operator
        assert isinstance(operator, ops.BatchNorm)
        if not operator.affine:
            raise NotImplementedError("batch normalisation must have a scale and a bias")
        if train and self.num_values < 2:
            raise NotImplementedError(
                "batch normalisation that trains must have at least 2 values of a channel in a "
                "micro-batch, not 1: their variance is unknown; take more samples a micro-batch"
            )

    @property
    def num_values(self) -> int:
        """Values of a channel whose statistics are taken."""
        return prod(self.in_shape) // self.in_shape[1]

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`; if the input has no spatial axes, the parameters take its layout."""
        if len(self.in_shape) > 2:
            return dict.fromkeys(self.inputs, channels_last(self.in_shape))
        within = given[self.layers[0].inputs[0]].within(self.in_shape[1])
        names = {parameter.name for parameter in self.layers[0].parameters}
        plain = within is None or not names.isdisjoint(rigid)
        return dict.fromkeys(self.inputs, PLAIN if plain or within is None else within)

    def arranges(self, wanted: Mapping[str, Layout]) -> dict[str, Layout]:
        """See `Unit`."""
        layout = PLAIN if len(self.in_shape) > 2 else wanted[self.layers[0].inputs[0]]
        return {parameter.name: layout for parameter in self.layers[0].parameters}

    def _norm(self, step: MicroBatch) -> normalisation.BatchNorm:
        layer = self.layers[0]
        operator = layer.operator
        assert isinstance(operator, ops.BatchNorm)
        roles = ("weight", "bias", "running_mean", "running_var")
        found = [step.parameter(layer, role) for role in roles]
        gamma, beta, mean, variance = (each for each in found if each is not None)
        x = matrix(step.take(self, layer.inputs[0]), self.in_shape[1])
        return normalisation.BatchNorm(
            step.named(f"{layer.name}.norm"), x, gamma, beta, mean, variance, operator.epsilon,
            operator.momentum,
        )  # fmt: skip

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        norm = self._norm(step)
        y = step.activation(self.name, step.take(self, self.layers[0].inputs[0]).shape)
        other = step.take(self, self.residual) if self.residual else None
        for tensor in norm.kept:
            step.declare(tensor)
        if step.options.train:
            self.add_statistics(step, norm)
        else:
            step.add(normalisation.fold(norm, step.region))
        step.add(normalisation.normalise(norm, y, step.region, residual=other, relu=self.relu))
        return y

    def add_statistics(self, step: MicroBatch, norm: normalisation.BatchNorm) -> None:
        """Add the kernels that compute the statistics of a micro-batch."""
        for kernel in normalisation.statistics(norm, step.region):
            step.add(kernel)

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        norm = self._norm(step)
        name = self.layers[0].name
        masked = step.activation(f"{self.name}.masked", dy.shape) if self.relu else None
        dx = step.activation(f"{name}.dx", dy.shape)
        # The input's gradient needs these sums too; for a parameter that is not trainable they
        # are written to a tensor of their own.
        sums = [
            step.gradient_of(each) or step.tensor(f"{name}.d{role}", each.shape, FP32)
            for role, each in (("gamma", norm.gamma), ("beta", norm.beta))
        ]
        activated = step.values[self.name].tensor if self.relu else None
        self.add_sums(step, norm, dy, (sums[0], sums[1]), activated, masked)
        step.add(normalisation.input_gradient(norm, masked or dy, dx, step.region))
        step.give_gradient(self, self.layers[0].inputs[0], dx)
        if self.residual:
            step.give_gradient(self, self.residual, masked or dy)

    def add_sums(
        self,
        step: MicroBatch,
        norm: normalisation.BatchNorm,
        dy: Tensor,
        gradients: tuple[Tensor, Tensor],
        activated: Tensor | None,
        masked: Tensor | None,
    ) -> None:
        """Add the kernels of the sums of the backward pass; see `normalisation.backward`."""
        step.add(normalisation.sums_and_factors(
            norm, dy, gradients, step.region, activated=activated, masked=masked))  # fmt: skip


@dataclass(frozen=True)
class AddUnit(Unit):
    """The sum of two values, and the ReLU that follows."""

    relu: bool = False

    def passes_gradient(self, name: str) -> bool:
        """See `Unit`."""
        return not self.relu

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`; if the layouts differ, both inputs are read with their channels last."""
        first, second = (given[name] for name in self.inputs)
        return dict.fromkeys(
            self.inputs, first if first == second else channels_last(self.in_shape)
        )

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        a, b = (step.take(self, name) for name in self.layers[0].inputs)
        y = step.activation(self.name, a.shape)
        step.add(activation.add(self.name, a, b, y, step.region, relu=self.relu))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        if self.relu:
            dx = step.activation(f"{self.name}.masked", dy.shape)
            step.add(activation.activation_gradient(
                f"{self.name}.gradient", dy, step.values[self.name].tensor, dx, step.region
            ))  # fmt: skip
            dy = dx
        for name in self.layers[0].inputs:
            step.give_gradient(self, name, dy)


@dataclass(frozen=True)
class ActivationUnit(Unit):
    """A ReLU or leaky ReLU that is not merged into the unit before it."""

    slope: float = 0

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        if train:
            check_slope(self.slope)

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, x.shape)
        step.add(activation.activate(self.name, x, y, step.region, slope=self.slope))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        dx = step.activation(f"{self.name}.dx", dy.shape)
        step.add(activation.activation_gradient(
            f"{self.name}.gradient", dy, step.values[self.name].tensor, dx, step.region,
            slope=self.slope))  # fmt: skip
        step.give_gradient(self, self.inputs[0], dx)


@runs_alone("flatten", "reshape")
@dataclass(frozen=True)
class ViewUnit(Unit):
    """The same elements with another shape: nothing moves, so the layout stays."""

    engine: ClassVar = "none"

    def passes_gradient(self, name: str) -> bool:
        """See `Unit`."""
        return True

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        return replace(step.take(self, self.inputs[0]), shape=self.out_shape)

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        step.give_gradient(self, self.inputs[0], dy)


# ---------------------------------------------------------------------- which layers go together


@runs("batch_norm")
def _norm(layer: Layer, around: Surroundings) -> Unit:
    return norm_unit(layer, around)


def norm_unit(layer: Layer, around: Surroundings) -> NormUnit:
    """The unit of a batch normalisation, with a sum and a ReLU that follow."""
    layers, residual = [layer], None
    follower = around.only_reader(layer.name)
    if follower is not None and _is_sum(follower):
        other = [name for name in follower.inputs if name != layer.name]
        # The other summand must have been computed when the normalisation runs.
        if other and around.is_computed_before(other[0], layer):
            layers.append(follower)
            residual = other[0]
    relu = _relu_behind(layers[-1], around)
    return NormUnit((*layers, *relu), residual, bool(relu))


@runs("add")
def _sum(layer: Layer, around: Surroundings) -> Unit:
    if not _is_sum(layer):
        return BroadcastUnit((layer,))
    relu = _relu_behind(layer, around)
    return AddUnit((layer, *relu), bool(relu))


@runs("relu", "leaky_relu")
def _activation(layer: Layer, around: Surroundings) -> Unit:
    return ActivationUnit((layer,), slope_of(layer) or 0)


def _relu_behind(layer: Layer, around: Surroundings) -> tuple[Layer, ...]:
    """The ReLU that alone reads a layer's result, if there is one."""
    follower = around.only_reader(layer.name)
    return (follower,) if follower is not None and slope_of(follower) == 0 else ()


def _is_sum(layer: Layer) -> bool:
    operator = layer.operator
    same = len({tensor.shape for tensor in layer.input_tensors}) == 1
    return isinstance(operator, ops.Binary) and operator.function == "add" and same


def slope_of(layer: Layer) -> float | None:
    """Slope of a layer for negative values; None if the layer is not a ReLU."""
    operator = layer.operator
    if isinstance(operator, ops.Activation):
        if operator.function == "relu":
            return 0
        if operator.function == "leaky_relu":
            return operator.alpha
    return None
