"""A training step of a small network: the model against PyTorch, and hardware against the model."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_data_parallel import WIRE
from test_pipeline import CORE, SCALARS

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.host.backends.torch_step import torch_step
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32, ElementFormat
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.array_rows import array_rows
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.tasks import single_device
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.native.phy import WireSpec


def assert_step_is_that_of_pytorch(
    graph: Graph,
    activations: ElementFormat,
    *,
    near: float,
    loss: float = 1e-5,
    cancelled: float = 0.0,
) -> None:
    """Compare the weights after two micro-batches on a device with those of PyTorch.

    PyTorch rounds products and features as the core does, and has functions of its own. A value
    that falls on the other side of a rounding moves a code or a bit of BF16.

    Parameters
    ----------
    graph : Graph
        The network for the samples of a micro-batch.
    activations : ElementFormat
    near : float
        Most difference of a parameter, as a share of its change.
    loss : float
        Most relative difference of the loss.
    cancelled : float
        Further difference with features in BF16, as a share of the parameter itself: gradients of
        scales before a normalisation cancel, so these hardly change.
    """
    options = StepOptions(activations=activations)
    program = build_step(graph, CORE, options=options, tasks=single_device(2, train=True))
    parameters = initial_parameters(graph, 0)
    samples = random_batch(graph, 0, 2)
    scalars = scalar_bits(learning_rate=0.1)
    with (
        ModelBackend(PipelineProgram(graph, (program,)), parameters) as model,
        TorchBackend(
            graph,
            parameters,
            num_microbatches=2,
            options=options,
            precision="mxint8",
            array_rows=array_rows([program]),
        ) as reference,  # fmt: skip
    ):
        found, expected = model.step(*samples, scalars), reference.step(*samples, scalars)
        assert found.loss == pytest.approx(expected.loss, rel=loss)
        weights, others = model.parameters(), reference.parameters()
    for name, value in others.items():
        limit = near * np.linalg.norm(value - parameters[name])
        limit += np.linalg.norm(np.spacing(value))  # a last bit of what is stored
        if activations is BF16:
            limit += cancelled * np.linalg.norm(value)
        assert np.linalg.norm(weights[name] - value) <= limit, name


def assert_gradients_are_near_those_in_fp32(
    graph: Graph,
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[np.float32]]]:
    """Compare a step's gradients with those of PyTorch's own layers and loss, in FP32.

    Rounding to MXINT8 moves them by up to 9 %; a wrong gradient differs by more than half.

    Returns
    -------
    inputs, gradients : dict of str to array
    """
    program = build_step(graph, CORE, options=StepOptions(activations=FP32))
    parameters = initial_parameters(graph, 1)
    inputs, labels = random_batch(graph, 1)
    with ModelBackend(PipelineProgram(graph, (program,)), parameters) as model:
        found = model.step(inputs, labels, scalar_bits(learning_rate=0.1))
        gradients = model.parameters(".gradient")
    expected = torch_step(graph, parameters, inputs, labels)
    assert found.loss == pytest.approx(expected.loss, rel=1e-2)
    for name, value in expected.gradients.items():
        assert np.linalg.norm(gradients[name] - value) <= 0.15 * np.linalg.norm(value), name
    return inputs, gradients


def assert_hardware_equals_the_model(network: Callable[[int], Graph]) -> None:
    """Compare every byte of two simulated devices after a step of two micro-batches of 2 samples.

    Parameters
    ----------
    network : callable
        Returns a network for a number of samples; each device has half of its layers.
    """
    graph = network(2)
    names = list(graph.layers)
    half = len(names) // 2
    schedule = make_schedule("1f1b-as", 2, 2)
    pipeline = build_pipeline(graph, [CORE] * 2, [names[:half], names[half:]], schedule)
    assert_steps_equal_the_model(pipeline, [WIRE], steps=1)


def assert_steps_equal_the_model(
    pipeline: PipelineProgram, wires: Sequence[WireSpec], steps: int = 2
) -> None:
    """Compare every byte of simulated devices with the model's after each of some steps."""
    graph = pipeline.graph
    parameters = initial_parameters(graph, 0)
    samples = random_batch(graph, 0, pipeline.num_microbatches)
    with (
        ModelBackend(pipeline, parameters) as model,
        SimulatorBackend(pipeline, parameters, MemorySpec(), wires) as hardware,
    ):
        for _ in range(steps):
            expected, found = model.step(*samples, SCALARS), hardware.step(*samples, SCALARS)
            assert (found.loss, found.correct) == (expected.loss, expected.correct)
            for one, other in zip(hardware.memories, model.memories, strict=True):
                np.testing.assert_array_equal(one, other)
