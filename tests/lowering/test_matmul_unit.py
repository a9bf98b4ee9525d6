"""Networks with products of activations and transpositions: a step against PyTorch."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from unit_steps import (
    assert_gradients_are_near_those_in_fp32,
    assert_hardware_equals_the_model,
    assert_step_is_that_of_pytorch,
)

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.units.attention.matmul_unit import MatMulUnit
from fpgapipe.lowering.units.attention.views import View
from fpgapipe.lowering.units.layers.transpose_unit import merged
from fpgapipe.lowering.units.network_units import units_of
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


def heads(batch):
    """Attention as in BERT and GPT: keys turned at once, heads read where they lie."""
    rows, number, width = 16, 2, 32
    features = number * width
    net = Network("heads", batch)
    x = net.linear(net.image(rows, 8), features)

    def part(x, *order):
        return net.transpose(net.reshape(x, batch, rows, number, width), *order)

    both = net.linear(x, 3 * features)
    # What is between them is not used.
    q = net.add("q", ops.Slice(2, 0, features), both)
    k = net.add("k", ops.Slice(2, 2 * features, 3 * features), both)
    v = net.linear(x, features)
    scores = net.matmul(part(q, 0, 2, 1, 3), part(k, 0, 2, 3, 1), name="scores")
    share = net.softmax(net.scale(scores, width**-0.5), causal=True)
    x = net.transpose(net.matmul(share, part(v, 0, 2, 1, 3), name="values"), 0, 2, 1, 3)
    x = net.linear(net.reshape(x, batch, rows, features), 8)
    net.linear(net.flatten(x), 5)
    return net.build()


def chained(batch):
    """A product whose moved result is the operand of another, also turned, and slices of rows."""
    net = Network("chained", batch)
    x = net.linear(net.image(32, 8), 64)
    first = net.add("first", ops.Slice(1, 0, 32), x)
    y = net.matmul(first, net.transpose(net.linear(x, 64), 0, 2, 1), name="inner")
    y = net.reshape(net.transpose(y, 0, 2, 1), batch, 32, 32)
    z = net.matmul(y, net.linear(x, 64), name="outer")
    z = net.matmul(net.transpose(z, 0, 2, 1), net.linear(x, 64), name="turned")
    net.linear(net.flatten(z), 5)
    return net.build()


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


NETWORKS = [attention, dropped, heads, chained, odd, products, turned]


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(4), activations, near=2e-2, cancelled=2e-6)


@pytest.mark.parametrize(
    ("network", "moved"),
    [
        (heads, 0),
        # A first operand is not read turned.
        (chained, 2),
        # Heads of 16 features are copied, but for the transposition of keys.
        (attention, 7),
    ],
)
def test_moved_operands_are_part_of_the_product(network, moved):
    units = units_of(network(2))
    kinds = (ops.Slice, ops.Transpose)
    alone = [
        each for unit in units if not isinstance(unit, MatMulUnit) for each in unit.layers
        if isinstance(each.operator, kinds)
    ]  # fmt: skip
    assert len(alone) == moved


def test_an_unused_piece_gets_zeros():
    """The gradient of what was split is written in parts, and is zero where no unit writes."""
    _, gradients = assert_gradients_are_near_those_in_fp32(heads(2))
    weight = next(each for each in gradients.values() if each.shape == (192, 64))
    assert not weight[64:128].any()
    assert weight[:64].any()
    assert weight[128:].any()


@pytest.mark.parametrize("seed", range(20))
def test_views_are_numpys(seed):
    """Transpositions, slices and reshapes of an array, as views, where numpy needs no copy."""
    rng = np.random.default_rng(seed)
    x = np.arange(2 * 4 * 6 * 8)
    view, now = View.whole((2, 4, 6, 8)), x.reshape(2, 4, 6, 8)
    for _ in range(4):
        kind = rng.integers(3)
        if kind == 0:
            operator = ops.Transpose(tuple(map(int, rng.permutation(now.ndim))))
            now = now.transpose(operator.order)
        elif kind == 1:
            axis = int(rng.integers(now.ndim))
            first = int(rng.integers(now.shape[axis]))
            operator = ops.Slice(axis, first, now.shape[axis])
            now = now[(slice(None),) * axis + (slice(first, None),)]
        else:
            at = int(rng.integers(now.ndim))
            sizes = (*now.shape[:at], -1, *now.shape[min(at + 2, now.ndim) :])
            other = now.reshape(sizes)
            operator = ops.Reshape(other.shape)
            if not np.shares_memory(other, x):
                assert view.of(operator, other.shape) is None
                break
            now = other
        view = view.of(operator, now.shape)
        places = view.first + sum(
            np.arange(size).reshape(-1, *[1] * (now.ndim - axis - 1)) * step
            for axis, (size, step) in enumerate(zip(view.shape, view.steps, strict=True))
        )
        np.testing.assert_array_equal(x[places].reshape(now.shape), now)


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
