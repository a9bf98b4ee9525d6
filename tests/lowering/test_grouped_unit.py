"""Networks with convolutions of several groups: a step against PyTorch, and hardware."""

import pytest
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.network.zoo.layers import Network


def wide(batch):
    """Residuals as in ResNeXt: groups of 32 channels, which lie at whole words, and strides."""
    net = Network("wide", batch)
    x = net.relu(net.conv(net.image(3, 6, 6), 64, 3, padding=1))
    y = net.relu(net.conv(x, 64, 3, padding=1, groups=2, bias=False))
    x = net.plus(x, y)
    x = net.batch_norm(net.conv(x, 32, 3, stride=2, padding=1, groups=2, bias=False))
    net.linear(net.flatten(net.global_average_pool(net.relu(x))), 5)
    return net.build()


def odd(batch):
    """Groups of odd sizes, of images and of signals, several outputs of one channel, a bias."""
    net = Network("odd", batch)
    x = net.conv(net.image(6, 7, 5), 9, (3, 2), stride=(2, 1), groups=3, padding=1)
    x = net.conv(net.relu(x), 18, 3, padding=1, groups=9)
    x = net.conv(net.relu(x), 6, 1, groups=6)
    x = net.reshape(net.linear(net.flatten(x), 24), batch, 4, 6)
    x = net.conv(x, 6, 3, groups=2, padding=1)
    net.linear(net.flatten(x), 4)
    return net.build()


PACKED = {
    "32 by 2": (32, 32, {"groups": 2, "kernel": 3, "padding": 1}),
    "without padding": (32, 32, {"groups": 2, "kernel": 3}),
    "32 by 4, one tap down": (32, 64, {"groups": 4, "kernel": (1, 2), "stride": (2, 1)}),
    "96 by 6, few results": (96, 18, {"groups": 6, "kernel": (2, 3), "padding": (0, 1)}),
    "two results of a channel": (
        48,
        96,
        {"groups": 48, "kernel": (5, 3), "stride": (1, 2), "padding": 1},
    ),
    "signals": (64, 64, {"groups": 4, "kernel": 3, "padding": 1, "sizes": (9,)}),
    "volumes": (
        16,
        32,
        {"groups": 2, "kernel": (2, 2, 3), "padding": 1, "sizes": (2, 3, 4)},
    ),
}
"""Groups of fewer channels than a block, some of which begin at words of memory."""


def packed(name, batch):
    """A grouped convolution between layers, whose taps share blocks."""
    channels, results, options = PACKED[name]
    sizes = options.get("sizes", (6, 5))
    net = Network("packed", batch)
    x = net.relu(net.conv(net.image(2, *sizes), channels, 1))
    given = {key: value for key, value in options.items() if key not in ("sizes", "kernel")}
    x = net.relu(net.conv(x, results, options["kernel"], bias=False, **given))
    net.linear(net.flatten(x), 3)
    return net.build()


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("name", PACKED)
def test_taps_that_share_a_block_have_the_channels_of_one_group(name, activations):
    """Operands that are read where they lie have other groups' channels between their pixels."""
    assert_step_is_that_of_pytorch(packed(name, 2), activations, near=4e-2, loss=1e-4)


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", [wide, odd])
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(4), activations, near=4e-2, loss=1e-4, cancelled=2e-6)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", [wide, odd])
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
