"""The unit of softmax, with a scale in front of it and dropout behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.vector_op import LANES
from fpgapipe.lowering.kernels.softmax import check_softmax, softmax, softmax_gradient
from fpgapipe.lowering.units.layers.dropout_unit import DropoutUnit
from fpgapipe.lowering.units.layers.function_units import AffineUnit
from fpgapipe.lowering.units.layers.mask_units import MaskedFillUnit
from fpgapipe.lowering.units.layouts import PLAIN, Layout, channels_last
from fpgapipe.lowering.units.registry import Surroundings, runs
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops
from fpgapipe.network.operators.tensors import normalise_axis

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.draw import Draw
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


@dataclass(frozen=True)
class SoftmaxUnit(Unit):
    """Softmax or its logarithm.

    A factor that the argument is multiplied by, and a dropout of single elements behind a softmax
    along the last axis, are computed by the same kernel: the matrices of an attention are read from
    memory and written to it once less for each.

    Attributes
    ----------
    is_last : bool
        Whether it gives a result of the network.
    stream : int
        Number of the dropout's random numbers.
    """

    is_last: bool = False
    stream: int = 0

    @property
    def _softmax(self) -> Layer:
        return next(each for each in self.layers if isinstance(each.operator, ops.Softmax))

    @property
    def _operator(self) -> ops.Softmax:
        operator = self._softmax.operator
        assert isinstance(operator, ops.Softmax)
        return operator

    @property
    def _scale(self) -> float:
        operator = self.layers[0].operator
        return operator.scale if isinstance(operator, ops.Affine) else 1

    @property
    def dropout(self) -> DropoutUnit | None:
        """The dropout as a unit of its own; None if there is none."""
        last = self.layers[-1]
        return DropoutUnit((last,), self.stream) if isinstance(last.operator, ops.Dropout) else None

    def _draw(self, step: MicroBatch) -> Draw | None:
        """The random numbers of the dropout, where elements are dropped."""
        if self.dropout is None or not (step.options.train and self.dropout.rate):
            return None
        return self.dropout.draw(step, math.prod(self.out_shape))

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
            empty=self._operator.empty,
        )
        if self.dropout is not None:
            self.dropout.check(train=train)

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`; the axis of the softmax must lie last in memory."""
        last = self._axis == len(self.in_shape) - 1
        return {self.inputs[0]: PLAIN if last else channels_last(self.in_shape)}

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        result = step.activation(self.name, x.shape)
        draw, dropped, shares = self._draw(step), None, result
        if draw is not None:
            shares = step.activation(f"{self.name}.shares", x.shape)
            dropped = self._rows(result)
        step.add(
            softmax(
                self.name,
                self._rows(x),
                self._rows(shares),
                step.region,
                log=self._operator.log,
                causal=self._operator.causal,
                empty=self._operator.empty,
                scale=self._scale,
                dropped=dropped,
                draw=draw,
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
        draw = self._draw(step)
        shares = step.values[self.name].tensor
        if draw is not None:
            shares = step.from_earlier_pass(f"{self.name}.shares")
        dx = step.activation(f"{self.name}.dx", dy.shape)
        dy, y, gradient = (self._rows(each) for each in (dy, shares, dx))
        step.add(
            softmax_gradient(
                f"{self.name}.gradient",
                dy,
                y,
                gradient,
                step.region,
                log=self._operator.log,
                causal=self._operator.causal,
                scale=self._scale,
                draw=draw,
            )
        )
        step.give_gradient(self, self.inputs[0], dx)


@runs("softmax", "log_softmax")
def _softmax(layer: Layer, around: Surroundings) -> Unit:
    return _with_dropout((layer,), around)


@runs("affine")
def _affine(layer: Layer, around: Surroundings) -> Unit:
    """A positive factor goes with the softmax behind it, and any factor with a mask behind it."""
    operator, reader = layer.operator, around.only_reader(layer.name)
    assert isinstance(operator, ops.Affine)
    if reader is not None and isinstance(reader.operator, ops.MaskedFill):
        is_factor = not operator.offset and math.isfinite(operator.scale)
        if is_factor and reader.inputs[0] == layer.name:
            return MaskedFillUnit((layer, reader))
    if reader is not None and isinstance(reader.operator, ops.Softmax):
        is_factor = not operator.offset and 0 < operator.scale < math.inf
        if is_factor and _is_along_rows(reader):
            return _with_dropout((layer, reader), around)
    return AffineUnit((layer,))


def _with_dropout(layers: tuple[Layer, ...], around: Surroundings) -> SoftmaxUnit:
    """A softmax with the dropout of single elements behind it, if its rows are whole vectors."""
    softmax = layers[-1]
    operator, reader = softmax.operator, around.only_reader(softmax.name)
    assert isinstance(operator, ops.Softmax)
    is_last = softmax.name in around.graph.outputs
    if reader is None or not isinstance(reader.operator, ops.Dropout):
        return SoftmaxUnit(layers, is_last)
    whole = softmax.output.shape[-1] % LANES == 0 and _is_along_rows(softmax)
    if reader.operator.together or operator.log or not whole:
        return SoftmaxUnit(layers, is_last)
    is_last = reader.name in around.graph.outputs
    return SoftmaxUnit((*layers, reader), is_last, around.number(reader))


def _is_along_rows(softmax: Layer) -> bool:
    """Whether a softmax is along the last axis, which lies last in memory."""
    operator = softmax.operator
    assert isinstance(operator, ops.Softmax)
    rank = len(softmax.output.shape)
    return normalise_axis(operator.axis, rank) == rank - 1
