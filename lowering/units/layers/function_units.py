"""Units of functions of elements, of one tensor or of two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels.elements.elementary import (
    clamp,
    elementary,
    extreme_gradient,
    power,
    quotient_gradient,
)
from fpgapipe.lowering.kernels.elements.formula import Formula, applied, derived
from fpgapipe.lowering.kernels.elements.functions import FUNCTIONS, activation, affine
from fpgapipe.lowering.kernels.elements.prelu import (
    ROWS,
    prelu,
    prelu_gradient,
    spread_slopes,
    total,
)
from fpgapipe.lowering.kernels.pointwise import binary, unary
from fpgapipe.lowering.tiling.channels import padded
from fpgapipe.lowering.tiling.nest import largest_divisor
from fpgapipe.lowering.units.layers.broadcast_unit import BroadcastUnit
from fpgapipe.lowering.units.layouts import Layout, channels_last
from fpgapipe.lowering.units.registry import Surroundings, runs, runs_alone
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops
from fpgapipe.plugins import expected

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


WIDTH = 512
"""Most columns of the matrix as which a value is seen that has one slope for all channels."""


_FORMULAS: dict[str, Callable[[Any], Formula]] = {}
"""Functions that give the formula of an operator, by the operator's name."""

F = TypeVar("F", bound="Callable[[Any], Formula]")


def by_formula(*kinds: str) -> Callable[[F], F]:
    """Register the decorated function, which gives the formula of operators of elements.

    The formula is all that kernels, gradients and costs of these operators need. The function gets
    an operator, and raises `NotImplementedError` with the reason why the core cannot run it.

    Parameters
    ----------
    *kinds : str
        Names of the operators (`Operator.kind`).

    Raises
    ------
    ValueError
        If an operator has a unit already.
    """

    def register(formula: F) -> F:
        @wraps(formula)
        def maker(layer: Layer, around: Surroundings) -> Unit:
            return FunctionUnit((layer,))

        runs(*kinds)(maker)
        _FORMULAS.update(dict.fromkeys(kinds, formula))
        return formula

    return register


def formula_of(operator: ops.Operator) -> Formula | None:
    """The formula of an operator; None if it has another unit.

    Raises
    ------
    NotImplementedError
        If the core cannot run it; the message is the reason.
    """
    made = _FORMULAS.get(operator.kind)
    return expected(made(operator), Formula, made) if made else None


@by_formula(*FUNCTIONS)
def _activation(operator: ops.Activation) -> Formula:
    return activation(operator.function, operator.alpha)


@by_formula(*ops.UNARIES)
def _unary(operator: ops.Unary) -> Formula:
    return elementary(operator.function)


@by_formula("clamp")
def _clamp(operator: ops.Clamp) -> Formula:
    return clamp(operator.low, operator.high, strict=operator.strict)


@by_formula("power")
def _power(operator: ops.Power) -> Formula:
    return power(operator.exponent)


@dataclass(frozen=True)
class FunctionUnit(Unit):
    """A function of each element that is a short program; its gradient is one as well."""

    @property
    def _formula(self) -> Formula:
        found = formula_of(self.layers[0].operator)
        assert found is not None, "its maker is registered with the formula"
        return found

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        _ = self._formula

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, x.shape)
        step.add(applied(self.name, self._formula, x, y, step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        dx = step.activation(f"{self.name}.dx", dy.shape)
        step.add(derived(f"{self.name}.gradient", self._formula, dy, x, dx, step.region))
        step.give_gradient(self, self.inputs[0], dx)


@dataclass(frozen=True)
class AffineUnit(Unit):
    """A product with a fixed number, and a fixed summand."""

    @property
    def _operator(self) -> ops.Affine:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Affine)
        return operator

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, x.shape)
        scale, offset = self._operator.scale, self._operator.offset
        step.add(affine(self.name, x, y, step.region, scale=scale, offset=offset))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        dx = step.activation(f"{self.name}.dx", dy.shape)
        scale, name = self._operator.scale, f"{self.name}.gradient"
        step.add(affine(name, dy, dx, step.region, scale=scale, offset=0.0))
        step.give_gradient(self, self.inputs[0], dx)


@dataclass(frozen=True)
class BinaryUnit(Unit):
    """The difference or the product of two values of one shape."""

    @property
    def _function(self) -> str:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Binary)
        return operator.function

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`; if the layouts differ, both inputs are read with their channels last."""
        found = {given[name] for name in self.inputs}
        layout = found.pop() if len(found) == 1 else channels_last(self.in_shape)
        return dict.fromkeys(self.inputs, layout)

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        a, b = (step.take(self, name) for name in self.inputs)
        y = step.activation(self.name, a.shape)
        step.add(binary(self.name, self._function, a, b, y, step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        name, (one, other) = f"{self.name}.gradient", self.inputs
        if self._function == "sub":
            step.give_gradient(self, one, dy)
            dx = step.activation(f"{self.name}.dx", dy.shape)
            step.add(unary(name, "neg", dy, dx, step.region))
            step.give_gradient(self, other, dx)
            return
        for number, (own, factor) in enumerate(((one, other), (other, one))):
            dx = step.activation(f"{self.name}.dx{number}", dy.shape)
            x = step.take(self, factor)
            step.add(binary(f"{name}{number}", "mul", dy, x, dx, step.region))
            step.give_gradient(self, own, dx)


@dataclass(frozen=True)
class PairUnit(BinaryUnit):
    """The quotient, the larger or the smaller of two values of one shape."""

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        a, b = (step.take(self, name) for name in self.inputs)
        da, db = (step.activation(f"{self.name}.dx{number}", dy.shape) for number in (0, 1))
        name, function = f"{self.name}.gradient", self._function
        if function == "div":
            step.add(quotient_gradient(name, dy, a, b, da, db, step.region))
        else:
            step.add(extreme_gradient(name, function, dy, a, b, da, db, step.region))
        for own, gradient in zip(self.inputs, (da, db), strict=True):
            step.give_gradient(self, own, gradient)


@runs_alone("prelu")
@dataclass(frozen=True)
class PreluUnit(Unit):
    """The parametric ReLU, whose slopes are learned."""

    @property
    def _is_one(self) -> bool:
        """Whether there is one slope for all channels."""
        (slope,) = self.layers[0].parameters
        return slope.spec.elements == 1

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`; with one slope the order of the elements makes no difference."""
        (name,) = self.inputs
        return {name: given[name] if self._is_one else channels_last(self.in_shape)}

    def _matrix(self, x: Tensor) -> Tensor:
        """View a value as a matrix whose columns have a slope each."""
        width = largest_divisor(x.elements, WIDTH) if self._is_one else self.in_shape[1]
        return replace(x, shape=(x.elements // width, width))

    def _rows(self, step: MicroBatch, width: int) -> Tensor:
        """The array of slopes."""
        return step.tensor(f"{self.name}.slopes", (ROWS, padded(width)), FP32)

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, x.shape)
        slopes = step.parameter(self.layers[0], "weight")
        assert slopes is not None
        matrix = self._matrix(x)
        rows = self._rows(step, matrix.shape[1])
        step.add(spread_slopes(f"{self.name}.spread", slopes, rows, step.region))
        step.add(prelu(self.name, matrix, rows, self._matrix(y), step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        x = self._matrix(step.take(self, self.inputs[0]))
        dx = step.activation(f"{self.name}.dx", dy.shape)
        slopes = step.parameter(self.layers[0], "weight")
        assert slopes is not None
        gradient, sums = step.gradient_of(slopes), None
        if gradient is not None:
            sums = gradient
            if self._is_one:
                sums = step.tensor(f"{self.name}.sums", (x.shape[1],), FP32)
        rows = step.from_earlier_pass(f"{self.name}.slopes")
        given, own = self._matrix(dy), self._matrix(dx)
        name = f"{self.name}.gradient"
        step.add(prelu_gradient(name, given, x, rows, own, step.region, slopes=sums))
        if gradient is not None and sums is not gradient:
            assert sums is not None
            step.add(total(f"{name}.slope", sums, gradient, step.region), is_weight=True)
        step.give_gradient(self, self.inputs[0], dx)


@runs("sub", "mul")
def _binary(layer: Layer, around: Surroundings) -> Unit:
    if len({tensor.shape for tensor in layer.input_tensors}) > 1:
        return BroadcastUnit((layer,))
    return BinaryUnit((layer,))


@runs("div", "max", "min")
def _pair(layer: Layer, around: Surroundings) -> Unit:
    if len({tensor.shape for tensor in layer.input_tensors}) > 1:
        shapes = " and ".join(str(list(tensor.shape)) for tensor in layer.input_tensors)
        what = {"div": "quotients", "max": "maxima", "min": "minima"}[layer.op]
        raise NotImplementedError(f"{what} must be of two tensors of one shape, not {shapes}")
    return PairUnit((layer,))
