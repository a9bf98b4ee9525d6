"""Hybrid plans and builds: from the command line or a file to the weights."""

import json

import pytest
from build_cases import assert_trains_as_pytorch, cluster_of, request_for, tiny, unbuilt

from fpgapipe.errors import UserError
from fpgapipe.host.build.build import open_build, write_build
from fpgapipe.host.runtime.measure import measure_build
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.lowering.shards.cuts import why_not_shared
from fpgapipe.network.zoo.layers import Network
from fpgapipe.network.zoo.recurrent import lstm_language_model
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.machine import lower_plan, price_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings
from fpgapipe.partition.strategies.plan_hybrid import plan_given_stages, plan_hybrid
from fpgapipe.partition.strategies.strategy_file import StageFile, StrategyFile

NAMES = list(tiny(1).layers)


def stages(*given):
    """Stages of (number of devices, axis by which its layers are cut, names of layers)."""
    return [
        StageFile(devices=size, degrees={name: {axis: size} if axis else {} for name in names})
        for size, axis, names in given
    ]


REPLICATED = stages((2, "sample", NAMES[:2]), (1, None, ["*"]))


def given(found, devices=3, batch=16, microbatches=4, **fields):
    request = request_for(cluster_of(devices), tiny, batch, microbatches)
    plan, timeline = plan_given_stages(request, "tiny", StrategyFile(stages=found, **fields))
    return plan, timeline, request


@pytest.mark.parametrize("microbatches", [1, 4, 16])
def test_plan_and_programs_agree(microbatches):
    """Of 16 micro-batches, the programs of 6 are timed."""
    plan, timeline, request = given(REPLICATED, batch=32, microbatches=microbatches)
    assert (plan.kind, plan.division.sizes) == ("hybrid", (2, 1))
    assert plan.predicted.level == "machine"
    pipeline = lower_plan(plan, tiny(plan.microbatch), request.cluster)
    assert pipeline.num_microbatches == microbatches
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
    if microbatches > 1:  # of one, a gradient is sent before the weights' gradients are done
        assert timeline.makespan_s == pytest.approx(plan.predicted.minibatch_s, rel=0.25)
    assert Plan.model_validate_json(plan.to_json()) == plan
    again, _ = price_plan(plan, tiny(plan.microbatch), request.cluster, pipeline)
    assert again == plan


def test_plans_that_are_none_are_refused():
    plan, _, _ = given(REPLICATED)
    value = json.loads(plan.to_json())
    value["stages"].append(value["stages"][0])
    with pytest.raises(ValueError, match="layers in two stages"):
        Plan.model_validate_json(json.dumps(value))


@pytest.mark.parametrize(
    ("found", "fields", "message"),
    [
        (REPLICATED, {"devices": 4}, "has stages for 3 devices, and there are 4"),
        (REPLICATED, {"microbatches": 16}, "cannot share the 1 sample of a micro-batch equally"),
        (REPLICATED, {"schedule": "fbp-as"}, "no programs are made for schedule fbp-as with"),
        (REPLICATED, {"schedule": "gpip"}, "gpip"),
        (stages((3, "sample", ["*"]), (1, None, ["linear*"])), {}, "needs them"),
        (stages((3, "sample", NAMES[:1])), {}, "says nothing about layer"),
    ],
)
def test_stages_that_do_not_fit(found, fields, message):
    with pytest.raises(UserError, match=message):
        given(found, **fields)


def test_a_build_trains_as_pytorch(tmp_path):
    """PyTorch rounds the summands of products that are cut by input channels, as devices do."""
    cut = [NAMES[0], NAMES[1], *NAMES[3:6]]
    found = stages((2, "channel", cut), (2, "sample", ["*"]))
    found[0].degrees[NAMES[2]] = {"input": 2}
    plan, _, request = given(found, devices=4)
    write_build(plan, tiny(plan.microbatch), request.cluster, tmp_path / "some", seed=3)
    build = open_build(tmp_path / "some")
    assert build.plan == plan
    assert_trains_as_pytorch(build)
    with pytest.raises(UserError, match="a hybrid build has no measured tasks"):
        measure_build(build)


def test_the_search_finds_stages():
    request = request_for(cluster_of(3), tiny, 16, None)
    plan, _ = plan_hybrid(request, "tiny")
    assert plan.kind == "hybrid"
    assert len(plan.nodes) == 3
    assert len(plan.stages) == 2
    assert plan.predicted.level == "machine"


def test_heads_among_the_samples_are_not_cut_by_samples():
    """Heads of an attention are folded into the samples' axis, as PyTorch's modules do."""

    def heads(batch):
        net = Network("heads", batch)
        x = net.reshape(net.linear(net.flatten(net.image(2, 4, 4)), 16), 2 * batch, 8, name="heads")
        net.linear(net.reshape(net.relu(x), batch, 16), 3)
        return net.build()

    request = request_for(cluster_of(3), heads, 12, 2)
    plan, _ = plan_hybrid(request, "heads")
    assert plan.kind == "hybrid"
    assert all("sample" not in stage.degrees.get("heads", {}) for stage in plan.stages)
    assert len(lower_plan(plan, heads(6), request.cluster).parts) == 3


def test_stages_without_the_layer_that_reads_tokens_share_no_samples():
    """Tokens are no values that devices exchange; such plans ended in an inner message."""

    def model(batch):
        return lstm_language_model("lstm", batch, characters=9, features=8, positions=4, layers=1)

    plan, _ = plan_hybrid(request_for(cluster_of(4), model, 8, 4), "lstm")
    for stage in plan.stages:
        shares = any("sample" in each for each in stage.degrees.values())
        assert not shares or "embedding" in stage.layers
    reason = why_not_shared(model(2), ["lstm1", "head"])
    assert reason.startswith("layer 'embedding' (embedding) reads int64")
    assert why_not_shared(model(2), ["embedding"]) == ""


def test_two_devices_make_no_hybrid_plan():
    request = request_for(cluster_of(2), tiny, 16, None)
    with pytest.raises(UserError, match="needs 3 devices or more"):
        plan_hybrid(request, "tiny")


def test_networks_that_are_not_built_have_estimates():
    request = Request(unbuilt, 32, cluster_of(3), all_devices=True)
    plan, _ = plan_hybrid(request, "unbuilt")
    assert plan.predicted.level == "estimate"
    assert plan.kind == "hybrid"


def test_command_line(cli, tmp_path):
    boards = ("--board", "u280", "--devices", 3, "--array", "4x4", "--batch", 8)
    path = tmp_path / "mine.json"
    value = {
        "stages": [
            json.loads(each.model_dump_json())
            for each in stages(
                (2, "sample", ["conv*", "relu1", "relu2", "pool*"]), (1, None, ["*"])
            )
        ]
    }
    path.write_text(json.dumps(value | {"micro_batches": 2, "schedule": "gpipe"}))
    _, found, _ = cli("plan", "digits-cnn", *boards, "--strategy", path, "--json")
    value = json.loads(found)
    assert (value["schedule"], value["num_microbatches"]) == ("gpipe", 2)
    assert value["build"]["possible"]
    assert value["stages"][0]["degrees"]["conv1"] == {"sample": 2}
    _, shown, _ = cli(
        "plan",
        "digits-cnn",
        *boards,
        "--micro-batches",
        2,
        "--strategy",
        "auto",
        "--svg",
        tmp_path / "t.svg",
    )
    assert "hybrid" in shown
    _, shown, _ = cli(
        "plan", "digits-cnn", *boards, "--strategy", "hybrid", "--svg", tmp_path / "t.svg"
    )
    assert "cut into parts by" in shown
    assert (
        "u280-0, u280-1" in (tmp_path / "t.svg").read_text()
        or "u280-1, u280-2" in (tmp_path / "t.svg").read_text()
    )
