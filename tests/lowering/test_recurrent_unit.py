"""Networks with recurrent layers: a step against PyTorch, and hardware."""

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


def gated(batch):
    """Layers of gated recurrent units, stacked, of one direction and of two."""
    net = Network("gated", batch)
    x = net.embedding(net.tokens("tokens", 5), 20, 12)
    x = net.gru(net.gru(x, 16), 7, bidirectional=True)
    net.linear(x, 20)
    return net.build()


def gated_bare(batch):
    """Gated recurrent units without biases, and over a single position."""
    net = Network("gated_bare", batch)
    x = net.linear(net.image(9, 6), 6)
    y = net.add("gru", ops.Gru(6, bidirectional=True, bias=False), x)
    z = net.gru(net.add("first", ops.Slice(1, 0, 1), y), 5)
    net.linear(net.concat([net.flatten(y), net.flatten(z)]), 4)
    return net.build()


def learned(batch):
    """States before the first position that are learned, fixed, and one value twice."""
    net = Network("learned", batch)

    def state(name, width, *, trainable=True):
        value = net.add(name, ops.Constant((1, width), trainable=trainable))
        return net.add(f"{name}.all", ops.Expand((batch, width)), value)

    x = net.image(3, 6)
    x = net.lstm(x, 5, state("h1", 5), state("c1", 5))
    x = net.gru(x, 4, state("h2", 8), bidirectional=True)
    same = state("h3", 5)
    x = net.lstm(x, 5, same, same)
    x = net.lstm(x, 6, state("h4", 6, trainable=False), state("c4", 6))
    net.linear(net.flatten(x), 4)
    return net.build()


def decoder(batch):
    """Layers that begin with the last states of others, or what a linear layer makes of them."""
    net = Network("decoder", batch)
    x = net.image(4, 7)
    y = net.lstm(x, 3, bidirectional=True, final_cell=True)
    cell = net.flatten(net.add("cell", ops.Slice(1, 4, 5), y))
    y = net.add("states", ops.Slice(1, 0, 4), y)
    hidden = net.flatten(net.add("last", ops.Slice(1, 3, 4), y))
    z = net.lstm(y, 6, hidden, cell)
    y = net.gru(y, 5, net.activation(net.linear(hidden, 5), "tanh"))
    z = net.gru(z, 6, net.flatten(net.add("end", ops.Slice(1, 3, 4), z)), bidirectional=False)
    net.linear(net.concat([net.flatten(y), net.flatten(z)]), 4)
    return net.build()


def cells_alone(batch):
    """Nothing but the last cell states of a layer of two directions is read; one position."""
    net = Network("cells_alone", batch)
    y = net.lstm(net.linear(net.image(1, 6), 6), 5, bidirectional=True, final_cell=True)
    net.linear(net.flatten(net.add("cell", ops.Slice(1, 1, 2), y)), 4)
    return net.build()


NETWORKS = [
    language, both_ways, bare, alone, gated, gated_bare, learned, decoder, cells_alone,
]  # fmt: skip


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("samples", [1, 3, 6])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_pytorch(network, samples, activations):
    assert_step_is_that_of_pytorch(network(samples), activations, near=4e-2, loss=1e-4)


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_near_those_in_fp32(network):
    """Of PyTorch's own layers."""
    assert_gradients_are_near_those_in_fp32(network(4))


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", [language, both_ways, bare, gated, learned, decoder])
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
