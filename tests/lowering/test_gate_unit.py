"""Networks whose channels have gates: a step on the model against PyTorch, and in hardware."""

import pytest
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network


def squeezed(batch):
    """A squeeze-and-excitation block as in MobileNet-v3, and one before the first layer."""
    net = Network("squeezed", batch)
    x = net.image(3, 8, 8)
    x = net.add("scaled", ops.Binary("mul"), x, net.global_average_pool(x))
    x = net.activation(net.batch_norm(net.conv(x, 18, 3, padding=1, bias=False)), "hardswish")
    y = net.relu(net.conv(net.global_average_pool(x), 5, 1))
    y = net.activation(net.conv(y, 18, 1), "hardsigmoid")
    x = net.conv(net.add("gated", ops.Binary("mul"), y, x), 6, 1)
    net.linear(net.flatten(net.max_pool(x, 2)), 5)
    return net.build()


def moved(batch):
    """Sums and differences of images and their averages; signals as well."""
    net = Network("moved", batch)
    x = net.relu(net.conv(net.image(3, 6, 5), 4, 3, padding=1))
    x = net.conv(net.add("centred", ops.Binary("sub"), x, net.global_average_pool(x)), 4, 1)
    x = net.add("raised", ops.Binary("add"), net.global_average_pool(x), x)
    x = net.reshape(net.linear(net.flatten(x), 30), batch, 3, 10)
    y = net.reshape(net.linear(net.flatten(x), 3), batch, 3, 1)
    x = net.add("signal", ops.Binary("mul"), x, y)
    net.linear(net.flatten(x), 5)
    return net.build()


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", [squeezed, moved])
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(4), activations, near=2e-2, cancelled=2e-6)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", [squeezed, moved])
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
