"""Dropout of channels and of samples: the factors, and a step against PyTorch and hardware."""

from dataclasses import replace

import numpy as np
import pytest
from test_pipeline import CORE
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.network_units import drop_factors_of
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network


def dropped(batch):
    """A residual of stochastic depth, dropout of channels of images and signals, and of rows."""
    net = Network("dropped", batch)
    x = net.relu(net.conv(net.image(3, 5, 7), 10, 3, padding=1))
    y = net.add("depth", ops.Dropout(0.25, (1, 2, 3)), net.conv(x, 10, 3, padding=1))
    x = net.add("channels", ops.Dropout(0.5, (2, 3)), net.plus(x, y))
    x = net.reshape(net.linear(net.flatten(x), 18), batch, 3, 6)
    x = net.add("signals", ops.Dropout(0.5, (-1,)), net.conv(x, 4, 3, padding=1))
    x = net.linear(net.flatten(net.relu(x)), 11)
    x = net.add("rows", ops.Dropout(0.3, (1,)), x)
    net.linear(net.add("not", ops.Dropout(0.0, (1,)), x), 5)
    return net.build()


def test_factors():
    """Axes that are dropped together have one factor, whose mean is 1."""
    factors = drop_factors_of(dropped(4000), (5, 0))
    shapes = {name: each.shape[1:] for name, each in factors.items()}
    assert shapes == {
        "depth": (1, 1, 1), "channels": (10, 1, 1), "signals": (4, 1), "rows": (1,), "not": (1,),
    }  # fmt: skip
    for name, rate in {"depth": 0.25, "channels": 0.5, "signals": 0.5, "rows": 0.3}.items():
        assert set(np.unique(factors[name])) == {0, np.float32(65536 / round((1 - rate) * 65536))}
        assert factors[name].mean() == pytest.approx(1, abs=0.05)
    assert (factors["not"] == 1).all()


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
def test_a_step_is_that_of_pytorch(activations):
    assert_step_is_that_of_pytorch(dropped(4), activations, near=2e-2, cancelled=2e-6)


def test_axes_of_one_element_are_dropped_either_way():
    """Stochastic depth of images of one pixel, which names the channels alone, was refused."""

    def single(batch):
        net = Network("single", batch)
        x = net.conv(net.image(3, 3, 3), 10, 3)
        for number, axes in enumerate([(1,), (1, 3), (1, 2, 3), (2,), (2, 3)]):
            x = net.add(f"drop{number}", ops.Dropout(0.2, axes), net.conv(x, 10, 1))
        x = net.reshape(x, batch, 1, 2, 5)
        x = net.add("elements", ops.Dropout(0.2, (1,)), net.relu(x))
        net.linear(net.flatten(x), 5)
        return net.build()

    assert_step_is_that_of_pytorch(single(6), FP32, near=2e-2, cancelled=2e-6)


@pytest.mark.parametrize("axes", [(0,), (2,), (1, 2), (0, 1, 2, 3)])
def test_other_axes_are_refused(axes):
    net = Network("axes", 2)
    x = net.add("some", ops.Dropout(0.5, axes), net.image(3, 4, 4))
    net.linear(net.flatten(net.conv(x, 2, 1)), 3)
    message = "dropout must drop single elements, channels or samples, not all along axes"
    with pytest.raises(UserError, match=message):
        build_step(net.build(), CORE)


def test_a_core_without_random_numbers_is_refused():
    core = replace(CORE, vector=replace(CORE.vector, random=False))
    net = Network("drawn", 2)
    x = net.add("some", ops.Dropout(0.5, ()), net.flatten(net.image(3, 4, 4)))
    graph = net.add("end", ops.Linear(3), x) and net.build()
    message = "layer 'some': dropout needs random numbers, which this core's vector engine does not"
    with pytest.raises(NotImplementedError, match=message):
        build_step(graph, core)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
def test_hardware_equals_the_model():
    assert_hardware_equals_the_model(dropped)
