"""Entries of tensors at fixed places: a step against PyTorch, and hardware."""

import numpy as np
import pytest
from unit_steps import (
    assert_gradients_are_near_those_in_fp32,
    assert_hardware_equals_the_model,
    assert_step_is_that_of_pytorch,
)

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.units.network_units import refusals_of
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network

PLACES = tuple(int(each) for each in np.random.default_rng(0).integers(0, 40, 35))
"""Places of which some repeat, and some rows of the table are never read."""


def biases(batch):
    """A learned table whose entries are added to every sample, as relative positions are."""
    net = Network("biases", batch)
    x = net.linear(net.flatten(net.image(2, 3, 3)), 105, name="hidden")
    table = net.add("table", ops.Constant((40, 3), trainable=True))
    rows = net.add("rows", ops.Select(PLACES), table)
    x = net.add("places", ops.Reshape((batch, 35, 3)), x)
    x = net.plus(x, rows)
    net.linear(net.flatten(x), 5)
    return net.build()


def images(batch):
    """Entries of what is computed, with several axes behind: samples that come twice or never."""
    net = Network("images", batch)
    x = net.conv(net.image(3, 4, 5), 6, 3, padding=1)
    x = net.add("again", ops.Select((1, 0, *(1 for _ in range(batch - 2)))), x)
    net.linear(net.flatten(net.relu(x)), 4)
    return net.build()


def one(batch):
    """A table of one entry with one number."""
    net = Network("one", batch)
    x = net.linear(net.flatten(net.image(1, 2, 2)), 3, name="hidden")
    table = net.add("table", ops.Constant((1,), trainable=True))
    rows = net.add("rows", ops.Select((0, 0, 0)), table)
    net.linear(net.plus(x, rows), 2)
    return net.build()


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", [biases, images, one])
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(4), activations, near=4e-2, loss=1e-4, cancelled=2e-6)


@pytest.mark.parametrize("network", [biases, images, one])
def test_gradients_are_near_those_in_fp32(network):
    _, gradients = assert_gradients_are_near_those_in_fp32(network(4))
    if network is biases:
        unused = np.setdiff1d(np.arange(40), PLACES)
        assert unused.size
        assert not gradients["table.value"][unused].any()
        assert (gradients["table.value"][list(PLACES)] != 0).all()


def test_too_many_rows_are_refused():
    net = Network("many", 2)
    x = net.linear(net.flatten(net.image(1, 2, 2)), 3)
    table = net.add("table", ops.Constant((65537, 3), trainable=True))
    net.linear(net.plus(x, net.add("rows", ops.Select((65536, 0)), table)), 2)
    assert [str(each) for each in refusals_of(net.build(), train=True)] == [
        "layer 'rows': a selection must have a table of 1..65536 rows, not 65537"
    ]


@pytest.mark.sim
@pytest.mark.parametrize("network", [biases, images])
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
