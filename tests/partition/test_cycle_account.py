"""Where the cycles of a step go: the parts of each device add up to the whole."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from step_cases import every_operator
from test_pipeline import CORE, cut

from fpgapipe.host.cli.main import cli
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.pricing.cycle_account import Cause, CycleAccount, accounts
from fpgapipe.partition.pricing.prediction import PipelineTiming
from fpgapipe.partition.schedule.schedule_kinds import make_schedule


@pytest.mark.parametrize(
    ("num_devices", "kind", "train"),
    [(2, "1f1b-as", True), (2, "fbp-as", True), (1, "gpipe", False)],
)
def test_every_cycle_is_charged_once(num_devices, kind, train):
    schedule = make_schedule(kind, num_devices, 3)
    core = replace(CORE, num_engines=2) if schedule.splits_engines else CORE
    graph = every_operator(2)
    pipeline = build_pipeline(
        graph, [core] * num_devices, cut(graph, num_devices), schedule,
        options=StepOptions(train=train),
    )  # fmt: skip
    step = PipelineTiming.of(pipeline).cluster
    for account in accounts(pipeline, step):
        for engine in range(core.num_engines):
            spent = account.spent(engine)
            assert sum(each.cycles for each in spent) == pytest.approx(step.cycles, abs=0.01)
            assert min(each.cycles for each in spent) > 0
            causes = {each.cause for each in spent}
            assert {Cause.VECTORS, Cause.VECTOR} <= causes
            if kind != "fbp-as":
                assert (Cause.RECEIVE in causes) == (num_devices > 1)
        found = account.to_dict()
        totals = [sum(row["cycles"] for row in rows) for rows in found["arrays"]]
        assert totals == pytest.approx([step.cycles] * core.num_engines, abs=0.5)
        for name in {row["engine"] for row in found["engines"]}:
            busy = [row["cycles"] for row in found["engines"] if row["engine"] == name]
            assert 0 < sum(busy) <= step.cycles


def linear_step(features, memory, samples):
    net = Network("one", samples)
    net.linear(net.flatten(net.image(1, features, 1)), features)
    program = build_step(net.build(), CORE, memory, StepOptions(train=False))
    prediction = predict(program.instructions, CORE, memory)
    account = CycleAccount(program, prediction, prediction.cycles)
    cycles = {}
    for each in account.spent():
        cycles[each.words] = cycles.get(each.words, 0) + each.cycles
    return cycles, prediction.cycles


def test_a_slow_memory_is_seen_as_loads_of_weights():
    cycles, whole = linear_step(512, MemorySpec(bytes_per_cycle=1), 1)
    assert cycles["waits for loads of weights"] > 0.9 * whole
    # 512 x 512 weights in tiles of 8 x 8; one vector each, while eight columns load.
    assert cycles["products"] == pytest.approx(64 * 64)


def test_few_vectors_are_seen_as_reading_operands():
    cycles, whole = linear_step(128, MemorySpec(bytes_per_cycle=1024), 1)
    assert cycles["reads operands"] > 0.5 * whole
    cycles, whole = linear_step(128, MemorySpec(bytes_per_cycle=1024), 256)
    assert cycles["products"] > 0.5 * whole


def test_plan_explains_itself():
    arguments = ["plan", "digits-cnn", "--board", "u280", "--devices", "2", "--batch", "4"]
    arguments += ["--micro-batches", "2", "--array", "8x8", "--schedule", "gpipe", "--explain"]
    found = CliRunner().invoke(cli, arguments)
    assert found.exit_code == 0, found.output
    assert "array of u280-0 in a step of 2 micro-batches" in found.output
    assert "engines with an instruction under way: gemm0" in found.output
    found = CliRunner().invoke(cli, [*arguments, "--json"])
    explained = json.loads(found.output)["explained"]
    for device in explained["devices"]:
        (rows,) = device["arrays"]
        total = sum(row["cycles"] for row in rows)
        assert total == pytest.approx(explained["cycles"], abs=0.5)
