"""Replicas of a pipeline: each has samples of its own, and the devices of a stage add up."""

import numpy as np
import pytest
from pipeline_cases import run_devices
from shard_cases import in_parts
from step_cases import every_operator
from test_data_parallel import NODE, SMALL, WIRE, by_samples
from test_pipeline import CORE, ORDERS, SCALARS, left_behind
from test_sharded import images, small_network
from test_tied_weights import NEAR, thrice
from unit_steps import assert_steps_equal_the_model

from fpgapipe.errors import UserError
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.share import StageTensors, averages_of
from fpgapipe.lowering.shards.stages import Stages
from fpgapipe.lowering.sums import all_reduce
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.graph import GraphBuilder
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.operators import Activation, Linear
from fpgapipe.network.operators.tensors import Tensor
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

SAMPLES = 2


def cut(graph, num_stages, replicas):
    """Stages with about as many layers each."""
    groups = layers_together(graph)
    parts = np.array_split(np.arange(len(groups)), num_stages)
    layers = [[name for number in part for name in groups[number]] for part in parts]
    return Stages(layers, [1] * num_stages, replicas=replicas)


def replicas_of(graph, num_stages, replicas, rounds, options, core=CORE, kind="1f1b-as"):
    """The programs of replicas, each of which does some micro-batches."""
    cores = [core] * (num_stages * replicas)
    schedule = make_schedule(kind, num_stages, rounds)
    stages = cut(graph, num_stages, replicas)
    return build_pipeline(graph, cores, stages, schedule, options=options)


def run(pipeline, core, inputs, labels, options, order="any"):
    """Run a step; return what each device leaves behind, and the outcome of all."""
    count = len(pipeline.parts)
    memories = pipeline.images(initial_parameters(pipeline.graph, 0))
    pipeline.set_batch(memories, inputs, labels)
    programs = [part.instructions for part in pipeline.parts]
    assert run_devices([core] * count, memories, programs, SCALARS, ORDERS[order]) == [0] * count
    found = []
    for part, memory in zip(pipeline.parts, memories, strict=True):
        own = left_behind(part, memory, options)
        own.pop("outcome", None)
        found.append(own)
    return found, pipeline.outcome(memories)


@pytest.mark.parametrize(
    ("network", "stages", "replicas", "rounds", "order", "core"),
    [
        (every_operator, 2, 2, 1, "any", CORE),
        (every_operator, 3, 2, 2, "first", NODE),
        (every_operator, 2, 3, 2, "last", NODE),
        (every_operator, 4, 2, 3, "transfers early", SMALL),
        (images, 3, 3, 2, "transfers late", NODE),
        (small_network, 3, 2, 4, "any", NODE),
    ],
)
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_bits_of_data_parallelism(
    network, stages, replicas, rounds, order, core, clip_norm, monkeypatch
):
    """Wherever the network is cut, replicas leave behind what as many whole devices do."""
    monkeypatch.setattr(all_reduce, "CHUNK_BYTES", (512, 1024))  # many chunks
    graph = network(SAMPLES)
    options = StepOptions(clip_norm=clip_norm)
    inputs, labels = random_batch(graph, 0, replicas * rounds)
    whole = in_parts(
        graph, [core] * replicas, by_samples(graph, replicas), replicas * rounds, options=options
    )
    expected, outcome = run(whole, core, inputs, labels, options)
    pipeline = replicas_of(graph, stages, replicas, rounds, options, core)
    found, own_outcome = run(pipeline, core, inputs, labels, options, order)
    assert own_outcome == outcome
    assert pipeline.num_microbatches == replicas * rounds
    names = set()
    for device in found:
        names |= device.keys()
        for name, value in device.items():
            np.testing.assert_array_equal(value, expected[0][name], err_msg=name)
    assert names == expected[0].keys()


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-sno", "zb-h1"])
def test_other_schedules(kind):
    graph = images(SAMPLES)
    options = StepOptions()
    inputs, labels = random_batch(graph, 0, 6)
    expected, outcome = run(replicas_of(graph, 2, 2, 3, options), CORE, inputs, labels, options)
    pipeline = replicas_of(graph, 2, 2, 3, options, kind=kind)
    found, own_outcome = run(pipeline, CORE, inputs, labels, options)
    assert own_outcome == outcome
    for device, wanted in zip(found, expected, strict=True):
        for name, value in wanted.items():
            np.testing.assert_array_equal(device[name], value, err_msg=name)


def test_late_schedules_are_refused():
    graph = images(SAMPLES)
    with pytest.raises(NotImplementedError, match=r"pipedream.*take 1f1b-as"):
        replicas_of(graph, 2, 2, 3, StepOptions(), kind="pipedream")


def test_stages_of_several_devices_are_refused():
    graph = images(SAMPLES)
    stages = cut(graph, 2, 2)
    stages = Stages(stages.layers, (1, 2), replicas=2)
    with pytest.raises(NotImplementedError, match="give each of its stages one device"):
        build_pipeline(graph, [CORE] * 6, stages, make_schedule("1f1b-as", 2, 2))


def test_other_numbers_of_cores_are_refused():
    graph = images(SAMPLES)
    with pytest.raises(UserError, match=r"5 together, not \[1, 1\] 2 times"):
        build_pipeline(graph, [CORE] * 5, cut(graph, 2, 2), make_schedule("1f1b-as", 2, 2))


def test_tied_weights():
    """Replicas add up the gradients of each stage, and then the stages those of a replica."""
    graph = thrice(SAMPLES)
    options = StepOptions()
    inputs, labels = random_batch(graph, 0, 4)
    whole = in_parts(graph, [CORE] * 2, by_samples(graph, 2), 4, options=options)
    (expected, _), outcome = run(whole, CORE, inputs, labels, options)
    found, own_outcome = run(replicas_of(graph, 4, 2, 2, options), CORE, inputs, labels, options)
    assert own_outcome == outcome
    copies = {}
    for device in found:
        for name, value in device.items():
            np.testing.assert_array_equal(value, copies.setdefault(name, value), err_msg=name)
            if name.endswith(".gradient"):
                size = np.linalg.norm(expected[name])
                assert np.linalg.norm(value - expected[name]) <= NEAR * size
    assert copies.keys() == expected.keys()


def test_running_averages_of_layers_that_programs_have_in_another_order():
    """Devices agree on the order in which they pass on averages that are equally large."""
    net = Network("branches", SAMPLES)
    x = net.relu(net.conv(net.image(2, 6, 6), 4, 3, padding=1))
    y = net.conv(x, 4, 3, padding=1, name="early")
    z = net.batch_norm(net.conv(x, 4, 3, padding=1), name="second")
    z = net.plus(net.batch_norm(y, name="first"), z)
    net.linear(net.flatten(net.relu(z)), 3)
    graph = net.build()
    stage = StageTensors.of(graph, list(graph.layers)[::-1])
    assert [each.name for each in stage.averages] == averages_of(graph, graph.layers)


def test_a_stage_that_learns_nothing():
    """Its devices pass on the sums of the others."""
    b = GraphBuilder("half frozen", SAMPLES)
    b.input("x", Tensor((SAMPLES, 20)))
    first = b.add("first", Linear(20, bias=False), "x", frozen=("weight",))
    b.add("last", Linear(5), b.add("relu", Activation("relu"), first))
    graph = b.build(["last"])
    options = StepOptions()
    inputs, labels = random_batch(graph, 0, 2)
    whole = in_parts(graph, [CORE] * 2, by_samples(graph, 2), 2, options=options)
    (expected, _), _ = run(whole, CORE, inputs, labels, options)
    found, _ = run(replicas_of(graph, 2, 2, 1, options), CORE, inputs, labels, options)
    for device in found:
        for name, value in device.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize(("stages", "replicas", "rounds"), [(2, 2, 2), (3, 2, 1), (2, 3, 1)])
def test_hardware_equals_the_model(stages, replicas, rounds):
    graph = images(SAMPLES)
    pipeline = replicas_of(graph, stages, replicas, rounds, StepOptions())
    assert_steps_equal_the_model(pipeline, [WIRE] * (len(pipeline.parts) - 1))
