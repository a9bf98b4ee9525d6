"""Data parallelism: every device has the whole network, and all add up their gradients."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from pipeline_cases import run_devices
from shard_cases import in_parts, one_stage
from step_cases import every_operator
from test_pipeline import CORE, ORDERS, SCALARS, left_behind

from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.on_chip import OnChipSpec
from fpgapipe.lowering.lower import Lowering
from fpgapipe.lowering.memory.layout import memory_bytes
from fpgapipe.lowering.memory.memory_map import from_json, to_json
from fpgapipe.lowering.program.device_program import SUM
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.tasks import single_device
from fpgapipe.lowering.shards.degrees import Degrees
from fpgapipe.lowering.sums import all_reduce, on_chip_sum
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.native.phy import WireSpec

SAMPLES = 2
WIRE = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)


NODE = replace(CORE, links=(OnChipSpec(), OnChipSpec()))
"""The core of a node, whose links lie within a board."""

SMALL = replace(CORE, bus_bytes=16, links=(LinkEngineSpec(port_bytes=16),) * 2)
"""A core whose links words pass in parts, and which adds up in memory."""


def on_one(graph, inputs, labels, options=None, together=1):
    """All that a step leaves behind on one device that does all micro-batches, or some together."""
    options = options or StepOptions()
    count = len(labels) // (SAMPLES * together)
    program = build_step(
        graph, CORE, options=options, tasks=single_device(count, train=options.train)
    )
    memory = program.image(initial_parameters(graph, 0))
    program.set_batch(memory, inputs, labels)
    model = CoreModel(CORE, memory)
    model.scalars[:] = SCALARS
    model.run(program.instructions)
    return left_behind(program, memory, options)


def by_samples(graph, num_devices):
    """Degrees with which all layers are cut by samples."""
    return dict.fromkeys(graph.layers, Degrees(sample=num_devices))


def shared_batch(graph, num_devices, count, options=None, core=CORE):
    """The programs of devices that share the micro-batches."""
    degrees = by_samples(graph, num_devices)
    return in_parts(graph, [core] * num_devices, degrees, count, options=options)


def on_several(graph, num_devices, inputs, labels, order="any", options=None, core=CORE):
    """The programs, and what each device leaves behind."""
    options = options or StepOptions()
    pipeline = shared_batch(graph, num_devices, len(labels) // SAMPLES, options, core)
    memories = pipeline.images(initial_parameters(graph, 0))
    pipeline.set_batch(memories, inputs, labels)
    programs = [part.instructions for part in pipeline.parts]
    left = run_devices([core] * num_devices, memories, programs, SCALARS, ORDERS[order])
    assert left == [0] * num_devices
    found = [
        left_behind(part, memory, options)
        for part, memory in zip(pipeline.parts, memories, strict=True)
    ]
    return pipeline, memories, found


@pytest.mark.parametrize(
    ("num_devices", "order", "core"),
    [
        (2, "any", CORE),
        (3, "first", CORE),
        (4, "last", CORE),
        (4, "transfers early", CORE),
        (2, "last", NODE),
        *((3, order, NODE) for order in ORDERS),
        (4, "first", NODE),
        (3, "any", SMALL),
    ],
)
def test_weights_of_one_device(num_devices, order, core, monkeypatch):
    """With one micro-batch on each device, sums have the order of one device that does all."""
    monkeypatch.setattr(all_reduce, "CHUNK_BYTES", (512, 1024))  # many chunks
    graph = every_operator(SAMPLES)
    inputs, labels = random_batch(graph, 0, num_devices)
    expected = on_one(graph, inputs, labels)
    pipeline, memories, found = on_several(graph, num_devices, inputs, labels, order, core=core)
    for part in pipeline.parts[1:]:
        on_chip = any(each.body.get("in_scratchpad") for each in part.instructions)
        assert on_chip == (core is not SMALL)
    assert pipeline.outcome(memories) == expected.pop("outcome")
    first = on_one(graph, {name: each[:SAMPLES] for name, each in inputs.items()}, labels[:SAMPLES])
    for device in found:
        del device["outcome"]
        assert device.keys() == expected.keys()
        for name, value in expected.items():
            # Running averages are those of the first device's micro-batch.
            wanted = first[name] if ".running_" in name else value
            np.testing.assert_array_equal(device[name], wanted, err_msg=name)


@pytest.mark.parametrize("order", ORDERS)
def test_room_for_one_chunk(order, monkeypatch):
    """No device waits for one that waits for it, if the scratchpad has no room for more."""
    monkeypatch.setattr(all_reduce, "CHUNK_BYTES", (512, 1024))
    monkeypatch.setattr(on_chip_sum, "PLACES", 1)
    graph = every_operator(SAMPLES)
    inputs, labels = random_batch(graph, 0, 6)
    expected = on_one(graph, inputs, labels)
    _, _, found = on_several(graph, 6, inputs, labels, order, core=NODE)
    for device in found:
        for name in expected.keys() - {"outcome"}:
            if ".running_" not in name:
                np.testing.assert_array_equal(device[name], expected[name], err_msg=name)


def test_several_micro_batches_on_a_device(monkeypatch):
    """Each device adds up its own gradients, then the devices add up theirs in their order."""
    monkeypatch.setattr(all_reduce, "CHUNK_BYTES", (4096, 4096))  # several chunks
    graph = every_operator(SAMPLES)
    inputs, labels = random_batch(graph, 0, 6)
    _, _, found = on_several(graph, 2, inputs, labels)
    own = []
    for device in range(2):
        numbers = np.arange(6 * SAMPLES).reshape(6, SAMPLES)[device::2].ravel()
        some = {name: each[numbers] for name, each in inputs.items()}
        options = StepOptions()
        own.append(on_one(without_dropout(graph), some, labels[numbers], options))
    _, _, found = on_several(without_dropout(graph), 2, inputs, labels)
    for name, value in found[0].items():
        if name.endswith(".gradient"):
            # A device alone has half of the micro-batches, and so twice the gradient of each.
            total = (own[0][name] + own[1][name]) / np.float32(2)
            np.testing.assert_array_equal(value, total, err_msg=name)
            np.testing.assert_array_equal(found[1][name], value, err_msg=name)


def test_batch_normalisation_differs_in_its_running_averages_alone():
    """They are those of the first device's micro-batches; the rest differs by the order of sums."""
    net = Network("normalised", SAMPLES)
    x = net.relu(net.batch_norm(net.conv(net.image(3, 6, 6), 8, 3, padding=1)))
    net.linear(net.flatten(net.global_average_pool(x)), 5)
    graph = net.build()
    options = StepOptions(optimiser="adam")
    inputs, labels = random_batch(graph, 0, 4)
    expected = on_one(graph, inputs, labels, options)
    numbers = np.arange(4 * SAMPLES).reshape(4, SAMPLES)[::2].ravel()
    some = {name: each[numbers] for name, each in inputs.items()}
    first = on_one(graph, some, labels[numbers], options)
    _, _, found = on_several(graph, 2, inputs, labels, options=options)
    for name, value in found[1].items():
        if ".running_" in name:
            np.testing.assert_array_equal(value, first[name], err_msg=name)
            assert np.abs(value - expected[name]).max() > 0.01
        elif name != "outcome":
            terms = max(np.linalg.norm(expected[name]), 1e-4)  # a bias in front of it has none
            assert np.linalg.norm(value - expected[name]) < 1e-6 * terms, name


def without_dropout(graph):
    """The network with a rate of 0 in its dropouts, whose masks depend on the micro-batch."""
    layers = {
        name: replace(layer, operator=replace(layer.operator, rate=0.0))
        if layer.op == "dropout"
        else layer
        for name, layer in graph.layers.items()
    }
    return replace(graph, layers=layers)


def test_inference_shares_the_samples():
    graph = every_operator(SAMPLES)
    inputs, labels = random_batch(graph, 0, 4)
    options = StepOptions(train=False)
    expected = on_one(graph, inputs, labels, options)
    pipeline, memories, _ = on_several(graph, 2, inputs, labels, options=options)
    (output,) = graph.outputs
    found = pipeline.results(memories)[output]
    assert found.shape == (8, 5)
    np.testing.assert_array_equal(found, expected[output])


def test_clipping_has_the_norm_of_all_gradients():
    graph = every_operator(SAMPLES)
    inputs, labels = random_batch(graph, 0, 2)
    options = StepOptions(clip_norm=1.0)
    expected = on_one(graph, inputs, labels, options)
    _, _, found = on_several(graph, 2, inputs, labels, options=options)
    for name, value in expected.items():
        if ".running_" not in name and name != "outcome":
            np.testing.assert_array_equal(found[1][name], value, err_msg=name)


def test_memory_map_is_data():
    graph = every_operator(SAMPLES)
    part = shared_batch(graph, 2, 4).parts[1]
    again = from_json(to_json(part))
    assert (again.microbatches, again.all_microbatches) == ((1, 3), 4)
    assert again.places == part.places


def test_what_does_not_fit_is_refused():
    graph = every_operator(SAMPLES)
    cores = [CORE, replace(CORE, links=CORE.links[:1]), CORE]
    with pytest.raises(UserError, match="device 1 needs 2 links, not 1"):
        in_parts(graph, cores, by_samples(graph, 3), 3)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("num_devices", [2, 4])
def test_hardware_equals_the_model(num_devices):
    graph = every_operator(SAMPLES)
    pipeline = shared_batch(graph, num_devices, 4)
    parameters = initial_parameters(graph, 0)
    inputs, labels = random_batch(graph, 0, 4)
    wires = [WIRE] * (num_devices - 1)
    with (
        ModelBackend(pipeline, parameters) as model,
        SimulatorBackend(pipeline, parameters, MemorySpec(), wires) as hardware,
    ):
        for _ in range(2):
            expected = model.step(inputs, labels, SCALARS)
            found = hardware.step(inputs, labels, SCALARS)
            assert (found.loss, found.correct) == (expected.loss, expected.correct)
            for one, other in zip(hardware.memories, model.memories, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_memory_is_known_without_the_program(index):
    """Equal chunks of the sum are counted, not made."""
    net = Network("wide", SAMPLES)
    net.linear(net.relu(net.linear(net.flatten(net.image(3, 8, 8)), 600)), 10)
    graph = net.build()
    stages, schedule = one_stage(graph, by_samples(graph, 3), 3), make_schedule("1f1b-as", 1, 2)
    lowering = Lowering.of(graph, [CORE] * 3, stages, schedule)
    program = lowering.builder(index).build()
    transfers = [each for each in program.kernels if each.layer == SUM]
    demand = lowering.builder(index).demand()
    if index == 0:  # the others add all chunks in one kernel
        assert len(demand.uses) < len(program.demand.uses) - len(transfers) // 2
    assert memory_bytes(demand) == program.memory_bytes
