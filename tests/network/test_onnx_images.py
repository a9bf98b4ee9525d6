"""ONNX operators on images: resizing, transposed convolutions, normalisation of groups."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs the onnx extra")
from onnx_models import agrees_with_onnx, node, random, save

from fpgapipe.errors import FileError
from fpgapipe.network.load import load_network


@pytest.mark.parametrize(
    ("settings", "opset"),
    [
        ({"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, 13),
        ({}, 13),
        ({"nearest_mode": "round_prefer_ceil"}, 19),
        ({"mode": "nearest"}, 9),
    ],
)
def test_pixels_are_repeated(tmp_path, settings, opset):
    op, inputs = ("Upsample", ["x", "s"]) if opset == 9 else ("Resize", ["x", "", "s"])
    scales = {"s": np.float32([1, 1, 2, 3])}
    nodes = [node(op, inputs, ["y"], **settings)]
    save(tmp_path / "n.onnx", nodes, {"x": [2, 3, 4, 5]}, weights=scales, opset=opset)
    agrees_with_onnx(str(tmp_path / "n.onnx"), x=random(2, 3, 4, 5))


@pytest.mark.parametrize(
    ("settings", "scales", "message"),
    [
        ({"mode": "linear", "antialias": 1}, [1, 1, 2, 2], "only without antialias"),
        (
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            [1, 1, 1.5, 2],
            "only positions without a region of interest, not tf_crop",
        ),
    ],
)
def test_other_ways_to_resize_are_refused(tmp_path, settings, scales, message):
    nodes = [node("Resize", ["x", "", "s"], ["y"], **settings)]
    weights = {"s": np.float32(scales)}
    save(tmp_path / "n.onnx", nodes, {"x": [2, 3, 4, 5]}, weights=weights, opset=19)
    with pytest.raises(FileError, match=message):
        load_network(str(tmp_path / "n.onnx"))


@pytest.mark.parametrize(
    ("op", "settings"),
    [
        ("GroupNormalization", {"num_groups": 2, "epsilon": 0.01}),
        ("InstanceNormalization", {}),
    ],
)
def test_normalisations_of_groups(tmp_path, op, settings):
    nodes = [node(op, ["x", "w", "b"], ["y"], **settings)]
    weights = {"w": random(6, seed=1), "b": random(6, seed=2)}
    path = tmp_path / "n.onnx"
    save(path, nodes, {"x": [2, 6, 4, 5]}, weights=weights, opset=21)
    graph = agrees_with_onnx(str(path), x=random(2, 6, 4, 5))
    assert graph.totals.parameters == 12


def test_scales_of_groups_are_refused(tmp_path):
    """Until opset 21, a scale belonged to a group, not to a channel."""
    nodes = [node("GroupNormalization", ["x", "w", "b"], ["y"], num_groups=2)]
    weights = {"w": random(2), "b": random(2)}
    save(tmp_path / "n.onnx", nodes, {"x": [2, 6, 4, 5]}, weights=weights, opset=18)
    with pytest.raises(FileError, match="GroupNormalization"):
        load_network(str(tmp_path / "n.onnx"))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strides": [2, 3], "pads": [0, 1, 1, 0], "output_padding": [1, 2]},
        {"group": 2, "dilations": [2, 1]},
    ],
)
def test_transposed_convolutions(tmp_path, settings):
    groups = settings.get("group", 1)
    weights = {"w": random(4, 6 // groups, 3, 2), "b": random(6, seed=1)}
    path = tmp_path / "n.onnx"
    save(path, [node("ConvTranspose", ["x", "w", "b"], ["y"], **settings)], {"x": [2, 4, 4, 5]},
         weights=weights)  # fmt: skip
    if groups == 1:
        agrees_with_onnx(str(path), x=random(2, 4, 4, 5))
    else:  # ONNX's reference does not compute groups
        assert load_network(str(path)).layers["y"].output.shape == (2, 6, 8, 6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auto_pad": "SAME_UPPER"}, "not by auto_pad"),
        ({"output_shape": [9, 9]}, "not by output_shape"),
        ({"kernel_shape": [2, 2]}, r"kernel_shape \[2, 2\] contradicts"),
        ({"output_padding": [1, 0]}, "less than the stride"),
    ],
)
def test_other_transposed_convolutions_are_refused(tmp_path, settings, message):
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], **settings)]
    weights = {"w": random(4, 6, 3, 2)}
    save(tmp_path / "n.onnx", nodes, {"x": [2, 4, 4, 5]}, weights=weights)
    with pytest.raises(FileError, match=message):
        load_network(str(tmp_path / "n.onnx"))
