"""Large gradients are computed in slices, each of which updates its weights: the same bits."""

from dataclasses import replace

import numpy as np
import pytest
from pipeline_cases import run_devices
from shard_cases import in_parts
from step_cases import SMALL_CORE
from test_pipeline import CORE, ORDERS, SCALARS, cut

from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.tasks import single_device
from fpgapipe.lowering.shards.degrees import Degrees
from fpgapipe.lowering.units import late_gradients
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

COUNT = 3
SLICED = {"linear1.weight", "linear2.weight"}


def network(samples=1):
    """Linear layers whose slices do not divide them, behind a convolution."""
    net = Network("sliced", samples)
    x = net.relu(net.conv(net.image(2, 5, 3), 6, 3, padding=1))
    x = net.flatten(x)
    for width in (141, 100):
        x = net.relu(net.linear(x, width))
    net.linear(x, 7)
    return net.build()


def stepped(graph, options, core=SMALL_CORE):
    """The program, and what two steps of it leave for the next one."""
    program = build_step(graph, core, options=options, tasks=single_device(COUNT))
    memory = program.image(initial_parameters(graph, 0))
    model = CoreModel(core, memory)
    model.scalars[:] = SCALARS
    for seed in range(2):
        program.set_batch(memory, *random_batch(graph, seed, COUNT))
        model.run(program.instructions)
    return program, memory


def left(graph, options, monkeypatch, size):
    monkeypatch.setattr(late_gradients, "SLICED_BYTES", size)
    program, memory = stepped(graph, options)
    return program, program.state(memory), program.outcome(memory)


@pytest.mark.parametrize(
    "options",
    [
        StepOptions(),
        StepOptions(optimiser="adam"),
        StepOptions(apart=True),
        StepOptions(rounded_weights=False),
    ],
    ids=["sgd", "adam", "apart", "plain weights"],
)
def test_the_same_bits(options, monkeypatch):
    graph = network()
    monkeypatch.setattr(late_gradients, "LEAST_BYTES", 0)
    kept, expected, outcome = left(graph, options, monkeypatch, 1 << 30)
    sliced, found, other = left(graph, options, monkeypatch, 4096)
    assert outcome == other
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(
            found[name].view(np.uint32), value.view(np.uint32), err_msg=name
        )
    # Two buffers of a slice take the place of a gradient.
    gradients = [each.account["weight gradients"] for each in (kept, sliced)]
    assert gradients[1] < (0.75 if options.apart else 0.5) * gradients[0]
    assert sum(sliced.account.values()) == sliced.memory_bytes
    assert {name for name in SLICED if f"{name}.gradient" in sliced.places} == set()
    memory = sliced.image(initial_parameters(graph, 0))
    assert SLICED.isdisjoint(sliced.parameters(memory, ".gradient"))
    assert set(sliced.parameters(memory, ".momentum")) > SLICED


@pytest.mark.parametrize(("num_devices", "kind"), [(2, "1f1b-as"), (3, "zb-h1")])
def test_the_same_bits_on_several_devices(num_devices, kind, monkeypatch):
    monkeypatch.setattr(late_gradients, "LEAST_BYTES", 0)
    monkeypatch.setattr(late_gradients, "SLICED_BYTES", 4096)
    graph = network()
    program = build_step(graph, CORE, tasks=single_device(COUNT))
    memory = program.image(initial_parameters(graph, 0))
    program.set_batch(memory, *random_batch(graph, 0, COUNT))
    model = CoreModel(CORE, memory)
    model.scalars[:] = SCALARS
    model.run(program.instructions)
    schedule = make_schedule(kind, num_devices, COUNT)
    cores = [CORE] * num_devices
    pipeline = build_pipeline(graph, cores, cut(graph, num_devices), schedule)
    memories = pipeline.images(initial_parameters(graph, 0))
    pipeline.set_batch(memories, *random_batch(graph, 0, COUNT))
    programs = [part.instructions for part in pipeline.parts]
    assert run_devices(cores, memories, programs, SCALARS, ORDERS["any"]) == [0] * num_devices
    for name, value in program.state(memory).items():
        np.testing.assert_array_equal(pipeline.state(memories)[name], value, err_msg=name)


def test_gradients_that_devices_add_up_are_kept(monkeypatch):
    monkeypatch.setattr(late_gradients, "LEAST_BYTES", 0)
    monkeypatch.setattr(late_gradients, "SLICED_BYTES", 4096)
    graph = network()
    pipeline = in_parts(graph, [CORE] * 2, dict.fromkeys(graph.layers, Degrees(sample=2)), 4)
    for part in pipeline.parts:
        assert {f"{name}.gradient" for name in SLICED} < set(part.places)


def test_channels_in_memory_are_checked():
    with pytest.raises(ValueError, match="conv y_pitch must be at least 8, not 4"):
        replace(ConvSpec.linear(1, 8, 8), y_pitch=4)
