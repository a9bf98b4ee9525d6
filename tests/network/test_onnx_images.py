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


@pytest.mark.parametrize("scales", [(1.5, 2.3), (0.5, 0.7)])
def test_aligned_corners_are_those_of_the_whole_output(tmp_path, scales):
    """5 times 1.5 are 7 elements, the last of which lies on the last of the input."""
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    from fpgapipe.host.backends.torch_reference import forward, initial_weights

    own = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    weights = {"s": np.float32([1, 1, *scales])}
    nodes = [node("Resize", ["x", "", "s"], ["y"], **own)]
    save(tmp_path / "n.onnx", nodes, {"x": [2, 3, 5, 7]}, weights=weights)
    graph = load_network(str(tmp_path / "n.onnx"))
    x = torch.from_numpy(random(2, 3, 5, 7))
    found = forward(graph, initial_weights(graph), {"x": x})[graph.outputs[0]]
    sizes = tuple(int(size * scale) for size, scale in zip((5, 7), scales, strict=True))
    expected = torch.nn.functional.interpolate(x, sizes, mode="bilinear", align_corners=True)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("opset", [9, 10, 13])
def test_sizes_are_rounded_as_in_fp32(tmp_path, opset):
    """20 / 12 lies below 5 / 3 in FP32, but its product with 12 is 20."""
    op, inputs = ("Upsample", ["x", "s"]) if opset == 9 else ("Resize", ["x", "s"])
    inputs = ["x", "", "s"] if opset == 13 else inputs
    weights = {"s": np.float32([1, 1, 20 / 12, 30 / 7])}
    nodes = [node(op, inputs, ["y"], mode="linear")]
    save(tmp_path / "n.onnx", nodes, {"x": [2, 3, 12, 7]}, weights=weights, opset=opset)
    graph = load_network(str(tmp_path / "n.onnx"))
    assert graph.layers[graph.outputs[0]].output.shape == (2, 3, 20, 30)


def test_nearest_elements_of_opset_10_are_refused_where_it_does_not_say_which(tmp_path):
    save(tmp_path / "n.onnx", [node("Resize", ["x", "s"], ["y"])], {"x": [2, 3, 5, 7]},
         weights={"s": np.float32([1, 1, 1, 0.7])}, opset=10)  # fmt: skip
    message = (
        "opset 10 does not say which of 7 elements the 4 nearest are; export it with opset 11 or "
        "newer$"
    )
    with pytest.raises(FileError, match=message):
        load_network(str(tmp_path / "n.onnx"))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_an_even_window_of_channels_has_the_extra_one_behind(tmp_path, size):
    """In PyTorch it lies in front."""
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    from fpgapipe.host.backends.torch_reference import forward
    from fpgapipe.network.graph import GraphBuilder
    from fpgapipe.network.operators import LocalResponseNorm
    from fpgapipe.network.operators.tensors import Tensor

    x = random(2, 8, 3, 4)
    nodes = [node("LRN", ["x"], ["y"], size=size, alpha=0.5, beta=0.6, bias=1.5)]
    save(tmp_path / "n.onnx", nodes, {"x": [2, 8, 3, 4]})
    found = forward(load_network(str(tmp_path / "n.onnx")), {}, {"x": torch.from_numpy(x)})["y"]
    for channel in range(8):
        low, high = channel - (size - 1) // 2, channel + size // 2
        total = np.square(x[:, max(low, 0) : high + 1]).sum(axis=1)
        want = x[:, channel] / (1.5 + 0.5 / size * total) ** 0.6
        np.testing.assert_allclose(found[:, channel], want, rtol=1e-5)

    builder = GraphBuilder("local", 2)
    builder.add("y", LocalResponseNorm(size, 0.5, 0.6, 1.5), builder.input("x", Tensor(x.shape)))
    own = forward(builder.build(), {}, {"x": torch.from_numpy(x)})["y"]
    module = torch.nn.LocalResponseNorm(size, 0.5, 0.6, 1.5)
    torch.testing.assert_close(own, module(torch.from_numpy(x)))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_named_padding_of_dilated_windows_is_refused(tmp_path, op):
    """onnxruntime makes it as large as for windows without dilation; ONNX's text does not."""
    own = {"kernel_shape": [3, 3], "dilations": [2, 2], "auto_pad": "SAME_UPPER"}
    save(tmp_path / "n.onnx", [node(op, ["x"], ["y"], **own)], {"x": [2, 3, 9, 10]}, opset=19)
    with pytest.raises(FileError, match="auto_pad with dilations means other sizes to other "):
        load_network(str(tmp_path / "n.onnx"))


@pytest.mark.parametrize(
    ("shape", "count"), [((1,), 1), ((), 1), ((1, 1, 1), 1), ((5, 1, 1), 5), ((1, 5, 1, 1), 5)]
)
def test_slopes_are_learned_as_many_as_there_are(tmp_path, shape, count):
    weights = {"a": random(*shape)}
    save(tmp_path / "n.onnx", [node("PRelu", ["x", "a"], ["y"])], {"x": [2, 5, 5, 5]},
         weights=weights)  # fmt: skip
    graph = agrees_with_onnx(str(tmp_path / "n.onnx"), x=random(2, 5, 5, 5))
    assert graph.totals.parameters == count


@pytest.mark.parametrize("shape", [(5,), (5, 1), (1, 5, 1), (5, 1, 5)])
def test_slopes_of_positions(tmp_path, shape):
    """As many as channels, but along another axis."""
    save(tmp_path / "n.onnx", [node("PRelu", ["x", "a"], ["y"])], {"x": [2, 5, 5, 5]},
         weights={"a": random(*shape)})  # fmt: skip
    graph = agrees_with_onnx(str(tmp_path / "n.onnx"), x=random(2, 5, 5, 5))
    assert graph.totals.parameters == np.prod(shape)


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
        ({"output_shape": [9, 9]}, "a result of 9 would need padding of less than 0"),
        ({"kernel_shape": [2, 2]}, r"kernel_shape \[2, 2\] contradicts"),
        ({"output_padding": [1, 0]}, "less than the stride"),
    ],
)
def test_impossible_transposed_convolutions_are_refused(tmp_path, settings, message):
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], **settings)]
    weights = {"w": random(4, 6, 3, 2)}
    save(tmp_path / "n.onnx", nodes, {"x": [2, 4, 4, 5]}, weights=weights)
    with pytest.raises(FileError, match=message):
        load_network(str(tmp_path / "n.onnx"))
