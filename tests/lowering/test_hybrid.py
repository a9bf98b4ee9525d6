"""Pipelines whose stages are groups of devices: what they compute, and that none waits forever."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from pipeline_cases import run_devices
from step_cases import every_operator
from test_data_parallel import WIRE, on_one
from test_pipeline import CORE, ORDERS, SCALARS, left_behind
from test_sharded import close, images, small_network
from unit_steps import assert_steps_equal_the_model

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.shards.degrees import Degrees
from fpgapipe.lowering.shards.stages import Stages
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.partition.schedule.schedule_kinds import make_schedule


def plan(graph, stages):
    """Layers, sizes and degrees of stages that are given as (number of devices, letters).

    The letters stand for layers that run together: s for samples, c for channels, i for input
    channels, r for rows, w for whole.
    """
    groups = layers_together(graph)
    ends = np.cumsum([0, *(len(letters) for _, letters in stages)])
    assert ends[-1] == len(groups), [names[0] for names in groups]
    layers, degrees = [], {}
    for (size, letters), (begin, end) in zip(stages, pairwise(ends), strict=True):
        layers.append([name for names in groups[begin:end] for name in names])
        kinds = {
            "s": Degrees(size),
            "c": Degrees(channel=size),
            "i": Degrees(input=size),
            "r": Degrees(height=size),
            "w": Degrees(),
        }
        for names, letter in zip(groups[begin:end], letters, strict=True):
            degrees |= dict.fromkeys(names, kinds[letter])
    return layers, [size for size, _ in stages], degrees


def built(graph, stages, count, options=None, kind="1f1b-as"):
    """The programs of stages, for `count` micro-batches."""
    layers, sizes, degrees = plan(graph, stages)
    schedule = make_schedule(kind, len(stages), count)
    cores = [CORE] * sum(sizes)
    return build_pipeline(graph, cores, Stages(layers, sizes, degrees), schedule, options=options)


def run(graph, stages, count, options, order="any", kind="1f1b-as"):
    """Run a step of `count` micro-batches; return what it leaves behind."""
    pipeline = built(graph, stages, count, options, kind)
    cores = [CORE] * len(pipeline.parts)
    memories = pipeline.images(initial_parameters(graph, 0))
    pipeline.set_batch(memories, *random_batch(graph, 0, count))
    programs = [part.instructions for part in pipeline.parts]
    left = run_devices(cores, memories, programs, SCALARS, ORDERS[order])
    assert left == [0] * len(cores)
    return left_behind(pipeline, memories, options)


def on_one_of(graph, inputs, labels, options, count):
    """All that a step of `count` micro-batches leaves behind on one device."""
    return on_one(graph, inputs, labels, options, together=len(labels) // (2 * count))


CASES = [
    (small_network, [(2, "cccc"), (1, "wwwwww")], "any"),
    (small_network, [(1, "wwww"), (2, "cccccw")], "first"),
    (small_network, [(2, "wcww"), (2, "cwcwcw")], "last"),
    (small_network, [(1, "ww"), (2, "cccw"), (1, "wwww")], "any"),  # one value passes through
    (small_network, [(2, "rr"), (2, "rrcw"), (2, "wwiw")], "any"),
    (images, [(2, "rrrr"), (1, "wwwww")], "transfers late"),
    (images, [(1, "ww"), (3, "rrrrrww")], "transfers early"),
    (images, [(2, "ssss"), (1, "wwwww")], "any"),
    (images, [(1, "ssss"), (2, "sssss")], "any"),
    (images, [(2, "ssrr"), (2, "srwcs")], "last"),
    (images, [(2, "ssss"), (4, "sssss")], "first"),
    (images, [(2, "wwww"), (4, "sscss")], "transfers late"),
]


@pytest.mark.parametrize(("network", "stages", "order"), CASES)
@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
def test_stages_of_several_devices(network, stages, order, activations):
    """The step is that of one device, but for the order of sums."""
    graph = network(4)
    options = StepOptions(activations=activations)
    count = 5
    inputs, labels = random_batch(graph, 0, count)
    expected = on_one_of(graph, inputs, labels, options, count)
    found = run(graph, stages, count, options, order)
    assert found["outcome"][1] == expected["outcome"][1]
    close(found, expected, 0.02)


@pytest.mark.parametrize(
    ("network", "stages"),
    [(small_network, [(2, "cccc"), (2, "wwwwcw")]), (images, [(1, "wwww"), (2, "wwwww")])],
)
def test_the_forward_pass_has_the_bits_of_one_device(network, stages):
    """Each channel is one device's; what whole layers do, all devices of a stage do alike."""
    graph = network(4)
    options = StepOptions(activations=FP32)
    inputs, labels = random_batch(graph, 0, 3)
    expected = on_one_of(graph, inputs, labels, options, 3)
    found = run(graph, stages, 3, options)
    assert found["outcome"] == expected["outcome"]
    for name, value in expected.items():
        if "w" * 5 in stages[1][1] and name != "outcome":
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-sno", "zb-h1"])
def test_other_schedules(kind):
    graph = images(4)
    options = StepOptions()
    inputs, labels = random_batch(graph, 0, 4)
    expected = on_one_of(graph, inputs, labels, options, 4)
    found = run(graph, [(2, "ssss"), (2, "sscss")], 4, options, kind=kind)
    close(found, expected, 0.02)


def test_one_micro_batch_and_every_operator():
    graph = every_operator(2)
    groups = layers_together(graph)
    stages = [(1, "w" * 5), (2, "w" * (len(groups) - 5))]
    inputs, labels = random_batch(graph, 0, 1)
    options = StepOptions()
    expected = on_one_of(graph, inputs, labels, options, 1)
    found = run(graph, stages, 1, options)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_inference():
    graph = images(4)
    options = StepOptions(train=False, activations=FP32)
    inputs, labels = random_batch(graph, 0, 3)
    expected = on_one_of(graph, inputs, labels, options, 3)
    found = run(graph, [(2, "ssrr"), (2, "wcwws")], 3, options)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("stages", "count", "kind", "error", "message"),
    [
        ([(3, "ssss"), (1, "wwwww")], 2, "1f1b-as", UserError, "3 devices of stage 0 cannot share"),
        ([(2, "cccc"), (1, "wwwww")], 2, "fbp-as", NotImplementedError, "schedule fbp-as with"),
        ([(2, "cccc"), (1, "wwwww")], 2, "pipedream", NotImplementedError, "schedule pipedream"),
        ([(2, "wwww"), (2, "wwwwc")], 2, "1f1b-as", NotImplementedError, "so it must be whole"),
        ([(2, "wwww"), (2, "swwww")], 2, "1f1b-as", NotImplementedError, "it must be cut by sampl"),
        ([(4, "wwww"), (1, "rwwww")], 2, "1f1b-as", None, None),
        ([(7, "rrrr"), (1, "wwwww")], 2, "1f1b-as", NotImplementedError, "no neighbours"),
    ],
)
def test_what_cannot_be_built_is_refused(stages, count, kind, error, message):
    if error is None:
        built(images(4), stages, count, kind=kind)
        return
    with pytest.raises(error, match=message):
        built(images(4), stages, count, kind=kind)


def test_statistics_are_those_of_a_micro_batch():
    with pytest.raises(NotImplementedError, match="'batch_norm1' is a batch normalisation, which"):
        built(small_network(4), [(2, "ssss"), (1, "wwwwww")], 2)


def test_numbers_of_devices():
    graph = images(4)
    layers, sizes, degrees = plan(graph, [(2, "cccc"), (1, "wwwww")])
    schedule = make_schedule("1f1b-as", 2, 2)
    with pytest.raises(UserError, match="2 stages need a number of devices each, 2 together"):
        build_pipeline(graph, [CORE] * 2, Stages(layers, sizes, degrees), schedule)
    bare = replace(CORE, links=CORE.links[:1])
    with pytest.raises(UserError, match="the core of device 1 needs 2 links, not 1"):
        build_pipeline(graph, [CORE, bare, CORE], Stages(layers, sizes, degrees), schedule)
    del degrees["conv1"]
    with pytest.raises(UserError, match="the strategy says nothing about layer 'conv1'"):
        build_pipeline(graph, [CORE] * 3, Stages(layers, sizes, degrees), schedule)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize(
    ("network", "stages"),
    [
        (images, [(2, "ssss"), (1, "wwwww")]),
        (images, [(1, "wwww"), (2, "srwcs")]),
        (small_network, [(1, "ww"), (2, "cccw"), (1, "wwww")]),
        (small_network, [(2, "rr"), (2, "rrcw"), (4, "wwiw")]),
    ],
)
def test_hardware_equals_the_model(network, stages):
    graph, count = network(4), 3
    pipeline = built(graph, stages, count)
    assert_steps_equal_the_model(pipeline, [WIRE] * (len(pipeline.parts) - 1))
