"""Recurrent operators: long short-term memory and gated recurrent units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fpgapipe.network.operators.base import (
    Gemm,
    Operator,
    ParameterSpec,
    require_float,
    require_positive,
    require_rank,
)
from fpgapipe.network.operators.tensors import ShapeError, Tensor


@dataclass(frozen=True)
class Recurrent(Operator):
    """One recurrent layer over ``N, positions, features``.

    The result is the hidden state at every position. If there are two directions, their states are
    concatenated. Deeper networks stack layers. Further inputs are the states before the first
    position, all of them or none; without them these states are zeros.

    Parameters
    ----------
    hidden : int
        Features of the hidden state.
    bidirectional : bool
        Whether there is a second direction, from the last position to the first.
    bias : bool
        Whether each direction has two bias vectors of ``gates * hidden``, as in cuDNN, PyTorch and
        ONNX.
    """

    gates: ClassVar[int]
    """Products of the input, and of the hidden state, for each feature of the hidden state."""

    states: ClassVar[tuple[str, ...]]
    """Names of the states that go from position to position, in the order of the inputs."""

    hidden: int
    bidirectional: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        require_positive(self.kind, hidden=self.hidden)

    @property
    def num_directions(self) -> int:
        """1, or 2 if bidirectional."""
        return 2 if self.bidirectional else 1

    def check_arity(self, count: int) -> None:
        """See `Operator`: the input alone, or with all initial states."""
        if count not in (1, 1 + len(self.states)):
            raise ShapeError(
                f"{self.kind} takes 1 or {1 + len(self.states)} inputs (with the initial "
                f"{' and '.join(self.states)}), not {count}"
            )

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """``N, positions, features`` to ``N, positions, directions * hidden``.

        Initial states have the shape ``N, directions * hidden``.
        """
        x, *states = inputs
        require_rank(self.kind, x, 3, 3)
        width = self.num_directions * self.hidden
        for each in inputs:
            require_float(self.kind, each)
        for name, state in zip(self.states, states, strict=False):
            if state.shape != (x.shape[0], width):
                raise ShapeError(
                    f"{self.kind} must have an initial {name} of shape {[x.shape[0], width]}, not "
                    f"{list(state.shape)}"
                )
        return x.with_shape((*x.shape[:2], width))

    def parameters(self, inputs: Sequence[Tensor]) -> tuple[ParameterSpec, ...]:
        """Input and recurrent weights and biases, for each direction."""
        gates = self.gates * self.hidden
        specs = []
        for suffix in ("", "_reverse")[: self.num_directions]:
            specs.append(ParameterSpec(f"weight_ih{suffix}", (gates, inputs[0].shape[2])))
            specs.append(ParameterSpec(f"weight_hh{suffix}", (gates, self.hidden)))
            if self.bias:
                specs.append(ParameterSpec(f"bias_ih{suffix}", (gates,)))
                specs.append(ParameterSpec(f"bias_hh{suffix}", (gates,)))
        return tuple(specs)

    def gemms(self, inputs: Sequence[Tensor], output: Tensor) -> tuple[Gemm, ...]:
        """One product for the inputs of all positions, then one per position for hidden states."""
        batch, positions, features = inputs[0].shape
        gates = self.gates * self.hidden
        directions = self.num_directions
        return (
            Gemm(batch * positions, features, gates, count=directions),
            Gemm(batch, self.hidden, gates, count=directions, steps=positions),
        )


@dataclass(frozen=True)
class Lstm(Recurrent):
    """One layer of long short-term memory.

    The gates are in PyTorch's order: input, forget, cell, output.

    Parameters
    ----------
    hidden, bidirectional, bias
        See `Recurrent`.
    final_cell : bool
        Whether the result has a further position at its end, with the cell states after each
        direction's last position.
    """

    kind: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4
    states: ClassVar[tuple[str, ...]] = ("hidden state", "cell state")

    final_cell: bool = False

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """See `Recurrent`."""
        y = super().output(inputs)
        samples, positions, width = y.shape
        return y.with_shape((samples, positions + self.final_cell, width))


@dataclass(frozen=True)
class Gru(Recurrent):
    """One layer of gated recurrent units.

    The gates are in PyTorch's order: reset, update, new. The reset gate multiplies the product of
    the hidden state (ONNX: ``linear_before_reset``).
    """

    kind: ClassVar[str] = "gru"
    gates: ClassVar[int] = 3
    states: ClassVar[tuple[str, ...]] = ("hidden state",)
