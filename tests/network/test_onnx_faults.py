"""ONNX models that contradict themselves, and what is learned of their initial values."""

import numpy as np
import pytest
from onnx import helper
from onnx_models import agrees_with_onnx, node, random, save

from fpgapipe.errors import FileError
from fpgapipe.network.load import load_network

pytest.importorskip("onnx", reason="needs the onnx extra")


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (
            {"auto_pad": "FOO"},
            "auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, not 'FOO'",
        ),
        (
            {"kernel_shape": [2, 3]},
            "kernel_shape [2, 3] contradicts its weight, whose kernel is [3, 2]",
        ),
    ],
)
def test_convolutions_that_contradict_themselves(tmp_path, settings, fault):
    nodes = [node("Conv", ["x", "w"], ["y"], **settings)]
    weights = {"w": random(6, 4, 3, 2)}
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 4, 9, 8]}, weights=weights)
    with pytest.raises(FileError) as error:
        load_network(path)
    assert error.value.faults == (f"node 'y' (Conv): {fault}",)


@pytest.mark.parametrize(
    ("outputs", "fault"),
    [
        ((), "has no outputs"),
        (("y", "x"), "output 'x' is the input 'x' itself; leave it out"),
        (("y", "z"), "output 'z' is the same as output 'y'; leave it out"),
        (("y", "w"), "output 'w' is a constant; leave it out"),
    ],
)
def test_outputs_that_are_no_layers(tmp_path, outputs, fault):
    nodes = [node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["z"])]
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 4]}, outputs, {"w": random(2)})
    with pytest.raises(FileError) as error:
        load_network(path)
    assert error.value.faults == (fault,)


def test_what_is_learned_goes_on_being_learned_where_it_is_expanded_or_cut(tmp_path):
    nodes = [
        node("Expand", ["token", "shape"], ["tokens"]),
        node("Concat", ["tokens", "x"], ["joined"], axis=1),
        node("Slice", ["place", "start", "end", "axes"], ["places"]),
        node("Add", ["joined", "places"], ["y"]),
    ]
    weights = {"token": random(1, 1, 4), "place": random(1, 9, 4), "shape": np.array([2, 1, 4])}
    weights |= {"start": np.array([0]), "end": np.array([4]), "axes": np.array([1])}
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 3, 4]}, weights=weights)
    graph = agrees_with_onnx(path, x=random(2, 3, 4))
    assert graph.totals.parameters == 4 + 36
    assert graph.layers["places"].op == "slice"


def test_weights_that_are_no_numbers(tmp_path):
    nodes = [node("Gemm", ["x", "w"], ["y"])]
    weight = random(4, 2)
    weight[1, 0] = np.inf
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 4]}, weights={"w": weight})
    with pytest.raises(FileError) as error:
        load_network(path)
    assert error.value.faults == ("node 'y' (Gemm): weight 'w' holds inf at [0, 1]",)


QUANT = {"domain": "qonnx.custom_op.general", "signed": 1, "narrow": 0, "rounding_mode": "ROUND"}
NORMAL = r"must be positive and in 1.1754944e-38..3.4028235e\+38"


@pytest.mark.parametrize("scale", [np.inf, np.nan, 1e-45, 1e-38, 0.0, -1.0])
@pytest.mark.parametrize("what", ["activations", "weights", "product", "qonnx"])
def test_scales_that_are_no_normal_numbers(tmp_path, what, scale):
    """Cores have no subnormal numbers, and infinity times 0 is no number."""
    quantised = [
        node("QuantizeLinear", ["x", "t", "z"], ["q"], name="q"),
        node("DequantizeLinear", ["q", "t", "z"], ["a"], name="a"),
    ]
    weights = {"s": np.float32(scale), "t": np.float32(0.1), "z": np.int8(0)}
    if what == "activations":
        nodes, weights["t"] = [*quantised, node("Relu", ["a"], ["y"])], weights["s"]
    elif what == "qonnx":
        nodes = [node("Quant", ["x", "s", "zero", "eight"], ["y"], name="y", **QUANT)]
        weights |= {"zero": np.float32(0), "eight": np.float32(8)}
    else:
        if what == "product" and scale == 1e-38:
            weights["s"] = np.float32(1e-37)  # times 0.1
        b = node("DequantizeLinear", ["w", "s", "z"], ["b"], name="b")
        nodes = [*quantised, b, node("MatMul", ["a", "b"], ["y"], name="y")]
        weights["w"] = np.ones((3, 4), np.int8)
    imports = [helper.make_opsetid("qonnx.custom_op.general", 1)]
    path = save(
        tmp_path / "m.onnx", nodes, {"x": [2, 3]}, weights=weights, opset=19, imports=imports
    )
    with pytest.raises(FileError, match=NORMAL):
        load_network(path)


@pytest.mark.parametrize("zero", [np.inf, np.nan, 0.5, 1e30])
@pytest.mark.parametrize("name", ["x", "w"])
def test_zero_points_that_are_no_integers_of_eight_bits(tmp_path, name, zero):
    nodes = [
        node("Quant", [name, "s", "zero", "eight"], ["b"], name="b", **QUANT),
        node("MatMul", ["x", "b"] if name == "w" else ["b", "w"], ["y"], name="y"),
    ]
    weights = {"w": random(3, 4), "s": np.float32(0.1), "zero": np.float32(zero)}
    weights["eight"] = np.float32(8)
    imports = [helper.make_opsetid("qonnx.custom_op.general", 1)]
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 3]}, weights=weights, imports=imports)
    fault = r"node 'b' \(Quant\): Quant must have whole numbers in -255..255 as zero points"
    with pytest.raises(FileError, match=fault):
        load_network(path)
