"""Forward and backward passes side by side: the same bits, on two GEMM engines a device."""

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from pipeline_cases import run_devices
from step_cases import SMALL_CORE, every_operator
from test_pipeline import ORDERS, SCALARS, cut, left_behind

from fpgapipe.errors import UserError
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.isa.instructions import Opcode, decode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering import lower
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.schedule import Task, TaskKind, parse
from fpgapipe.lowering.schedule.tasks import common_steps, single_device
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.native.phy import WireSpec

SAMPLES, COUNT = 2, 6
ENDS = (LinkEngineSpec(), LinkEngineSpec())
CORE = replace(SMALL_CORE, num_engines=2, links=ENDS)
ONE_ENGINE = replace(CORE, num_engines=1)
SLOW = pytest.mark.slow


def network(size=6):
    """Sums, random numbers, and values that pass through a stage, in few instructions."""
    net = Network("side by side", SAMPLES)
    x = net.relu(net.conv(net.image(3, size, size), 8, 3, padding=1))
    y = net.relu(net.batch_norm(net.conv(x, 8, 3, padding=1, bias=False)))
    y = net.dropout(net.relu(net.conv(y, 8, 3, padding=1)), 0.25)
    x = net.relu(net.plus(net.conv(y, 8, 1), x))
    net.linear(net.flatten(net.global_average_pool(x)), 5)
    return net.build()


def batch_of(graph):
    return random_batch(graph, 0, COUNT)


def on_one_engine(graph, core=ONE_ENGINE):
    """All that a step leaves behind on one device, one task after the other."""
    program = build_step(graph, core, tasks=single_device(COUNT))
    memory = program.image(initial_parameters(graph, 0))
    program.set_batch(memory, *batch_of(graph))
    model = CoreModel(core, memory)
    model.scalars[:] = SCALARS
    model.run(program.instructions)
    return left_behind(program, memory, StepOptions())


def built(graph, num_devices, core=CORE, kind="fbp-as"):
    schedule = make_schedule(kind, num_devices, COUNT)
    return build_pipeline(graph, [core] * num_devices, cut(graph, num_devices), schedule)


def stores_late(ready):
    return min(ready, key=lambda each: (each[1][0] is Opcode.STORE, each))


def ran(pipeline, order="any", programs=None):
    """All that a step leaves behind, and how many instructions of each device never began."""
    choose = {"any": random.Random(3).choice, "stores late": stores_late}.get(order)
    memories = pipeline.images(initial_parameters(pipeline.graph, 0))
    pipeline.set_batch(memories, *batch_of(pipeline.graph))
    programs = programs or [part.instructions for part in pipeline.parts]
    cores = [part.core for part in pipeline.parts]
    left = run_devices(cores, memories, programs, SCALARS, choose or ORDERS[order])
    return left_behind(pipeline, memories, StepOptions()), left


def is_same(found, expected):
    assert found.keys() == expected.keys()
    return all(np.array_equal(found[name], value) for name, value in expected.items())


def test_steps_are_those_of_the_pipeline():
    """A forward pass goes on by a stage a step, and so does a backward pass, back from the last."""
    steps = common_steps(make_schedule("fbp-as", 3, 5))
    for stage in range(3):
        for number in range(5):
            assert steps[Task(TaskKind.F, stage, number)] == number + stage
            assert steps[Task(TaskKind.B, stage, number)] == number + 5 - stage
        assert steps[Task(TaskKind.U, stage, -1)] == 10 - stage


def test_steps_of_split_backward_passes():
    text = """schedule own
microbatches 2
transfer stream
synchronous yes
placement 0
in-flight 1
route 0
device 0 forward: F0@0 F1@0
device 0 backward: dX0@0 dW0@0 dX1@0 dW1@0 U@0
"""
    steps = {str(task): step for task, step in common_steps(parse(text)).items()}
    assert steps == {
        "F0@0": 0, "dX0@0": 1, "dW0@0": 2, "F1@0": 3, "dX1@0": 4, "dW1@0": 5, "U@0": 6
    }  # fmt: skip
    turned = text.replace("dX0@0 dW0@0 dX1@0 dW1@0", "dX1@0 dW1@0 dX0@0 dW0@0")
    with pytest.raises(
        UserError, match=r"^schedule own cannot run: dX1@0 waits for what waits for it$"
    ):
        common_steps(parse(turned))


@pytest.fixture(scope="module")
def expected():
    return on_one_engine(network())


@pytest.mark.parametrize(
    ("num_devices", "order"),
    [
        (4, "any"),
        pytest.param(2, "last", marks=SLOW),
        pytest.param(1, "any", marks=SLOW),
        pytest.param(3, "transfers late", marks=SLOW),
        pytest.param(4, "transfers early", marks=SLOW),
    ],
)
def test_same_bits_as_one_task_after_the_other(num_devices, order, expected):
    pipeline = built(network(), num_devices)
    found, left = ran(pipeline, order)
    assert left == [0] * num_devices
    assert is_same(found, expected)
    for part in pipeline.parts:
        num_links = (part.index > 0) + (part.index < num_devices - 1)
        program = encode(part.instructions)
        assert decode(program, 2, num_links=num_links) == part.instructions
        engines = {each.engine for each in part.instructions if each.opcode is Opcode.GEMM}
        assert engines == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2, 3, 4])
@pytest.mark.parametrize("order", ORDERS)
def test_same_bits_with_every_operator(num_devices, order):
    graph = every_operator(SAMPLES)
    found, left = ran(built(graph, num_devices), order)
    assert left == [0] * num_devices
    assert is_same(found, on_one_engine(graph))


@pytest.mark.parametrize("banks", [2, pytest.param(4, marks=SLOW)])
def test_lanes_share_few_banks(banks, expected):
    """With two banks, both lanes' products share one, and their vectors the other."""
    core = replace(CORE, links=(), scratchpad=ScratchpadSpec(banks, 1 << 16))
    found, left = ran(built(network(), 1, core))
    assert left == [0]
    assert is_same(found, expected)


def test_products_are_shared_out_and_overlap():
    """The forward passes' engine has all of them, and weight gradients until both are alike."""
    graph = network(size=8)
    (part,) = built(graph, 1).parts
    passes = set()
    for each, number in zip(part.instructions[:-1], part.kernel_of, strict=True):
        if each.opcode is Opcode.GEMM:
            passes.add((part.kernels[number].name.split(".")[1], each.engine))
    assert passes == {("forward", 0), ("input", 1), ("weight", 0), ("weight", 1)}
    (alone,) = built(graph, 1, ONE_ENGINE, "1f1b-as").parts
    cycles = predict(part.instructions, CORE).cycles
    assert cycles < 0.75 * predict(alone.instructions, ONE_ENGINE).cycles


@pytest.mark.parametrize(
    "semaphore", [*(pytest.param(number, marks=SLOW) for number in (11, 13, 15, 16, 17)), 18]
)
def test_without_a_semaphore_of_the_second_lane_results_differ(semaphore):
    """A scratchpad so small that slots and buffers are used again, and sums take turns."""
    graph = network(size=8)
    core = replace(CORE, links=(), scratchpad=ScratchpadSpec(8, 1 << 12))
    pipeline = built(graph, 1, core)
    (part,) = pipeline.parts
    program = [
        replace(
            each,
            wait=tuple(number for number in each.wait if number != semaphore),
            signal=tuple(number for number in each.signal if number != semaphore),
        )
        for each in part.instructions
    ]
    assert program != part.instructions
    expected = on_one_engine(graph, replace(core, num_engines=1))
    assert is_same(ran(pipeline)[0], expected)
    order = {15: "first", 16: "stores late", 18: "stores late"}.get(semaphore, "any")
    assert not is_same(ran(pipeline, order, [program])[0], expected)


def test_a_step_that_needs_itself_stands_still(monkeypatch):
    """Features and a gradient must not cross a border in one step, each behind the other."""
    tasks = [task for lane in make_schedule("fbp-as", 2, COUNT).lanes for task in lane]
    last = {TaskKind.U: COUNT + 1}
    steps = {
        task: last.get(task.kind, task.microbatch + (task.kind is TaskKind.B)) for task in tasks
    }
    monkeypatch.setattr(lower, "common_steps", lambda schedule: steps)
    _, left = ran(built(network(), 2))
    assert all(left)


def test_a_core_needs_two_engines():
    graph = network()
    message = (
        "^schedule fbp-as runs forward and backward passes side by side, for which the core of "
        "device 1 needs 2 GEMM engines, not 1; give it num_engines=2, or take schedule 1f1b-as$"
    )
    with pytest.raises(UserError, match=message):
        build_pipeline(graph, [CORE, ONE_ENGINE], cut(graph, 2), make_schedule("fbp-as", 2, COUNT))


@pytest.mark.parametrize(
    "kind", ["zb-h1", *(pytest.param(k, marks=SLOW) for k in ("gpipe", "1f1b"))]
)
def test_other_schedules_use_one_engine(kind):
    graph = network()
    for one, two in zip(
        built(graph, 2, ONE_ENGINE, kind).parts, built(graph, 2, CORE, kind).parts, strict=True
    ):
        assert one.instructions == two.instructions


def test_inference_needs_but_one_engine():
    graph = network()
    options = StepOptions(train=False)
    programs = [
        build_pipeline(
            graph, [ONE_ENGINE] * 2, cut(graph, 2), make_schedule(kind, 2, COUNT), options=options
        ).parts
        for kind in ("fbp-as", "gpipe")
    ]
    for one, other in zip(*programs, strict=True):
        assert one.instructions == other.instructions


GOOD = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
BAD = replace(GOOD, bytes_per_cycle=Fraction(7, 3), bit_error_rate=1e-5, drop_rate=0.02)


@pytest.mark.sim
@pytest.mark.slow  # a core with two GEMM engines, vector engine and two links
@pytest.mark.parametrize(
    ("num_devices", "wire"), [(1, GOOD), (2, GOOD), (2, BAD), (3, GOOD), (4, GOOD)], ids=str
)
def test_simulated_devices(num_devices, wire, expected):
    pipeline = built(network(), num_devices)
    wires = [replace(wire, seed=number) for number in range(num_devices - 1)]
    parameters = initial_parameters(pipeline.graph, 0)
    with SimulatorBackend(pipeline, parameters, MemorySpec(), wires, threads=2) as backend:
        result = backend.step(*batch_of(pipeline.graph), SCALARS)
        assert is_same(left_behind(pipeline, backend.memories, StepOptions()), expected)
    assert result.cycles


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.parametrize("memory", [MemorySpec(64, 100), MemorySpec(16, 30)], ids=str)
def test_hardware_takes_predicted_cycles(memory):
    """And the bits are the same where a scratchpad is so small that sums take turns."""
    graph = network(size=16)
    pipeline = built(graph, 1)
    (part,) = pipeline.parts
    with SimulatorBackend(pipeline, initial_parameters(graph, 0), memory, []) as backend:
        cycles = backend.step(*batch_of(graph), SCALARS).cycles
        found = left_behind(pipeline, backend.memories, StepOptions())
    assert is_same(found, on_one_engine(graph))
    assert predict(part.instructions, CORE, memory).cycles == pytest.approx(cycles, rel=0.02)
