"""Weights that layers of several stages share: one gradient, equal copies, or refused."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from pipeline_cases import run_devices
from test_data_parallel import WIRE
from test_data_parallel import on_one as on_one_device
from test_embedding_unit import language
from test_hybrid import built, on_one_of
from test_hybrid import run as run_hybrid
from test_pipeline import CORE, COUNT, ORDERS, SAMPLES, SCALARS, batch_of, cut, on_one, on_several
from test_sharded import close, degrees_of
from test_sharded import run as run_sharded
from unit_steps import assert_hardware_equals_the_model

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering import lower
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.units.network_units import refusals_of
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.operators import Conv
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

NEAR = 1e-6
"""Share of a gradient by which sums in another order differ."""


def thrice(batch):
    """A weight that three layers share, and another that two share."""
    net = Network("thrice", batch)
    x = net.linear(net.image(20), 20, name="first")
    y = net.linear(net.relu(x), 20, bias=False, name="one")
    y = net.linear(net.relu(y), 20, weight="first.weight", name="second")
    y = net.linear(net.relu(net.plus(x, y)), 20, weight="one.weight", bias=False, name="two")
    net.linear(net.relu(y), 20, weight="first.weight", name="third")
    return net.build()


def differences(graph, layers, kind="1f1b-as", order="any", core=CORE):
    """Of gradients and weights between a pipeline and one device, as shares of the gradients."""
    expected = on_one(graph)
    pipeline, left, found = on_several(graph, layers, kind, ORDERS[order], core=core)
    assert left == [0] * len(layers)
    loss, right = found["outcome"]
    assert (loss, right) == expected["outcome"]
    size = {name: np.linalg.norm(value) for name, value in expected.items() if name != "outcome"}
    assert found.keys() == expected.keys()
    return pipeline, {
        name: np.linalg.norm(found[name] - expected[name])
        / size[f"{name.removesuffix('.gradient').removesuffix('.momentum')}.gradient"]
        for name in size
        if not name.endswith((".running_mean", ".running_var"))
    }


@pytest.mark.parametrize(
    ("network", "num_stages", "kind", "order"),
    [
        (language, 2, "1f1b-as", "any"),
        (language, 4, "gpipe", "first"),
        (language, 5, "1f1b-as", "transfers late"),
        (thrice, 2, "gpipe", "transfers early"),
        (thrice, 4, "zb-h1", "last"),
        (thrice, 5, "1f1b-as", "any"),
    ],
)
def test_gradients_are_those_of_one_device(network, num_stages, kind, order):
    graph = network(SAMPLES)
    _, found = differences(graph, cut(graph, num_stages), kind, order)
    assert max(found.values()) < NEAR, found


@pytest.mark.parametrize("num_stages", [3, 4, 6])
@pytest.mark.parametrize("order", ORDERS)
def test_gradients_of_programs_of_two_lanes(num_stages, order):
    """They add up in memory, for which they have semaphores enough."""
    graph, core = thrice(SAMPLES), replace(CORE, num_engines=2)
    _, found = differences(graph, cut(graph, num_stages), "fbp-as", order, core)
    assert max(found.values()) < NEAR, found


def test_without_the_sum_gradients_differ(monkeypatch):
    monkeypatch.setattr(lower, "ties_of", lambda graph, stages, sizes: ())
    graph = language(SAMPLES)
    _, found = differences(graph, cut(graph, 2))
    assert found["table.weight.gradient"] > 0.1
    assert found["places.value.gradient"] < NEAR


@pytest.mark.parametrize("network", [language, thrice])
def test_all_copies_stay_equal(network):
    """Also through stages between, and where those are of sizes that no chunk divides."""
    graph = network(SAMPLES)
    layers = cut(graph, 4)
    schedule = make_schedule("1f1b-as", 4, COUNT)
    pipeline = build_pipeline(graph, [CORE] * 4, layers, schedule)
    memories = pipeline.images(initial_parameters(graph, 0))
    pipeline.set_batch(memories, *batch_of(graph))
    programs = [part.instructions for part in pipeline.parts]
    run_devices([CORE] * 4, memories, programs, SCALARS, ORDERS["any"])
    seen = {}
    shared = set()
    for part, memory in zip(pipeline.parts, memories, strict=True):
        for name, value in part.state(memory).items():
            if name in seen:
                shared.add(name)
                np.testing.assert_array_equal(value, seen[name], err_msg=name)
            seen[name] = value
    expected = ["table.weight"] if network is language else ["first.weight", "one.weight"]
    assert sorted(shared) == [
        f"{name}{suffix}" for name in expected for suffix in ("", ".momentum")
    ]


@pytest.mark.parametrize("letters", ["s", "w"])
@pytest.mark.parametrize("network", [language, thrice])
def test_devices_that_have_the_whole_network(network, letters):
    """Of whole layers each device has all samples; else each has its own, and gradients are sums.

    The devices of such a stage have all layers that share a weight.
    """
    graph = network(SAMPLES)
    options = StepOptions(activations=FP32)
    inputs, labels = random_batch(graph, 0, 2)
    expected = on_one_device(graph, inputs, labels, options)
    degrees = degrees_of(graph, 2, letters)
    _, _, found = run_sharded(graph, 2, degrees, 2, options)
    close(found, expected, NEAR)


def test_late_updates_are_refused():
    graph = language(SAMPLES)
    schedule = make_schedule("pipedream", 2, COUNT)
    with pytest.raises(
        NotImplementedError,
        match=r"^layer 'table' of stage 0 and layer 'head' of stage 1 share parameter "
        r"'table.weight', and no programs add up gradients where weights are updated after each "
        r"micro-batch; take schedule 1f1b-as$",
    ):
        build_pipeline(graph, [CORE] * 2, cut(graph, 2), schedule)
    build_pipeline(graph, [CORE] * 2, cut(graph, 2), schedule, options=StepOptions(train=False))


HYBRID = [
    (thrice, [(2, "www"), (1, "wwww")], "any"),
    (thrice, [(1, "www"), (3, "wwww")], "first"),
    (thrice, [(2, "s"), (1, "ww"), (2, "ssss")], "last"),
    (thrice, [(1, "ww"), (3, "ww"), (2, "sws")], "transfers late"),
    (language, [(2, "w" * 3), (2, "w" * 5)], "any"),
    (language, [(2, "w" * 4), (1, "w" * 2), (2, "ww")], "transfers early"),
]


@pytest.mark.parametrize(("network", "stages", "order"), HYBRID)
@pytest.mark.parametrize("clip_norm", [None, 1e-3])
def test_stages_of_several_devices(network, stages, order, clip_norm):
    """All devices of both stages get the sum, which counts once in the norm of all gradients.

    Samples that are shared lie in other blocks of products.
    """
    graph = network(4)
    options = StepOptions(activations=FP32, clip_norm=clip_norm)
    inputs, labels = random_batch(graph, 0, 3)
    expected = on_one_of(graph, inputs, labels, options, 3)
    found = run_hybrid(graph, stages, 3, options, order)
    close(found, expected, 0.02 if any("s" in letters for _, letters in stages) else 1e-5)


def test_devices_of_a_stage_get_the_sum():
    """Also those that add nothing."""
    graph = thrice(4)
    pipeline = built(graph, [(2, "www"), (2, "wwww")], 2)
    memories = pipeline.images(initial_parameters(graph, 0))
    pipeline.set_batch(memories, *random_batch(graph, 0, 2))
    programs = [part.instructions for part in pipeline.parts]
    run_devices([CORE] * 4, memories, programs, SCALARS, ORDERS["any"])
    states = [part.state(memory) for part, memory in zip(pipeline.parts, memories, strict=True)]
    for name in ("first.weight", "first.weight.momentum", "one.weight"):
        assert len({state[name].tobytes() for state in states}) == 1, name


def test_a_weight_of_which_devices_have_parts_is_refused():
    graph = thrice(4)
    with pytest.raises(
        NotImplementedError,
        match=r"^layer 'first' of stage 0 and layer 'second' .* layer 'first' is cut by channels",
    ):
        built(graph, [(2, "ccc"), (1, "wwww")], 2)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
def test_hardware_of_several_devices_a_stage_equals_the_model():
    graph = thrice(4)
    pipeline = built(graph, [(2, "sss"), (2, "wwww")], 2, StepOptions(clip_norm=1e-3))
    parameters = initial_parameters(graph, 0)
    samples = random_batch(graph, 0, 2)
    with (
        ModelBackend(pipeline, parameters) as model,
        SimulatorBackend(pipeline, parameters, MemorySpec(), [WIRE] * 3) as hardware,
    ):
        expected, found = model.step(*samples, SCALARS), hardware.step(*samples, SCALARS)
        assert (found.loss, found.correct) == (expected.loss, expected.correct)
        for one, other in zip(hardware.memories, model.memories, strict=True):
            np.testing.assert_array_equal(one, other)


def test_shared_averages_are_refused():
    net = Network("averages", 4)
    x = net.batch_norm(net.linear(net.image(8), 6), name="one")
    x = net.linear(net.relu(x), 6)
    norm = net.build().layers["one"]
    shared = {each.spec.role: each.name for each in norm.parameters}
    x = net.add("two", norm.operator, x, shared=shared)
    net.linear(x, 3)
    graph = net.build()
    with pytest.raises(NotImplementedError, match=r"^layer 'one' of stage 0 and layer 'two' of "):
        build_pipeline(graph, [CORE] * 2, cut(graph, 2), make_schedule("gpipe", 2, 2))


def test_one_weight_in_two_orders_is_refused():
    """Of images a depthwise weight has its channels last, and another convolution's first."""
    net = Network("orders", 2)
    x = net.conv(net.image(1, 6, 6), 8, 3, padding=1, bias=False, name="many")
    each = Conv(8, (3, 3), (1, 1), ((1, 1),) * 2, (1, 1), groups=8, bias=False)
    x = net.add("each", each, x, shared={"weight": "many.weight"})
    net.linear(net.flatten(x), 3)
    (found,) = refusals_of(net.build(), train=True)
    assert str(found) == (
        "layer 'each': parameter 'many.weight' must lie in one order for all layers that share it, "
        "and 'many' reads it with its inputs last, not with its channels last"
    )


def test_cuts_have_layers_of_all_kinds():
    """The cases above have a stage without any layer that shares its weight."""
    names = cut(thrice(2), 5)
    assert all(one != other for one, other in pairwise(names))
    assert any(not {"first", "second", "third"} & set(stage) for stage in names)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", [language, thrice])
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
