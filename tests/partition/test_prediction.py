"""A mini-batch by closed form, event simulation, cycle model and simulated cluster."""

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from step_cases import every_operator
from test_pipeline import CORE, cut

from fpgapipe.errors import UserError
from fpgapipe.host.runtime.measure import RESOLUTION_CYCLES, Times, measure_build, watched
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.schedule.schedule import Task, TaskKind
from fpgapipe.lowering.units.step_options import UPDATE, StepOptions
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.load import load_network
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.pricing.closed_form import computed_layers
from fpgapipe.partition.pricing.few_tasks import few_tasks
from fpgapipe.partition.pricing.prediction import PipelineTiming, schedule_of
from fpgapipe.partition.schedule.schedule_kinds import SCHEDULES, make_schedule
from fpgapipe.partition.timeline.timeline import DeadlockError, StageTimes, simulate
from fpgapipe.sim_tb.native.phy import WireSpec

TWO_ENGINES = replace(CORE, num_engines=2)
LARGE_CORE = replace(
    CORE,
    rows=16,
    cols=16,
    acc_depth=512,
    scratchpad=ScratchpadSpec(8, 1 << 18),
)
TWO_LARGE_ENGINES = replace(LARGE_CORE, rows=8, num_engines=2)


def pipeline_of(graph, num_devices, kind, count, **more):
    schedule = make_schedule(kind, num_devices, count)
    core = TWO_ENGINES if schedule.splits_engines else CORE
    return build_pipeline(graph, [core] * num_devices, cut(graph, num_devices), schedule, **more)


@pytest.mark.parametrize(
    ("num_devices", "kind", "count"),
    [
        (2, "gpipe", 2),
        (4, "zb-h1", 3),
        (2, "fbp-as", 3),
        pytest.param(4, "1f1b-as", 8, marks=pytest.mark.slow),
        pytest.param(1, "fbp-as", 4, marks=pytest.mark.slow),
        pytest.param(2, "fbp-as", 8, marks=pytest.mark.slow),
        pytest.param(4, "fbp-as", 4, marks=pytest.mark.slow),
        pytest.param(4, "fbp-as", 8, marks=pytest.mark.slow),
    ],
)
def test_the_event_simulation_follows_the_cycle_model(num_devices, kind, count):
    timing = PipelineTiming.of(pipeline_of(every_operator(2), num_devices, kind, count))
    weights = timing.stage_times.weight_gradient_s
    if kind == "zb-h1":  # the first is added to nothing
        assert (weights[:, 0] < weights[:, 1:].min(axis=1)).all()
    assert timing.event_cycles == pytest.approx(timing.cluster.cycles, rel=0.01)
    for times, tasks, found in zip(
        timing.tasks, timing.event_tasks(), timing.cluster.devices, strict=True
    ):
        spans = Times.of_model(times.program, found.starts, found.ends).tasks()
        whole = timing.cluster.cycles
        for task, (_, end) in zip(times.program.tasks, spans, strict=True):
            assert tasks[task][1] == pytest.approx(end, abs=0.015 * whole), task
        # Tasks of a step run side by side, the others one after the other, at either level.
        for levels in (list(tasks.values()), spans):
            for at, step in enumerate(times.step_of[1:]):
                is_concurrent_task = levels[at + 1][0] < levels[at][1] - 0.01 * whole
                assert is_concurrent_task == (step == times.step_of[at]), times.program.tasks[
                    at + 1
                ]


def test_slow_wires_count():
    pipeline = pipeline_of(every_operator(2), 2, "1f1b-as", 2)
    fast = PipelineTiming.of(pipeline)
    slow = PipelineTiming.of(pipeline, wires=WireTiming(0.25, 5000))
    assert slow.event_cycles - fast.event_cycles > 10_000
    assert slow.event_cycles == pytest.approx(slow.cluster.cycles, rel=0.02)


def digits_pipeline(kind, count, tasks_of=None):
    """On four large cores, whose wires have much to carry."""
    schedule = make_schedule(kind, 4, count)
    core = TWO_LARGE_ENGINES if schedule.splits_engines else LARGE_CORE
    graph = load_network("digits-cnn", 8)
    return build_pipeline(graph, [core] * 4, cut(graph, 4), schedule, tasks_of=tasks_of)


@pytest.mark.parametrize("kind", ["zb-h1", "fbp-as"])
def test_frames_wait_for_slots_that_earlier_tasks_occupy(kind):
    """Under zb-h1 a device also takes gradients only after it has begun an earlier task."""
    timing = PipelineTiming.of(digits_pipeline(kind, 4), wires=WireTiming(16, 20_000))
    assert timing.event_cycles == pytest.approx(timing.cluster.cycles, rel=0.003)
    for link in timing.timeline.links:
        assert (link.start_s[1:] >= link.end_s[:-1] - 1e-6).all()


def test_programs_of_a_few_microbatches_tell_how_frames_of_many_wait():
    wire, count = WireTiming(16, 20_000), 8
    whole = PipelineTiming.of(digits_pipeline("1f1b-as", count), wires=wire)
    lanes = [part.tasks for part in whole.pipeline.parts]
    few = digits_pipeline("1f1b-as", count, lambda tasks: few_tasks(tasks, 6))
    assert sum(len(part.tasks) for part in few.parts) < sum(map(len, lanes))
    times = PipelineTiming(few, whole.memories, whole.wires, lanes).stage_times
    cycles = simulate(schedule_of(lanes), times).makespan_s
    assert cycles == pytest.approx(whole.timeline.makespan_s, rel=0.005)


def test_what_one_of_two_tasks_receives_holds_up_the_other():
    """Both wait in one queue of loads."""
    pipeline = pipeline_of(every_operator(2), 2, "fbp-as", 4)
    timing = PipelineTiming.of(pipeline, wires=WireTiming(1, 20_000))
    assert timing.event_cycles == pytest.approx(timing.cluster.cycles, rel=0.01)


def test_simulated_tasks_wait_for_what_they_are_told():
    schedule = make_schedule("gpipe", 2, 2)
    times = StageTimes.uniform(2, 1.0, 1.0, 1.0)
    first, second = Task(TaskKind.F, 0, 0), Task(TaskKind.F, 0, 1)
    for lag, begin in ((4.0, 5.0), (-0.5, 1.0)):
        timeline = simulate(schedule, times, waits=[(second, first, lag)])
        assert timeline.start_s[0][1] == begin
    with pytest.raises(DeadlockError, match=r"F0@0 on device 0 waits for F1@0 on device 0"):
        simulate(schedule, times, waits=[(first, second, 0.0)])


def test_inference_has_forward_passes_alone():
    pipeline = pipeline_of(every_operator(2), 2, "gpipe", 3, options=StepOptions(train=False))
    timing = PipelineTiming.of(pipeline)
    assert timing.event_cycles == pytest.approx(timing.cluster.cycles, rel=0.01)
    forward = [
        sum(cycles for (_, kind), cycles in own.items() if kind is TaskKind.F)
        for own in timing.closed_layers
    ]
    assert timing.closed_form("gpipe") == sum(forward) + 2 * max(forward)
    assert timing.closed_form("zb-auto") is None


def test_memories_and_wires_must_fit():
    pipeline = pipeline_of(every_operator(2), 2, "gpipe", 1)
    with pytest.raises(
        UserError, match=r"^a pipeline of 2 devices has 2 memories and 1 wires, not 3 and 1$"
    ):
        PipelineTiming.of(pipeline, [MemorySpec()] * 3)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-as", "zb-h1", "fbp-as", "pipedream"])
@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_closed_forms_are_exact_for_equal_stages(kind, num_stages):
    # That of zb-h1 is exact where all passes take as long.
    passes = (2.0, 2.0, 2.0) if kind == "zb-h1" else (2.0, 3.0, 2.5)
    times = StageTimes.uniform(num_stages, *passes, update_s=1.0)
    expected = simulate(make_schedule(kind, num_stages, 8), times).makespan_s
    assert SCHEDULES[kind].closed_form(8, times) == pytest.approx(expected)


def test_closed_forms_of_layers():
    graph = every_operator(2)
    timing = PipelineTiming.of(pipeline_of(graph, 2, "1f1b-as", 2))
    first, second = timing.closed_layers
    assert (first[UPDATE, TaskKind.U], second[UPDATE, TaskKind.U]) > (0, 0)
    assert not {name for name, _ in first} & {name for name, _ in second} - {UPDATE}
    for own in (first, second):
        for (name, kind), cycles in own.items():
            if kind is TaskKind.B:
                parts = (own.get((name, each), 0) for each in (TaskKind.DX, TaskKind.DW))
                assert cycles == sum(parts)
    assert "conv2" in computed_layers(timing.pipeline.parts[0])


def test_times_from_readings():
    """The queue of loads is idle for a time; of two stores at once the second is never seen."""
    instructions = [Instruction(Opcode.LOAD)] * 2 + [Instruction(Opcode.STORE)] * 2
    program = SimpleNamespace(
        instructions=Program.of(instructions),
        kernel_of=[0, 1, 0, 1],
        kernels=[
            SimpleNamespace(name="a", layer="one", task=0),
            SimpleNamespace(name="b", layer="two", task=0),
        ],
        tasks=(SimpleNamespace(kind=TaskKind.F),),
    )
    busy, idle = 0b10, 0b100
    seen = [(0, idle, 9, idle), (0, busy, 9, idle), (0, busy, 9, idle), (7, idle, 2, busy)]
    seen += [(1, busy, 2, busy), (1, busy, 8, idle), (8, idle, 8, idle)]
    readings = np.array(
        [
            (4 * sweep + place, 100 * sweep + 10 * place, value)
            for sweep, values in enumerate(seen)
            for place, value in enumerate(values)
        ]
    )
    times = Times.of_readings(program, readings, 50, 1000)
    assert times.begins.tolist() == [200 - 50, 500 - 50, np.inf, np.inf]
    assert times.ends.tolist() == [-np.inf, -np.inf, 530 - 50, 530 - 50]
    assert times.tasks() == [(150, 480)]
    assert times.layers() == {("one", TaskKind.F): 330}
    # The second load is of what is received.
    instructions[1] = Instruction(Opcode.LOAD, wait=(3,))
    instructions[3] = Instruction(Opcode.RECEIVE, signal=(3,))
    program.instructions = Program.of(instructions)
    times = Times(program, times.begins, times.ends)
    assert times.tasks() == [(450, 480)]


def test_watched_registers_take_turns():
    names = watched(CORE)
    assert names[:4] == ["QUEUE0_OLDEST", "QUEUE0_WAIT", "QUEUE1_OLDEST", "QUEUE1_WAIT"]
    assert names[4:8] == names[:4]


@dataclass
class Measured:
    """As a build."""

    folder: Path
    pipeline: object
    parameters: object
    memories: object
    wires: object
    plan: object

    @property
    def run_folder(self):
        """Where what is measured is kept."""
        return self.folder / "run"

    def check_verilog(self):
        """There is none: what is simulated is generated."""


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize(
    ("num_devices", "kind"),
    [(n, kind) for n in (2, 4) for kind in ("gpipe", "1f1b-as", "zb-h1", "fbp-as")],
)
def test_levels_agree_with_simulated_devices(num_devices, kind, tmp_path):
    graph = every_operator(2)
    pipeline = pipeline_of(graph, num_devices, kind, 4)
    wire = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
    build = Measured(
        tmp_path,
        pipeline,
        initial_parameters(graph, 0),
        [MemorySpec()] * num_devices,
        [wire] * (num_devices - 1),
        SimpleNamespace(schedule=kind, nodes=[1], stages=[1], clk_hz=250e6),
    )
    measure_build(build, threads=2)
    found = json.loads((tmp_path / "run" / "measured.json").read_text())
    cycles = found["minibatch_cycles"]
    assert cycles["event"] == pytest.approx(cycles["rtl"], rel=0.02)
    assert cycles["cycle_model"] == pytest.approx(cycles["rtl"], rel=0.01)
    assert found["clk_hz"] == 250e6
    assert len(found["devices"]) == num_devices
    allowed = RESOLUTION_CYCLES + 0.01 * cycles["rtl"]
    for device in found["devices"]:
        for task in device["tasks"]:
            assert task["cycle_model"][1] == pytest.approx(task["rtl"][1], abs=allowed), task
            assert task["event"][1] == pytest.approx(task["rtl"][1], abs=allowed), task
            # Beside another task the first load says little of when a task, or a layer, begins: it
            # may come while the device waits for what the other one needs, or lie there while the
            # vector engine does the other lane's.
            if kind != "fbp-as":
                begin = task["rtl"][0]
                assert task["cycle_model"][0] == pytest.approx(begin, abs=allowed), task
        for layer in device["layers"]:
            if kind != "fbp-as":
                assert layer["cycle_model"] == pytest.approx(layer["rtl"], abs=allowed), layer
        # A task may wait between two things that it receives, a layer does not.
        by_layer = sum(each["rtl"] for each in device["layers"])
        assert 0 < by_layer <= sum(task["rtl"][1] - task["rtl"][0] for task in device["tasks"])
        assert device["counters"]["INSTRUCTIONS"] > 0
    assert len(found["links"]) == 2 * (num_devices - 1)
    for link in found["links"]:
        busy = link["busy_cycles"]
        assert busy["rtl"] == busy["cycle_model"] == busy["event"]
        assert busy["closed_form"] <= busy["rtl"]


@pytest.mark.sim
@pytest.mark.slow
def test_levels_agree_on_wide_features(tmp_path):
    """Transfers of many frames, whose first parts are used while the last are computed."""
    net = Network("wide", 1)
    x = net.relu(net.conv(net.image(3, 24, 24), 16, 3, padding=1))
    x = net.relu(net.conv(x, 16, 3, padding=1))
    x = net.max_pool(x, 2)
    net.linear(net.flatten(net.global_average_pool(net.relu(net.conv(x, 32, 3)))), 10)
    graph = net.build()
    names = list(graph.layers)
    pipeline = build_pipeline(
        graph, [CORE] * 2, [names[:2], names[2:]], make_schedule("1f1b-as", 2, 3)
    )
    wire = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(4), latency_cycles=128)
    build = Measured(
        tmp_path,
        pipeline,
        initial_parameters(graph, 0),
        [MemorySpec()] * 2,
        [wire],
        SimpleNamespace(schedule="1f1b-as", nodes=[1], stages=[1], clk_hz=250e6),
    )
    cycles = measure_build(build).to_dict()["minibatch_cycles"]
    assert cycles["event"] == pytest.approx(cycles["rtl"], rel=0.02)
    assert cycles["cycle_model"] == pytest.approx(cycles["rtl"], rel=0.01)
