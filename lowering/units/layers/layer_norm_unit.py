"""The unit of a normalisation over the last axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.spec.core_spec import NoRoom
from fpgapipe.lowering.kernels.layer_norm import (
    layer_norm,
    layer_norm_gradient,
    parameter_gradient,
)
from fpgapipe.lowering.kernels.long_norm import long_layer_norm, long_layer_norm_gradient
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.layouts import PLAIN, Layout
from fpgapipe.lowering.units.registry import runs_alone
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.units.microbatch import MicroBatch


@runs_alone("layer_norm")
@dataclass(frozen=True)
class LayerNormUnit(Unit):
    """Normalisation over the last axes, with or without their mean, then a scale and a shift."""

    @property
    def _operator(self) -> ops.LayerNorm:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.LayerNorm)
        return operator

    @property
    def _width(self) -> int:
        """Elements that are normalised together."""
        return prod(self.in_shape[-self._operator.num_axes :])

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self.inputs[0]: PLAIN}

    def _fits(self, step: MicroBatch, x: Tensor) -> bool:
        """Whether a row has room on chip, in training that of the gradient, which needs more."""
        row = Tensor("x", (1, self._width), x.format)
        given, normal = replace(row, format=step.options.activations), replace(row, format=FP32)
        number = Tensor("number", (1,))
        mean = number if self._operator.centred else None
        gamma, beta = self._learned(step)
        try:
            if step.options.train:
                layer_norm_gradient(
                    "", row, given, normal, given, mean, number, step.region, gamma=gamma
                )
            else:
                layer_norm("", row, given, mean, number, step.region, gamma=gamma, beta=beta)
        except NoRoom:
            return False
        return True

    def _rows(self, x: Tensor) -> Tensor:
        """View a value as a matrix of what is normalised together."""
        return replace(x, shape=(x.elements // self._width, self._width))

    def _learned(self, step: MicroBatch) -> tuple[Tensor | None, Tensor | None]:
        """Scale and shift."""
        layer = self.layers[0]
        return step.parameter(layer, "weight"), step.parameter(layer, "bias")

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, x.shape)
        number = (x.elements // self._width,)
        is_centred = self._operator.centred
        mean = step.tensor(f"{self.name}.mean", number, FP32) if is_centred else None
        deviation = step.tensor(f"{self.name}.deviation", number, FP32)
        gamma, beta = self._learned(step)
        given = (self._rows(x), self._rows(y), mean, deviation)
        epsilon = self._operator.epsilon
        if self._fits(step, x):
            found = [
                layer_norm(self.name, *given, step.region, gamma=gamma, beta=beta, epsilon=epsilon)
            ]
        else:
            work = self._rows(step.tensor(f"{self.name}.work", x.shape, FP32))
            found = long_layer_norm(
                self.name, *given, work, step.region, gamma=gamma, beta=beta, epsilon=epsilon
            )
        for kernel in found:
            step.add(kernel)
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        deviation = step.from_earlier_pass(f"{self.name}.deviation")
        is_centred = self._operator.centred
        mean = step.from_earlier_pass(f"{self.name}.mean") if is_centred else None
        gamma, beta = self._learned(step)
        dx = step.activation(f"{self.name}.dx", x.shape)
        normalised = step.tensor(f"{self.name}.normalised", x.shape, FP32)
        rows, given = self._rows(normalised), self._rows(dy)
        matrices = (self._rows(x), given, rows, self._rows(dx), mean, deviation)
        name = f"{self.name}.gradient"
        if self._fits(step, x):
            step.add(layer_norm_gradient(name, *matrices, step.region, gamma=gamma))
        else:
            work = [
                self._rows(step.tensor(f"{self.name}.{each}", x.shape, FP32))
                for each in ("part", *(("scaled",) if gamma else ()))
            ]
            number = step.tensor(f"{self.name}.number", deviation.shape, FP32)
            for kernel in long_layer_norm_gradient(
                name, *matrices, (work[0], work[-1]), number, step.region, gamma=gamma
            ):
                step.add(kernel)
        step.give_gradient(self, self.inputs[0], dx)
        for role, parameter in (("weight", gamma), ("bias", beta)):
            total = step.gradient_of(parameter) if parameter else None
            if total:
                factor = rows if role == "weight" else None
                kernel = parameter_gradient(
                    f"{self.name}.{role}", given, factor, total, step.region
                )
                step.add(kernel, is_weight=True)
