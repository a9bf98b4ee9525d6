"""Data-parallel plans and builds: from the command line to the weights."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from build_cases import cluster_of, request_for, tiny

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.build.build import open_build, write_build
from fpgapipe.host.runtime.measure import measure_build
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import random_batch
from fpgapipe.network.load import load_network
from fpgapipe.partition.explore import planned as planning
from fpgapipe.partition.explore.core_choices import core_choices
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing import all_reduce_cycles
from fpgapipe.partition.pricing.machine import lower_plan, price_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings
from fpgapipe.partition.search.problem import PlanError
from fpgapipe.partition.strategies import data_parallel
from fpgapipe.partition.strategies.data_parallel import plan_data_parallel, shared_candidates


def planned(devices, batch=8, microbatches=4, load=tiny, **fields):
    request = request_for(cluster_of(devices), load, batch, microbatches, **fields)
    plan, timeline = plan_data_parallel(request, "tiny")
    return plan, timeline, request


def test_plan_and_programs_agree():
    plan, timeline, request = planned(4)
    assert plan.predicted.level == "machine"
    pipeline = lower_plan(plan, tiny(2), request.cluster)
    assert [node.memory_bytes for node in plan.nodes] == [
        part.memory_bytes for part in pipeline.parts
    ]
    found = predict_cluster(
        [part.instructions for part in pipeline.parts],
        plan.cores,
        pipeline.wiring,
        memories=memory_specs(plan),
        wires=wire_timings(plan, request.cluster),
    )
    cycles = plan.predicted.minibatch_s * plan.nodes[0].spec.clk_hz
    assert cycles == pytest.approx(found.cycles, rel=0.02)
    assert timeline.makespan_s == pytest.approx(plan.predicted.minibatch_s, rel=0.01)
    assert Plan.model_validate_json(plan.to_json()) == plan


def test_memory_of_many_micro_batches_is_that_of_the_program():
    plan, _, request = planned(2, batch=256, microbatches=256)
    pipeline = lower_plan(plan, tiny(1), request.cluster)
    assert [node.memory_bytes for node in plan.nodes] == [
        part.memory_bytes for part in pipeline.parts
    ]


def test_equal_devices_are_lowered_once_for_their_memory():
    plan, _, request = planned(5, batch=10, microbatches=10)
    pipeline = lower_plan(plan, tiny(1), request.cluster)
    assert [node.memory_bytes for node in plan.nodes] == [
        part.memory_bytes for part in pipeline.parts
    ]
    again, _ = price_plan(plan, tiny(1), request.cluster, pipeline)
    assert again.predicted == plan.predicted


@pytest.mark.parametrize("port_bytes_per_s", [14.375e9, 13.28e9])
def test_many_devices_take_as_long_as_some_and_the_way_over_the_others(
    port_bytes_per_s, monkeypatch
):
    """Chunks get in each other's way otherwise at each rate of memory: see `MANY_DEVICES`."""
    plan, _, request = planned(4, batch=4, microbatches=4)
    memory = replace(memory_specs(plan)[0], bytes_per_cycle=port_bytes_per_s / 300e6)
    cores, memories = 40 * plan.cores[1:2], 40 * [memory]
    wires = 39 * wire_timings(plan, request.cluster)[:1]
    assert len(cores) > all_reduce_cycles.MANY_DEVICES  # so that some tell of all
    some = all_reduce_cycles.all_reduce_cycles([20_000], cores, memories, wires)
    monkeypatch.setattr(all_reduce_cycles, "MANY_DEVICES", 40)
    whole = all_reduce_cycles.all_reduce_cycles([20_000], cores, memories, wires)
    assert some == pytest.approx(whole, rel=0.005)


def test_many_chunks_take_as_long_as_some_in_proportion(monkeypatch):
    plan, _, request = planned(4, batch=4, microbatches=4)
    cores, memories = plan.cores, memory_specs(plan)
    wires = wire_timings(plan, request.cluster)
    whole = all_reduce_cycles.all_reduce_cycles([260_000], cores, memories, wires)
    monkeypatch.setattr(all_reduce_cycles, "MANY_CHUNKS", 64)
    some = all_reduce_cycles.all_reduce_cycles([260_000], cores, memories, wires)
    assert some != whole
    assert some == pytest.approx(whole, rel=0.02)


def test_a_build_trains_as_one_device(tmp_path):
    plan, _, request = planned(2, batch=4, microbatches=2)
    write_build(plan, tiny(2), request.cluster, tmp_path / "two", seed=3)
    build = open_build(tmp_path / "two")
    alone, _, other = planned(1, batch=4, microbatches=2)
    single = lower_plan(alone, tiny(2), other.cluster)
    inputs, labels = random_batch(tiny(2), 0, 2)
    left = []
    for pipeline in (build.pipeline, single):
        with ModelBackend(pipeline, build.parameters) as backend:
            for step in range(3):
                result = backend.step(inputs, labels, scalar_bits(step=step))
            left.append((result.loss, result.correct, backend.parameters()))
    assert left[0][:2] == left[1][:2]
    for name, value in left[1][2].items():
        if ".running_" not in name:
            np.testing.assert_array_equal(left[0][2][name], value, err_msg=name)
    with pytest.raises(UserError, match="data-parallel build has no measured tasks"):
        measure_build(build)


def test_scratchpads_without_room_are_doubled(monkeypatch):
    pad = ScratchpadSpec(2, 1 << 11)

    def small(*arguments):
        for choice in core_choices(*arguments):
            yield {
                device: (replace(node, core=replace(node.core, scratchpad=pad)), costs)
                for device, (node, costs) in choice.items()
            }

    monkeypatch.setattr(data_parallel, "core_choices", small)
    plan, _, _ = planned(2)
    assert plan.predicted.level == "machine"
    assert all(node.core.scratchpad.size_bytes > pad.size_bytes for node in plan.nodes)
    monkeypatch.setattr(planning, "with_larger_scratchpad", lambda *given: None)
    with pytest.raises(PlanError, match="scratchpad"):
        planned(2)


def test_cells_that_save_no_time_are_left_out(monkeypatch):
    """The slowest of a board's unlike nodes says how long a mini-batch takes."""
    cluster = chain_of(load_board("u280"), 1, 3).spec
    request = Request(partial(load_network, "digits-cnn"), 12, cluster)
    tried = []

    timed = data_parallel.on_every_device

    def note(*arguments, **options):
        tried.append(timed(*arguments, **options))
        return tried[-1]

    monkeypatch.setattr(data_parallel, "on_every_device", note)
    found = [each for _, each in shared_candidates(request)]

    def cells(candidate):
        return sum(stage.node.core.cells for stage in candidate.stages)

    least = {}
    for each in tried:
        key = each.num_microbatches, each.minibatch_s
        least[key] = min(cells(each), least.get(key, cells(each)))
    assert len(found) == len(least) < len(tried)
    assert {(each.num_microbatches, each.minibatch_s): cells(each) for each in found} == least


def test_programs_choose_the_core(monkeypatch):
    """Even where formulas like a wider array than is best."""
    cluster = chain_of(load_board("u280"), 2).spec
    request = Request(partial(load_network, "digits-cnn"), 32, cluster)

    def wrong(*given):
        found = [
            (seconds * (0.8 if each.stages[0].node.core.cols == 64 else 1.0), each)
            for seconds, each in shared_candidates(*given)
        ]
        return sorted(found, key=lambda each: each[0])

    monkeypatch.setattr(data_parallel, "shared_candidates", wrong)
    plan, _ = plan_data_parallel(request, "digits-cnn")
    first = wrong(request)[0][1].stages[0].node.core
    rates = {}
    for shape in {(32, 32), (32, 64), (first.rows, first.cols)}:
        one, _ = plan_data_parallel(replace(request, array=shape), "digits-cnn")
        rates[shape] = one.predicted.samples_per_s
    assert plan.predicted.samples_per_s >= 0.99 * max(rates.values())
    assert rates[first.rows, first.cols] < 0.99 * plan.predicted.samples_per_s


def test_inference_is_shared_too():
    plan, _, request = planned(2, train=False)
    assert not plan.trains
    pipeline = lower_plan(plan, tiny(2), request.cluster)
    assert [part.microbatches for part in pipeline.parts] == [(0, 2), (1, 3)]


@pytest.mark.parametrize(
    ("devices", "batch", "microbatches", "message"),
    [
        (3, 8, None, "8 samples cannot be shared equally by 3 devices; use a multiple of 3"),
        (2, 6, 3, "3 micro-batches cannot be shared equally by 2 devices"),
    ],
)
def test_batches_that_cannot_be_shared(devices, batch, microbatches, message):
    with pytest.raises(PlanError, match=message):
        planned(devices, batch=batch, microbatches=microbatches)


def test_plans_that_are_none_are_refused():
    plan, _, _ = planned(2)
    value = json.loads(plan.to_json())
    value["stages"][0]["degrees"]["none"] = {"sample": 2}
    with pytest.raises(ValueError, match="degrees of a layer that the stage has not: 'none'"):
        Plan.model_validate_json(json.dumps(value))
    value = json.loads(plan.to_json()) | {"num_microbatches": 1}
    with pytest.raises(ValueError, match="1 micro-batch cannot be shared equally by 2"):
        Plan.model_validate_json(json.dumps(value))


def test_command_line(cli):
    boards = ("--board", "u280", "--devices", 2, "--array", "4x4")
    options = (*boards, "--batch", 8, "--micro-batches", 2, "--strategy", "data")
    _, found, _ = cli("plan", "digits-cnn", *options, "--json")
    value = json.loads(found)
    assert value["schedule"] == "1f1b-as"
    assert value["build"]["possible"]
    (stage,) = value["stages"]
    assert len(stage["nodes"]) == 2
    assert stage["degrees"] == {name: {"sample": 2} for name in stage["layers"]}
    _, shown, _ = cli("plan", "digits-cnn", *options)
    assert "data-parallel over" in shown
    assert "cut:" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy", "data", "--schedule", "gpipe"], "leave out --schedule gpipe"),
        (["--schedule", "data-parallel"], "take --strategy data"),
        (["--strategy", "data", "--free-order"], "--free-order is for pipelines"),
        (["--strategy", "data", "--objective", "minibatch"], "--objective is for pipelines"),
    ],
)
def test_options_that_contradict_each_other(cli, arguments, message):
    code, _, fault = cli("plan", "digits-cnn", "--board", "u280", "--devices", 2, *arguments)
    assert code == 2
    assert message in fault
