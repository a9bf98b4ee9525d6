"""Gradients clipped by the norm of all, over stages and over devices with parts of layers."""

from dataclasses import replace

import numpy as np
import pytest
from pipeline_cases import run_devices
from step_cases import every_operator
from test_data_parallel import WIRE
from test_embedding_unit import language
from test_hybrid import built
from test_pipeline import (
    CORE,
    COUNT,
    ORDERS,
    SAMPLES,
    SCALARS,
    batch_of,
    cut,
    left_behind,
    on_one,
    on_several,
)
from test_sharded import degrees_of, small_network
from test_sharded import images as shards
from test_sharded import run as run_sharded
from test_tied_weights import NEAR, thrice

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.share import Share
from fpgapipe.lowering.sums import global_norm
from fpgapipe.lowering.units.step_options import NORM, StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

LIMIT = 1.0
"""Largest norm that the tests' scalars say."""

OPTIONS = StepOptions(clip_norm=LIMIT)


def without_weights_at_the_ends(batch):
    """A network whose first and last layers have nothing to learn."""
    net = Network("bare ends", batch)
    x = net.relu(net.flatten(net.max_pool(net.image(3, 6, 6), 2)))
    x = net.relu(net.linear(x, 20))
    x = net.linear(x, 17)
    net.dropout(net.dropout(x, 0.25), 0.5)
    return net.build()


@pytest.mark.parametrize(
    ("network", "num_stages", "kind", "order", "optimiser"),
    [
        (every_operator, 2, "1f1b-as", "any", "sgd"),
        (every_operator, 3, "zb-h1", "transfers late", "adamw"),
        (every_operator, 4, "gpipe", "transfers early", "sgd"),
        (every_operator, 4, "1f1b-as", "last", "adam"),
        (without_weights_at_the_ends, 5, "1f1b-as", "first", "adamw"),
        (without_weights_at_the_ends, 2, "zb-h2", "any", "sgd"),
    ],
)
def test_same_bits_as_on_one_device(network, num_stages, kind, order, optimiser):
    graph = network(SAMPLES)
    options = replace(OPTIONS, optimiser=optimiser)
    expected = on_one(graph, options)
    pipeline, left, found = on_several(graph, cut(graph, num_stages), kind, ORDERS[order], options)
    assert left == [0] * num_stages
    assert found.pop("outcome") == expected.pop("outcome")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    plain = on_one(graph, replace(options, clip_norm=None))
    names = [name for name in found if name.endswith(".momentum")]
    assert all(np.linalg.norm(found[name]) < np.linalg.norm(plain[name]) for name in names)
    norm = np.sqrt(sum(np.square(plain[f"{name}"]).sum() for name in plain if ".gradient" in name))
    assert norm > LIMIT  # or nothing would be clipped
    assert all(NORM not in part.tensors for part in pipeline.parts[1:])


def test_stages_without_weights_are_there():
    graph = without_weights_at_the_ends(SAMPLES)
    stages = cut(graph, 5)
    learns = [any(graph.layers[name].parameters for name in stage) for stage in stages]
    assert not learns[0]
    assert not learns[-1]


@pytest.mark.parametrize(("network", "num_stages"), [(language, 4), (thrice, 5), (thrice, 2)])
def test_a_weight_of_several_stages_counts_once(network, num_stages):
    graph = network(SAMPLES)
    expected = on_one(graph, OPTIONS)
    pipeline, left, found = on_several(
        graph, cut(graph, num_stages), "1f1b-as", ORDERS["any"], OPTIONS
    )
    assert left == [0] * num_stages
    assert pipeline.parts[0].tensors[NORM].shape == (16,)
    for name, value in expected.items():
        if name.endswith(".momentum"):
            error = np.linalg.norm(found[name] - value) / np.linalg.norm(value)
            assert error < 10 * NEAR, name


def test_counted_twice_it_differs(monkeypatch):
    """The test above sees the fault that it is there for."""
    true = global_norm.gradients_of
    monkeypatch.setattr(
        "fpgapipe.lowering.program.step.gradients_of",
        lambda graph, stored, elsewhere: true(graph, stored, ()),
    )
    graph = thrice(SAMPLES)
    expected = on_one(graph, OPTIONS)
    _, _, found = on_several(graph, cut(graph, 5), "1f1b-as", ORDERS["any"], OPTIONS)
    name = "first.weight.momentum"
    error = np.linalg.norm(found[name] - expected[name]) / np.linalg.norm(expected[name])
    assert error > 0.01


def test_two_engines_clip_too():
    core = replace(CORE, num_engines=2)
    graph = every_operator(SAMPLES)
    schedule = make_schedule("fbp-as", 2, COUNT)
    pipeline = build_pipeline(graph, [core] * 2, cut(graph, 2), schedule, options=OPTIONS)
    with ModelBackend(pipeline, initial_parameters(graph, 0)) as backend:
        backend.step(*batch_of(graph), SCALARS)
        found = backend.parameters(".momentum")
    expected = on_one(graph, OPTIONS)
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[f"{name}.momentum"], err_msg=name)


def factor_of_all(pipeline, memories, found):
    """The factor that the first device has, after a look at whether it is that of all gradients."""
    gradients = [value for name, value in found.items() if name.endswith(".gradient")]
    norm = np.sqrt(sum(np.square(value.astype(float)).sum() for value in gradients))
    assert norm > 1.5 * LIMIT
    first = pipeline.parts[0]
    at = first.places[NORM].begin
    seen = memories[0][at : at + 4].view(np.float32)[0]
    assert seen == pytest.approx(norm, rel=1e-6)
    return LIMIT / norm


def assert_all_are_clipped(found, factor):
    """Compare what the optimiser used with the gradients times the factor."""
    names = [name for name in found if name.endswith(".momentum")]
    assert names
    for name in names:
        gradient = found[f"{name.removesuffix('.momentum')}.gradient"]
        expected = gradient.astype(float) * factor
        assert np.linalg.norm(found[name] - expected) <= 1e-6 * np.linalg.norm(expected), name


SHARDED = [
    (2, "cccccccccw", 1),
    (3, "wcwcwwcwcw", 1),
    (4, "wwwwwwwwww", 1),
    (4, "wciiwcicw", 2),
    (4, "ccccccccww", 2),
    (2, "srrrrrrcs", 1),
    (4, "wwwcwwcwcw", 2),
]


@pytest.mark.parametrize(("num_devices", "letters", "parts"), SHARDED)
@pytest.mark.parametrize("order", ["any", "last"])
def test_devices_with_parts_of_layers(num_devices, letters, parts, order):
    """Each weight counts once: parts on the devices that have them, and common ones on one."""
    graph = shards(SAMPLES, 16) if len(letters) == 9 else small_network(SAMPLES)
    degrees = degrees_of(graph, num_devices, letters, parts)
    pipeline, memories, found = run_sharded(graph, num_devices, degrees, 4, OPTIONS, order)
    assert_all_are_clipped(found, factor_of_all(pipeline, memories, found))


STAGES = [
    (small_network, [(2, "cccc"), (1, "wwwwww")]),
    (small_network, [(1, "ww"), (2, "cccw"), (1, "wwww")]),
    (small_network, [(2, "rr"), (2, "rrcw"), (2, "wwiw")]),
    (shards, [(2, "ssss"), (3, "wwwww")]),
    (shards, [(2, "ssrr"), (2, "srwcs")]),
    (without_weights_at_the_ends, [(1, "ww"), (2, "wccww")]),
]


@pytest.mark.parametrize(("network", "stages"), STAGES)
@pytest.mark.parametrize("order", ["any", "first", "transfers late"])
def test_stages_of_several_devices(network, stages, order):
    graph = network(4)
    pipeline = built(graph, stages, 3, OPTIONS)
    memories = pipeline.images(initial_parameters(graph, 0))
    pipeline.set_batch(memories, *random_batch(graph, 0, 3))
    programs = [part.instructions for part in pipeline.parts]
    cores = [CORE] * len(programs)
    assert not any(run_devices(cores, memories, programs, SCALARS, ORDERS[order]))
    found = left_behind(pipeline, memories, OPTIONS)
    assert_all_are_clipped(found, factor_of_all(pipeline, memories, found))


@pytest.mark.parametrize("counts", [lambda *_: True, lambda share, _: share.lane == 0])
def test_counted_otherwise_the_factor_differs(counts, monkeypatch):
    """The tests above see weights that count on all devices, and parts that count on one only."""
    monkeypatch.setattr(Share, "counts", counts)
    graph = small_network(SAMPLES)
    degrees = degrees_of(graph, 3, "wcwcwwcwcw")
    with pytest.raises(AssertionError):
        factor_of_all(*run_sharded(graph, 3, degrees, 2, OPTIONS))


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize(("network", "num_stages"), [(every_operator, 3), (thrice, 4)])
def test_hardware_equals_the_model(network, num_stages):
    graph = network(SAMPLES)
    options = replace(OPTIONS, optimiser="adamw")
    schedule = make_schedule("1f1b-as", num_stages, COUNT)
    pipeline = build_pipeline(
        graph, [CORE] * num_stages, cut(graph, num_stages), schedule, options=options
    )
    parameters = initial_parameters(graph, 0)
    inputs, labels = batch_of(graph)
    with (
        ModelBackend(pipeline, parameters) as model,
        SimulatorBackend(pipeline, parameters, MemorySpec(), [WIRE] * (num_stages - 1)) as hardware,
    ):
        for step in range(2):
            scalars = scalar_bits(learning_rate=0.01, weight_decay=0.1, max_norm=0.5, step=step)
            expected = model.step(inputs, labels, scalars)
            found = hardware.step(inputs, labels, scalars)
            assert (found.loss, found.correct) == (expected.loss, expected.correct)
            for one, other in zip(hardware.memories, model.memories, strict=True):
                np.testing.assert_array_equal(one, other)
