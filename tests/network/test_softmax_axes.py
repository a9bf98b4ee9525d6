"""Softmax along any axis, from ONNX, in the reference and on the core."""

import numpy as np
import pytest
from unit_steps import assert_gradients_are_near_those_in_fp32, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.network.load import load_network

torch = pytest.importorskip("torch", reason="needs the torch extra")
pytest.importorskip("onnx", reason="needs the onnx extra")
from onnx_cases import Machine, cases_of, run_network  # noqa: E402
from onnx_models import agrees_with_onnx, node, random, save  # noqa: E402


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, 3, -2])
def test_results_are_those_of_onnx(tmp_path, op, axis):
    path = save(
        tmp_path / "m--fixed.onnx",
        [node(op, ["x"], ["y"], axis=axis)],
        {"x": [2, 3, 4, 5]},
    )
    graph = agrees_with_onnx(path, x=random(2, 3, 4, 5))
    moved = axis not in (1, 3)
    assert [layer.op for layer in graph.layers.values()].count("transpose") == 2 * moved


@pytest.mark.parametrize(
    "name", ["softmax_axis_0", "softmax_axis_1", "softmax_axis_2", "logsoftmax_axis_0"]
)
def test_cases_of_onnx_run_on_the_core(tmp_path, name):
    """As networks, with the tolerance of functions on the vector engine."""
    operator = "LogSoftmax" if name.startswith("log") else "Softmax"
    case = cases_of(operator)[f"test_{name}"]
    run_network(case, Machine(), tmp_path / "case.onnx").check(case)


def network(path, batch, axis):
    """A convolution, softmax along an axis of its images, and logits."""
    weights = {
        "w": random(4, 2, 3, 3) / 4,
        "head": random(3, 4 * 5 * 6, seed=1) / 4,
        "shape": np.array([batch, 4 * 5 * 6]),
    }
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Softmax", ["c"], ["s"], axis=axis),
        node("Reshape", ["s", "shape"], ["f"]),
        node("Gemm", ["f", "head"], ["y"], transB=1),
    ]
    path = save(path / "net.onnx", nodes, {"x": [batch, 2, 5, 6]}, weights=weights)
    return load_network(path)


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
def test_a_step_is_that_of_pytorch(tmp_path, activations):
    graph = network(tmp_path, 3, 2)
    assert_step_is_that_of_pytorch(graph, activations, near=4e-2, loss=1e-4, cancelled=2e-6)


def test_gradients_are_near_those_in_fp32(tmp_path):
    assert_gradients_are_near_those_in_fp32(network(tmp_path, 4, 2))
