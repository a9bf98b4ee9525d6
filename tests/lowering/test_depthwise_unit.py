"""Networks with depthwise convolutions: a step on the model against PyTorch, and in hardware."""

import pytest
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.network.zoo.layers import Network


def mobile(batch):
    """Inverted residuals as in MobileNet-v2, and a hard swish."""
    net = Network("mobile", batch)
    x = net.conv(net.image(3, 8, 8), 6, 3, padding=1, bias=False)
    x = net.activation(net.batch_norm(x), "relu6")
    for stride in (1, 2):
        y = net.activation(net.batch_norm(net.conv(x, 18, 1, bias=False)), "relu6")
        y = net.conv(y, 18, 3, stride=stride, padding=1, groups=18, bias=False)
        y = net.conv(net.activation(net.batch_norm(y), "hardswish"), 6, 1, bias=False)
        y = net.batch_norm(y)
        x = net.plus(x, y) if stride == 1 else y
    net.linear(net.flatten(net.global_average_pool(x)), 5)
    return net.build()


def odd(batch):
    """Depthwise convolutions first, last, with a bias, and of signals."""
    net = Network("odd", batch)
    x = net.conv(net.image(3, 7, 9), 3, (3, 2), stride=(2, 1), groups=3, padding=1)
    x = net.relu(net.conv(x, 3, 5, padding=2, groups=3))
    x = net.reshape(net.linear(net.flatten(x), 20), batch, 2, 10)
    x = net.conv(x, 2, 3, groups=2, padding=1)
    net.linear(net.flatten(x), 4)
    return net.build()


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", [mobile, odd])
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(4), activations, near=4e-2, loss=1e-4, cancelled=2e-6)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", [mobile, odd])
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
