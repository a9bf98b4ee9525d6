"""ONNX models of old opsets, and those that ONNX's reference evaluator does not compute rightly."""

from dataclasses import replace

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
torch = pytest.importorskip("torch", reason="needs the torch extra")
from onnx_models import node, random, save  # noqa: E402

from fpgapipe.errors import FileError  # noqa: E402
from fpgapipe.host.backends import verification  # noqa: E402
from fpgapipe.host.backends.torch_reference import forward, initial_weights  # noqa: E402
from fpgapipe.host.backends.verification import verified, verify  # noqa: E402
from fpgapipe.network.load import load_network  # noqa: E402
from fpgapipe.network.operators import Affine  # noqa: E402


def quantised(path, opset):
    """A convolution between pairs, with a dequantised weight and bias, as quantisers write it."""
    axis = {"axis": 0} if opset >= 13 else {}
    weights = {
        "xs": np.float32(0.03),
        "xz": np.uint8(120),
        "w": np.random.default_rng(0).integers(-128, 128, (4, 3, 3, 3)).astype(np.int8),
        "ws": np.full(4, 0.01, np.float32) if axis else np.float32(0.01),
        "wz": np.zeros(4, np.int8) if axis else np.int8(0),
        "b": np.arange(-400, 400, 200).astype(np.int32),
        "bs": np.full(4, 0.0003, np.float32) if axis else np.float32(0.0003),
        "bz": np.zeros(4, np.int32) if axis else np.int32(0),
        "ys": np.float32(0.1),
    }
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], **axis),
        node("DequantizeLinear", ["b", "bs", "bz"], ["bd"], **axis),
        node("Conv", ["d", "wd", "bd"], ["c"], pads=[1, 1, 1, 1]),
        node("QuantizeLinear", ["c", "ys", "xz"], ["r"]),
        node("DequantizeLinear", ["r", "ys", "xz"], ["y"]),
    ]
    return save(path, nodes, {"x": ["N", 3, 6, 6]}, weights=weights, opset=opset)


@pytest.mark.parametrize("opset", [10, 11, 12, 13, 16, 18, 19, 21])
def test_quantised_models_of_every_opset(opset, tmp_path):
    """Below opset 19 the reference evaluator has no DequantizeLinear; it folds and verifies."""
    found = verify(load_network(quantised(tmp_path / "q.onnx", opset), 2))
    assert found.verified, found
    assert (found.source, found.precision) == ("ONNX's reference evaluator", "float64")


NORM = {
    "s": random(8),
    "b": random(8, seed=2),
    "m": random(8, seed=3),
    "v": np.abs(random(8, seed=4)) + 0.1,
}


@pytest.mark.parametrize(
    ("op", "attributes", "weights", "opset"),
    [
        ("BatchNormalization", {"epsilon": 0.1}, NORM, 9),
        ("BatchNormalization", {"epsilon": 0.1}, NORM, 13),
        ("Softmax", {}, {}, 9),
        ("Softmax", {"axis": 2}, {}, 12),
        ("LogSoftmax", {"axis": -2}, {}, 11),
        ("LRN", {"size": 3, "alpha": 0.5}, {}, 13),
        ("LRN", {"size": 5, "alpha": 0.5}, {}, 26),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_kernels_that_the_evaluator_has_for_other_opsets(op, attributes, weights, opset, tmp_path):
    """More channels than samples: LRN's own kernel computes the first channels only."""
    nodes = [node(op, ["x", *weights], ["y"], **attributes)]
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 8, 3, 4]}, weights=weights, opset=opset)
    found = verify(load_network(path))
    assert found.verified, found
    assert (found.source, found.precision) == ("ONNX's reference evaluator", "float64")


def pooled(tmp_path):
    """A model that the reference evaluator computes otherwise: its result has other sizes."""
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    nodes = [node("MaxPool", ["x"], ["y"], **attributes)]
    return load_network(save(tmp_path / "p.onnx", nodes, {"x": [2, 3, 9, 10]}, opset=13))


def test_onnxruntime_is_asked_where_the_evaluator_differs(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the onnxruntime extra")
    found = verify(pooled(tmp_path))
    assert found.verified, found
    assert (found.source, found.precision) == ("onnxruntime", "float32")


def test_without_onnxruntime_the_reason_names_it(monkeypatch, tmp_path):
    monkeypatch.setattr(verification, "has_runtime", lambda: False)
    found = verify(pooled(tmp_path))
    assert found.verified is False
    assert found.reason == (
        "the result 'y' in evaluation is off by inf; "
        "onnxruntime, which might agree with it, is not installed"
    )


@pytest.mark.parametrize("factor", [1.0001, 1.1])
def test_onnxruntime_does_not_excuse_a_wrong_network(factor, tmp_path):
    """FP32 does not see the smaller error, so only the evaluator can tell."""
    path = save(tmp_path / "m.onnx", [node("Relu", ["x"], ["r"]), node("Mul", ["r", "c"], ["y"])],
                {"x": [2, 3]}, weights={"c": np.float32(3.0)})  # fmt: skip
    graph = load_network(path)
    layers = {
        name: replace(layer, operator=Affine(3.0 * factor)) if name == "y" else layer
        for name, layer in graph.layers.items()
    }
    found = verify(replace(graph, layers=layers))
    assert found.verified is False
    assert found.source == "ONNX's reference evaluator"


def exported_for_training(path, opset):
    """Convolution, batch normalisation and dropout as PyTorch writes them for training."""
    newer = {"training_mode": 1} if opset >= 14 else {}
    further = [f"n{i}" for i in range(2 if newer else 4)]  # running statistics, and the batch's
    names = {"ratio": np.float32(0.4), "training": np.bool_(True)} if opset >= 12 else {}
    ratio = {} if names else {"ratio": 0.4}
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("BatchNormalization", ["c", *NORM], ["n", *further], momentum=0.8, **newer),
        node("Dropout", ["n", *names], ["y", "mask"], **ratio),
    ]
    weights = {"w": random(8, 3, 3, 3), **NORM, **names}
    return save(path, nodes, {"x": ["N", 3, 6, 6]}, weights=weights, opset=opset)


@pytest.mark.parametrize("opset", [9, 11, 12, 13, 14, 15, 21])
def test_a_model_exported_for_training_is_verified_and_trains(opset, tmp_path):
    """It is compared in evaluation; in training it normalises with the batch and drops values."""
    graph = load_network(exported_for_training(tmp_path / "t.onnx", opset), 4)
    found = verified(graph, train=True)
    assert found.verified, found
    assert found.precision == "float64"

    x = torch.from_numpy(random(4, 3, 6, 6, seed=9))
    weights = initial_weights(graph)
    torch.manual_seed(0)
    values = forward(graph, weights, {"x": x}, training=True)
    sums = torch.conv2d(x, torch.from_numpy(random(8, 3, 3, 3)))
    mean = torch.from_numpy(NORM["m"].copy())
    variance = torch.from_numpy(NORM["v"].copy())
    scale, shift = torch.from_numpy(NORM["s"]), torch.from_numpy(NORM["b"])
    expected = torch.nn.functional.batch_norm(sums, mean, variance, scale, shift, True, 0.2)
    torch.testing.assert_close(values["n"], expected)
    names = {each.spec.role: each.name for each in graph.layers["n"].parameters}
    torch.testing.assert_close(weights[names["running_mean"]], mean)
    torch.testing.assert_close(weights[names["running_var"]], variance)
    dropped = (values["y"] == 0).float().mean()
    assert 0.25 < dropped < 0.55
    kept = values["y"] != 0
    torch.testing.assert_close(values["y"][kept], expected[kept] / 0.6)


def test_a_training_mode_that_the_network_computes_is_refused(tmp_path):
    nodes = [node("Dropout", ["x", "r", "t"], ["y"])]
    inputs = {"x": [2, 3], "t": ([], onnx.TensorProto.BOOL)}
    path = save(tmp_path / "d.onnx", nodes, inputs, weights={"r": np.float32(0.4)})
    with pytest.raises(
        FileError, match=r"node 'y' \(Dropout\): its training_mode is not constant$"
    ):
        load_network(path)
