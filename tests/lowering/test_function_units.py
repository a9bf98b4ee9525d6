"""Networks with activation functions other than ReLU: a step on the model against PyTorch."""

import pytest
from test_pipeline import CORE
from unit_steps import (
    assert_gradients_are_near_those_in_fp32,
    assert_hardware_equals_the_model,
    assert_step_is_that_of_pytorch,
)

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.elements.functions import FUNCTIONS
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.step_options import StepOptions
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


def elements(batch):
    """Functions that are no activation functions, of one value and of two."""
    net = Network("elements", batch)
    x = net.conv(net.image(3, 6, 6), 5, 3, padding=1)
    size = net.unary(net.unary(x, "abs"), "neg")
    positive = net.add("positive", ops.Affine(0.5, 1.0), net.unary(size, "exp"))
    y = net.plus(net.unary(positive, "log"), net.unary(positive, "rsqrt"))
    y = net.plus(net.unary(positive, "sqrt"), y)
    y = net.add("quotient", ops.Binary("div"), net.unary(x, "erf"), net.unary(y, "reciprocal"))
    y = net.add("larger", ops.Binary("max"), y, x)
    y = net.add("smaller", ops.Binary("min"), y, net.add("line", ops.Affine(0.3, 0.7), x))
    y = net.add("bounded", ops.Clamp(-0.75, 1.5), net.max_pool(y, 2))
    y = net.add("cube", ops.Power(3.0), y)
    net.linear(net.flatten(y), 5)
    return net.build()


def sloped(batch):
    """Learned slopes: of channels of images and of features, one for all of either."""
    net = Network("sloped", batch)
    x = net.activation(net.conv(net.image(3, 6, 6), 5, 3, padding=1), "prelu")
    x = net.add("one", ops.Activation("prelu", one_slope=True), net.conv(x, 7, 1))
    x = net.activation(net.linear(net.flatten(x), 20), "prelu")
    x = net.add("same", ops.Activation("prelu", one_slope=True), net.linear(x, 9))
    net.linear(x, 5)
    return net.build()


OTHERS = {"arithmetic": arithmetic, "elements": elements, "sloped": sloped}


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("function", [*FUNCTIONS, *OTHERS])
def test_a_step_is_that_of_pytorch(function, activations):
    """PyTorch rounds products and features as the core does, and has functions of its own."""
    graph = OTHERS[function](4) if function in OTHERS else network(4, (function,))
    assert_step_is_that_of_pytorch(graph, activations, near=2e-3)


def test_gradients_are_near_those_in_fp32():
    assert_gradients_are_near_those_in_fp32(elements(4))


@pytest.mark.parametrize(("function", "what"), [("div", "quotients"), ("max", "maxima")])
def test_pairs_of_two_shapes_say_so(function, what):
    net = Network("two", 2)
    x = net.linear(net.image(3, 8), 5)
    net.add("both", ops.Binary(function), x, net.add("first", ops.Slice(1, 0, 1), x))
    with pytest.raises(UserError, match=rf"{what} must be of two tensors of one shape, not \[2"):
        build_step(net.build(), CORE, options=StepOptions(train=False))


@pytest.mark.parametrize("exponent", [0.3, 20.0])
def test_powers_that_no_core_runs_say_so(exponent):
    net = Network("power", 2)
    net.add("high", ops.Power(exponent), net.linear(net.image(8), 5))
    with pytest.raises(UserError, match="layer 'high': the exponent of a power must be a multiple"):
        build_step(net.build(), CORE, options=StepOptions(train=False))


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize(
    "functions",
    [FUNCTIONS[:4], FUNCTIONS[4:8], FUNCTIONS[7:], *OTHERS.values()],
    ids=str,
)
def test_hardware_equals_the_model(functions):
    assert_hardware_equals_the_model(
        functions if callable(functions) else (lambda batch: network(batch, functions))
    )
