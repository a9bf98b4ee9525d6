"""ONNX models with other weights: each is put back where the import has read it."""

from functools import partial

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import node, random, save

from fpgapipe.errors import FileError
from fpgapipe.network.frontends.onnx.onnx_model import read_onnx
from fpgapipe.network.frontends.onnx.onnx_weights import model_with
from fpgapipe.network.initial_values import initial_parameters


def written(path, change=lambda value: value * 1.5 + 0.25, keep=()):
    """The model before and after its learned parameters were changed, and the change."""
    graph = read_onnx(path)
    changed = {
        parameter.name: graph.values[parameter.name]
        if parameter.name in keep or not parameter.spec.trainable
        else change(graph.values[parameter.name]).astype(np.float32)
        for layer in graph.layers.values()
        for parameter in layer.parameters
    }
    after = path.with_name("after.onnx")
    after.write_bytes(model_with(graph, graph.source, changed))
    return graph, changed, after


def initializers(path):
    return {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}


def assert_read_again(graph, changed, after):
    """The new model is the same network with the new values."""
    found = read_onnx(after)
    assert list(found.layers) == list(graph.layers)
    assert found.values.keys() == changed.keys()
    for name, value in changed.items():
        np.testing.assert_allclose(found.values[name], value, rtol=1e-6, err_msg=name)


MODELS = {
    "linear layers, one transposed, one times two": partial(
        save,
        nodes=[
            node("Gemm", ["x", "w0", "b0"], ["h"], transB=1),
            node("MatMul", ["h", "w1"], ["g"]),
            node("Gemm", ["g", "w2", "b2"], ["y"], alpha=2.0, beta=0.5),
        ],
        inputs={"x": [2, 6]},
        weights={
            "w0": random(8, 6),
            "b0": random(8),
            "w1": random(8, 8, seed=1),
            "w2": random(8, 3),
            "b2": random(3),
        },
    ),
    "a convolution with batch normalisation": partial(
        save,
        nodes=[
            node("Conv", ["x", "w", "b"], ["h"], pads=[1, 1, 1, 1]),
            node("BatchNormalization", ["h", "s", "t", "m", "v"], ["y"]),
        ],
        inputs={"x": [2, 3, 5, 5]},
        weights={
            "w": random(4, 3, 3, 3),
            "b": random(4),
            "s": random(4),
            "t": random(4),
            "m": random(4),
            "v": np.abs(random(4)) + 1,
        },
    ),
    "an LSTM in both directions": partial(
        save,
        nodes=[node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=4, direction="bidirectional")],
        inputs={"x": [5, 2, 3]},
        weights={"w": random(2, 16, 3), "r": random(2, 16, 4), "b": random(2, 32)},
    ),
    "a GRU": partial(
        save,
        nodes=[node("GRU", ["x", "w", "r", "b"], ["y"], hidden_size=4, linear_before_reset=1)],
        inputs={"x": [5, 2, 3]},
        weights={"w": random(1, 12, 3), "r": random(1, 12, 4), "b": random(1, 24)},
    ),
    "a weight that two layers share": partial(
        save,
        nodes=[
            node("Gemm", ["x", "w", "b"], ["h"], transB=1),
            node("Relu", ["h"], ["g"]),
            node("Gemm", ["g", "w", "c"], ["y"], transB=1),
        ],
        inputs={"x": [2, 6]},
        weights={"w": random(6, 6), "b": random(6), "c": random(6, seed=2)},
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_weights_are_put_where_they_were_read(tmp_path, kind):
    path = tmp_path / "before.onnx"
    MODELS[kind](path)
    graph, changed, after = written(path)
    assert_read_again(graph, changed, after)
    old, new = initializers(path), initializers(after)
    assert old.keys() == new.keys()
    learned = {
        p.name for each in graph.layers.values() for p in each.parameters if p.spec.trainable
    }
    for name, value in old.items():
        assert new[name].shape == value.shape
        assert new[name].dtype == value.dtype
        if name not in ("m", "v"):
            assert not np.array_equal(new[name], value), name
        if name in learned:
            np.testing.assert_array_equal(new[name], changed[name])


@pytest.mark.parametrize("kind", MODELS)
def test_unchanged_weights_keep_their_bits(tmp_path, kind):
    path = tmp_path / "before.onnx"
    MODELS[kind](path)
    _, _, after = written(path, change=lambda value: value)
    for name, value in initializers(path).items():
        np.testing.assert_array_equal(initializers(after)[name], value)


def test_running_statistics_are_written(tmp_path):
    path = tmp_path / "before.onnx"
    MODELS["a convolution with batch normalisation"](path)
    graph = read_onnx(path)
    values = {**initial_parameters(graph, 0), "m": random(4, seed=5), "v": np.full(4, 2.5, "f4")}
    after = tmp_path / "after.onnx"
    after.write_bytes(model_with(graph, graph.source, values))
    for name in ("m", "v"):
        np.testing.assert_array_equal(initializers(after)[name], values[name])


def test_the_gates_are_in_onnx_order(tmp_path):
    """ONNX computes the same with the new weights as with those put in by hand."""
    path = tmp_path / "before.onnx"
    MODELS["a GRU"](path)
    _, _, after = written(path)
    by_hand = onnx.load(path)
    for each in by_hand.graph.initializer:
        value = numpy_helper.to_array(each) * np.float32(1.5) + np.float32(0.25)
        each.CopyFrom(numpy_helper.from_array(value, each.name))
    x = {"x": random(5, 2, 3)}
    (wanted,) = ReferenceEvaluator(by_hand).run(None, x)
    (found,) = ReferenceEvaluator(onnx.load(after)).run(None, x)
    np.testing.assert_array_equal(found, wanted)


def test_weights_keep_the_models_type(tmp_path):
    path = tmp_path / "before.onnx"
    save(
        path,
        [node("Cast", ["w"], ["v"], to=1), node("Gemm", ["x", "v"], ["y"], transB=1)],
        {"x": [2, 6]},
        weights={"w": random(3, 6).astype(np.float16)},
    )
    graph = read_onnx(path)
    (name,) = (p.name for each in graph.layers.values() for p in each.parameters)
    with pytest.raises(FileError) as error:
        model_with(graph, graph.source, {name: np.zeros((3, 6), np.float32)})
    assert str(error.value) == (
        f"{path}: {name} is computed from other tensors, where it cannot be put back"
    )


def test_two_values_of_one_tensor_are_refused(tmp_path):
    """A shift and a mean that began as one tensor have become two."""
    path = tmp_path / "before.onnx"
    weights = {"s": random(3), "m": random(3), "v": np.ones(3, "f4")}
    nodes = [node("BatchNormalization", ["x", "s", "m", "m", "v"], ["y"])]
    save(path, nodes, {"x": [2, 3, 5, 5]}, weights=weights)
    graph = read_onnx(path)
    values = {name: value.copy() for name, value in graph.values.items()}
    assert model_with(graph, graph.source, values)
    (mean,) = (name for name in values if name.endswith("running_mean"))
    values[mean] += 1
    with pytest.raises(FileError, match=r"has other values than another part of m$"):
        model_with(graph, graph.source, values)
