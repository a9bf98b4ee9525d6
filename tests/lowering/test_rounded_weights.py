"""Copies of weights rounded once for all micro-batches: fewer cycles, the same bits."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from pipeline_cases import run_devices
from step_cases import SMALL_CORE

from fpgapipe.hw.hls_models.cycles.core_cycles import predict
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.numerics import fp32, mx
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.schedule import Task, TaskKind
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

F, DX, DW, B, U = TaskKind.F, TaskKind.DX, TaskKind.DW, TaskKind.B, TaskKind.U
COUNT = 8


def network():
    """Layers of few vectors, of which both copies, or one of them, pay."""
    net = Network("few vectors", 1)
    x = net.relu(net.conv(net.image(32, 3, 3), 64, 3, padding=1))
    x = net.relu(net.conv(x, 96, 1))
    x = net.relu(net.linear(net.flatten(x), 128))
    net.linear(net.relu(net.linear(x, 70)), 10)
    return net.build()


def run(graph, core, options, tasks, parameters):
    program = build_step(graph, core, options=options, tasks=tasks)
    memory = program.image(parameters)
    program.set_batch(memory, *random_batch(graph, 0, COUNT))
    model = CoreModel(core, memory)
    for step in range(2):
        model.scalars[:] = scalar_bits(seed=7, step=step)
        model.run(program.instructions)
    return program, memory


def orders():
    split = [Task(F, 0, 0)]
    for index in range(1, COUNT):
        split += [Task(F, 0, index), Task(DX, 0, index - 1), Task(DW, 0, index - 1)]
    last = COUNT - 1
    split += [Task(DX, 0, last), Task(DW, 0, last), Task(U, 0, -1)]
    whole = [Task(kind, 0, index) for index in range(COUNT) for kind in (F, B)]
    return {"split": split, "one after the other": [*whole, Task(U, 0, -1)]}


@pytest.mark.parametrize("order", orders())
@pytest.mark.parametrize(("rows", "cols"), [(8, 8), (32, 32), (16, 64)])
def test_rounded_copies_have_the_same_bits(rows, cols, order):
    graph = network()
    core = replace(SMALL_CORE, rows=rows, cols=cols, scratchpad=ScratchpadSpec(8, 1 << 17))
    parameters = dict(initial_parameters(graph, 0))
    # Blocks of zeros, of numbers near the least and the largest normal ones, and of many scales.
    weight = next(value for name, value in parameters.items() if name == "linear2.weight")
    weight[:, :32] = 0
    weight[:, 32:64] *= np.float32(2.0) ** -124
    weight[:, 64:96] *= np.float32(2.0) ** np.arange(-30, 2, dtype=np.float32)
    found = {}
    for rounded in (False, True):
        options = StepOptions(rounded_weights=rounded)
        program, memory = run(graph, core, options, orders()[order], parameters)
        copies = {name for name in program.places if name.endswith((".forward", ".input"))}
        assert bool(copies) == rounded
        found[rounded] = program.parameters(memory) | program.parameters(memory, ".gradient")
    for name, value in found[False].items():
        np.testing.assert_array_equal(
            found[True][name].view(np.uint32), value.view(np.uint32), err_msg=name
        )


def test_rounding_twice_is_rounding_once():
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, (1 << 14, 32), dtype=np.uint32)
    near = rng.integers(0, 12, (1 << 14, 1), dtype=np.uint32) << 23  # scales near the least
    bits[::2] = bits[::2] & 0x807FFFFF | near[::2]
    values = bits.view(np.float32)
    elements, codes = mx.quantise(values)
    with np.errstate(all="ignore"):
        rounded = fp32.from_bf16(fp32.to_bf16(mx.dequantise(elements, codes).astype(np.float32)))
    again, same = mx.quantise(rounded)
    np.testing.assert_array_equal(same, codes)
    np.testing.assert_array_equal(again, elements)


def test_copies_take_fewer_cycles_and_are_made_only_where_they_do():
    graph = network()
    cycles = {}
    for count in (2, COUNT):
        tasks = [Task(kind, 0, index) for index in range(count) for kind in (F, B)]
        for rounded in (False, True):
            options = StepOptions(rounded_weights=rounded)
            program = build_step(graph, SMALL_CORE, options=options, tasks=[*tasks, Task(U, 0, -1)])
            cycles[count, rounded] = predict(program.instructions, SMALL_CORE).cycles
            made = [program.tasks[each.task] for each in program.kernels if "round" in each.name]
            assert {str(task) for task in made} <= {"F0@0", "B0@0"}
    assert cycles[2, True] == cycles[2, False]  # a copy takes as long as it saves in two
    assert cycles[COUNT, True] < 0.97 * cycles[COUNT, False]


def test_a_copy_is_that_of_the_weights_that_a_step_begins_with():
    graph = network()
    parameters = initial_parameters(graph, 0)
    tasks = orders()["one after the other"]
    program, memory = run(graph, SMALL_CORE, StepOptions(), tasks, parameters)
    other = {name: value * np.float32(1.5) for name, value in program.parameters(memory).items()}
    expected = program.image(other)
    program.set_parameters(memory, other)  # as a host does that goes on from a checkpoint
    for suffix in (".momentum",):
        for name in program.parameters(memory):
            place = program.places[name + suffix]
            memory[place.begin : place.end] = 0
    for each in (memory, expected):
        program.set_batch(each, *random_batch(graph, 1, COUNT))
        model = CoreModel(SMALL_CORE, each)
        model.scalars[:] = scalar_bits(seed=7)
        model.run(program.instructions)
    found = program.parameters(memory)
    for name, value in program.parameters(expected).items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("num_stages", "kind"), [(2, "1f1b-as"), (2, "gpipe"), (2, "fbp-as"), (3, "zb-h1")]
)
def test_copies_on_several_devices_have_the_same_bits(num_stages, kind):
    """Late gradients, copies and shared memory, in any order that the programs allow."""
    graph = network()
    engines = 2 if kind == "fbp-as" else 1
    core = replace(
        SMALL_CORE,
        num_engines=engines,
        scratchpad=ScratchpadSpec(8, 1 << 17),
        links=(LinkEngineSpec(), LinkEngineSpec()),
    )
    parameters = initial_parameters(graph, 0)
    plain = StepOptions(rounded_weights=False, late_gradients=False, apart=True)
    one = orders()["one after the other"]
    program, memory = run(graph, core, plain, one, parameters)
    expected = program.state(memory)

    names = list(graph.layers)
    ends = [len(names) * index // num_stages for index in range(num_stages + 1)]
    layers = [names[begin:end] for begin, end in pairwise(ends)]
    schedule = make_schedule(kind, num_stages, COUNT)
    pipeline = build_pipeline(graph, [core] * num_stages, layers, schedule)
    copies = [
        {name for name in part.places if name.endswith((".forward", ".input"))}
        for part in pipeline.parts
    ]
    assert sum(map(bool, copies)) > 1
    memories = pipeline.images(parameters)
    pipeline.set_batch(memories, *random_batch(graph, 0, COUNT))
    programs = [part.instructions for part in pipeline.parts]
    rng = random.Random(5)
    for step in range(2):
        left = run_devices(
            [core] * num_stages, memories, programs, scalar_bits(seed=7, step=step), rng.choice
        )
        assert left == [0] * num_stages
    found = pipeline.state(memories)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.sim
@pytest.mark.slow
def test_gateware_matches_model_while_the_memory_pauses():
    from fpgapipe.hw.hls_models.model.registers import RegisterMap
    from fpgapipe.sim_tb.native.core_device import build_device, run_program
    from fpgapipe.sim_tb.native.native import NativeDevice

    graph = network()
    program = build_step(graph, SMALL_CORE, tasks=orders()["split"])
    copies = {name for name in program.places if name.endswith((".forward", ".input"))}
    assert copies
    image = program.image(initial_parameters(graph, 0))
    program.set_batch(image, *random_batch(graph, 0, COUNT))
    expected = image.copy()
    model = CoreModel(SMALL_CORE, expected)
    model.scalars[:] = scalar_bits(seed=7)
    model.run(program.instructions)
    library, _, _ = build_device(SMALL_CORE)
    registers = RegisterMap(SMALL_CORE)
    memory_bytes = program.memory_bytes
    with NativeDevice(library, memory_bytes=memory_bytes, pause=0.3, seed=6) as device:
        device.memory[:] = image
        for number, bits in enumerate(scalar_bits(seed=7)):
            device.write_register(registers.offset(f"SCALAR{number}"), bits)
        run_program(device, registers, program.entry, memory_bytes)
        np.testing.assert_array_equal(device.memory, expected)
