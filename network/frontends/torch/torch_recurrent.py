"""Translations of PyTorch's recurrent operators."""

from __future__ import annotations

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.recurrent import (
    hidden_states,
    initial_state,
    joined,
    last_cells,
    last_states,
)
from fpgapipe.network.frontends.torch.torch_registry import Node, handles
from fpgapipe.network.frontends.torch.torch_translation import Translation
from fpgapipe.network.operators import Dropout, Gru, Lstm, Recurrent, Reshape, Slice, Transpose


@handles("lstm.input", "gru.input")
def _recurrent(t: Translation, node: Node) -> None:
    """Translate each layer of a stack to a layer; states become layers where they are read."""
    is_lstm = "lstm" in node.target
    directions = 2 if node["bidirectional"] else 1
    each = 4 if node["has_biases"] else 2
    params = node["params"]
    if len(params) != node["num_layers"] * directions * each:
        raise Unsupported("projections are not supported")
    operator = _operator(t, node, is_lstm=is_lstm)
    given = list(node["hx"]) if is_lstm else [node["hx"]]
    known = [t.known(state) for state in given]
    is_zero = all(state is not None and not state.any() for state in known)
    initial = [] if is_zero else [t.layer(state) for state in given]
    x = t.layer(node["input"])
    if not node["batch_first"]:
        x = t.add(f"{node.name}.batch_first", Transpose((1, 0, 2)), x)
    stem = t.name_of(node, params[0])
    roles = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[:each]
    states: list[str] = []  # final hidden states of all layers
    cells: list[str] = []
    for depth in range(node["num_layers"]):
        if depth and node["dropout"] and node["train"]:
            x = t.add(f"{stem}.dropout{depth}", Dropout(node["dropout"]), x)
        values = {}
        for d in range(directions):
            first = (depth * directions + d) * each
            for i, role in enumerate(roles):
                suffix = "_reverse" if d else ""
                values[role + suffix] = t.weight(params[first + i], role)
        name = f"{stem}.{depth}" if node["num_layers"] > 1 else stem
        begin = [
            initial_state(t.builder, f"{name}.{which}", state, operator, depth)
            for which, state in zip(("h_0", "c_0"), initial, strict=False)
        ]
        x = t.add(name, operator, x, *begin, values=values)
        if isinstance(operator, Lstm) and operator.final_cell:
            cells.append(last_cells(t.builder, f"{name}.cell", x, operator))
            x = hidden_states(t.builder, f"{name}.hidden", x)
        if t.reads_result(node, 1):
            states.append(last_states(t.builder, f"{name}.state", x, operator))
    if not node["batch_first"]:
        x = t.add(f"{node.name}.batch_second", Transpose((1, 0, 2)), x)
    found = [
        joined(t.builder, f"{node.name}.{what}", each) if each else None
        for what, each in (("states", states), ("cells", cells))
    ]
    t.give(node, [x, *found] if is_lstm else [x, found[0]])


@handles("lstm_cell.default", "gru_cell.default")
def _cell(t: Translation, node: Node) -> None:
    """A step of a recurrent layer: the layer with a single position."""
    roles = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}
    values = {
        role: t.weight(node[given], role)
        for role, given in roles.items()
        if node[given] is not None
    }
    hidden, has_bias = t.tensor(node["w_hh"]).shape[1], len(values) == 4
    is_lstm = "lstm" in node.target
    states = node["hx"] if is_lstm else [node["hx"]]
    known = [t.known(state) for state in states]
    is_zero = all(state is not None and not state.any() for state in known)
    initial = [] if is_zero else [t.layer(state) for state in states]
    samples, features = t.tensor(node["input"]).shape
    position = Reshape((samples, 1, features))
    x = t.add(f"{node.name}.position", position, t.layer(node["input"]))
    reads_cell = is_lstm and t.reads_result(node, 1)
    operator = (
        Lstm(hidden, False, has_bias, final_cell=reads_cell)
        if is_lstm
        else Gru(hidden, False, has_bias)
    )
    x = t.add(t.name_of(node, node["w_ih"]), operator, x, *initial, values=values)

    def state(name: str, layer: str) -> str:
        return t.add(name, Reshape((samples, hidden)), layer)

    if not reads_cell:
        found = state(node.name, x)
        t.give(node, [found, None] if is_lstm else found)
        return
    cell = t.add(f"{node.name}.last", Slice(1, 1, 2), x)
    last = hidden_states(t.builder, f"{node.name}.states", x)
    t.give(node, [state(f"{node.name}.hidden", last), state(f"{node.name}.cell", cell)])


def _operator(t: Translation, node: Node, *, is_lstm: bool) -> Recurrent:
    """The operator of each layer."""
    hidden = t.tensor(node["params"][1]).shape[1]
    settings = hidden, bool(node["bidirectional"]), bool(node["has_biases"])
    return Lstm(*settings, final_cell=t.reads_result(node, 2)) if is_lstm else Gru(*settings)
