"""Steps over several devices: the same bits as on one, in any order that the programs allow."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from pipeline_cases import run_devices
from step_cases import SMALL_CORE, every_operator

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.instructions import Opcode, semaphores_of_core
from fpgapipe.hw.hls_models.model.cluster import run_cluster
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline, tasks_of_stages
from fpgapipe.lowering.memory.memory_map import from_json, to_json
from fpgapipe.lowering.program.boundary import stages_of
from fpgapipe.lowering.program.hazards import STORED
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.lowering.schedule.tasks import single_device
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.built_schedules import built_schedules, check_schedule_kind
from fpgapipe.partition.schedule.schedule_kinds import SCHEDULES, make_schedule

KINDS = tuple(name for name in SCHEDULES.own if not SCHEDULES[name].make_for)
SAMPLES, COUNT = 2, 3
CORE = replace(SMALL_CORE, links=(LinkEngineSpec(), LinkEngineSpec()))
SCALARS = scalar_bits(seed=7)


def cut(graph, num_stages):
    """Layers of stages of about as many layers each."""
    names = list(graph.layers)
    ends = [round(index * len(names) / num_stages) for index in range(num_stages + 1)]
    return [names[begin:end] for begin, end in pairwise(ends)]


def batch_of(graph, count=COUNT):
    return random_batch(graph, 0, count)


def on_one(graph, options=None):
    """Everything that a step leaves behind, on one device."""
    options = options or StepOptions()
    tasks = single_device(COUNT, train=options.train)
    program = build_step(graph, CORE, options=options, tasks=tasks)
    memory = program.image(initial_parameters(graph, 0))
    inputs, labels = batch_of(graph)
    program.set_batch(memory, inputs, labels)
    model = CoreModel(CORE, memory)
    model.scalars[:] = SCALARS
    model.run(program.instructions)
    return left_behind(program, memory, options)


def left_behind(program, memory, options):
    if not options.train:
        return program.results(memory)
    return {
        name + suffix: value
        for suffix in ("", ".gradient", ".momentum")
        for name, value in program.parameters(memory, suffix).items()
    } | {"outcome": program.outcome(memory)}


def on_several(graph, layers, kind, choose, options=None, core=CORE):
    options = options or StepOptions()
    schedule = make_schedule(kind, len(layers), COUNT)
    cores = [core] * len(layers)
    pipeline = build_pipeline(graph, cores, layers, schedule, options=options)
    memories = pipeline.images(initial_parameters(graph, 0))
    pipeline.set_batch(memories, *batch_of(graph))
    programs = [part.instructions for part in pipeline.parts]
    left = run_devices(cores, memories, programs, SCALARS, choose)
    return pipeline, left, left_behind(pipeline, memories, options)


ORDERS = {
    "first": min,
    "last": max,
    "any": random.Random(3).choice,
    "transfers early": lambda ready: min(
        ready, key=lambda each: (each[1][0] is not Opcode.RECEIVE, each)
    ),
    "transfers late": lambda ready: min(ready, key=lambda each: (each[1][0], each)),
}


@pytest.mark.parametrize(
    ("num_stages", "kind", "order"),
    [
        (2, "1f1b-as", "any"),
        (2, "gpipe", "first"),
        (3, "zb-h1", "any"),
        (3, "1f1b-as", "transfers late"),
        (3, "gpipe", "transfers early"),
        (4, "1f1b-as", "last"),
        (4, "gpipe", "any"),
    ],
)
def test_same_bits_as_on_one_device(num_stages, kind, order):
    graph = every_operator(SAMPLES)
    expected = on_one(graph)
    pipeline, left, found = on_several(graph, cut(graph, num_stages), kind, ORDERS[order])
    assert left == [0] * num_stages
    assert found.pop("outcome") == expected.pop("outcome")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    used = {
        number
        for part in pipeline.parts
        for each in part.instructions
        for number in (*each.wait, *each.signal)
    }
    assert max(used) < semaphores_of_core(2, 1)


def test_inference_gives_all_results():
    graph = every_operator(SAMPLES)
    options = StepOptions(train=False)
    expected = on_one(graph, options)
    _, left, found = on_several(graph, cut(graph, 3), "gpipe", ORDERS["any"], options)
    assert left == [0, 0, 0]
    (output,) = graph.outputs
    assert expected[output].shape == (SAMPLES * COUNT, 5)
    assert len(np.unique(expected[output], axis=0)) == SAMPLES * COUNT
    np.testing.assert_array_equal(found[output], expected[output])


@pytest.mark.parametrize(
    ("producer", "waiter", "order"),
    [
        (Opcode.RECEIVE, Opcode.LOAD, "transfers late"),
        (Opcode.STORE, Opcode.SEND, "last"),
        (Opcode.STORE, Opcode.RECEIVE, "transfers early"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_without_a_semaphore_results_differ(producer, waiter, order):
    graph = every_operator(SAMPLES)
    layers = cut(graph, 2)
    pipeline = build_pipeline(graph, [CORE] * 2, layers, make_schedule("1f1b-as", 2, COUNT))
    expected = on_one(graph)
    memories = pipeline.images(initial_parameters(graph, 0))
    pipeline.set_batch(memories, *batch_of(graph))
    programs = []
    for part in pipeline.parts:
        signals, waits = (
            {
                number
                for each in part.instructions
                if each.opcode is opcode
                for number in getattr(each, which)
            }
            for opcode, which in ((producer, "signal"), (waiter, "wait"))
        )
        edge = {number for number in signals & waits if number > STORED}
        programs.append(
            [
                replace(
                    each,
                    wait=tuple(set(each.wait) - edge),
                    signal=tuple(set(each.signal) - edge),
                )
                for each in part.instructions
            ]
        )
    assert programs != [part.instructions for part in pipeline.parts]
    run_devices([CORE] * 2, memories, programs, SCALARS, ORDERS[order])
    found = left_behind(pipeline, memories, StepOptions())
    assert not all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_program_that_waits_for_its_own_results_is_seen_to_stand_still():
    """The packets that a device sends before it waits for others must come first in the program."""
    graph = every_operator(SAMPLES)
    layers = cut(graph, 2)
    pipeline = build_pipeline(graph, [CORE] * 2, layers, make_schedule("gpipe", 2, COUNT))
    memories = pipeline.images(initial_parameters(graph, 0))
    pipeline.set_batch(memories, *batch_of(graph))
    programs = [list(part.instructions) for part in pipeline.parts]
    sends = [at for at, each in enumerate(programs[0]) if each.opcode is Opcode.SEND]
    programs[0].insert(len(programs[0]) - 1, programs[0].pop(sends[-1]))
    left = run_devices([CORE] * 2, memories, programs, SCALARS, min)
    assert all(left)


def test_values_that_pass_through_a_stage():
    net = Network("long skip", SAMPLES)
    x = net.relu(net.conv(net.image(3, 6, 6), 8, 1))
    y = net.relu(net.conv(x, 8, 3, padding=1))
    y = net.relu(net.conv(y, 8, 3, padding=1))
    y = net.plus(net.conv(y, 8, 1), x)
    net.linear(net.flatten(net.global_average_pool(y)), 4)
    graph = net.build()
    names = list(graph.layers)
    layers = [names[:2], names[2:4], names[4:6], names[6:]]
    stages = stages_of(graph, layers, train=True)
    assert [[each.value for each in stage.before] for stage in stages] == [
        [],
        ["relu1"],
        ["relu1", "relu2"],
        ["relu1", "relu3"],
    ]
    assert all(each.has_gradient for stage in stages for each in stage.before)
    expected = on_one(graph)
    _, left, found = on_several(graph, layers, "1f1b-as", ORDERS["any"])
    assert left == [0] * 4
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_values_that_pass_through_a_stage_go_before_its_own():
    """The stage in between sends on what comes before it has computed what the network has first.

    GNMT is such a network: the embedding of the decoder comes behind the encoder, and is computed
    on the first device.
    """
    net = Network("two branches", SAMPLES)
    x = net.relu(net.conv(net.image(3, 6, 6), 8, 1))
    y = net.relu(net.conv(x, 8, 3, padding=1))
    z = net.relu(net.conv(x, 8, 1))
    net.linear(net.flatten(net.global_average_pool(net.plus(y, z))), 4)
    graph = net.build()
    names = list(graph.layers)
    layers = [names[:2] + names[4:6], names[2:4], names[6:]]
    stages = stages_of(graph, layers, train=True)
    assert [each.value for each in stages[2].before] == ["relu3", "relu2"]
    expected = on_one(graph)
    for kind in ("gpipe", "1f1b-as"):
        _, left, found = on_several(graph, layers, kind, ORDERS["any"])
        assert left == [0] * 3
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_the_gradient_of_the_loss_crosses_as_it_is():
    """Behind a flatten there is nothing that rounds the loss's gradient to a feature."""
    net = Network("last flat", SAMPLES)
    x = net.conv(net.conv(net.image(3, 4, 4), 6, 1), 5, 4)
    net.flatten(x)
    graph = net.build()
    names = list(graph.layers)
    expected = on_one(graph)
    _, left, found = on_several(graph, [names[:2], names[2:]], "1f1b-as", ORDERS["any"])
    assert left == [0, 0]
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_layers_that_run_together_stay_together():
    graph = every_operator(SAMPLES)
    names = list(graph.layers)
    stages = stages_of(graph, [names[:1], names[1:]], train=True)
    assert [unit.name for unit in stages[0].units] == ["relu1"]
    with pytest.raises(
        UserError,
        match=r"^stage 1 of every operator has no layer that does not run together with one of the "
        r"stage before; use fewer stages$",
    ):
        stages_of(graph, [names[:1], names[1:2], names[2:]], train=True)


def test_stages_must_be_all_layers_in_order():
    graph = every_operator(SAMPLES)
    names = list(graph.layers)
    with pytest.raises(
        UserError, match=r"^stages must have each layer of every operator once; 'linear2' they "
    ):
        stages_of(graph, [names[:3], names[3:-1]], train=True)
    with pytest.raises(UserError, match=r"^layer '.*' of stage 0 needs 'relu2' of stage 1, "):
        stages_of(graph, [names[5:], names[:5]], train=True)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(built_schedules())))
def test_kinds_that_are_not_built(kind):
    graph = every_operator(SAMPLES)
    with pytest.raises(UserError, match=r" \(those that can be built: gpipe, 1f1b, "):
        check_schedule_kind(kind)
    with pytest.raises(UserError, match=rf"^schedule {kind} (must|needs) "):
        build_pipeline(graph, [CORE] * 2, cut(graph, 2), make_schedule(kind, 2, 4))


def test_kinds_that_are_built():
    assert set(built_schedules()) < set(KINDS)
    for kind in built_schedules():
        check_schedule_kind(kind)
        lanes = tasks_of_stages(make_schedule(kind, 2, COUNT), 2, train=True)
        assert [sum(task.kind is TaskKind.F for task in lane) for lane in lanes] == [COUNT] * 2


def test_a_core_needs_links():
    graph = every_operator(SAMPLES)
    cores = [replace(CORE, links=(LinkEngineSpec(),))] * 3
    with pytest.raises(UserError, match=r"^the core of device 1 needs 2 links, not 1$"):
        build_pipeline(graph, cores, cut(graph, 3), make_schedule("gpipe", 3, COUNT))


def test_the_memory_map_comes_back_from_json():
    graph = every_operator(SAMPLES)
    program = build_step(graph, CORE, tasks=single_device(COUNT))
    text = to_json(program)
    found = from_json(text)
    assert to_json(found) == text
    memory = program.image(initial_parameters(graph, 0))
    for name, value in program.parameters(memory).items():
        np.testing.assert_array_equal(found.parameters(memory)[name], value)
    with pytest.raises(ValueError, match=r"^memory_bytes: Field required"):
        from_json(text.replace("memory_bytes", "memory"))


def test_the_model_of_a_cluster_gives_the_same():
    graph = every_operator(SAMPLES)
    expected = on_one(graph)
    for num_stages, kind in ((3, "1f1b-as"), (4, "zb-h1")):
        schedule = make_schedule(kind, num_stages, COUNT)
        pipeline = build_pipeline(graph, [CORE] * num_stages, cut(graph, num_stages), schedule)
        memories = pipeline.images(initial_parameters(graph, 0))
        pipeline.set_batch(memories, *batch_of(graph))
        models = [CoreModel(CORE, memory) for memory in memories]
        for model in models:
            model.scalars[:] = SCALARS
        wiring = [((n, int(n > 0)), (n + 1, 0)) for n in range(num_stages - 1)]
        run_cluster(models, [part.instructions for part in pipeline.parts], wiring)
        found = left_behind(pipeline, memories, StepOptions())
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
