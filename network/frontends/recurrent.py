"""States of recurrent layers, which other formats give as ``directions, N, hidden``."""

from __future__ import annotations

from collections.abc import Sequence

from fpgapipe.network.frontends.builder import FrontendBuilder
from fpgapipe.network.operators import Concat, Operator, Recurrent, Reshape, Slice, Transpose


def initial_state(
    builder: FrontendBuilder, name: str, state: str, operator: Recurrent, depth: int = 0
) -> str:
    """Add layers that give a recurrent layer its initial state, of ``N, directions * hidden``.

    Parameters
    ----------
    builder : FrontendBuilder
    name : str
        Name of the result.
    state : str
        States of several layers, ``layers * directions, N, hidden``.
    operator : Recurrent
    depth : int
        Number of the layer.
    """
    directions = operator.num_directions
    whole, batch, hidden = builder.tensor(state).shape
    if whole != directions:
        part = Slice(0, depth * directions, (depth + 1) * directions)
        state = _add(builder, f"{name}.part", part, state)
    if directions > 1:
        state = _add(builder, f"{name}.samples", Transpose((1, 0, 2)), state)
    return _add(builder, name, Reshape((batch, directions * hidden)), state)


def last_states(builder: FrontendBuilder, name: str, layer: str, operator: Recurrent) -> str:
    """Add layers that give the final hidden state of each direction, ``directions, N, hidden``.

    Parameters
    ----------
    builder : FrontendBuilder
    name : str
        Name of the result.
    layer : str
        The hidden states of all positions.
    operator : Recurrent
    """
    batch, positions, _ = builder.tensor(layer).shape
    states = []
    for d, suffix in enumerate(("", "_reverse")[: operator.num_directions]):
        last = 0 if d else positions - 1  # the reverse direction ends at the first position
        state = _add(builder, f"{layer}.last{suffix}", Slice(1, last, last + 1), layer)
        if operator.bidirectional:
            half = Slice(2, d * operator.hidden, (d + 1) * operator.hidden)
            state = _add(builder, f"{state}.half", half, state)
        own = f"{state}.state" if operator.bidirectional else name
        states.append(_add(builder, own, Reshape((1, batch, operator.hidden)), state))
    return joined(builder, name, states)


def last_cells(builder: FrontendBuilder, name: str, layer: str, operator: Recurrent) -> str:
    """Add layers that give the final cell state of each direction, ``directions, N, hidden``.

    `layer` is an LSTM with cell states behind its last position; see `last_states`.
    """
    batch, whole, _ = builder.tensor(layer).shape
    cell = _add(builder, f"{name}.last", Slice(1, whole - 1, whole), layer)
    if not operator.bidirectional:
        return _add(builder, name, Reshape((1, batch, operator.hidden)), cell)
    shape = Reshape((batch, operator.num_directions, operator.hidden))
    cell = _add(builder, f"{name}.samples", shape, cell)
    return _add(builder, name, Transpose((1, 0, 2)), cell)


def hidden_states(builder: FrontendBuilder, name: str, layer: str) -> str:
    """Add the layer that gives the hidden states of an LSTM with cell states behind them."""
    return _add(builder, name, Slice(1, 0, builder.tensor(layer).shape[1] - 1), layer)


def joined(builder: FrontendBuilder, name: str, states: Sequence[str]) -> str:
    """Add the layer that joins states of several directions or layers, unless there is one."""
    return states[0] if len(states) == 1 else _add(builder, name, Concat(0), *states)


def _add(builder: FrontendBuilder, name: str, operator: Operator, *inputs: str) -> str:
    return builder.add_with_values(name, operator, *inputs, values={})
