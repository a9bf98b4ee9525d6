"""GRUs whose reset gate multiplies the hidden state, ONNX's default, as layers for each position.

The recurrent layers of the toolkit are those of cuDNN and PyTorch, whose reset gate multiplies the
product of the hidden state. Where it comes in front of the product, the gates and the new state
need a product each, one after the other, so every position is made of layers of its own that share
the weights.

Source: ONNX operator specification, GRU, with ``linear_before_reset = 0``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.onnx.onnx_translation import Translation
from fpgapipe.network.operators import (
    Activation,
    Binary,
    Concat,
    Constant,
    Gru,
    Linear,
    Operator,
    Reshape,
    Slice,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Value = tuple[str, NDArray[np.generic]]

MOST_POSITIONS = 256
"""Most positions, each of which becomes eighteen layers."""


@dataclass(frozen=True)
class ResetFirst:
    """A direction of such a GRU.

    Attributes
    ----------
    t : Translation
    name : str
        Name of the direction's layers.
    hidden : int
        Features of the hidden state.
    weights, recurrent : (str, array)
        Weights of the input and of the hidden state, with their names in the model; the gates are
        in ONNX's order: update, reset, new.
    bias : (str, array) or None
        The biases of the inputs, then those of the hidden states.
    """

    t: Translation
    name: str
    hidden: int
    weights: Value
    recurrent: Value
    bias: Value | None

    def states(self, x: str, initial: str | None, *, backwards: bool) -> list[str]:
        """Add the layers; return the hidden states of all positions, each ``N, hidden``.

        Parameters
        ----------
        x : str
            The input, ``N, positions, features``.
        initial : str or None
            The state before the first position, ``N, hidden``; zeros if not given.
        backwards : bool
            Whether the direction is from the last position to the first.
        """
        batch, positions, _ = self.t.builder.tensor(x).shape
        if positions > MOST_POSITIONS:
            raise Unsupported(
                f"with linear_before_reset=0, every position becomes layers of its own: at most "
                f"{MOST_POSITIONS} positions, not {positions}"
            )
        wide = 3 * self.hidden
        products = self._linear("input", x, wide, self.weights, self._biases(0, wide))
        state = initial or self._zeros(batch)
        found = [""] * positions
        order = range(positions)
        for at in reversed(order) if backwards else order:
            part = self._add(f"{at}.part", Slice(1, at, at + 1), products)
            own = self._add(f"{at}.input", Reshape((batch, wide)), part)
            state = found[at] = self._step(str(at), own, state)
        return found

    def _step(self, at: str, products: str, state: str) -> str:
        """The state after a position, from the products of its input and the state before."""
        gates, hidden = 2 * self.hidden, self.hidden
        source, values = self.recurrent
        of_gates = self._linear(
            f"{at}.gates", state, gates, (source, values[:gates]),
            self._biases(3 * hidden, gates),
        )  # fmt: skip
        own = self._add(f"{at}.gates_input", Slice(1, 0, gates), products)
        sums = self._add(f"{at}.sums", Binary("add"), own, of_gates)
        both = self._add(f"{at}.sigmoid", Activation("sigmoid"), sums)
        update = self._add(f"{at}.update", Slice(1, 0, hidden), both)
        reset = self._add(f"{at}.reset", Slice(1, hidden, gates), both)
        kept = self._add(f"{at}.reset_state", Binary("mul"), reset, state)
        of_new = self._linear(
            f"{at}.new", kept, hidden, (source, values[gates:]),
            self._biases(3 * hidden + gates, hidden),
        )  # fmt: skip
        own = self._add(f"{at}.new_input", Slice(1, gates, gates + hidden), products)
        sums = self._add(f"{at}.new_sums", Binary("add"), own, of_new)
        new = self._add(f"{at}.tanh", Activation("tanh"), sums)
        # The share of the old state that is kept, (1 - z) n + z h, with one product.
        change = self._add(f"{at}.change", Binary("sub"), state, new)
        share = self._add(f"{at}.share", Binary("mul"), update, change)
        return self._add(f"{at}.state", Binary("add"), new, share)

    def _add(self, name: str, operator: Operator, *inputs: str) -> str:
        return self.t.add(f"{self.name}.{name}", operator, *inputs)

    def _linear(self, name: str, x: str, wide: int, weight: Value, bias: Value | None) -> str:
        """A product; layers that name the same values share them."""
        values = {"weight": weight} | ({"bias": bias} if bias else {})
        operator = Linear(wide, bias=bias is not None)
        return self.t.add(f"{self.name}.{name}", operator, x, values=values)

    def _biases(self, first: int, count: int) -> Value | None:
        if self.bias is None:
            return None
        source, values = self.bias
        return source, values[first : first + count]

    def _zeros(self, batch: int) -> str:
        import numpy as np

        shape = (batch, self.hidden)
        zeros: NDArray[np.generic] = np.zeros(shape, np.float32)
        values = {"value": (f"{self.name}.zeros", zeros)}
        operator = Constant(shape, trainable=False)
        return self.t.add(f"{self.name}.zeros", operator, values=values)


def reset_first(
    t: Translation,
    name: str,
    node: Any,
    operator: Gru,
    x: str,
    states: Sequence[str],
    bias: NDArray[np.generic] | None,
) -> str:
    """Add the layers of a whole GRU, with one direction or two.

    Parameters
    ----------
    t : Translation
    name : str
        Name of the result.
    node : onnx.NodeProto
    operator : Gru
        The layer that it would be with the reset gate behind the product.
    x : str
        The input, ``N, positions, features``.
    states : sequence of str
        The initial state, ``N, directions * hidden``; empty for zeros.
    bias : array or None
        Biases of all directions.

    Returns
    -------
    str
        The hidden states, ``N, positions, directions * hidden``.
    """
    hidden = operator.hidden
    batch, *_ = t.builder.tensor(x).shape
    directions = []
    for d, suffix in enumerate(("", "_reverse")[: operator.num_directions]):
        initial = states[0] if states else None
        if initial and operator.bidirectional:
            half = Slice(1, d * hidden, (d + 1) * hidden)
            initial = t.add(f"{name}.initial{suffix}", half, initial)
        own = f"{name}{suffix}"
        direction = ResetFirst(
            t,
            own,
            hidden,
            (node.input[1], t.weight(node, 1, "weight")[d]),
            (node.input[2], t.weight(node, 2, "recurrent weight")[d]),
            None if bias is None else (node.input[3], bias[d]),
        )
        rows = [
            t.add(f"{each}.row", Reshape((batch, 1, hidden)), each)
            for each in direction.states(x, initial, backwards=bool(d))
        ]
        directions.append(rows[0] if len(rows) == 1 else t.add(f"{own}.all", Concat(1), *rows))
    return directions[0] if len(directions) == 1 else t.add(name, Concat(2), *directions)
