"""Networks with LSTMs: a step against PyTorch, and hardware."""

import pytest
from unit_steps import (
    assert_gradients_are_near_those_in_fp32,
    assert_hardware_equals_the_model,
    assert_step_is_that_of_pytorch,
)

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network


def language(batch):
    """Two stacked layers between an embedding and a head."""
    net = Network("language", batch)
    x = net.embedding(net.tokens("tokens", 5), 20, 12)
    x = net.lstm(net.lstm(x, 16), 8)
    net.linear(x, 20)
    return net.build()


def both_ways(batch):
    """Odd sizes, two directions, and a layer behind whose input is a network's."""
    net = Network("both_ways", batch)
    x = net.lstm(net.image(4, 7), 5, bidirectional=True)
    x = net.lstm(net.relu(x), 3, bidirectional=True)
    net.linear(net.flatten(x), 6)
    return net.build()


def bare(batch):
    """Without biases; more positions than samples, and a reader besides."""
    net = Network("bare", batch)
    x = net.linear(net.image(9, 6), 6)
    y = net.add("lstm", ops.Lstm(6, bias=False), x)
    net.linear(net.flatten(net.plus(x, y)), 4)
    return net.build()


def alone(batch):
    """A single position."""
    net = Network("alone", batch)
    net.linear(net.flatten(net.lstm(net.linear(net.image(1, 6), 6), 7)), 4)
    return net.build()


NETWORKS = [language, both_ways, bare, alone]


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("samples", [1, 3, 6])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_pytorch(network, samples, activations):
    assert_step_is_that_of_pytorch(network(samples), activations, near=4e-2, loss=1e-4)


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_near_those_in_fp32(network):
    """Of PyTorch's own LSTM."""
    assert_gradients_are_near_those_in_fp32(network(4))


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", [language, both_ways, bare])
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
