"""Networks with learned tensors, repetitions and a transformer's encoder: against PyTorch."""

import numpy as np
import pytest
from test_pipeline import CORE
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network import operators as ops
from fpgapipe.network.graph import GraphBuilder
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.operators.tensors import DType, Tensor
from fpgapipe.network.zoo.layers import Network


def learned(net, name, *shape):
    """A learned tensor."""
    return net.add(name, ops.Constant(shape, trainable=True))


def vision(batch, *, channels=16, heads=2):
    """A vision transformer: patches, a class token, positions, attention, and two linear layers."""
    net = Network("vision", batch)
    x = net.conv(net.image(3, 8, 8), channels, 4, stride=4)
    x = net.add("flat", ops.Flatten(2), x)
    x = net.add("patches", ops.Transpose((0, 2, 1)), x)
    shape = 1, 1, channels
    token = net.add("tokens", ops.Expand((batch, 1, channels)), learned(net, "token", *shape))
    x = net.concat([token, x])
    x = net.plus(x, learned(net, "positions", 1, 5, channels))
    y = net.add("norm", ops.LayerNorm(), x)
    parts = net.split(net.linear(y, 3 * channels), 3, 2, "qkv")
    q, k, v = (
        net.add(f"turned{number}", ops.Transpose((0, 2, 1, 3)),
                net.reshape(part, batch, 5, heads, channels // heads))
        for number, part in enumerate(parts)
    )  # fmt: skip
    k = net.add("keys", ops.Transpose((0, 1, 3, 2)), k)
    y = net.add("scaled", ops.Affine(0.25), net.add("scores", ops.MatMul(), q, k))
    y = net.add("heads", ops.MatMul(), net.add("shares", ops.Softmax(), y), v)
    y = net.reshape(net.add("back", ops.Transpose((0, 2, 1, 3)), y), batch, 5, channels)
    x = net.plus(x, net.linear(y, channels))
    y = net.add("norm2", ops.LayerNorm(), x)
    x = net.plus(x, net.linear(net.activation(net.linear(y, 2 * channels), "gelu"), channels))
    net.linear(net.flatten(net.add("first", ops.Slice(1, 0, 1), x)), 5)
    return net.build()


def scaled(batch):
    """Layer scale and shifts of images, by learned tensors of all samples, and of a channel."""
    net = Network("scaled", batch)
    x = net.conv(net.image(3, 6, 5), 4, 3, padding=1)
    x = net.add("by", ops.Binary("mul"), learned(net, "whole", 4, 6, 5), x)
    x = net.linear(x, 7)
    x = net.add("features", ops.Binary("mul"), x, learned(net, "seven", 7))
    x = net.add("less", ops.Binary("sub"), x, learned(net, "one", 1, 1, 6, 7))
    x = net.linear(net.flatten(net.relu(x)), 9)
    y = net.add("rows", ops.Expand((3, batch, 9)), x)
    y = net.reshape(net.linear(net.linear(y, 4), 9), 3, batch, 9)
    x = net.add("again", ops.Binary("add"), y, x)
    x = net.add("samples", ops.Transpose((1, 0, 2)), x)
    net.linear(net.flatten(x), 5)
    return net.build()


NETWORKS = [vision, scaled]


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(4), activations, near=3e-2, cancelled=2e-6)


def test_a_parameter_may_have_the_name_of_its_layer():
    """As in networks that are imported from PyTorch, also in inference."""
    builder = GraphBuilder("named", 2)
    builder.input("x", Tensor((2, 6), DType.FLOAT32))
    builder.add("row", ops.Constant((6,), trainable=True), shared={"value": "row"})
    builder.add("sum", ops.Binary("add"), "x", "row")
    builder.add("fc", ops.Linear(3), "sum")
    graph = builder.build()
    for train in (True, False):
        program = build_step(graph, CORE, options=StepOptions(train=train))
        parameters = initial_parameters(graph, 0)
        image = program.image(parameters)
        np.testing.assert_array_equal(program.parameters(image)["row"], parameters["row"])


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", NETWORKS)
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
