"""The unit of a recurrent layer, whose backward pass goes back through time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels import activation
from fpgapipe.lowering.kernels.parts import Rows, copy_rows, zero_rows
from fpgapipe.lowering.kernels.products import product_kernel
from fpgapipe.lowering.kernels.recurrent.cells import Cell, Gradients, Position, Sequence
from fpgapipe.lowering.kernels.recurrent.gru import GRU
from fpgapipe.lowering.kernels.recurrent.lstm import LSTM
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.units.layers.matrix_parts import Part, multiply_parts
from fpgapipe.lowering.units.layers.transpose_unit import add_permutation
from fpgapipe.lowering.units.layouts import PLAIN, Layout
from fpgapipe.lowering.units.registry import runs_alone
from fpgapipe.lowering.units.rounded_weights import Repeats, product_of_weight
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch

CELLS = {ops.Lstm: LSTM, ops.Gru: GRU}
"""The cell of each operator."""

SUFFIXES = ("", "_reverse")
"""Suffixes of the parameters' roles, by direction."""


@runs_alone("lstm", "gru")
@dataclass(frozen=True)
class RecurrentUnit(Unit):
    """One recurrent layer, with one direction or two.

    The inputs of all positions are multiplied by their weights in one product, and so are the
    gradients of all positions' gates for the gradients of both weights. The hidden states take a
    product for each position, forward and backward, among which their weight stays on chip if it
    fits. Positions come first in all tensors of the unit, so the samples of a position are a
    matrix.
    """

    engine: ClassVar = "array"

    @property
    def operator(self) -> ops.Recurrent:
        """The operator."""
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Recurrent)
        return operator

    @property
    def cell(self) -> Cell:
        """The kind of the layer's cells."""
        return CELLS[type(self.operator)]

    @property
    def gives_cells(self) -> bool:
        """Whether the result has the last cell states behind all positions."""
        return isinstance(self.operator, ops.Lstm) and self.operator.final_cell

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return dict.fromkeys(self.inputs, PLAIN)

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
        wanted = step.graph.input_gradients(self.layers[0].name)
        states = {
            index: step.activation(
                f"{self.name}.d{index}", step.take(self, self.inputs[index]).shape
            )
            for index in wanted
            if index
        }
        for direction in self._directions():
            dsums, drecurrent = direction.backward(step, dy, states)
            if 0 in wanted:
                self._give(step, direction, dsums)
            direction.weight_gradients(step, x, dsums, drecurrent)
        for index, gradient in states.items():
            step.give_gradient(self, self.inputs[index], gradient)

    def _give(self, step: MicroBatch, direction: _Direction, dsums: Tensor) -> None:
        """Give the input its gradient from one direction."""
        name = f"{direction.name}.dx"
        dx = step.activation(name, self.in_shape)
        plain = 1 in self.in_shape[:2]
        target = dx if plain else step.activation(f"{name}.turned", self._by_position)
        weight = direction.parameter(step, "weight_ih")
        kernel = product_of_weight(
            step, f"{direction.name}.input", direction.of_inputs, "input", (dsums, weight, target)
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
    unit : RecurrentUnit
    number : int
        0 from the first position to the last, 1 back.
    """

    unit: RecurrentUnit
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
    def _wide(self) -> int:
        """Products of a sample."""
        return self.unit.cell.gates * self.unit.operator.hidden

    @property
    def of_inputs(self) -> ConvSpec:
        """The product of all inputs and their weight."""
        positions, samples, _ = self._shape
        return ConvSpec.linear(positions * samples, self._wide, self.unit.in_shape[2])

    def _of_states(self, positions: int) -> ConvSpec:
        """The product of the hidden states of some positions and their weight."""
        _, samples, hidden = self._shape
        return ConvSpec.linear(positions * samples, self._wide, hidden)

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

    def _state(self, number: int) -> Rows:
        """Where the samples of a state lie, in a tensor of all states."""
        _, samples, hidden = self._shape
        return Rows(number * samples * hidden, hidden)

    def _given(self) -> Rows:
        """Where the samples of the direction lie in initial states."""
        hidden = self.unit.operator.hidden
        return Rows(self.number * hidden, self.unit.operator.num_directions * hidden)

    def _result(self, position: int) -> Rows:
        """Where the samples of a position of the result lie."""
        _, positions, pitch = self.unit.out_shape
        column = self.number * self.unit.operator.hidden
        return Rows(position * pitch + column, positions * pitch)

    def _sequence(self, step: MicroBatch, *, is_new: bool = False) -> Sequence:
        positions, samples, hidden = self._shape
        states = (positions + 1, samples, hidden)

        def of(what: str, shape: tuple[int, ...], *, is_feature: bool = False) -> Tensor:
            name = f"{self.name}.{what}"
            if not is_new:
                return step.from_earlier_pass(name)
            return step.tensor(name, shape, step.options.activations if is_feature else FP32)

        return Sequence(
            of("sums", (positions, samples, self._wide)),
            of("gates", (positions, samples, self.unit.cell.kept * hidden)),
            of("cells", states),
            of("hidden", states, is_feature=True),
        )

    def _rows(self, step: MicroBatch, name: str, states: Tensor, y: Tensor, *, back: bool) -> None:
        """Copy what belongs to all positions, without the initial state, to the result or back."""
        positions, samples, hidden = self._shape
        first = int(states.shape[0] > positions and not self.number)
        pitch = self.unit.out_shape[2]
        pairs: list[tuple[int, Rows, Rows]] = []
        if positions >= samples:
            for each in range(samples):
                here = Rows((first * samples + each) * hidden, samples * hidden)
                begin = self._result(0).first + each * self._result(0).pitch
                pairs.append((positions, here, Rows(begin, pitch)))
        else:
            for each in range(positions):
                pairs.append((samples, self._state(first + each), self._result(each)))
        for number, (rows, here, there) in enumerate(pairs):
            x, to, read, written = (y, states, there, here) if back else (states, y, here, there)
            kernel = copy_rows(
                f"{name}.{number}", x, to, (rows, hidden), read, written, step.region
            )
            step.add(kernel)

    def _biases(self, step: MicroBatch) -> Tensor | None:
        """The biases as the cells need them; see `Cell.biases`."""
        if not self.unit.operator.bias:
            return None
        hidden, cell = self._shape[2], self.unit.cell
        name = f"{self.name}.bias"
        bias = step.tensor(name, (cell.biases * hidden,), FP32)
        one, other = (self.parameter(step, f"bias_{which}") for which in ("ih", "hh"))
        x, y, added = (replace(each, shape=(cell.added * hidden,)) for each in (one, other, bias))
        step.add(activation.add(name, x, y, added, step.region))
        first, size = cell.added * hidden, (1, (cell.gates - cell.added) * hidden)
        for number, tensor in enumerate((one, other) if size[1] else ()):
            read, written = (Rows(first + n * size[1], size[1]) for n in (0, number))
            kernel = copy_rows(f"{name}.{number}", tensor, bias, size, read, written, step.region)
            step.add(kernel)
        return bias

    def _begin(self, step: MicroBatch, sequence: Sequence) -> None:
        """Fill in the states before the first position."""
        _, samples, hidden = self._shape
        size, begin = samples * hidden, self._state(self._order()[0].before)
        given = [step.take(self.unit, name) for name in self.unit.inputs[1:]]
        # The cell state comes last; of a GRU the hidden state is the cell as well.
        for tensor, number in ((sequence.cells, -1), (sequence.hidden, 0)):
            name = f"{tensor.name}.initial"
            if given:
                kernel = copy_rows(
                    name, given[number], tensor, (samples, hidden), self._given(), begin,
                    step.region,
                )  # fmt: skip
            else:
                kernel = zero_rows(name, tensor, (1, size), replace(begin, pitch=size), step.region)
            step.add(kernel)

    def forward(self, step: MicroBatch, x: Tensor, y: Tensor) -> None:
        """Add the forward pass of the direction, which writes its features of the result."""
        positions, samples, hidden = self._shape
        name, sequence = self.name, self._sequence(step, is_new=True)
        weight = self.parameter(step, "weight_ih")
        operands = x, weight, sequence.sums
        step.add(product_of_weight(step, f"{name}.forward", self.of_inputs, "forward", operands))
        bias = self._biases(step)
        self._begin(step, sequence)
        order = self._order()
        sums = step.tensor(f"{name}.recurrent", (samples, self._wide), FP32)
        count = positions - (len(self.unit.inputs) == 1)
        for number, position in enumerate(order, count - positions):
            is_zero = number < 0
            if not is_zero:
                parts = (
                    Part.of(sequence.hidden, position.before, positions + 1),
                    Part.of(self.parameter(step, "weight_hh"), 0, 1),
                    Part.of(sums, 0, 1),
                )
                own = f"{name}.{position.at}.recurrent"
                repeats = Repeats(count, number)
                multiply_parts(step, own, self._of_states(1), "forward", parts, repeats=repeats)
            kernel = self.unit.cell.forward(
                f"{name}.{position.at}", sequence, position, step.region,
                recurrent=None if is_zero else sums, bias=bias,
            )  # fmt: skip
            step.add(kernel)
        self._rows(step, f"{name}.result", sequence.hidden, y, back=False)
        if self.unit.gives_cells:
            kernel = copy_rows(
                f"{name}.cell", sequence.cells, y, (samples, hidden),
                self._state(order[-1].after), self._result(positions), step.region,
            )  # fmt: skip
            step.add(kernel)

    def backward(
        self, step: MicroBatch, dy: Tensor, states: Mapping[int, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Add the backward pass.

        Parameters
        ----------
        step : MicroBatch
        dy : Tensor
            Gradient of the result.
        states : mapping of int to Tensor
            Gradients of initial states, of which the direction writes its features, by the number
            of the input.

        Returns
        -------
        dsums, drecurrent : Tensor
            Gradients of the products of the inputs and of the hidden states.
        """
        positions, samples, hidden = self._shape
        name, sequence, cell = self.name, self._sequence(step), self.unit.cell
        coming = step.tensor(f"{name}.dy", (positions, samples, hidden), dy.format)
        self._rows(step, f"{name}.dy", coming, dy, back=True)
        shape = (positions, samples, self._wide)
        dsums = step.tensor(f"{name}.dgates", shape, step.options.activations)
        drecurrent = dsums
        if cell.added < cell.gates:
            drecurrent = step.tensor(f"{name}.drecurrent", shape, step.options.activations)
        size = (samples, hidden)
        dhidden = step.tensor(f"{name}.dhidden", size, FP32)
        dcell, dbefore = (step.tensor(f"{name}.dcell{n}", size, FP32) for n in range(2))
        whole = prod(size)
        if self.unit.gives_cells:
            kernel = copy_rows(
                f"{name}.dcell", dy, dcell, size, self._result(positions), self._state(0),
                step.region,
            )  # fmt: skip
        else:
            kernel = zero_rows(f"{name}.dcell", dcell, (1, whole), Rows(0, whole), step.region)
        step.add(kernel)
        order = self._order()[::-1]
        count = positions - (1 not in states)
        for number, position in enumerate(order):
            coming_back = None if position is order[0] else dhidden
            gradients = Gradients(coming, dsums, drecurrent, dcell, dbefore, coming_back)
            own = f"{name}.{position.at}.gradient"
            step.add(cell.backward(own, sequence, position, step.region, gradients))
            dcell, dbefore = dbefore, dcell
            if number < count:
                parts = (
                    Part.of(drecurrent, position.at, positions),
                    Part.of(self.parameter(step, "weight_hh"), 0, 1),
                    Part.of(dhidden, 0, 1),
                )
                own = f"{name}.{position.at}.dhidden"
                repeats = Repeats(count, number)
                multiply_parts(step, own, self._of_states(1), "input", parts, repeats=repeats)
        self._give_states(step, states, dhidden, dcell, dbefore)
        return dsums, drecurrent

    def _give_states(
        self,
        step: MicroBatch,
        states: Mapping[int, Tensor],
        dhidden: Tensor,
        dcell: Tensor,
        spare: Tensor,
    ) -> None:
        """Write the direction's features of the gradients of initial states."""
        size, name = dcell.shape, f"{self.name}.initial"
        if 1 in states and len(self.unit.inputs) == 2:  # the hidden state is the cell as well
            step.add(activation.add(f"{name}.sum", dhidden, dcell, spare, step.region))
            dhidden = spare
        for index, gradient in ((1, dhidden), (2, dcell)):
            if index in states:
                kernel = copy_rows(
                    f"{name}.d{index}", gradient, states[index], (size[0], size[1]),
                    Rows(0, size[1]), self._given(), step.region,
                )  # fmt: skip
                step.add(kernel)

    def weight_gradients(
        self, step: MicroBatch, x: Tensor, dsums: Tensor, drecurrent: Tensor
    ) -> None:
        """Add the gradients of the direction's parameters."""
        positions, samples, hidden = self._shape
        name = self.name
        for which, given in (("ih", dsums), ("hh", drecurrent)) if self.unit.operator.bias else ():
            db = step.gradient_of(self.parameter(step, f"bias_{which}"))
            if db is not None:
                own = f"{name}.db_{which}"
                kernel = activation.bias_gradient(own, given, db, step.region)
                step.add(kernel, is_weight=True)
        dw = step.gradient_of(self.parameter(step, "weight_ih"))
        if dw is not None:
            product = product_kernel(
                f"{name}.weight_ih", self.of_inputs, "weight", (x, dsums, dw),
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
                Part.of(drecurrent, 0, 1),
                Part.of(dw, 0, 1),
            )
            conv = self._of_states(positions)
            multiply_parts(step, f"{name}.weight_hh", conv, "weight", parts, is_weight=True)
