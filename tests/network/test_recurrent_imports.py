"""Recurrent layers of PyTorch and ONNX, with their states, against the sources themselves."""

import numpy as np
import pytest

from fpgapipe.errors import FileError
from fpgapipe.network.graph import NetworkError
from fpgapipe.network.load import load_network

torch = pytest.importorskip("torch", reason="needs the torch extra")
onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
from onnx_models import agrees_with_onnx, node, random, save  # noqa: E402
from torch import nn  # noqa: E402

from fpgapipe.host.backends.verification import verify  # noqa: E402
from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402

BOTH = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])


class Net(nn.Module):
    """A stack of recurrent layers and what is done with it."""

    def __init__(self, kind, run, *settings, **more):
        super().__init__()
        torch.manual_seed(0)
        self.run = run
        self.rnn = kind(4, 3, *settings, **more)
        self.fc = nn.Linear(4, 3)
        rows = self.rnn.num_layers * (2 if self.rnn.bidirectional else 1)
        self.h = nn.Parameter(torch.randn(rows, 1, 3))
        self.c = nn.Parameter(torch.randn(rows, 1, 3))
        self.register_buffer("fixed", torch.randn(rows, 2, 3))

    def forward(self, x):
        return self.run(self, x)

    def states(self, *states):
        """The states as the layer wants them."""
        return states if isinstance(self.rnn, nn.LSTM) else states[0]


def verified(module, x):
    """The graph of a module; results and gradients are those of the module."""
    graph = from_torch((module, x), name="net")
    found = verify(graph)
    assert found.verified, found.reason
    return graph


def outputs_and_states(s, x):
    y, states = s.rnn(x)
    return (y, *states) if isinstance(states, tuple) else (y, states)


def given_zeros(s, x):
    zeros = torch.zeros(s.h.shape[0], 2, 3)
    return s.rnn(x, s.states(zeros, zeros))[0]


def learned(s, x):
    return s.rnn(x, s.states(s.h.expand(-1, 2, -1), s.c.expand(-1, 2, -1).contiguous()))[0]


def fixed(s, x):
    return s.rnn(x, s.states(s.fixed, s.fixed + 1))[0]


def half_of_zeros(s, x):
    return s.rnn(x, s.states(s.h.expand(-1, 2, -1), torch.zeros(s.h.shape[0], 2, 3)))[0]


def computed(s, x):
    state = torch.tanh(s.fc(x[:, 0] if s.rnn.batch_first else x[0]))
    state = state.expand(s.h.shape[0], 2, 3)
    return s.rnn(x, s.states(state, state * 2))[0]


def decoder(s, x):
    """The same weights go on from their own last states."""
    y, states = s.rnn(x)
    return s.rnn(x + 1, states)[0] * y


@BOTH
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(
    "run", [outputs_and_states, given_zeros, learned, fixed, half_of_zeros, computed, decoder]
)
def test_a_module_of_pytorch(kind, run, layers, bidirectional):
    module = Net(kind, run, layers, bidirectional=bidirectional, batch_first=layers == 1)
    graph = verified(module, torch.randn(2, 5, 4) if layers == 1 else torch.randn(5, 2, 4))
    found = [layer for layer in graph.layers.values() if layer.op in ("lstm", "gru")]
    assert len(found) == layers * (2 if run is decoder else 1)
    has_states = run not in (outputs_and_states, given_zeros)
    assert sum(len(layer.inputs) > 1 for layer in found) == (layers if has_states else 0)


@BOTH
@pytest.mark.parametrize("positions", [1, 4])
def test_without_bias_and_one_position(kind, positions):
    verified(Net(kind, outputs_and_states, 2, False), torch.randn(positions, 2, 4))


@BOTH
def test_dropout_between_layers(kind):
    graph = verified(Net(kind, outputs_and_states, 3, dropout=0.5), torch.randn(4, 2, 4))
    assert sum(layer.op == "dropout" for layer in graph.layers.values()) == 2


def test_projections_are_refused():
    with pytest.raises(NetworkError, match="projections are not supported"):
        from_torch(
            (Net(nn.LSTM, outputs_and_states, proj_size=2), torch.randn(4, 2, 4)), name="net"
        )


def model(path, op, outputs, *, directions=1, inputs=("x", "w", "r", "b"), weights=None, **more):
    """A model of one layer over 5 positions of 2 samples."""
    gates = 4 if op == "LSTM" else 3
    direction = "bidirectional" if directions == 2 else "forward"
    nodes = [node(op, inputs, outputs, hidden_size=3, direction=direction, **more)]
    given = {
        "w": random(directions, gates * 3, 4),
        "r": random(directions, gates * 3, 3, seed=1),
        "b": random(directions, gates * 6, seed=2),
        "zeros": np.zeros((directions, 2, 3), np.float32),
        **(weights or {}),
    }
    given = {name: value for name, value in given.items() if name in inputs}
    whole = {"x": [5, 2, 4]}
    whole |= {name: [directions, 2, 3] for name in ("h", "c") if name in inputs}
    return save(path / "m--fixed.onnx", nodes, whole, outputs=outputs, weights=given)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(
    ("op", "states", "more"),
    [
        ("LSTM", ("", "h", "c"), {}),
        ("LSTM", ("", "", "c"), {}),
        ("LSTM", ("", "zeros", "zeros"), {}),
        ("LSTM", ("lengths",), {}),
        ("GRU", (), {"linear_before_reset": 1}),
        ("GRU", ("", "h"), {"linear_before_reset": 1}),
    ],
)
def test_a_model_of_onnx(tmp_path, op, states, more, directions):
    outputs = ["y", "y_h", "y_c"] if op == "LSTM" else ["y", "y_h"]
    inputs = ("x", "w", "r", "b", *states)
    weights = {"lengths": np.full(2, 5, np.int32)}
    path = model(
        tmp_path, op, outputs, directions=directions, inputs=inputs, weights=weights, **more
    )
    values = {name: random(directions, 2, 3, seed=3 + i) for i, name in enumerate(("h", "c"))}
    values = {name: value for name, value in values.items() if name in inputs}
    graph = agrees_with_onnx(path, x=random(5, 2, 4), **values)
    (layer,) = (each for each in graph.layers.values() if each.op in ("lstm", "gru"))
    assert (len(layer.inputs) > 1) == bool({"h", "c"} & set(inputs))


@pytest.mark.filterwarnings("ignore")  # of the exporter
@pytest.mark.parametrize("bidirectional", [False, True])
@BOTH
def test_an_export_of_pytorch(tmp_path, kind, bidirectional):
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript")
    path = str(tmp_path / "net.onnx")
    module = kind(4, 3, 2, bidirectional=bidirectional).eval()
    x = torch.randn(5, 2, 4)
    torch.onnx.export(module, (x,), path, dynamo=True, verbose=False)
    graph = load_network(path)
    found = verify(graph)
    assert found.verified, found.reason
    assert sum(layer.op in ("lstm", "gru") for layer in graph.layers.values()) == 2


@pytest.mark.parametrize(
    ("op", "more", "reason"),
    [
        ("GRU", {"linear_before_reset": 1, "clip": 1.0}, "without clip"),
        ("GRU", {"linear_before_reset": 1, "activations": ["Relu", "Tanh"]}, "standard gates"),
        ("LSTM", {"input_forget": 1}, "standard gates"),
    ],
)
def test_other_cells_are_refused(tmp_path, op, more, reason):
    path = model(tmp_path, op, ["y"], **more)
    with pytest.raises(FileError, match=reason):
        load_network(path)


def test_sequences_of_several_lengths_are_refused(tmp_path):
    inputs = ("x", "w", "r", "b", "lengths")
    weights = {"lengths": np.array([5, 3], np.int32)}
    path = model(tmp_path, "LSTM", ["y"], inputs=inputs, weights=weights)
    with pytest.raises(FileError, match="only sequences that all have the 5 positions of the inp"):
        load_network(path)
