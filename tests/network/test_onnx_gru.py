"""ONNX's GRUs whose reset gate comes before the product: ONNX's cases, autograd, and the core."""

import numpy as np
import pytest
from test_pipeline import ORDERS, SAMPLES, on_one, on_several
from unit_steps import (
    assert_gradients_are_near_those_in_fp32,
    assert_hardware_equals_the_model,
    assert_step_is_that_of_pytorch,
)

from fpgapipe.errors import FileError
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.network.load import load_network

torch = pytest.importorskip("torch", reason="needs the torch extra")
onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
from onnx import numpy_helper  # noqa: E402
from onnx_cases import cases_of  # noqa: E402
from onnx_models import agrees_with_onnx, node, random, save  # noqa: E402

from fpgapipe.host.backends.torch_reference import forward, initial_weights  # noqa: E402

HIDDEN, FEATURES, CLASSES = 5, 4, 6


@pytest.mark.parametrize(
    "name",
    [
        "test_gru_defaults",
        "test_gru_with_initial_bias",
        "test_gru_seq_length",
        "test_gru_bidirectional",
    ],
)
def test_cases_of_onnx(tmp_path, name):
    case = cases_of("GRU")[name]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    given = dict(zip(case.names, case.inputs, strict=True))
    kept = [each for each in model.graph.input if each.name == "X"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(
        numpy_helper.from_array(value, key) for key, value in given.items() if key != "X"
    )
    path = tmp_path / "gru.onnx"
    onnx.save(model, str(path))
    graph = load_network(str(path))
    weights = {key: each.double() for key, each in initial_weights(graph).items()}
    values = forward(graph, weights, {"X": torch.tensor(given["X"]).double()})
    assert len(graph.outputs) == len(case.outputs)
    for output, expected in zip(graph.outputs, case.outputs, strict=True):
        np.testing.assert_allclose(values[output].numpy(), expected, rtol=1e-5, atol=1e-6)


def written(path, *, directions=1, states=(), bias=True, positions=5, samples=2, **more):
    """A model of a GRU alone."""
    wide = 3 * HIDDEN
    weights = {
        "w": random(directions, wide, FEATURES),
        "r": random(directions, wide, HIDDEN, seed=1),
        "b": random(directions, 2 * wide, seed=2),
    }
    inputs = ["x", "w", "r", "b" if bias else "", *states]
    if not bias:
        del weights["b"]
    direction = "bidirectional" if directions == 2 else "forward"
    nodes = [node("GRU", inputs, ["y", "y_h"], hidden_size=HIDDEN, direction=direction, **more)]
    whole = {"x": [positions, samples, FEATURES]}
    if states:
        whole["h"] = [directions, samples, HIDDEN]
    return save(path / "gru--fixed.onnx", nodes, whole, outputs=["y", "y_h"], weights=weights)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(
    ("states", "bias", "positions"), [((), True, 5), (("", "h"), True, 4), (("", "h"), False, 1)]
)
def test_results_are_those_of_onnx(tmp_path, directions, states, bias, positions):
    path = written(tmp_path, directions=directions, states=states, bias=bias, positions=positions)
    values = {"h": random(directions, 2, HIDDEN, seed=3)} if states else {}
    graph = agrees_with_onnx(path, x=random(positions, 2, FEATURES), **values)
    elements = directions * 3 * HIDDEN * (FEATURES + HIDDEN + 2 * bias)
    assert graph.totals.parameters == elements
    assert not any(layer.op == "gru" for layer in graph.layers.values())


def classifier(path, batch, directions=1, positions=3):
    """A GRU over sequences of samples, and logits of its last state."""
    wide = 3 * HIDDEN
    weights = {
        "w": random(directions, wide, FEATURES) / 2,
        "r": random(directions, wide, HIDDEN, seed=1) / 2,
        "b": random(directions, 2 * wide, seed=2) / 2,
        "head": random(CLASSES, directions * HIDDEN, seed=4) / 2,
        "shape": np.array([batch, directions * HIDDEN]),
    }
    direction = "bidirectional" if directions == 2 else "forward"
    nodes = [
        node("Transpose", ["x"], ["turned"], perm=[1, 0, 2]),
        node(
            "GRU", ["turned", "w", "r", "b"], ["", "last"], hidden_size=HIDDEN, direction=direction
        ),
        node("Transpose", ["last"], ["samples"], perm=[1, 0, 2]),
        node("Reshape", ["samples", "shape"], ["state"]),
        node("Gemm", ["state", "head"], ["logits"], transB=1),
    ]
    return save(
        path / "classifier.onnx",
        nodes,
        {"x": [batch, positions, FEATURES]},
        outputs=["logits"],
        weights=weights,
    )


def formula(weights, x, direction):
    """The last state by ONNX's formula, in PyTorch's functions."""
    w, r, b = (weights[name][direction] for name in "wrb")
    h = torch.zeros(len(x), HIDDEN, dtype=x.dtype)
    order = range(x.shape[1])
    for at in reversed(order) if direction else order:
        zw, rw, nw = (x[:, at] @ w.T + b[: 3 * HIDDEN]).chunk(3, 1)
        zb, rb, nb = b[3 * HIDDEN :].chunk(3)
        zr, rr, nr = r.chunk(3)
        update = torch.sigmoid(zw + h @ zr.T + zb)
        reset = torch.sigmoid(rw + h @ rr.T + rb)
        new = torch.tanh(nw + (reset * h) @ nr.T + nb)
        h = (1 - update) * new + update * h
    return h


@pytest.mark.parametrize("directions", [1, 2])
def test_gradients_are_those_of_the_formula(tmp_path, directions):
    """By autograd, in FP64, of all weights and biases."""
    path = classifier(tmp_path, 4, directions)
    stored = {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    leaves = {
        name: torch.tensor(stored[name]).double().requires_grad_()
        for name in ("w", "r", "b", "head")
    }
    x = torch.tensor(random(4, 3, FEATURES, seed=5)).double()
    states = torch.cat([formula(leaves, x, direction) for direction in range(directions)], 1)
    factors = torch.tensor(random(4, CLASSES, seed=6)).double()
    logits = states @ leaves["head"].T
    (logits * factors).sum().backward()

    graph = load_network(path)
    weights = {
        name: each.double().requires_grad_() for name, each in initial_weights(graph).items()
        if each.is_floating_point()
    }  # fmt: skip
    values = forward(graph, weights, {"x": x}, training=True)
    np.testing.assert_allclose(values[graph.outputs[0]].detach(), logits.detach(), rtol=1e-9)
    (values[graph.outputs[0]] * factors).sum().backward()

    def of(direction, suffix, *parts):
        """Gradients of parts of a parameter, which has the name of its first reader."""
        found = []
        for part in parts:
            first = f"{(0, 2)[direction]}.{part}" if part != "input" else part
            end = f"{('', '_reverse')[direction]}.{first}.{suffix}"
            (own,) = (each.grad for name, each in weights.items() if name.endswith(end)
                      and ("_reverse" in name) == bool(direction))  # fmt: skip
            found.append(own)
        return torch.cat(found)

    for direction in range(directions):
        for found, expected in (
            (of(direction, "weight", "input"), leaves["w"].grad),
            (of(direction, "weight", "gates", "new"), leaves["r"].grad),
            (of(direction, "bias", "input"), leaves["b"].grad[:, : 3 * HIDDEN]),
            (of(direction, "bias", "gates", "new"), leaves["b"].grad[:, 3 * HIDDEN :]),
        ):
            np.testing.assert_allclose(found, expected[direction], rtol=1e-9)


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("directions", [1, 2])
def test_a_step_is_that_of_pytorch(tmp_path, directions, activations):
    graph = load_network(classifier(tmp_path, 3, directions))
    assert_step_is_that_of_pytorch(graph, activations, near=4e-2, loss=1e-4, cancelled=2e-6)


def test_gradients_on_the_core_are_near_those_in_fp32(tmp_path):
    assert_gradients_are_near_those_in_fp32(load_network(classifier(tmp_path, 4, 2)))


def test_stages_share_the_weights(tmp_path):
    """The gradients of positions in two stages are added up over the devices."""
    graph = load_network(classifier(tmp_path, SAMPLES))
    names = list(graph.layers)
    middle = next(at for at, name in enumerate(names) if name.endswith(".1.gates"))
    expected = on_one(graph)
    cut = [names[:middle], names[middle:]]
    _, left, found = on_several(graph, cut, "1f1b-as", ORDERS["any"])
    assert not any(left)
    for name, value in expected.items():
        if name != "outcome":
            error = np.linalg.norm(found[name] - value)
            assert error <= 2e-3 * np.linalg.norm(value) + 1e-9, name
    assert found["outcome"][0] == pytest.approx(expected["outcome"][0], rel=1e-5)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine
def test_hardware_equals_the_model(tmp_path):
    assert_hardware_equals_the_model(lambda batch: load_network(classifier(tmp_path, batch)))


def test_long_sequences_are_refused(tmp_path):
    path = written(tmp_path, positions=300)
    with pytest.raises(FileError, match="every position becomes layers of its own: at most 256 "):
        load_network(path)
