"""ONNX initializers that are read in several places and ways are one parameter each."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
torch = pytest.importorskip("torch", reason="needs the torch extra")
from onnx import TensorProto  # noqa: E402
from onnx_models import gradients_agree, node, random, save, step_agrees  # noqa: E402

from fpgapipe.errors import FileError  # noqa: E402
from fpgapipe.host.backends.verification import verify  # noqa: E402
from fpgapipe.network.load import load_network  # noqa: E402

N = 8
X = random(N, N, seed=1)
TOKENS = np.array([3, 1, 7, 0, 5, 2, 2, 6])


def gemm(x, y, transposed, weight="w"):
    return node("Gemm", [x, weight], [y], transB=int(transposed), name=y)


def right(x, y, weight="w"):
    return node("MatMul", [x, weight], [y], name=y)


def left(x, y):
    return node("MatMul", ["w", x], [y], name=y)


FORMS = {
    "gemm 0, gemm 1": ([gemm("x", "a", 0), gemm("a", "y", 1)], lambda x, w: x @ w @ w.T),
    "gemm 1, gemm 0": ([gemm("x", "a", 1), gemm("a", "y", 0)], lambda x, w: x @ w.T @ w),
    "right, left": ([right("x", "a"), left("a", "y")], lambda x, w: w @ (x @ w)),
    "left, right": ([left("x", "a"), right("a", "y")], lambda x, w: w @ x @ w),
    "right, gemm 1": ([right("x", "a"), gemm("a", "y", 1)], lambda x, w: x @ w @ w.T),
    "right, right": ([right("x", "a"), right("a", "y")], lambda x, w: x @ w @ w),
    "gather, right": (
        [node("Gather", ["w", "t"], ["a"], name="a"), right("a", "y")],
        lambda t, w: w[t] @ w,
    ),
    "right, gather": (
        [
            right("x", "a"),
            node("Gather", ["w", "t"], ["b"], name="b"),
            node("Add", ["a", "b"], ["y"], name="y"),
        ],
        lambda x, t, w: x @ w + w[t],
    ),
    "gather, head": (
        [
            node("Gather", ["w", "t"], ["a"], name="a"),
            node("Transpose", ["w"], ["wt"], perm=[1, 0]),
            right("a", "y", "wt"),
        ],
        lambda t, w: w[t] @ w.T,
    ),
    "right, add": (
        [right("x", "a"), node("Add", ["a", "w"], ["y"], name="y")],
        lambda x, w: x @ w + w,
    ),
    "mul, right": (
        [node("Mul", ["x", "w"], ["a"], name="a"), right("a", "y")],
        lambda x, w: (x * w) @ w,
    ),
    "right, concat": (
        [right("x", "a"), node("Concat", ["a", "w"], ["y"], axis=1, name="y")],
        lambda x, w: torch.cat((x @ w, w), 1),
    ),
    "times 2, right": (
        [node("Gemm", ["x", "w"], ["a"], alpha=2.0, name="a"), right("a", "y")],
        lambda x, w: 2 * x @ w @ w,
    ),
    "slice, right": (
        [
            node("Slice", ["w", "zero", "four", "zero"], ["half"]),
            right("x", "a"),
            node("Gemm", ["a", "half"], ["y"], transB=1, name="y"),
        ],
        lambda x, w: x @ w @ w[:4].T,
    ),
}


def imported(path, nodes, weights, **inputs):
    shapes = {
        name: (value.shape, TensorProto.INT64) if value.dtype == np.int64 else list(value.shape)
        for name, value in inputs.items()
    }
    return load_network(save(path, nodes, shapes, weights=weights))


@pytest.mark.parametrize("form", FORMS)
def test_an_initializer_is_one_parameter_in_whatever_way_it_is_read(tmp_path, form):
    nodes, run = FORMS[form]
    weights = {"w": random(N, N), "zero": np.array([0]), "four": np.array([4])}
    read = {name for each in nodes for name in each.input}
    inputs = {name: value for name, value in (("x", X), ("t", TOKENS)) if name in read}
    graph = imported(tmp_path / "m.onnx", nodes, weights, **inputs)
    assert graph.totals.parameters == N * N
    found = verify(graph)
    assert found.verified, found.reason
    ((name, value),) = graph.values.items()
    turned = not np.array_equal(value, weights["w"])
    np.testing.assert_array_equal(value.T if turned else value, weights["w"])
    gradients_agree(graph, run, {"w": (name, lambda v: v.T if turned else v)}, **inputs)
    step_agrees(graph, **inputs)


def test_parts_of_an_initializer_are_parameters_of_their_own(tmp_path):
    nodes = [
        node("Split", ["w"], ["w1", "w2"], axis=1),
        node("MatMul", ["x", "w1"], ["a"], name="a"),
        node("MatMul", ["x", "w2"], ["b"], name="b"),
        node("Add", ["a", "b"], ["y"], name="y"),
    ]
    graph = imported(tmp_path / "m.onnx", nodes, {"w": random(N, 2 * N)}, x=X)
    assert [each.op for each in graph.layers.values()] == ["linear", "linear", "add"]
    assert verify(graph).verified


def test_what_no_layer_can_read_in_two_ways_is_refused_by_name(tmp_path):
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="a"),
        node("Reshape", ["w", "shape"], ["kernel"]),
        node("Reshape", ["a", "image"], ["b"]),
        node("Conv", ["b", "kernel"], ["y"], name="conv"),
    ]
    weights = {"w": random(N, N), "shape": np.array([N, N, 1]), "image": np.array([N, N, 1])}
    fault = (
        r"node 'conv' \(Conv\): its weight is 'kernel' in another arrangement than that in which "
        "other nodes read it, and both would be learned; give it an initializer of its own"
    )
    with pytest.raises(FileError, match=fault):
        imported(tmp_path / "m.onnx", nodes, weights, x=X)


ONES, ZEROS = np.ones(N, np.float32), np.zeros(N, np.float32)
BATCH_NORMS = {
    "a fresh one": (["ones", "zeros", "zeros", "ones"], 2 * N),
    "scale is shift": (["w", "w", "zeros", "ones"], N),
    "all are one": (["ones", "ones", "ones", "ones"], N),
    "scale is mean": (["w", "zeros", "w", "ones"], 2 * N),
}


@pytest.mark.parametrize("form", BATCH_NORMS)
def test_batch_norm_whose_inputs_are_one_initializer(tmp_path, form):
    """Learned parameters are apart from statistics, and mean from variance."""
    inputs, learned = BATCH_NORMS[form]
    nodes = [
        node("BatchNormalization", ["x", *inputs], ["a"], name="norm"),
        node("Gemm", ["a", "v"], ["y"], transB=1, name="head"),
    ]
    weights = {"ones": ONES, "zeros": ZEROS, "w": random(N, seed=3), "v": random(5, N, seed=2)}
    graph = imported(tmp_path / "m.onnx", nodes, weights, x=X)
    assert graph.totals.parameters == learned + 5 * N
    assert verify(graph).verified
    scale, shift, mean, variance = inputs
    statistics = {"running_mean": weights[mean], "running_var": weights[variance]}
    names = {p.spec.role: p.name for layer in graph.layers.values() for p in layer.parameters}
    for role, value in statistics.items():
        np.testing.assert_array_equal(graph.values[names[role]], value)

    def run(x, v, one, two=None):
        norm = torch.nn.functional.batch_norm(x, None, None, one, one if two is None else two, True)
        return norm @ v.T

    learned = {"v": ("v", lambda v: v), "one": (scale, lambda v: v)}
    if scale != shift:
        learned["two"] = (shift, lambda v: v)
    gradients_agree(graph, run, learned, x=X)
    after = step_agrees(graph, x=X)
    np.testing.assert_allclose(
        after[names["running_mean"]], 0.9 * weights[mean] + 0.1 * X.mean(0), atol=1e-5
    )


def test_layer_norm_whose_scale_and_shift_are_one_initializer(tmp_path):
    nodes = [
        node("LayerNormalization", ["x", "w", "w"], ["a"], name="norm"),
        node("Gemm", ["a", "v"], ["y"], transB=1, name="head"),
    ]
    weights = {"w": random(N, seed=3), "v": random(5, N, seed=2)}
    graph = imported(tmp_path / "m.onnx", nodes, weights, x=X)
    assert graph.totals.parameters == N + 5 * N
    assert verify(graph).verified
    norm = torch.nn.functional.layer_norm
    names = {"v": ("v", lambda v: v), "w": ("w", lambda v: v)}
    gradients_agree(graph, lambda x, v, w: norm(x, (N,), w, w) @ v.T, names, x=X)
    step_agrees(graph, x=X)


def test_what_is_learned_is_apart_from_what_is_constant(tmp_path):
    """Numbers of Constant nodes are learned by a convolution, and are constant where added."""
    value = onnx.numpy_helper.from_array(random(N, N))
    nodes = [
        node("Constant", [], ["c"], value=value),
        node("Gemm", ["x", "c"], ["a"], transB=1, name="product"),
        node("Add", ["a", "c"], ["y"], name="y"),
    ]
    graph = imported(tmp_path / "m.onnx", nodes, {}, x=X)
    assert graph.totals.parameters == N * N
    assert verify(graph).verified
    after = step_agrees(graph, x=X)
    np.testing.assert_array_equal(after["c.value"], random(N, N))


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
@pytest.mark.parametrize("recurrent", ["r", "w"])
def test_recurrent_layers_share_weights(tmp_path, op, recurrent):
    """Two layers may have the same weights; one layer may not read one weight twice."""
    wide = (4 if op == "LSTM" else 3) * N
    more = {"hidden_size": N} if op == "LSTM" else {"hidden_size": N, "linear_before_reset": 1}
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node(op, ["t", "w", recurrent], ["a"], name="one", **more),
        node("Squeeze", ["a", "one"], ["b"]),
        node(op, ["b", "w", recurrent], ["", "y"], name="two", **more),
        node("Flatten", ["y"], ["flat"], axis=2),
        node("Gemm", ["flat", "v"], ["logits"], transB=1, name="head"),
    ]
    weights = {
        "w": random(1, wide, N),
        "r": random(1, wide, N, seed=7),
        "one": np.array([1]),
        "v": random(5, N),
    }
    path = save(tmp_path / "m.onnx", nodes, {"x": [4, 3, N]}, ["logits"], weights)
    if recurrent == "w":
        with pytest.raises(FileError, match="weight_ih and weight_hh are one parameter"):
            load_network(path)
        return
    graph = load_network(path)
    assert graph.totals.parameters == 2 * wide * N + 5 * N
    assert verify(graph).verified
    step_agrees(graph, x=random(4, 3, N, seed=3))


@pytest.mark.parametrize("shape", [(1,), (3, 1, 1), (1, 1, 3)])
def test_prelu_learns_the_slopes_that_there_are(tmp_path, shape):
    x, slope = random(2, 3, 3, 3, seed=1), random(*shape)
    nodes = [
        node("PRelu", ["x", "s"], ["a"], name="prelu"),
        node("Flatten", ["a"], ["b"]),
        node("Gemm", ["b", "v"], ["y"], transB=1, name="head"),
    ]
    graph = imported(tmp_path / "m.onnx", nodes, {"s": slope, "v": random(5, 27)}, x=x)
    assert graph.totals.parameters == slope.size + 5 * 27
    assert verify(graph).verified

    def run(x, s, v):
        return torch.where(x < 0, x * s, x).flatten(1) @ v.T

    (own,) = graph.values.keys() - {"v"}
    names = {"s": (own, lambda v: v.reshape(shape)), "v": ("v", lambda v: v)}
    gradients_agree(graph, run, names, x=x)
    step_agrees(graph, x=x)


def test_parameters_have_the_names_and_layouts_of_initializers(tmp_path):
    """Transposed ones, too; other names are not those of initializers, of layers or twice there."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="one.weight"),
        node("Add", ["a", "two"], ["b"], name="one"),
        node("Slice", ["wide", "zero", "n"], ["part"]),
        node("Gemm", ["b", "part"], ["c"], transB=1, name="two"),
        node("Gemm", ["c", "two.weight"], ["y"], transB=1, name="w"),
    ]
    weights = {
        "w": random(N, N), "two": random(N, seed=2), "wide": random(2 * N, N, seed=3),
        "two.weight": random(5, N, seed=4), "zero": np.array([0]), "n": np.array([N]),
    }  # fmt: skip
    graph = imported(tmp_path / "m.onnx", nodes, weights, x=X)
    for name in ("w", "two", "two.weight"):
        np.testing.assert_array_equal(graph.values[name], weights[name], err_msg=name)
    (other,) = graph.values.keys() - {"w", "two", "two.weight"}
    np.testing.assert_array_equal(graph.values[other], weights["wide"][:N])
    assert not graph.values.keys() & graph.layers.keys()
    assert verify(graph).verified

    def run(x, w, two, wide, head):
        return (x @ w + two) @ wide[:N].T @ head.T

    names = {"w": "w", "two": "two", "wide": other, "head": "two.weight"}
    gradients_agree(graph, run, {key: (name, lambda v: v) for key, name in names.items()}, x=X)
    step_agrees(graph, x=X)
