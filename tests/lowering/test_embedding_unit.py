"""Embeddings, and losses of tokens and pixels: a step against PyTorch, and hardware."""

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
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network import operators as ops
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.logits import Logits
from fpgapipe.network.operators.tensors import DType, Tensor
from fpgapipe.network.zoo.layers import Network


def language(batch, *, tied=True):
    """Characters of which most repeat, a table that the head shares, and a loss a token."""
    net = Network("language", batch)
    x = net.embedding(net.tokens("tokens", 7), 40, 24, "table")
    x = net.plus(x, net.add("places", ops.Constant((7, 24), trainable=True)))
    x = net.plus(x, net.linear(net.relu(net.linear(net.layer_norm(x), 20)), 24))
    net.linear(x, 40, bias=not tied, name="head", weight="table.weight" if tied else None)
    return net.build()


def untied(batch):
    return language(batch, tied=False)


def classes(batch):
    """A class for a sample, from two tables; a row of one is padding, and two layers share it."""
    net = Network("classes", batch)
    tokens = net.input("tokens", Tensor((batch, 2, 3), DType.INT32))
    near = net.add("near", ops.Embedding(5, 3, padding=2), tokens)
    far = net.add("far", ops.Embedding(5, 3), tokens, shared={"weight": "near.weight"})
    x = net.plus(net.plus(near, far), net.embedding(tokens, 70, 3, "other"))
    net.linear(net.flatten(x), 4)
    return net.build()


def pixels(batch):
    """A class for each pixel, and their number is odd."""
    net = Network("pixels", batch)
    x = net.relu(net.conv(net.image(3, 5, 7), 10, 3, padding=1))
    net.conv(x, 3, 1, name="head")
    return net.build()


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", [language, untied, classes, pixels])
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(3), activations, near=4e-2, loss=1e-4, cancelled=2e-6)


@pytest.mark.parametrize("network", [language, classes, pixels])
def test_gradients_are_near_those_in_fp32(network):
    """Of PyTorch's own embedding and loss, repeated and padded rows included."""
    inputs, gradients = assert_gradients_are_near_those_in_fp32(network(4))
    if network is classes:
        unused = np.setdiff1d(np.arange(70), inputs["tokens"])
        assert unused.size
        assert not gradients["other.weight"][unused].any()


def test_right_labels_are_counted():
    graph = pixels(4)
    program = build_step(graph, CORE)
    parameters = initial_parameters(graph, 1)
    inputs, _ = random_batch(graph, 1)
    expected = torch_step(graph, parameters, inputs, np.zeros((4, 5, 7), np.int64))
    labels = Logits.of(graph).predicted(expected.logits)
    labels[0, 0] = (labels[0, 0] + 1) % 3
    with ModelBackend(PipelineProgram(graph, (program,)), parameters) as model:
        found = model.step(inputs, labels, scalar_bits())
    assert found.correct == pytest.approx(4 * 5 * 7 - 7, abs=2)


def test_labels_of_another_shape_are_refused():
    graph = pixels(4)
    program = build_step(graph, CORE)
    inputs, _ = random_batch(graph, 1)
    with (
        ModelBackend(PipelineProgram(graph, (program,)), initial_parameters(graph, 1)) as model,
        pytest.raises(ValueError, match=r"^labels must be 140 numbers, not 4$"),
    ):
        model.step(inputs, np.zeros(4, np.int64), scalar_bits())


@pytest.mark.parametrize("wrong", [-1, 40])
def test_indices_beyond_the_table_are_refused(wrong):
    graph = language(4)
    program = PipelineProgram(graph, (build_step(graph, CORE),))
    inputs, labels = random_batch(graph, 1)
    inputs["tokens"][1, 2] = wrong
    with (
        ModelBackend(program, initial_parameters(graph, 1)) as model,
        pytest.raises(ValueError, match=rf"^input tokens must be in 0\.\.39, not {wrong}$"),
    ):
        model.step(inputs, labels, scalar_bits())


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", [untied, classes, pixels])
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
