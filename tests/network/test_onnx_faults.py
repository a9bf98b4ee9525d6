"""ONNX models that contradict themselves, and what is learned of their initial values."""

import numpy as np
import pytest
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
