"""Networks with layer normalisation and softmax: a step on the model against PyTorch."""

import pytest
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network


def rows(batch):
    """Rows of features normalised with and without scale and shift, and over two axes."""
    net = Network("rows", batch)
    x = net.linear(net.image(3, 8), 10)
    x = net.add("one", ops.LayerNorm(), x)
    x = net.activation(net.linear(x, 20), "gelu")
    x = net.add("plain", ops.LayerNorm(affine=False), x)
    x = net.linear(net.add("unshifted", ops.LayerNorm(bias=False), x), 6)
    x = net.add("rms", ops.LayerNorm(bias=False, centred=False), x)
    x = net.add("both", ops.LayerNorm(num_axes=2, epsilon=1e-3), x)
    net.linear(net.flatten(x), 5)
    return net.build()


def images(batch):
    """Images normalised in the network's order behind a convolution, and softmax as a gate."""
    net = Network("images", batch)
    x = net.conv(net.image(3, 6, 5), 4, 3, padding=1)
    x = net.conv(net.add("norm", ops.LayerNorm(num_axes=3), x), 4, 1)
    y = net.add("channels", ops.Softmax(axis=1), x)
    x = net.add("gated", ops.Binary("mul"), y, x)
    x = net.add("columns", ops.Softmax(axis=-1), x)
    x = net.linear(net.flatten(x), 20)
    x = net.add("log", ops.Softmax(log=True), x)
    net.linear(x, 5)
    return net.build()


def triangles(batch):
    """A causal softmax of square matrices."""
    net = Network("triangles", batch)
    x = net.linear(net.image(3, 8), 17)
    x = net.reshape(net.linear(net.flatten(x), 2 * 9 * 9), batch, 2, 9, 9)
    x = net.add("causal", ops.Softmax(causal=True), x)
    net.linear(net.flatten(x), 5)
    return net.build()


def groups(batch):
    """Groups of channels, and single channels, normalised over all positions."""
    net = Network("groups", batch)
    x = net.conv(net.image(3, 7, 6), 12, 3, padding=1)
    for number, channels in enumerate((4, 1)):
        name = f"groups{number}"
        shape = net.tensor(x).shape
        y = net.reshape(x, batch, 12 // channels, -1)
        y = net.add(f"{name}.norm", ops.LayerNorm(affine=False), y)
        y = net.reshape(y, *shape)
        for function in ("mul", "add"):
            number = net.add(f"{name}.{function}.values", ops.Constant((12,), trainable=True))
            number = net.reshape(number, 12, 1, 1)
            y = net.add(f"{name}.{function}", ops.Binary(function), y, number)
        x = net.conv(net.relu(y), 12, 3, bias=False)
    net.linear(net.flatten(x), 5)
    return net.build()


def wide(batch):
    """All of an image normalised together, which has no room on chip, and many channels."""
    net = Network("wide", batch)
    x = net.conv(net.image(1, 60, 60), 3, 3, padding=1, bias=False)
    x = net.batch_norm(net.reshape(x, batch, 3 * 60 * 60, 1, 1))
    x = net.add("norm", ops.LayerNorm(num_axes=3), net.reshape(x, batch, 3, 60, 60))
    x = net.average_pool(net.relu(x), 10)
    net.linear(net.flatten(x), 5)
    return net.build()


NETWORKS = [rows, images, triangles, groups, wide]


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(4), activations, near=1e-2, cancelled=2e-6)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", NETWORKS)
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
