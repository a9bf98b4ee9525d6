"""ONNX operators that become several layers, or none: against ONNX, autograd and the core."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
torch = pytest.importorskip("torch", reason="needs the torch extra")
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_models import gradients_agree, node, random, save, step_agrees  # noqa: E402

from fpgapipe.host.backends.verification import verify  # noqa: E402
from fpgapipe.lowering.units.network_units import refusals_of  # noqa: E402
from fpgapipe.network.load import load_network  # noqa: E402

CLASSES = 5


def whole(path, nodes, shape, weights, *, opset=17, result="a"):
    """A network that ends in a linear layer: imported, verified, and trained one step."""
    head = [
        node("Flatten", [result], ["rows"], name="rows"),
        node("Gemm", ["rows", "head"], ["y"], transB=1, name="logits"),
    ]
    plain = save(path, nodes, {"x": list(shape)}, [result], weights=weights, opset=opset)
    (found,) = ReferenceEvaluator(plain).run(None, {"x": random(*shape)})
    features = found.size // shape[0]
    weights = {**weights, "head": random(CLASSES, features, seed=9)}
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
            if p.spec.trainable and p.name != "logits.weight"
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

    names = {"w": (name, back), "head": ("logits.weight", lambda v: v)}
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
