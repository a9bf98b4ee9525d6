"""Networks with products of activations and transpositions: a step against PyTorch."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.units.layers.transpose_unit import merged
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network


def attention(batch, *, rows=8, heads=2, width=16, causal=True, rate=0.0):
    """Self-attention of several heads behind a linear layer."""
    net = Network("attention", batch)
    x = net.linear(net.image(rows, 8), heads * width)
    parts = net.split(net.linear(x, 3 * heads * width), 3, 2, "qkv")
    q, k, v = (
        net.add(f"turned{number}", ops.Transpose((0, 2, 1, 3)),
                net.reshape(part, batch, rows, heads, width))
        for number, part in enumerate(parts)
    )  # fmt: skip
    k = net.add("keys", ops.Transpose((0, 1, 3, 2)), k)
    x = net.add("scaled", ops.Affine(width**-0.5), net.add("scores", ops.MatMul(), q, k))
    x = net.add("shares", ops.Softmax(causal=causal), x)
    x = net.dropout(x, rate, "dropped") if rate else x
    x = net.add("back", ops.Transpose((0, 2, 1, 3)), net.add("heads", ops.MatMul(), x, v))
    x = net.linear(net.reshape(x, batch, rows, heads * width), 8)
    net.linear(net.flatten(x), 5)
    return net.build()


def dropped(batch):
    """Attention whose shares are dropped, by the kernel of the softmax."""
    return attention(batch, rows=16, width=32, rate=0.2)


def odd(batch):
    """Matrices of odd sizes, which lie anywhere in memory."""
    return attention(batch, rows=7, heads=3, width=5, causal=False)


def products(batch):
    """Products of square and of long matrices, also of a value by itself, and of one sample's."""
    net = Network("products", batch)
    x = net.linear(net.image(6, 8), 6)
    x = net.add("square", ops.MatMul(), x, x)
    y = net.linear(x, 9)
    t = net.add("turned", ops.Transpose((0, 2, 1)), y)
    x = net.add("small", ops.MatMul(), t, y)
    x = net.add("wide", ops.MatMul(), y, x)
    net.linear(net.flatten(net.relu(x)), 5)
    return net.build()


def turned(batch):
    """Transpositions of all kinds, of images too."""
    net = Network("turned", batch)
    x = net.relu(net.conv(net.image(3, 6, 5), 4, 3, padding=1))
    x = net.add("rows", ops.Transpose((0, 2, 3, 1)), x)
    x = net.linear(x, 7)
    x = net.add("mixed", ops.Transpose((0, 3, 2, 1)), x)
    x = net.add("again", ops.Transpose((0, 2, 1, 3)), x)
    x = net.conv(net.relu(x), 3, 1)
    x = net.add("last", ops.Transpose((0, 3, 1, 2)), x)
    net.linear(net.flatten(x), 5)
    return net.build()


NETWORKS = [attention, dropped, odd, products, turned]


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(4), activations, near=2e-2, cancelled=2e-6)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_merged_axes_are_the_same_permutation(order):
    for shape in [(2, 3, 4, 5), (2, 1, 4, 1), (1, 1, 1, 1), (1, 3, 1, 5)]:
        x = np.arange(np.prod(shape)).reshape(shape)
        sizes, axes = merged(shape, order)
        np.testing.assert_array_equal(
            x.transpose(order).ravel(), x.reshape(sizes).transpose(axes).ravel()
        )
        assert len(axes) == 1 or all(two != one + 1 for one, two in pairwise(axes))


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", NETWORKS)
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
