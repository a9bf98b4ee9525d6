"""The unit of a layer of long short-term memory, whose backward pass goes back through time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels import activation
from fpgapipe.lowering.kernels.lstm import GATES, Position, Sequence, cell_backward, cell_forward
from fpgapipe.lowering.kernels.parts import Rows, copy_rows, zero_rows
from fpgapipe.lowering.kernels.products import product_kernel
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.units.layers.matrix_parts import Part, multiply_parts
from fpgapipe.lowering.units.layers.transpose_unit import add_permutation
from fpgapipe.lowering.units.layouts import PLAIN, Layout
from fpgapipe.lowering.units.registry import Surroundings, runs
from fpgapipe.lowering.units.rounded_weights import product_of_weight
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer

SUFFIXES = ("", "_reverse")
"""Suffixes of the parameters' roles, by direction."""


@dataclass(frozen=True)
class LstmUnit(Unit):
    """One layer of LSTM, with one direction or two.

    The inputs of all positions are multiplied by their weights in one product, and so are the
    gradients of all positions' gates for the gradients of both weights. The hidden states take a
    product for each position, forward and backward. Positions come first in all tensors of the
    unit, so the samples of a position are a matrix.
    """

    engine: ClassVar = "array"

    @property
    def operator(self) -> ops.Lstm:
        """The operator."""
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Lstm)
        return operator

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self.inputs[0]: PLAIN}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return PLAIN

    @property
    def _by_position(self) -> tuple[int, int, int]:
        samples, positions, features = self.in_shape
        return positions, samples, features

    def _directions(self) -> Iterator[_Direction]:
        for number in range(self.operator.num_directions):
            yield _Direction(self, number)

    def _turned(self, step: MicroBatch) -> Tensor:
        """The input with its positions first, made in the forward pass."""
        if 1 in self.in_shape[:2]:
            return replace(step.take(self, self.inputs[0]), shape=self._by_position)
        return step.from_earlier_pass(f"{self.name}.x")

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = replace(step.take(self, self.inputs[0]), shape=self.in_shape)
        if 1 not in self.in_shape[:2]:
            turned = step.tensor(f"{self.name}.x", self._by_position, x.format)
            add_permutation(step, f"{self.name}.x", x, turned, (1, 0, 2))
        y = step.activation(self.name, self.out_shape)
        for direction in self._directions():
            direction.forward(step, self._turned(step), y)
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        x = self._turned(step)
        for direction in self._directions():
            dgates = direction.backward(step, dy)
            if 0 in step.graph.input_gradients(self.layers[0].name):
                self._give(step, direction, dgates)
            direction.weight_gradients(step, x, dgates)

    def _give(self, step: MicroBatch, direction: _Direction, dgates: Tensor) -> None:
        """Give the input its gradient from one direction."""
        name = f"{direction.name}.dx"
        dx = step.activation(name, self.in_shape)
        plain = 1 in self.in_shape[:2]
        target = dx if plain else step.activation(f"{name}.turned", self._by_position)
        weight = direction.parameter(step, "weight_ih")
        kernel = product_of_weight(
            step, f"{direction.name}.input", direction.of_inputs, "input", (dgates, weight, target)
        )
        step.add(kernel)
        if not plain:
            add_permutation(step, name, target, dx, (1, 0, 2))
        step.give_gradient(self, self.inputs[0], dx)


@dataclass(frozen=True)
class _Direction:
    """A direction of a layer.

    Attributes
    ----------
    unit : LstmUnit
    number : int
        0 from the first position to the last, 1 back.
    """

    unit: LstmUnit
    number: int

    @property
    def name(self) -> str:
        """Name of the direction."""
        return self.unit.name + SUFFIXES[self.number]

    @property
    def _shape(self) -> tuple[int, int, int]:
        """Positions, samples and features of the hidden state."""
        samples, positions, _ = self.unit.in_shape
        return positions, samples, self.unit.operator.hidden

    @property
    def of_inputs(self) -> ConvSpec:
        """The product of all inputs and their weight."""
        positions, samples, hidden = self._shape
        return ConvSpec.linear(positions * samples, GATES * hidden, self.unit.in_shape[2])

    def _of_states(self, positions: int) -> ConvSpec:
        """The product of the hidden states of some positions and their weight."""
        _, samples, hidden = self._shape
        return ConvSpec.linear(positions * samples, GATES * hidden, hidden)

    def parameter(self, step: MicroBatch, role: str) -> Tensor:
        """A parameter of the direction."""
        found = step.parameter(self.unit.layers[0], role + SUFFIXES[self.number])
        assert found is not None
        return found

    def _order(self) -> list[Position]:
        """Positions in the order in which the state goes through them."""
        count = self._shape[0]
        if self.number:
            return [Position(at, at + 1, at) for at in reversed(range(count))]
        return [Position(at, at, at + 1) for at in range(count)]

    def _sequence(self, step: MicroBatch, *, is_new: bool = False) -> Sequence:
        positions, samples, hidden = self._shape
        wide = (positions, samples, GATES * hidden)
        states = (positions + 1, samples, hidden)

        def of(what: str, shape: tuple[int, ...], *, is_feature: bool = False) -> Tensor:
            name = f"{self.name}.{what}"
            if not is_new:
                return step.from_earlier_pass(name)
            return step.tensor(name, shape, step.options.activations if is_feature else FP32)

        return Sequence(
            of("sums", wide),
            of("gates", wide),
            of("cells", states),
            of("hidden", states, is_feature=True),
        )

    def _rows(self, step: MicroBatch, name: str, states: Tensor, y: Tensor, *, back: bool) -> None:
        """Copy what belongs to all positions, without the initial state, to the result or back."""
        positions, samples, hidden = self._shape
        first = int(states.shape[0] > positions and not self.number)
        pitch = hidden * self.unit.operator.num_directions
        column = self.number * hidden
        pairs: list[tuple[int, Rows, Rows]] = []
        if positions >= samples:
            for each in range(samples):
                here = Rows((first * samples + each) * hidden, samples * hidden)
                pairs.append((positions, here, Rows(each * positions * pitch + column, pitch)))
        else:
            for each in range(positions):
                here = Rows((first + each) * samples * hidden, hidden)
                pairs.append((samples, here, Rows(each * pitch + column, positions * pitch)))
        for number, (rows, here, there) in enumerate(pairs):
            x, to, read, written = (y, states, there, here) if back else (states, y, here, there)
            kernel = copy_rows(
                f"{name}.{number}", x, to, (rows, hidden), read, written, step.region
            )
            step.add(kernel)

    def forward(self, step: MicroBatch, x: Tensor, y: Tensor) -> None:
        """Add the forward pass of the direction, which writes its features of the result."""
        positions, samples, hidden = self._shape
        name, sequence = self.name, self._sequence(step, is_new=True)
        weight = self.parameter(step, "weight_ih")
        operands = x, weight, sequence.sums
        step.add(product_of_weight(step, f"{name}.forward", self.of_inputs, "forward", operands))
        bias = None
        if self.unit.operator.bias:
            bias = step.tensor(f"{name}.bias", (GATES * hidden,), FP32)
            one, other = (self.parameter(step, f"bias_{which}") for which in ("ih", "hh"))
            step.add(activation.add(f"{name}.bias", one, other, bias, step.region))
        order = self._order()
        begin, size = order[0].before * samples * hidden, samples * hidden
        for tensor in (sequence.cells, sequence.hidden):
            kernel = zero_rows(f"{tensor.name}.initial", tensor, (1, size), Rows(begin, size),
                               step.region)  # fmt: skip
            step.add(kernel)
        sums = step.tensor(f"{name}.recurrent", (samples, GATES * hidden), FP32)
        for position in order:
            if position is not order[0]:
                parts = (
                    Part.of(sequence.hidden, position.before, positions + 1),
                    Part.of(self.parameter(step, "weight_hh"), 0, 1),
                    Part.of(sums, 0, 1),
                )
                own = f"{name}.{position.at}.recurrent"
                multiply_parts(step, own, self._of_states(1), "forward", parts)
            step.add(
                cell_forward(
                    f"{name}.{position.at}",
                    sequence,
                    position,
                    step.region,
                    recurrent=None if position is order[0] else sums,
                    bias=bias,
                )
            )
        self._rows(step, f"{name}.result", sequence.hidden, y, back=False)

    def backward(self, step: MicroBatch, dy: Tensor) -> Tensor:
        """Add the backward pass, and return the gradients of the gates' sums."""
        positions, samples, hidden = self._shape
        name, sequence = self.name, self._sequence(step)
        coming = step.tensor(f"{name}.dy", (positions, samples, hidden), dy.format)
        self._rows(step, f"{name}.dy", coming, dy, back=True)
        shape = (positions, samples, GATES * hidden)
        dgates = step.tensor(f"{name}.dgates", shape, step.options.activations)
        size = (samples, hidden)
        dhidden = step.tensor(f"{name}.dhidden", size, FP32)
        dcell, dbefore = (step.tensor(f"{name}.dcell{n}", size, FP32) for n in range(2))
        whole = (1, prod(size))
        rows = Rows(0, prod(size))
        step.add(zero_rows(f"{name}.dcell", dcell, whole, rows, step.region))
        order = self._order()[::-1]
        for position in order:
            step.add(
                cell_backward(
                    f"{name}.{position.at}.gradient",
                    sequence,
                    position,
                    step.region,
                    dy=coming,
                    dgates=dgates,
                    dcell=dcell,
                    dbefore=dbefore,
                    dhidden=None if position is order[0] else dhidden,
                )
            )
            dcell, dbefore = dbefore, dcell
            if position is not order[-1]:
                parts = (
                    Part.of(dgates, position.at, positions),
                    Part.of(self.parameter(step, "weight_hh"), 0, 1),
                    Part.of(dhidden, 0, 1),
                )
                own = f"{name}.{position.at}.dhidden"
                multiply_parts(step, own, self._of_states(1), "input", parts)
        return dgates

    def weight_gradients(self, step: MicroBatch, x: Tensor, dgates: Tensor) -> None:
        """Add the gradients of the direction's parameters."""
        positions, samples, hidden = self._shape
        name = self.name
        for which in ("ih", "hh") if self.unit.operator.bias else ():
            db = step.gradient_of(self.parameter(step, f"bias_{which}"))
            if db is not None:
                own = f"{name}.db_{which}"
                kernel = activation.bias_gradient(own, dgates, db, step.region)
                step.add(kernel, is_weight=True)
        dw = step.gradient_of(self.parameter(step, "weight_ih"))
        if dw is not None:
            product = product_kernel(
                f"{name}.weight_ih", self.of_inputs, "weight", (x, dgates, dw),
                step.product_core, step.memory, step.product_region,
            )  # fmt: skip
            step.add(product, is_weight=True)
        dw = step.gradient_of(self.parameter(step, "weight_hh"))
        if dw is not None:
            states = step.from_earlier_pass(f"{name}.hidden")
            size = positions * samples * hidden
            begin = self.number * samples * hidden  # of the states before each position
            parts = (
                Part(states, (1, size), Rows(begin, size)),
                Part.of(dgates, 0, 1),
                Part.of(dw, 0, 1),
            )
            conv = self._of_states(positions)
            multiply_parts(step, f"{name}.weight_hh", conv, "weight", parts, is_weight=True)


@runs("lstm")
def _lstm(layer: Layer, around: Surroundings) -> Unit:
    return LstmUnit((layer,))
