"""Networks with masks that are computed from their inputs: a step on the model, and in hardware."""

import math

import numpy as np
import pytest
from test_pipeline import CORE
from unit_steps import (
    assert_gradients_are_near_those_in_fp32,
    assert_hardware_equals_the_model,
    assert_step_is_that_of_pytorch,
)

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.torch_step import torch_step
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network import operators as ops
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.losses import Loss
from fpgapipe.network.operators.tensors import DType, Tensor
from fpgapipe.network.zoo.layers import Network


def attending(batch, *, positions=5, features=6, heads=2, value=-math.inf):
    """Attention of two heads over tokens, of which a mask of each sample hides some."""
    net = Network("attending", batch)
    tokens = net.tokens("tokens", positions)
    mask = net.input("mask", Tensor((batch, positions), DType.BOOL))
    x = net.embedding(tokens, 11, heads * features)
    hidden = net.add("hidden", ops.Compare("ne", 0.0), mask)
    hidden = net.reshape(hidden, batch, 1, 1, positions)
    for number in range(2):
        parts = []
        for part in "qkv":
            # A bias of the keys moves all scores of a row alike, so it would have no gradient.
            y = net.linear(x, heads * features, bias=part != "k", name=f"{part}{number}")
            y = net.reshape(y, batch, positions, heads, features)
            order = (0, 2, 3, 1) if part == "k" else (0, 2, 1, 3)
            parts.append(net.transpose(y, *order))
        q, k, v = parts
        y = net.matmul(q, k)
        y = net.add(f"scale{number}", ops.Affine(scale=features**-0.5), y)
        y = net.add(f"masked{number}", ops.MaskedFill(value, keeps=False), y, hidden)
        y = net.matmul(net.softmax(y), v)
        y = net.reshape(net.transpose(y, 0, 2, 1, 3), batch, positions, heads * features)
        x = net.plus(x, net.linear(y, heads * features))
    net.linear(x, 7)
    return net.build()


def compared(batch):
    """Sums of an additive mask, of a causal mask with tokens that are padding, and of images."""
    net = Network("compared", batch)
    tokens = net.tokens("tokens", 6)
    mask = net.input("mask", Tensor((batch, 6), DType.INT64))
    x = net.embedding(tokens, 9, 16)
    added = net.add("added", ops.Compare("eq", 0.0, -1e4, 0.25), mask)
    real = net.reshape(net.add("real", ops.Compare("lt", 7.0), tokens), batch, 1, 6)
    seen = net.add("seen", ops.Constant((6, 6)))
    both = net.add("both", ops.Binary("mul"), seen, real)
    y = net.linear(x, 16, bias=False)
    y = net.matmul(net.linear(x, 16), net.transpose(y, 0, 2, 1))
    y = net.add("sum", ops.Binary("add"), y, net.reshape(added, batch, 1, 6))
    y = net.add("causal", ops.MaskedFill(-(2.0**100)), y, both)
    x = net.matmul(net.softmax(y), net.linear(x, 16))
    image = net.reshape(net.linear(x, 12), batch, 6, 3, 4)
    image = net.conv(image, 5, 3, padding=1)
    positive = net.add("positive", ops.Compare("ge", 0.125), image)
    dark = net.add("dark", ops.MaskedFill(0.5, keeps=False), net.conv(image, 5, 1), positive)
    net.linear(net.flatten(dark), 4)
    net.set_value("seen.value", np.tril(np.ones((6, 6), np.float32)))
    return net.build()


NETWORKS = [attending, compared]


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(4), activations, near=2e-2, cancelled=2e-6)


def test_a_padded_batch_trains_as_in_pytorch():
    """Padding has no label, and changes neither loss nor gradients."""
    graph = attending(4)
    program = build_step(
        graph, CORE, options=StepOptions(activations=FP32, loss=Loss(ignores=True))
    )
    parameters = initial_parameters(graph, 1)
    inputs, labels = random_batch(graph, 1)
    assert inputs["mask"].any()
    labels[inputs["mask"] == 1] = -100
    results = []
    for padding in (0, 10):
        tokens = np.where(inputs["mask"], padding, inputs["tokens"])
        given = {**inputs, "tokens": tokens}
        with ModelBackend(PipelineProgram(graph, (program,)), parameters) as model:
            found = model.step(given, labels, scalar_bits(learning_rate=0.1))
            gradients = model.parameters(".gradient")
        results.append((found.loss, gradients))
        expected = torch_step(graph, parameters, given, labels, loss=Loss(ignores=True))
        assert found.loss == pytest.approx(expected.loss, rel=1e-2)
        for name, value in expected.gradients.items():
            assert np.linalg.norm(gradients[name] - value) <= 0.15 * np.linalg.norm(value), name
    (one, own), (other, others) = results
    assert one == pytest.approx(other, rel=1e-2)
    for name, value in own.items():
        if not name.startswith("embedding"):
            difference = np.linalg.norm(others[name] - value)
            assert difference <= 0.15 * np.linalg.norm(value), name


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_near_those_in_fp32(network):
    assert_gradients_are_near_those_in_fp32(network(4))


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", NETWORKS)
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
