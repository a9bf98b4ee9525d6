"""ONNX operators that become several layers, or none: against ONNX, autograd and the core."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
torch = pytest.importorskip("torch", reason="needs the torch extra")
from onnx_models import gradients_agree, node, random, save, step_agrees  # noqa: E402

from fpgapipe.errors import FileError  # noqa: E402
from fpgapipe.host.backends.verification import verify  # noqa: E402
from fpgapipe.lowering.units.network_units import refusals_of  # noqa: E402
from fpgapipe.network.frontends.onnx.onnx_kernels import session  # noqa: E402
from fpgapipe.network.load import load_network  # noqa: E402

CLASSES = 5


def whole(path, nodes, shape, weights, *, opset=17, result="a"):
    """A network that ends in a linear layer: imported, verified, and trained one step."""
    head = [
        node("Flatten", [result], ["rows"], name="rows"),
        node("Gemm", ["rows", "head"], ["y"], transB=1, name="logits"),
    ]
    plain = save(path, nodes, {"x": list(shape)}, [result], weights=weights, opset=opset)
    (found,) = session(onnx.load(plain)).run(None, {"x": random(*shape)})
    features = found.size // shape[0]
    weights = {**weights, "head": random(CLASSES, features, seed=9) / 10}
    path = save(path, [*nodes, *head], {"x": list(shape)}, weights=weights, opset=opset)
    graph = load_network(path)
    found = verify(graph)
    assert found.verified, found.reason
    return graph


def learned(graph):
    """Names of what the graph learns, but for the head."""
    return sorted(
        {
            p.name
            for layer in graph.layers.values()
            for p in layer.parameters
            if p.spec.trainable and p.name != "head"
        }
    )


@pytest.mark.parametrize(
    "bounds",
    [(), ("", ""), ("low", "high"), ("", "high")],
    ids=["none", "empty", "infinite", "one infinite"],
)
def test_clip_without_bounds_does_nothing(tmp_path, bounds):
    nodes = [node("Clip", ["x", *bounds], ["a"], name="clip")]
    weights = {"low": np.float32(-np.inf), "high": np.float32(np.inf)}
    graph = whole(tmp_path / "m.onnx", nodes, (4, 6), weights)
    assert [each.op for each in graph.layers.values()] == ["flatten", "linear"]
    step_agrees(graph, x=random(4, 6, seed=1))


VECTORS = {
    "weight on the right": ((4, 3, 6), "x", "w", (6,)),
    "weight on the left": ((4, 6, 3), "w", "x", (6,)),
    "matrix with a leading axis": ((4, 3, 6), "x", "w", (1, 6, 7)),
}


@pytest.mark.parametrize("form", VECTORS)
def test_products_with_vectors(tmp_path, form):
    shape, one, two, of_weight = VECTORS[form]
    nodes = [node("MatMul", [one, two], ["a"], name="product")]
    weights = {"w": random(*of_weight)}
    graph = whole(tmp_path / "m.onnx", nodes, shape, weights)
    (name,) = learned(graph)
    x = random(*shape, seed=1)

    def run(x, w, head):
        return ((x @ w) if one == "x" else (w @ x)).flatten(1) @ head.T

    def back(value):
        return (value.T if len(of_weight) > 1 else value).reshape(of_weight)

    names = {"w": (name, back), "head": ("head", lambda v: v)}
    gradients_agree(graph, run, names, x=x)
    step_agrees(graph, x=x)


def test_products_of_vectors_that_are_computed(tmp_path):
    nodes = [
        node("ReduceMean", ["x"], ["v"], axes=[0, 1], keepdims=0, name="v"),
        node("MatMul", ["x", "v"], ["y"], name="y"),
        node("MatMul", ["v", "v"], ["z"], name="z"),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 3, 4]}, ["y", "z"])
    graph = load_network(path)
    found = verify(graph)
    assert found.verified, found.reason
    assert [graph.layers[name].output.shape for name in graph.outputs] == [(2, 3), ()]


def test_a_result_that_is_one_number_is_refused(tmp_path):
    nodes = [
        node("Gemm", ["x", "w"], ["a"], name="a"),
        node("ReduceMean", ["a"], ["y"], keepdims=0, name="y"),
    ]
    graph = load_network(
        save(tmp_path / "m.onnx", nodes, {"x": [2, 3]}, weights={"w": random(3, 4)})
    )
    for train in (False, True):
        (refusal,) = refusals_of(graph, train=train)
        assert refusal.layer == "y"
        assert "is one number for all samples; give each sample a result" in refusal.reason


FORMS = {
    "tile": ([node("Tile", ["x", "two"], ["a"])], (2, 3, 4), 17),
    "depth to space": ([node("DepthToSpace", ["x"], ["a"], blocksize=2)], (2, 8, 3, 4), 17),
    "depth to space, by columns": (
        [node("DepthToSpace", ["x"], ["a"], blocksize=2, mode="CRD")],
        (2, 8, 3, 4),
        17,
    ),
    "space to depth": ([node("SpaceToDepth", ["x"], ["a"], blocksize=2)], (2, 3, 4, 6), 17),
    "mean": ([node("Mean", ["x", "x", "row"], ["a"])], (2, 3, 4), 17),
    "mean of one": ([node("Relu", ["x"], ["r"]), node("Mean", ["r"], ["a"])], (2, 3, 4), 17),
    "rms normalisation": ([node("RMSNormalization", ["x", "row"], ["a"])], (2, 3, 4), 23),
    "rms normalisation of two axes": (
        [node("RMSNormalization", ["x", "plane"], ["a"], axis=1, epsilon=1e-3)],
        (2, 3, 4),
        23,
    ),
    "rms normalisation with a scale for all": (
        [node("RMSNormalization", ["x", "one"], ["a"])],
        (2, 3, 4),
        23,
    ),
    "layer normalisation with a scale for a part": (
        [node("LayerNormalization", ["x", "row", "one"], ["a"], axis=1)],
        (2, 3, 4),
        17,
    ),
    "group normalisation by groups": (
        [node("GroupNormalization", ["x", "pair", "pair2"], ["a"], num_groups=2)],
        (2, 4, 3, 3),
        18,
    ),
    "group normalisation by channels": (
        [node("GroupNormalization", ["x", "row", "row2"], ["a"], num_groups=2)],
        (2, 4, 3, 3),
        21,
    ),
}
NUMBERS = {
    "two": np.array([1, 2, 3]),
    "one": random(1),
    "pair": random(2),
    "pair2": random(2, seed=4),
    "row": random(4),
    "row2": random(4, seed=4),
    "plane": random(3, 4),
}


def used(nodes, weights=NUMBERS):
    read = {name for each in nodes for name in each.input}
    return {name: value for name, value in weights.items() if name in read}


@pytest.mark.parametrize("name", FORMS)
def test_operators(tmp_path, name):
    nodes, shape, opset = FORMS[name]
    weights = used(nodes)
    graph = whole(tmp_path / "m.onnx", nodes, shape, weights, opset=opset)
    floats = [value for value in weights.values() if value.dtype == np.float32]
    head = graph.values["head"].size
    assert graph.totals.parameters == head + sum(value.size for value in floats)
    step_agrees(graph, x=random(*shape, seed=1))


SUMS = [
    ("bij,jk->bik", (2, 3, 4), (4, 5)),
    ("bij,bkj->bik", (2, 3, 4), None),
    ("...j,jk->...k", (2, 3, 4), (4, 5)),
    ("bij,bij->bij", (2, 3, 4), None),
    ("bij,jk", (2, 3, 4), (4, 5)),
    ("bij->bji", (2, 3, 4), None),
    ("bij->bi", (2, 3, 4), None),
    ("bij,kl->bik", (2, 3, 4), (5, 6)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), None),
    ("b...,...k->b...k", (2, 3), (3, 5)),
    ("bij,jk,kl->bil", (2, 3, 4), (4, 4)),
]


@pytest.mark.parametrize(("equation", "shape", "other"), SUMS)
def test_einsum(tmp_path, equation, shape, other):
    names = {1: ["x"], 2: ["x", "w" if other else "x"], 3: ["x", "w", "w"]}
    inputs = names[equation.split("->")[0].count(",") + 1]
    nodes = [node("Einsum", inputs, ["a"], equation=equation)]
    weights = {"w": random(*other)} if other else {}
    graph = whole(tmp_path / "m.onnx", nodes, shape, weights)
    x = random(*shape, seed=1)

    def run(x, head, w=None):
        given = {"x": x, "w": w}
        found = torch.einsum(equation, *(given[name] for name in inputs))
        return found.flatten(1) @ head.T

    own = {"w": ("w", lambda v: v)} if other else {}
    gradients_agree(graph, run, {"head": ("head", lambda v: v), **own}, x=x)
    step_agrees(graph, x=x)


@pytest.mark.parametrize(
    ("equation", "fault"),
    [
        ("bii->bi", "only with each axis of a tensor once"),
        ("bij,jk->bk", "is of 2 tensors, not of 1"),
        ("bijk->bi", "does not fit a tensor of 3 axes"),
        ("bij->bz", "has axes that no tensor has"),
    ],
)
def test_sums_that_are_refused(tmp_path, equation, fault):
    nodes = [node("Einsum", ["x"], ["y"], equation=equation)]
    with pytest.raises(FileError, match=fault):
        load_network(save(tmp_path / "m.onnx", nodes, {"x": [2, 3, 3]}))


@pytest.mark.parametrize(
    "settings",
    [
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"output_shape": [8, 9], "strides": [2, 2]},
        {"output_shape": [8, 9], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_UPPER", "group": 2, "strides": [2, 1]},
        {"auto_pad": "VALID", "strides": [2, 2], "group": 2},
        {"group": 2, "pads": [1, 0, 0, 1], "dilations": [2, 1]},
    ],
)
def test_transposed_convolutions(tmp_path, settings):
    nodes = [node("ConvTranspose", ["x", "w", "b"], ["a"], **settings)]
    weights = {"w": random(4, 6 // settings.get("group", 1), 3, 4), "b": random(6)}
    graph = whole(tmp_path / "m.onnx", nodes, (2, 4, 4, 4), weights)
    step_agrees(graph, x=random(2, 4, 4, 4, seed=1))


def test_a_transposed_convolution_that_is_too_small(tmp_path):
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], output_shape=[40, 8], strides=[2, 2])]
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 4, 4, 4]}, weights={"w": random(4, 6, 3, 4)})
    with pytest.raises(FileError, match="give 9 elements along an axis, and a result of 40"):
        load_network(path)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "GRU with the reset first"])
@pytest.mark.parametrize(
    ("direction", "layout", "initial"),
    [("reverse", 0, False), ("reverse", 1, True), ("forward", 1, True), ("bidirectional", 1, True)],
)
def test_recurrent_layers(tmp_path, op, direction, layout, initial):
    kind, lstm = op[:4].strip(), op == "LSTM"
    more = {"linear_before_reset": 1} if op == "GRU" else {}
    gates, ways, hidden = 4 if lstm else 3, 2 if direction == "bidirectional" else 1, 5
    states = ["h", "c"][: 2 if lstm else 1] if initial else []
    inputs = ["x" if layout else "t", "w", "r", "b", "", *states]
    recurrent = node(
        kind, inputs, ["ys", "yh", "yc"][: 3 if lstm else 2], hidden_size=hidden,
        direction=direction, layout=layout, **more,
    )  # fmt: skip
    first = [] if layout else [node("Transpose", ["x"], ["t"], perm=[1, 0, 2])]
    turn = [] if layout else [2, 0, 1, 3], [] if layout else [1, 0, 2]
    nodes = [*first, recurrent]
    rows = []
    for name in recurrent.output:
        own = f"{name}2"
        perm = turn[0 if name == "ys" else 1]
        nodes += [node("Transpose", [name], [own], perm=perm)] if perm else []
        nodes.append(node("Flatten", [own if perm else name], [f"{name}3"]))
        rows.append(f"{name}3")
    nodes.append(node("Concat", rows, ["a"], axis=1))
    shape = (2, ways, hidden) if layout else (ways, 2, hidden)
    weights = {
        "w": random(ways, gates * hidden, 4),
        "r": random(ways, gates * hidden, hidden, seed=1),
        "b": random(ways, 2 * gates * hidden, seed=2),
        **{name: random(*shape, seed=3 + i) for i, name in enumerate(states)},
    }
    graph = whole(tmp_path / "m.onnx", nodes, (2, 3, 4), weights, opset=14)
    step_agrees(graph, x=random(2, 3, 4, seed=7))
