"""Sums and means over some axes: a step against PyTorch, and hardware."""

import pytest
from unit_steps import (
    assert_gradients_are_near_those_in_fp32,
    assert_hardware_equals_the_model,
    assert_step_is_that_of_pytorch,
)

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network


def times(net, one, other):
    return net.add(net.fresh_name("product"), ops.Binary("mul"), one, other)


def images(batch):
    """Images with their channels last: over channels, over rows, and over both kinds."""
    net = Network("images", batch)
    x = net.activation(net.conv(net.image(3, 6, 5), 6, 3, padding=1), "sigmoid")
    y = times(net, x, net.add("channels", ops.Reduce("mean", (1,), True), x))
    y = times(net, y, net.add("lines", ops.Reduce("sum", (2,), True), x))
    y = net.conv(y, 4, 3)
    columns = net.add("columns", ops.Reduce("mean", (-1,)), y)
    one = net.add("one", ops.Reduce("sum", (1, 3)), y)
    x = net.activation(net.concat([net.flatten(columns), one]), "tanh")
    net.linear(x, 5)
    return net.build()


def rows(batch):
    """Rows of features, as a transformer's: over features, over positions, and over samples."""
    net = Network("rows", batch)
    x = net.reshape(net.linear(net.flatten(net.image(2, 3)), 45), batch, 3, 15)
    squares = net.add("mean", ops.Reduce("mean", (2,), True), times(net, x, x))
    x = times(net, x, net.activation(squares, "sigmoid"))
    y = net.add("positions", ops.Reduce("mean", (1,)), x)
    z = net.plus(y, net.add("samples", ops.Reduce("mean", (0,)), y))
    z = net.add("none", ops.Reduce("sum", (1,)), net.reshape(z, batch, 1, 15))
    net.linear(z, 5)
    return net.build()


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", [images, rows])
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(3), activations, near=2e-2, loss=1e-4)


@pytest.mark.parametrize("network", [images, rows])
def test_gradients_are_near_those_in_fp32(network):
    assert_gradients_are_near_those_in_fp32(network(8))


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", [images, rows])
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
