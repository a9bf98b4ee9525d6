"""Units of INT8 inference: exact sums of products of integers, rescaled; quantising and back.

The array multiplies MXINT8, whose blocks hold integers of up to 127 exactly, and its sums are exact
as long as they stay within 2**24. Integers of up to 256 are split into a coarse and a fine part,
and the sums of both are added (docs/decisions/0015-int8-without-new-hardware.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.numerics.int8 import MAX_EXACT, Rounding, Scale
from fpgapipe.lowering.integers import kernels as int8
from fpgapipe.lowering.integers.constants import (
    CheckedConstants,
    DirectConstants,
    QuotientConstants,
    Steps,
    search,
)
from fpgapipe.lowering.kernels import activation
from fpgapipe.lowering.kernels.pooling import Pool, sum_pool
from fpgapipe.lowering.kernels.products import product_kernel
from fpgapipe.lowering.tiling.channels import padded
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of
from fpgapipe.lowering.units.layers.step_units import ProductUnit, matrix
from fpgapipe.lowering.units.layouts import PLAIN, Layout, channels_last, with_channels_last
from fpgapipe.lowering.units.registry import Surroundings, runs, runs_alone
from fpgapipe.lowering.units.rounded_weights import product_of_weight
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer

INFERENCE_ONLY = "INT8 layers have no gradient: build with --mode infer"


def _refuse_training(*, train: bool) -> None:
    if train:
        raise NotImplementedError(INFERENCE_ONLY)


def _largest(limits: tuple[int, int]) -> int:
    return max(abs(each) for each in limits)


class InferenceUnit(Unit):
    """A unit without a backward pass."""

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        _refuse_training(train=train)

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`; never called, because `check` refuses training."""
        raise NotImplementedError(INFERENCE_ONLY)


@lru_cache(maxsize=1024)
def constants_of(rescale: ops.Rescale) -> DirectConstants | CheckedConstants:
    """Constants of the vector engine for a rescaling."""
    scales = [Scale(m, s) for m, s in zip(rescale.multipliers, rescale.shifts, strict=True)]
    most = _largest(rescale.inputs) * rescale.reach
    return search(
        Steps.of(scales, rescale.bias or (0,), Rounding(rescale.rounding), *rescale.range,
                 most=most, zero=rescale.zero)
    )  # fmt: skip


def check_rescale(rescale: ops.Rescale) -> None:
    """Refuse sums that FP32 does not hold exactly, and scales for which there are no constants."""
    # The coarse part of a split integer may be 2 beyond it.
    x, w = (
        _largest(limits) + 2 * (_largest(limits) > int8.LARGEST_OPERAND)
        for limits in (rescale.inputs, rescale.weights)
    )
    reach = rescale.reach + 2 * rescale.terms * (w > int8.LARGEST_OPERAND)
    bias = max((abs(each) for each in rescale.bias), default=0)
    if x * reach + bias > MAX_EXACT:
        raise NotImplementedError(
            f"sums of integers must stay within 2**24 = {MAX_EXACT} (FP32 holds those exactly), "
            f"and may reach {x * reach + bias}; fewer inputs of a result, or smaller weights, "
            "would do"
        )
    if rescale.multipliers:
        constants_of(rescale)


def add_rescale(step: MicroBatch, layer: Layer, z: Tensor, y: Tensor) -> None:
    """Add the kernel of a rescaling, or of a bias alone, to sums of positions by channels."""
    rescale = layer.operator
    assert isinstance(rescale, ops.Rescale)
    channels = z.shape[-1]
    if not rescale.multipliers:
        bias = np.zeros(padded(channels), np.float32)
        bias[:channels] = rescale.bias
        table = Tensor(step.owned(f"{layer.name}.bias"), (padded(channels),))
        step.fix(table, bias)
        step.add(activation.add_bias(layer.name, z, table, y, step.region))
        return
    constants = constants_of(rescale)
    tables = {}
    for name, contents in int8.tables_of(constants, channels).items():
        tables[name] = Tensor(step.owned(f"{layer.name}.{name}"), contents.shape)
        step.fix(tables[name], contents)
    step.add(int8.rescale(layer.name, z, y, constants, tables, rescale.range, step.region))


@dataclass(frozen=True)
class IntegerProductUnit(ProductUnit):
    """A convolution or linear layer of integers, and the rescaling of its sums."""

    @property
    def _rescale(self) -> ops.Rescale:
        operator = self.layers[-1].operator
        assert isinstance(operator, ops.Rescale)
        return operator

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        _refuse_training(train=train)
        conv_of(self.layers[0])
        check_rescale(self._rescale)

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        layer, rescale = self.layers[0], self._rescale
        conv = conv_of(layer)
        x, weight = step.take(self, layer.inputs[0]), step.weight(layer)
        shape = self.out_shape if self._is_linear else with_channels_last(self.out_shape)
        done = not rescale.multipliers and not rescale.bias
        y = self._result(step, shape)
        xs = _parts(step, f"{layer.name}.x", x, rescale.inputs)
        weights = _parts(step, f"{layer.name}.w", weight, rescale.weights)
        pairs = [(a, b) for a in xs for b in weights]
        total: Tensor | None = None
        for number, (a, b) in enumerate(pairs):
            is_last = number == len(pairs) - 1
            to_y = done and is_last
            part = f"{layer.name}.sums{number}"
            z = y if to_y and total is None else step.tensor(part, shape, FP32)
            name = f"{layer.name}.forward{number}"
            if b == weight:
                step.add(product_of_weight(step, name, conv, "forward", (a, b, z)))
            else:
                step.add(product_kernel(name, conv, "forward", (a, b, z), step.product_core,
                                        step.memory, step.product_region))  # fmt: skip
            if total is not None:
                summed = y if to_y else step.tensor(f"{part}.all", shape, FP32)
                step.add(activation.add(f"{part}.add", total, z, summed, step.region))
                z = summed
            total = z
        assert total is not None
        if not done:
            add_rescale(step, self.layers[-1], matrix(total, conv.cout), matrix(y, conv.cout))
        return y

    def _result(self, step: MicroBatch, shape: tuple[int, ...]) -> Tensor:
        """The result's tensor: sums need all bits of FP32."""
        if self._rescale.multipliers or self.name in step.graph.outputs:
            return step.activation(self.name, shape)
        return step.tensor(self.name, shape, FP32)

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`; never called, because `check` refuses training."""
        raise NotImplementedError(INFERENCE_ONLY)


def _parts(step: MicroBatch, name: str, x: Tensor, limits: tuple[int, int]) -> tuple[Tensor, ...]:
    """The tensors that the array multiplies exactly and whose sum is a tensor of integers."""
    if _largest(limits) <= int8.LARGEST_OPERAND:
        return (x,)
    coarse, fine = (step.tensor(f"{name}.{part}", x.shape, BF16) for part in ("coarse", "fine"))
    step.add(int8.split(f"{name}.split", x, coarse, fine, step.region))
    return coarse, fine


@dataclass(frozen=True)
class WindowSumUnit(InferenceUnit):
    """Sums over windows of integers, and their rescaling: an average pooling."""

    @property
    def _pool(self) -> Pool:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.WindowSum)
        (top, bottom), (left, right) = operator.padding
        kernel, stride = operator.kernel, operator.stride
        return Pool((kernel[0], kernel[1]), (stride[0], stride[1]), (top, left, bottom, right))

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        _refuse_training(train=train)
        operator = self.layers[0].operator
        assert isinstance(operator, ops.WindowSum)
        if len(operator.kernel) != 2:
            raise NotImplementedError("sums over windows must have two axes")
        assert isinstance(self.layers[-1].operator, ops.Rescale)
        check_rescale(self.layers[-1].operator)

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self.inputs[0]: channels_last(self.in_shape)}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return channels_last(self.out_shape)

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        x = replace(x, shape=with_channels_last(self.in_shape))
        shape = with_channels_last(self.out_shape)
        y = step.activation(self.name, shape)
        z = step.tensor(f"{self.layers[0].name}.sums", shape, FP32)
        step.add(sum_pool(self.layers[0].name, self._pool, x, z, step.region))
        channels = shape[-1]
        add_rescale(step, self.layers[-1], matrix(z, channels), matrix(y, channels))
        return y


@runs_alone("centre")
@dataclass(frozen=True)
class CentreUnit(InferenceUnit):
    """Integers less their zero point."""

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Centre)
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, x.shape)
        step.add(int8.centre(self.name, x, y, operator.zero, step.region))
        return y


@runs_alone("quantise")
@dataclass(frozen=True)
class QuantiseUnit(InferenceUnit):
    """Quantising of real numbers."""

    @property
    def _constants(self) -> QuotientConstants:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Quantise)
        return QuotientConstants.of(operator.scale, *operator.range)

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        _refuse_training(train=train)
        assert self._constants

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, x.shape)
        step.add(int8.quantise(self.name, x, y, self._constants, step.region))
        return y


@runs_alone("dequantise")
@dataclass(frozen=True)
class DequantiseUnit(InferenceUnit):
    """Dequantising of integers, or of sums of their products."""

    @property
    def _scales(self) -> tuple[float, ...]:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Dequantise)
        return operator.scales

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`; with a scale for each channel, these must be last."""
        (name,) = self.inputs
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Dequantise)
        if len(self._scales) == 1:
            return {name: given[name]}
        is_last = operator.axis in (-1, len(self.in_shape) - 1)
        return {name: PLAIN if is_last else channels_last(self.in_shape)}

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        # What follows may need all bits of FP32.
        is_output = self.name in step.graph.outputs
        y = (
            step.activation(self.name, x.shape)
            if is_output
            else step.tensor(self.name, x.shape, FP32)
        )
        scales = self._scales
        if len(scales) == 1:
            step.add(int8.dequantise(self.name, x, y, scales[0], step.region))
            return y
        table = np.zeros((2, padded(len(scales))), np.float32)
        table[1, : len(scales)] = scales
        tensor = Tensor(step.owned(f"{self.name}.scales"), table.shape)
        step.fix(tensor, table)
        channels = len(scales)
        step.add(int8.dequantise(self.name, matrix(x, channels), matrix(y, channels), tensor,
                                 step.region))  # fmt: skip
        return y


@runs_alone("integer_add")
@dataclass(frozen=True)
class IntegerAddUnit(InferenceUnit):
    """The sum of two tensors of integers with scales of their own."""

    @property
    def _operator(self) -> ops.IntegerAdd:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.IntegerAdd)
        return operator

    @property
    def _constants(self) -> QuotientConstants:
        return QuotientConstants.of(self._operator.scale, *self._operator.range)

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        _refuse_training(train=train)
        assert self._constants

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`; if the layouts differ, both inputs are read with their channels last."""
        layouts = [given[name] for name in self.inputs]
        same = len(set(layouts)) == 1
        return dict.fromkeys(self.inputs, layouts[0] if same else channels_last(self.in_shape))

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        a, b = (step.take(self, name) for name in self.layers[0].inputs)
        y = step.activation(self.name, a.shape)
        step.add(int8.integer_add(self.name, a, b, y, self._operator.scales, self._constants,
                                  step.region))  # fmt: skip
        return y


@runs("window_sum")
def _window_sum(layer: Layer, around: Surroundings) -> Unit:
    follower = around.only_reader(layer.name)
    if follower is None or not isinstance(follower.operator, ops.Rescale):
        raise NotImplementedError("sums over windows must be rescaled, and read by nothing else")
    return WindowSumUnit((layer, follower))


@runs("rescale")
def _rescale(layer: Layer, around: Surroundings) -> Unit:
    raise NotImplementedError(
        "sums that are rescaled must be those of a convolution with one group, a linear layer or "
        "windows, and read by nothing else"
    )
