"""Networks that enlarge images: a step against PyTorch, and hardware."""

import numpy as np
import pytest
import torch
from kernel_cases import REGION, SMALL_REGION, drawn, execute, same_bits
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.pooling import Pool, sum_pool, sum_pool_gradient
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.network.zoo.layers import Network


def unet(batch):
    """A U-Net of two levels, with odd factors and a signal at the end."""
    net = Network("unet", batch)
    first = net.relu(net.conv(net.image(3, 6, 9), 10, 3, padding=1))
    low = net.relu(net.conv(net.max_pool(first, (2, 3)), 12, 3, padding=1))
    up = net.conv(net.upsample(low, 2, 3), 10, 1)
    x = net.relu(net.conv(net.concat([first, up], 1), 5, 3, padding=1))
    x = net.reshape(net.linear(net.flatten(net.global_average_pool(x)), 12), batch, 3, 4)
    x = net.conv(net.upsample(x, 3), 4, 3)
    net.linear(net.flatten(net.upsample(x, 1)), 5)
    return net.build()


@pytest.mark.parametrize("region", [REGION, SMALL_REGION], ids=["whole", "pieces"])
@pytest.mark.parametrize(
    ("shape", "factors"),
    [((2, 4, 5, 17), (2, 2)), ((1, 1, 1, 1), (3, 1)), ((3, 7, 2, 33), (1, 5)),
     ((1, 3, 70, 4), (3, 2))],
)  # fmt: skip
def test_kernels(shape, factors, region):
    """Elements are repeated bit for bit; gradients are sums in the order of the pixels."""
    samples, rows, columns, channels = shape
    large = (samples, rows * factors[0], columns * factors[1], channels)
    x, y = Tensor("x", shape), Tensor("y", large)
    values = drawn(shape)
    kernel = sum_pool_gradient("up", Pool(factors, factors), x, y, region)
    found = execute([kernel], [x, y], {"x": values})["y"]
    assert same_bits(found, values.repeat(factors[0], 1).repeat(factors[1], 2))
    dy = drawn(large, 1)
    kernel = sum_pool("down", Pool(factors, factors), y, x, region)
    found = execute([kernel], [x, y], {"y": dy})["x"]
    windows = dy.reshape(samples, rows, factors[0], columns, factors[1], channels)
    expected = np.zeros(shape, np.float32)
    for i in range(factors[0]):
        for j in range(factors[1]):
            expected = expected + windows[:, :, i, :, j]
    assert same_bits(found, expected)


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
def test_a_step_is_that_of_pytorch(activations):
    assert_step_is_that_of_pytorch(unet(4), activations, near=4e-2, loss=1e-4, cancelled=2e-6)


def test_factors_are_those_of_pytorch():
    x = torch.arange(6.0).reshape(1, 1, 2, 3)
    expected = torch.nn.functional.interpolate(x, scale_factor=(3, 2))
    net = Network("up", 1)
    net.upsample(net.image(1, 2, 3), 3, 2, name="up")
    from fpgapipe.host.backends.torch_reference import forward

    graph = net.build(["up"])
    assert torch.equal(forward(graph, {}, {"input": x}, training=False)["up"], expected)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
def test_hardware_equals_the_model():
    assert_hardware_equals_the_model(unet)
