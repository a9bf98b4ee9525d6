"""Networks with activation functions other than ReLU: a step on the model against PyTorch."""

import pytest
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.functions import FUNCTIONS
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network


def network(batch, functions):
    """Functions behind a convolution, a sum, a pooling, and a linear layer."""
    net = Network("functions", batch)
    names = iter(functions * 4)
    x = net.activation(net.conv(net.image(3, 6, 6), 5, 3, padding=1), next(names))
    x = net.plus(net.activation(net.conv(x, 5, 1), next(names)), x)
    x = net.activation(net.max_pool(x, 2), next(names))
    net.linear(net.activation(net.linear(net.flatten(x), 20), next(names)), 5)
    return net.build()


def arithmetic(batch):
    """Differences and products of values of one shape, also of one value, and fixed numbers."""
    net = Network("arithmetic", batch)
    x = net.conv(net.image(3, 6, 6), 5, 3, padding=1)
    y = net.conv(x, 5, 1)
    x = net.add("difference", ops.Binary("sub"), x, y)
    x = net.add("square", ops.Binary("mul"), x, x)
    x = net.add("moved", ops.Affine(1.0, -0.25), net.add("scaled", ops.Affine(2.0), x))
    x = net.flatten(net.max_pool(net.add("both", ops.Affine(-0.5, 0.125), x), 2))
    y = net.linear(x, 9)
    gate = net.activation(net.linear(x, 9), "sigmoid")
    x = net.add("gated", ops.Binary("mul"), y, gate)
    net.linear(net.add("none", ops.Affine(), net.add("again", ops.Binary("sub"), x, y)), 5)
    return net.build()


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("function", [*FUNCTIONS, "arithmetic"])
def test_a_step_is_that_of_pytorch(function, activations):
    """PyTorch rounds products and features as the core does, and has functions of its own."""
    graph = arithmetic(4) if function == "arithmetic" else network(4, (function,))
    assert_step_is_that_of_pytorch(graph, activations, near=2e-3)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("functions", [FUNCTIONS[:4], FUNCTIONS[4:8], FUNCTIONS[5:], ()], ids=str)
def test_hardware_equals_the_model(functions):
    assert_hardware_equals_the_model(
        (lambda batch: network(batch, functions)) if functions else arithmetic
    )
