"""Layer-wise plans and builds: from the command line or a file to the weights."""

import json
from dataclasses import replace

import numpy as np
import pytest
from build_cases import assert_trains_as_pytorch, cluster_of, request_for, tiny, unbuilt

from fpgapipe.errors import FileError, UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.build import build_check
from fpgapipe.host.build.build import open_build, write_build
from fpgapipe.host.runtime.measure import measure_build
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.lowering.shards.degrees import Degrees
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import random_batch
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing import joint_prices
from fpgapipe.partition.pricing.machine import lower_plan, price_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings
from fpgapipe.partition.search.problem import PlanError, Refusals
from fpgapipe.partition.strategies.data_parallel import plan_data_parallel
from fpgapipe.partition.strategies.one_axis import plan_one_axis
from fpgapipe.partition.strategies.plan_layerwise import plan_given_degrees, plan_layerwise
from fpgapipe.partition.strategies.strategy_file import StrategyFile

MIXED = {"linear1": {"channel": 2}, "*": {"sample": 2}}
CHANNELS = {"fc*": {"channel": 2}, "*": {"sample": 2}}


def given(degrees, devices=2, batch=8, microbatches=4, **fields):
    request = request_for(cluster_of(devices), tiny, batch, microbatches, **fields)
    plan, timeline = plan_given_degrees(request, "tiny", StrategyFile(degrees=degrees))
    return plan, timeline, request


@pytest.mark.parametrize("microbatches", [2, 4, 16])
def test_plan_and_programs_agree(microbatches):
    plan, timeline, request = given(MIXED, batch=16, microbatches=microbatches)
    assert plan.predicted.level == "machine"
    pipeline = lower_plan(plan, tiny(plan.microbatch), request.cluster)
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
    assert cycles == pytest.approx(found.cycles, rel=0.01)
    assert timeline.makespan_s == pytest.approx(plan.predicted.minibatch_s, rel=0.02)
    assert Plan.model_validate_json(plan.to_json()) == plan
    again, _ = price_plan(plan, tiny(plan.microbatch), request.cluster, pipeline)
    assert again == plan


def test_prices_do_not_depend_on_estimates(monkeypatch):
    """A plan whose times are far off, as formulas may be, has the price that it has afterwards."""
    plan, _, request = given(MIXED, batch=24, microbatches=12)
    graph, first = tiny(plan.microbatch), plan.nodes[0]
    passes = ("forward_s", "input_gradient_s", "weight_gradient_s")
    seconds = sum(getattr(first, each) for each in passes)
    for limit in (seconds * first.spec.clk_hz / 2, first.macs / first.core.cells):
        monkeypatch.setattr(joint_prices, "LONG_CYCLES", limit)
        off = [
            each.model_copy(update={name: getattr(each, name) / 100 for name in passes})
            for each in plan.nodes
        ]
        found, _ = price_plan(plan.with_nodes(off), graph, request.cluster)
        assert price_plan(found, graph, request.cluster)[0] == found


def test_groups_of_devices():
    """Two groups of two devices; in each, layers are cut by channels or are whole."""
    degrees = {"linear1": {"sample": 2, "channel": 2}, "*": {"sample": 2}}
    plan, _, request = given(degrees, 4, batch=16, microbatches=4)
    assert (plan.sharers, plan.num_microbatches, plan.predicted.level) == (2, 4, "machine")
    pipeline = lower_plan(plan, tiny(4), request.cluster)
    assert [part.microbatches for part in pipeline.parts] == [(0, 2), (0, 2), (1, 3), (1, 3)]
    found = predict_cluster(
        [part.instructions for part in pipeline.parts],
        plan.cores,
        pipeline.wiring,
        memories=memory_specs(plan),
        wires=wire_timings(plan, request.cluster),
    )
    cycles = plan.predicted.minibatch_s * plan.nodes[0].spec.clk_hz
    assert cycles == pytest.approx(found.cycles, rel=0.01)


@pytest.mark.parametrize(
    ("name", "devices", "cut"),
    [
        ("filter", 2, {"channel": 2}),
        ("channel", 2, {"input": 2}),
        ("spatial", 2, {"height": 2}),
        ("data+filter", 4, {"sample": 2, "channel": 2}),
        ("data+channel", 4, {"sample": 2, "input": 2}),
        ("data+spatial", 4, {"sample": 2, "height": 2}),
    ],
)
def test_all_layers_are_cut_along_one_axis(name, devices, cut):
    request = request_for(cluster_of(devices), tiny, 8, 2)
    plan, _ = plan_one_axis(request, "tiny", name)
    assert (plan.predicted.level, plan.num_microbatches) == ("machine", 2)
    assert Plan.model_validate_json(plan.to_json()) == plan
    (stage,) = plan.stages
    degrees = [stage.degrees.get(name, {}) for name in stage.layers]
    assert cut in degrees
    whole = {axis: number for axis, number in cut.items() if axis == "sample"}
    others = [each for each in degrees if each not in (cut, whole)]
    assert all(each == whole | {"channel": 2} for each in others)
    assert bool(others) == ("channel" in name)
    assert lower_plan(plan, tiny(4), request.cluster).parts[-1].index == devices - 1


@pytest.mark.parametrize("name", ["filter", "channel", "spatial"])
def test_devices_that_share_no_samples_have_any_micro_batches(name):
    """12 samples in 4 micro-batches: both devices have parts of all 3 samples of each."""
    request = request_for(cluster_of(2), tiny, 12, 4)
    plan, _ = plan_one_axis(request, "tiny", name)
    assert (plan.num_microbatches, plan.microbatch) == (4, 3)
    whole = sum(layer.macs for layer in tiny(3).layers.values())
    assert [node.macs for node in plan.nodes] == [whole // 2] * 2


def test_a_search_leaves_out_what_does_not_work():
    """Two micro-batches cannot be shared by four devices, but by two groups, or by none."""
    request = request_for(cluster_of(4), tiny, 12, 2)
    plan, _, _ = plan_layerwise(request, "tiny")
    assert plan.num_microbatches == 2
    assert plan.sharers in (1, 2)
    message = "4 devices; use a multiple of 4$"
    with pytest.raises(PlanError, match=message):
        plan_data_parallel(request, "tiny")


def test_a_refusal_has_the_reasons_of_all_ways():
    refusals = Refusals()
    refusals.add("with 2 groups", "layer 'a' has no parts")
    refusals.add("with 4 groups", "layer 'a' has no parts")
    message = "no hybrid plan is possible: layer 'a' has no parts"
    assert str(refusals.error("hybrid plan")) == message
    refusals.add("with 4 groups", UserError("the memory is too small"))
    assert str(refusals.error("plan")) == (
        "no plan is possible: with 2 groups, layer 'a' has no parts; with 4 groups, the memory is "
        "too small"
    )


@pytest.mark.parametrize(
    ("name", "devices", "message"),
    [
        ("data+filter", 3, "3 devices are no groups of two or more"),
        ("filter", 64, "no layer of tiny can be cut into 64 parts in filter parallelism"),
    ],
)
def test_axes_that_cannot_be_cut(name, devices, message):
    with pytest.raises(PlanError, match=message):
        plan_one_axis(request_for(cluster_of(devices), tiny, 2 * devices, 2), "tiny", name)


def test_search_is_no_slower_than_samples_alone():
    request = request_for(cluster_of(2), tiny, 8, 4)
    plan, _, search = plan_layerwise(request, "tiny")
    assert plan.kind == "data-parallel"  # what the search finds
    assert plan.division.degrees.keys() == tiny(1).layers.keys()
    assert search.num_left <= 2
    alone, _, _ = given({"*": {"sample": 2}})
    assert plan.predicted.minibatch_s <= 1.001 * alone.predicted.minibatch_s
    with pytest.raises(PlanError, match="layer-wise plans are for training"):
        plan_layerwise(request_for(cluster_of(2), tiny, 8, 4, train=False), "tiny")


def test_a_build_trains_like_one_device(tmp_path):
    plan, _, request = given(MIXED, batch=4, microbatches=2)
    write_build(plan, tiny(2), request.cluster, tmp_path / "two", seed=3)
    build = open_build(tmp_path / "two")
    alone, _, other = given({"*": {"sample": 2}}, batch=4, microbatches=2)
    shared = lower_plan(alone, tiny(2), other.cluster)
    inputs, labels = random_batch(tiny(2), 0, 2)
    left = []
    for pipeline in (build.pipeline, shared):
        with ModelBackend(pipeline, build.parameters) as backend:
            result = backend.step(inputs, labels, scalar_bits())
            left.append((result, backend.parameters()))
    assert left[0][0] == left[1][0]
    for name, value in left[1][1].items():
        np.testing.assert_allclose(left[0][1][name], value, rtol=0.05, atol=1e-3, err_msg=name)
    with pytest.raises(UserError, match="layer-wise build has no measured"):
        measure_build(build)


@pytest.mark.parametrize(("name", "devices"), [("channel", 3), ("data+filter", 4)])
def test_steps_are_those_of_pytorch(tmp_path, name, devices):
    """PyTorch rounds the summands of products whose input channels are cut, as the devices do."""
    request = request_for(cluster_of(devices), tiny, 2 * devices, 2)
    plan, _ = plan_one_axis(request, "tiny", name)
    write_build(plan, tiny(plan.microbatch), request.cluster, tmp_path / "some", seed=3)
    build = open_build(tmp_path / "some")
    assert_trains_as_pytorch(build)


def test_a_build_is_made_again_from_its_parts(tmp_path, monkeypatch):
    """Values that came with the network are put together from the devices' memory images."""
    graph = tiny(2)
    (name,) = (n for n in graph.layers if n.startswith("linear") and n.endswith("1"))
    values = {f"{name}.weight": np.full((8, 24), 0.25, np.float32)}
    plan, _, request = given({name: {"channel": 2}, "*": {"sample": 2}}, batch=4, microbatches=2)
    write_build(plan, replace(graph, values=values), request.cluster, tmp_path / "two", seed=3)
    monkeypatch.setattr(build_check, "is_known", lambda manifest: False)
    found = open_build(tmp_path / "two").parameters
    np.testing.assert_array_equal(found[f"{name}.weight"], values[f"{name}.weight"])


def test_layers_that_run_together_have_the_degrees_of_the_first():
    """Others may be named with the same, or by a name that decides for other layers, too."""
    graph = tiny(2)
    wanted = StrategyFile(degrees=MIXED).of(graph)
    assert wanted["relu3"] == wanted["linear1"] == Degrees(channel=2)
    named = {name: MIXED.get(name, {"sample": 2}) for name in graph.layers}
    again = {**named, "relu3": {"channel": 2}}
    assert StrategyFile(degrees=again).of(graph) == wanted
    found = StrategyFile(degrees={"conv1": {"sample": 2}, "*": {"channel": 2}}).of(graph)
    assert found["relu1"] == found["conv1"] == Degrees(sample=2)


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"*": {"sample": 4}}, "2 devices cannot share samples in 4 equal parts"),
        ({"*": {"width": 2}}, "by samples, channels, input channels or rows, or be whole"),
        ({"*": {"channel": 2}}, "gives the network's result, so it must be whole"),
        ({"*": {}}, "uses one device"),
        ({"nothing": {"sample": 2}, "*": {"sample": 2}}, "degrees for 'nothing', but no layer"),
        ({"conv*": {"sample": 2}}, "says nothing about layer"),
        ({"relu3": {"channel": 2}, "*": {"sample": 2}}, "'relu3' than of 'linear1', with which"),
        ({f"l{n}": {"sample": 2} for n in range(50_000)}, "has 50,000 names, and tiny has"),
        ({"[" * 50_000: {"sample": 2}}, "has 50,000 characters; patterns of names have at most"),
    ],
)
def test_strategies_that_cannot_be(degrees, message):
    with pytest.raises(UserError, match=message):
        given(degrees)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "degrees|object"),
        ('{"degrees": {}}', "degrees"),
        ('{"degrees": {"*": {"depth": 2}}}', "depth"),
        ('{"degrees": {"*": {"sample": 0}}}', "must be at least 1, not 0"),
        ('{"degrees": {"*": {"sample": 2}}, "version": 2}', "version"),
        ("{}", "either degrees or stages"),
        ('{"degrees": {"*": {}}, "schedule": "gpipe"}', "only a strategy with stages"),
        ('{"degrees": {"*": {}}, "stages": [{"devices": 1, "degrees": {"*": {}}}]}', "either"),
        ('{"stages": []}', "stages"),
        ('{"stages": [{"devices": 0, "degrees": {"*": {}}}]}', "devices"),
        ('{"stages": [{"devices": 2, "degrees": {"*": {"height": 0}}}]}', "stages.0.degrees.*.hei"),
    ],
)
def test_files_that_are_no_strategy(tmp_path, text, message):
    path = tmp_path / "strategy.json"
    path.write_text(text)
    with pytest.raises(FileError, match=message):
        StrategyFile.read(path)


def test_plans_that_are_none_are_refused():
    plan, _, _ = given({"*": {"sample": 2}})
    value = json.loads(plan.to_json())
    value["stages"][0]["degrees"]["conv1"] = {"sample": 3}
    with pytest.raises(ValueError, match="4 micro-batches cannot be shared equally by 3 devices"):
        Plan.model_validate_json(json.dumps(value))
    value["stages"][0]["degrees"]["conv1"] = {"depth": 2}
    with pytest.raises(ValueError, match="Input should be 'sample', 'channel', 'height', 'width'"):
        Plan.model_validate_json(json.dumps(value))


def test_command_line(cli, tmp_path):
    boards = ("--board", "u280", "--devices", 2, "--array", "4x4", "--batch", 8)
    path = tmp_path / "mine.json"
    degrees = {"fc1": {"channel": 2}, "*": {"sample": 2}}
    path.write_text(json.dumps({"degrees": degrees, "micro_batches": 2}))
    _, found, _ = cli("plan", "digits-cnn", *boards, "--strategy", path, "--json")
    value = json.loads(found)
    assert value["stages"][0]["degrees"]["fc1"] == {"channel": 2}
    assert value["build"]["possible"]
    _, shown, _ = cli("plan", "digits-cnn", *boards, "--micro-batches", 2, "--strategy", "auto")
    assert "cut into parts by" in shown
    assert "data-parallel" in shown
    assert "nodes left of" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy", "layerwise", "--schedule", "gpipe"], "leave out --schedule gpipe"),
        (["--schedule", "layer-wise"], "take --strategy layerwise"),
        (["--strategy", "layerwide"], "did you mean 'layerwise'?"),
        (["--strategy", "auto", "--free-order"], "--free-order is for pipelines"),
    ],
)
def test_options_that_contradict_each_other(cli, arguments, message):
    code, _, fault = cli("plan", "digits-cnn", "--board", "u280", "--devices", 2, *arguments)
    assert code == 2
    assert message in fault


def test_networks_that_are_not_built_have_estimates():
    request = Request(unbuilt, 32, cluster_of(2), all_devices=True)
    plan, _ = plan_data_parallel(request, "unbuilt")
    assert plan.predicted.level == "estimate"
    other, _, search = plan_layerwise(request, "unbuilt")
    assert (other.predicted.level, other.predicted.minibatch_s) == ("estimate", search.step_s)
    everything = StrategyFile(degrees={"*": {"sample": 2}})
    with pytest.raises(UserError, match=r"^layer 'sizes': the core has no local_response_norm"):
        plan_given_degrees(request, "unbuilt", everything)
