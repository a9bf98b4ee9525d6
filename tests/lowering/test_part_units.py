"""Networks with concatenations and slices: a step on the model against PyTorch."""

import numpy as np
import pytest
from kernel_cases import REGION, SMALL_REGION, drawn, execute, same_bits
from unit_steps import (
    assert_gradients_are_near_those_in_fp32,
    assert_hardware_equals_the_model,
    assert_step_is_that_of_pytorch,
)

from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.parts import Rows, zero_rows
from fpgapipe.lowering.tiling.kernel import Region, Tensor
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network


def dense(batch):
    """Channels of images and features joined, with one channel, and with a value used twice."""
    net = Network("dense", batch)
    x = net.relu(net.conv(net.image(3, 6, 6), 5, 3, padding=1))
    y = net.relu(net.conv(x, 1, 1))
    x = net.concat([y, x, "input", y])
    x = net.max_pool(net.relu(net.conv(x, 7, 3)), 2)
    flat = net.flatten(x)
    one, two = net.linear(flat, 9), net.linear(flat, 4)
    net.linear(net.relu(net.concat([one, flat, two])), 5)
    return net.build()


def rows(batch):
    """Images joined by rows and by columns."""
    net = Network("rows", batch)
    x = net.relu(net.conv(net.image(3, 6, 5), 4, 3, padding=1))
    y = net.conv(x, 4, 1)
    x = net.concat([x, y], axis=2)
    x = net.concat([x, x, x], axis=-1)
    net.linear(net.flatten(net.relu(net.conv(x, 2, 3, stride=2))), 5)
    return net.build()


def pieces(batch):
    """Splits and slices of channels, of rows, and of features."""
    net = Network("pieces", batch)
    x = net.relu(net.conv(net.image(3, 8, 6), 8, 3, padding=1))
    first, second = net.split(x, 2, 1, "halves")
    x = net.plus(net.conv(first, 4, 1), second)
    x = net.add("middle", ops.Slice(2, 2, 7), x)
    x = net.add("left", ops.Slice(3, 0, 1), net.relu(x))
    x = net.linear(net.flatten(x), 12)
    parts = net.split(x, 3, 1, "thirds")
    net.linear(net.relu(net.concat([parts[2], parts[1], parts[0]])), 5)
    return net.build()


def plain(batch):
    """Values in the order of the network: flattened images, reshaped and joined."""
    net = Network("plain", batch)
    x = net.relu(net.conv(net.image(2, 4, 4), 4, 3, padding=1))
    y = net.reshape(net.linear(net.flatten(x), 32), batch, 2, 16)
    z = net.reshape(net.linear(net.flatten(x), 48), batch, 3, 16)
    net.linear(net.relu(net.flatten(net.concat([y, z]))), 5)
    return net.build()


def steps(batch):
    """Slices with steps: of rows and columns, that divide them or not, of channels and features."""
    net = Network("steps", batch)
    x = net.relu(net.conv(net.image(3, 8, 7), 6, 3, padding=1))
    x = net.add("lines", ops.Slice(2, 1, 8, 2), x)
    x = net.add("columns", ops.Slice(3, 1, 7, 3), x)
    y = net.add("channels", ops.Slice(1, 0, 6, 2), net.conv(x, 6, 1))
    x = net.concat([y, net.add("more", ops.Slice(1, 2, 5, 1), x)])
    x = net.linear(net.flatten(x), 14)
    odd = net.add("odd", ops.Slice(1, 1, 14, 4), x)
    net.linear(net.relu(net.concat([odd, net.add("last", ops.Slice(1, 13, 14, 5), x)])), 5)
    return net.build()


def padded(batch):
    """Zeros around images, around channels, and around rows of features; and none at all."""
    net = Network("padded", batch)
    x = net.relu(net.conv(net.image(3, 4, 5), 3, 3, padding=1))
    x = net.add("around", ops.Pad(((0, 0), (0, 0), (1, 0), (2, 1))), x)
    x = net.add("channels", ops.Pad(((0, 0), (2, 0), (0, 1), (0, 0))), net.conv(x, 2, 3))
    x = net.reshape(net.linear(net.flatten(net.relu(x)), 6), batch, 2, 3)
    x = net.add("nothing", ops.Pad(((0, 0), (0, 0), (0, 0))), x)
    x = net.add("features", ops.Pad(((0, 0), (1, 2), (0, 4))), x)
    net.linear(net.flatten(x), 5)
    return net.build()


NETWORKS = [dense, rows, pieces, plain, steps, padded]


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(4), activations, near=5e-3)


@pytest.mark.parametrize("network", [steps, padded])
def test_gradients_are_near_those_in_fp32(network):
    assert_gradients_are_near_those_in_fp32(network(16))


@pytest.mark.parametrize("element_format", [BF16, FP32], ids=str)
@pytest.mark.parametrize("region", [REGION, SMALL_REGION], ids=str)
@pytest.mark.parametrize(
    ("size", "written"),
    [((1, 1), (5, 1)), ((7, 33), (31, 33)), ((40, 3), (5, 10)), ((3, 2100), (1, 2107))],
)
def test_zeros_of_rows_and_nothing_else(size, written, region, element_format):
    total = written[0] + size[0] * written[1] + 9
    y = Tensor("y", (total,), element_format)
    before = drawn((total,))
    found = execute([zero_rows("z", y, size, Rows(*written), region)], [y], {"y": before})["y"]
    expected = element_format.decode(element_format.encode(before), (total,)).copy()
    inside = (written[0] + written[1] * np.arange(size[0])[:, None] + np.arange(size[1])).ravel()
    expected[inside] = 0
    assert same_bits(found, expected)


def test_zeros_begin_with_a_load():
    """Overwritten values may be read by others: a kernel waits for them with its first load."""
    y, region = Tensor("y", (40,)), Region(0, 1 << 14)
    kernel = zero_rows("z", y, (1, 40), Rows(0, 40), region)
    first, *others = kernel.instructions({"y": 256})
    assert first.opcode is Opcode.LOAD
    assert first.body["memory"] == 256
    assert [each.opcode for each in others] == [Opcode.VECTOR, Opcode.STORE]
    assert kernel.reads == frozenset()


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", NETWORKS)
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
