"""Networks that resize, pad, and take every other element: a step against PyTorch, and hardware."""

import numpy as np
import pytest
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.network import operators as ops
from fpgapipe.network.graph import NetworkError
from fpgapipe.network.operators.axis_map import (
    averages,
    extended,
    interpolation,
    padded_indices,
    selection,
    windows,
)
from fpgapipe.network.operators.tensors import ShapeError
from fpgapipe.network.zoo.layers import Network


def resized(batch):
    """Bilinear resizing, adaptive pooling of both kinds, paddings, and rows of features."""
    net = Network("resized", batch)
    x = net.relu(net.conv(net.image(3, 6, 7), 10, 3, padding=1))
    half = [0.5 * place - 0.25 for place in range(12)]
    up = net.add("down", ops.AxisMap(2, interpolation(half, 6)), x)
    up = net.add("across", ops.AxisMap(3, interpolation([place / 2 for place in range(14)], 7)), up)
    x = net.conv(net.concat([up, net.upsample(x, 2, 2)], 1), 9, 1)
    x = net.add("padded", ops.Pad(((0, 0), (0, 1), (1, 0), (0, 2)), -0.5), x)
    x = net.add("mirrored", ops.AxisMap(3, selection(padded_indices("reflect", 16, 2, 1))), x)
    x = net.add("other", ops.Slice(3, 1, 17, 2), net.conv(x, 12, 3))
    # The largest of windows of 2 and 3 rows, then averages of windows of 2 and 3 columns.
    rows = net.tensor(x).shape[2]
    x = net.add("rows", ops.AxisMap(2, selection(extended(windows(rows, 4)))), x)
    x = net.max_pool(x, (net.tensor(x).shape[2] // 4, 1))
    x = net.add("averages", ops.AxisMap(3, averages(net.tensor(x).shape[3], 3)), x)
    x = net.linear(net.flatten(x), 24)
    x = net.add("features", ops.AxisMap(1, interpolation(np.arange(9) * 23 / 8, 24)), x)
    net.linear(x, 5)
    return net.build()


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
def test_a_step_is_that_of_pytorch(activations):
    assert_step_is_that_of_pytorch(resized(4), activations, near=2e-2, loss=1e-4)


def test_what_reads_beyond_an_axis_is_refused():
    net = Network("beyond", 2)
    x = net.image(3, 4, 4)
    for taps, message in (
        (selection([0, 4]), "reads element 4 of an axis of 4"),
        ((((1, 0.5), (1, 0.5)),), "indices must be at least 0 and increase"),
        ((((0, float("inf")),),), "factors must be finite"),
        ((), "at least one element"),
    ):
        with pytest.raises((ShapeError, NetworkError), match=message):
            net.add("map", ops.AxisMap(2, taps), x)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("reflect", [2, 1, 0, 1, 2, 3, 2]),
        ("replicate", [0, 0, 0, 1, 2, 3, 3]),
        ("circular", [2, 3, 0, 1, 2, 3, 0]),
    ],
)
def test_paddings(kind, expected):
    assert padded_indices(kind, 4, 2, 1) == expected
    if kind != "replicate":
        with pytest.raises(ShapeError, match=f"{kind} padding of an axis of 2 must be at most"):
            padded_indices(kind, 2, 3, 0)


def test_windows_are_those_of_pytorch():
    assert windows(7, 3) == [(0, 3), (2, 5), (4, 7)]
    assert windows(5, 3) == [(0, 2), (1, 4), (3, 5)]
    assert extended(windows(5, 3)) == [0, 1, 1, 1, 2, 3, 3, 4, 4]


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
def test_hardware_equals_the_model():
    assert_hardware_equals_the_model(resized)
