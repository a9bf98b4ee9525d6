"""Networks with transposed convolutions: a step against PyTorch, and hardware."""

import pytest
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network


def unet(batch):
    """A U-Net of two levels that goes up by windows side by side."""
    net = Network("unet", batch)
    first = net.relu(net.conv(net.image(3, 6, 8), 10, 3, padding=1))
    low = net.relu(net.conv(net.max_pool(first, 2), 34, 3, padding=1))
    up = net.conv_transpose(low, 10, 2, stride=2)
    x = net.relu(net.conv(net.concat([first, up], 1), 5, 3, padding=1))
    net.linear(net.flatten(net.global_average_pool(x)), 5)
    return net.build()


def odd(batch):
    """Windows that overlap, gaps between windows, padding of all kinds, and signals."""
    net = Network("odd", batch)
    x = net.conv(net.image(3, 5, 4), 9, 3, padding=1)
    x = net.conv_transpose(
        net.relu(x), 7, (3, 2), stride=(2, 3), padding=[(1, 0), (0, 1)], output_padding=(1, 2)
    )
    x = net.add(
        "far",
        ops.ConvTranspose(6, (2, 2), (1, 1), ((1, 1), (0, 0)), (0, 0), (2, 1), bias=False),
        net.relu(x),
    )
    x = net.reshape(net.linear(net.flatten(net.global_average_pool(net.relu(x))), 12), batch, 3, 4)
    x = net.conv_transpose(x, 4, 1, stride=2)
    net.linear(net.flatten(net.relu(x)), 5)
    return net.build()


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", [unet, odd])
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(4), activations, near=4e-2, loss=1e-4, cancelled=2e-6)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", [unet, odd])
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
