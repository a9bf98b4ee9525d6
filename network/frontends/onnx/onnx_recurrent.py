"""Translations of ONNX's recurrent operators."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.onnx.onnx_constants import MAX_FOLDED_ELEMENTS
from fpgapipe.network.frontends.onnx.onnx_gru import reset_first
from fpgapipe.network.frontends.onnx.onnx_readings import Made
from fpgapipe.network.frontends.onnx.onnx_translation import Translation, handles, node_name
from fpgapipe.network.frontends.recurrent import (
    hidden_states,
    initial_state,
    last_cells,
    last_states,
)
from fpgapipe.network.operators import (
    AxisMap,
    Constant,
    Gru,
    Lstm,
    Recurrent,
    Reshape,
    Transpose,
)
from fpgapipe.network.operators.axis_map import selection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
"""Where PyTorch's gates are in ONNX's order: input, output, forget, cell; update, reset, new."""

FUNCTIONS = {"LSTM": [b"Sigmoid", b"Tanh", b"Tanh"], "GRU": [b"Sigmoid", b"Tanh"]}
"""Activation functions of a direction."""


@handles("LSTM", "GRU")
def _recurrent(t: Translation, node: Any) -> None:
    attributes = t.attributes(node)
    is_lstm = node.op_type == "LSTM"
    _refuse(t, node, attributes)
    hidden = int(attributes["hidden_size"])
    both = attributes.get("direction", b"forward") == b"bidirectional"
    if t.weight(node, 1, "weight").size > MAX_FOLDED_ELEMENTS:
        raise Unsupported("its weight is too large to be reordered")
    outputs = 3 if is_lstm else 2
    t.refuse_outputs(node, kept=outputs)
    reads = [
        bool(i < len(node.output) and node.output[i] and t.consumers[node.output[i]])
        for i in range(3)
    ]
    name, first = node_name(node), bool(attributes.get("layout", 0))
    backwards = attributes.get("direction", b"forward") == b"reverse"
    x = t.layer(node.input[0])
    if not first:
        x = t.add(f"{name}.batch_first", Transpose((1, 0, 2)), x)
    if backwards:
        x = _flipped(t, f"{name}.backwards", x)
    bias = t.value(node, 3)
    if t.operand(node, 3) and bias is None:
        raise Unsupported("its bias is not constant")
    settings = hidden, both, bias is not None
    operator = Lstm(*settings, final_cell=reads[2]) if is_lstm else Gru(*settings)
    batch, positions, _ = t.builder.tensor(x).shape
    states = _initial(t, node, operator, batch, first)
    if isinstance(operator, Gru) and not attributes.get("linear_before_reset", 0):
        layer = reset_first(t, name, node, operator, x, states, bias)
    else:
        layer = _layer(t, node, operator, x, states, bias)
    states_of = {}
    if reads[2]:
        states_of[2] = last_cells(t.builder, f"{name}.y_c", layer, operator)
        layer = hidden_states(t.builder, f"{name}.states", layer)
    if reads[1]:
        states_of[1] = last_states(t.builder, f"{name}.y_h", layer, operator)
    for output, state in states_of.items():
        if first:
            state = t.add(f"{state}.batch_first", Transpose((1, 0, 2)), state)
        t.give(node, state, output=output)
    if reads[0]:
        if backwards:
            layer = _flipped(t, f"{name}.forwards", layer)
        split = Reshape((batch, positions, operator.num_directions, hidden))
        rows = t.add(f"{name}.directions", split, layer)
        t.give(node, rows if first else t.add(f"{name}.y", Transpose((1, 2, 0, 3)), rows))


def _flipped(t: Translation, name: str, layer: str) -> str:
    """Add the layer that has the positions in the other order."""
    positions = t.builder.tensor(layer).shape[1]
    return t.add(name, AxisMap(1, selection(reversed(range(positions)))), layer)


def _layer(
    t: Translation,
    node: Any,
    operator: Recurrent,
    x: str,
    states: list[str],
    bias: NDArray[np.generic] | None,
) -> str:
    """Add the layer, with its parameters in PyTorch's order."""
    hidden, values = operator.hidden, {}
    gates, half = GATES[node.op_type], operator.gates * operator.hidden
    inverse = tuple(map(gates.index, range(len(gates))))
    for d, suffix in enumerate(("", "_reverse")[: operator.num_directions]):
        pairs = [("weight_ih", 1, t.weight(node, 1, "weight")[d])]
        pairs.append(("weight_hh", 2, t.weight(node, 2, "recurrent weight")[d]))
        if bias is not None:
            pairs.append(("bias_ih", 3, bias[d][:half]))
            pairs.append(("bias_hh", 3, bias[d][half:]))
        for role, index, value in pairs:
            own = _reordered(value, hidden, gates)
            back = partial(_reordered, hidden=hidden, gates=inverse)
            values[role + suffix] = Made(node.input[index], own, value, f"gates {gates}", back)
    return t.add(node_name(node), operator, x, *states, values=values)


def _refuse(t: Translation, node: Any, attributes: dict[str, Any]) -> None:
    """Refuse what PyTorch's layers do not have."""
    direction = attributes.get("direction", b"forward")
    if "clip" in attributes:
        raise Unsupported("only without clip")
    default = FUNCTIONS[node.op_type] * (2 if direction == b"bidirectional" else 1)
    if attributes.get("input_forget", 0) or attributes.get("activations", default) != default:
        raise Unsupported("only the standard gates and activations")
    if t.operand(node, 4):
        positions = t.static_shape(node.input[0])[1 if attributes.get("layout", 0) else 0]
        if (t.weight(node, 4, "sequence_lens") != positions).any():
            raise Unsupported(
                f"only sequences that all have the {positions} positions of the input"
            )
    if t.operand(node, 7) and t.weight(node, 7, "peepholes").any():
        raise Unsupported("only peepholes of zeros")


def _initial(t: Translation, node: Any, operator: Recurrent, batch: int, first: bool) -> list[str]:
    """Layers of the initial states, given with the batch `first`; none if they are all zeros."""
    import numpy as np

    name = node_name(node)
    found: list[str] = []
    for index in range(5, 5 + len(operator.states)):
        value = t.value(node, index)
        is_zero = not t.operand(node, index) or (value is not None and not value.any())
        found.append("" if is_zero else node.input[index])
    if not any(found):
        return []
    shape = operator.num_directions, batch, operator.hidden
    layers = []
    for which, given in zip(("initial_h", "initial_c"), found, strict=False):
        own = f"{name}.{which}"
        if given:
            state = t.layer(given)
            if first:
                state = t.add(f"{own}.directions_first", Transpose((1, 0, 2)), state)
        else:
            zeros: NDArray[np.generic] = np.zeros(shape, np.float32)
            values = {"value": (f"{own}.zeros", zeros)}
            state = t.add(f"{own}.zeros", Constant(shape, trainable=False), values=values)
        layers.append(initial_state(t.builder, own, state, operator))
    return layers


def _reordered(
    value: NDArray[np.generic], hidden: int, gates: tuple[int, ...]
) -> NDArray[np.generic]:
    """The gates of a weight or a bias in PyTorch's order."""
    import numpy as np

    return np.concatenate([value[gate * hidden : (gate + 1) * hidden] for gate in gates])
