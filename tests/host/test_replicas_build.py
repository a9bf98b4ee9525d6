"""Replicas of a pipeline: from the command line or a search to the weights."""

import json
from dataclasses import replace

import pytest
from build_cases import assert_trains_as_pytorch, cluster_of, request_for, tiny, unbuilt

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.build.build import open_build, write_build
from fpgapipe.host.runtime.measure import measure_build
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.parameter_groups import freeze
from fpgapipe.partition.cost.cores import core_fits
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing import machine
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings
from fpgapipe.partition.strategies.plan_replicas import plan_replicas


def planned(devices=4, batch=16, microbatches=4, network=tiny, **fields):
    request = replace(request_for(cluster_of(devices), network, batch, microbatches), **fields)
    plan, timeline = plan_replicas(request, "tiny")
    return plan, timeline, request


def cycles_of(plan, pipeline, cluster):
    """Cycles of the programs of all micro-batches, and those that the plan says."""
    found = predict_cluster(
        [part.instructions for part in pipeline.parts],
        plan.cores,
        pipeline.wiring,
        memories=memory_specs(plan),
        wires=wire_timings(plan, cluster),
    )
    return found.cycles, plan.predicted.minibatch_s * plan.clk_hz


def check_prices(plan, request, rel):
    """Compare a plan with the programs of all its micro-batches."""
    graph = request.load(plan.microbatch)
    pipeline = machine.lower_plan(plan, graph, request.cluster, request.step_options)
    assert [node.memory_bytes for node in plan.nodes] == [
        part.memory_bytes for part in pipeline.parts
    ]
    found, planned_cycles = cycles_of(plan, pipeline, request.cluster)
    assert planned_cycles == pytest.approx(found, rel=rel)
    return pipeline


@pytest.mark.parametrize(("devices", "replicas"), [(4, 2), (6, 3)])
def test_plan_and_programs_agree(devices, replicas):
    plan, timeline, request = planned(devices, 12, 6)
    assert (plan.kind, plan.replicas, plan.rounds) == ("replicas", replicas, 6 // replicas)
    assert [node.device for node in plan.nodes] == [f"u280-{place}" for place in range(devices)]
    assert plan.stage_numbers == [0, 1] * replicas
    pipeline = check_prices(plan, request, 1e-9)
    assert pipeline.num_microbatches == 6
    assert timeline.makespan_s == pytest.approx(plan.predicted.minibatch_s, rel=0.25)
    assert len(plan.lane_names) == len(timeline.schedule.lanes) == devices
    assert Plan.model_validate_json(plan.to_json()) == plan
    again, _ = machine.price_plan(plan, tiny(plan.microbatch), request.cluster, pipeline)
    assert again == plan


@pytest.mark.parametrize("devices", [4, 6])
def test_prices_of_many_micro_batches(devices, monkeypatch):
    """Then a replica is priced alone, with the programs of some, and the sums by themselves."""
    monkeypatch.setattr(machine, "ENOUGH_LAYERS", 0)
    plan, _, request = planned(devices, 24 * devices, 12 * devices)
    assert machine.takes_few(plan)
    check_prices(plan, request, 0.02)


def half_frozen(batch):
    """A network of which only the last layers learn."""
    return freeze(tiny(batch), ["conv*", "batch_norm*"])


def test_prices_where_the_first_stage_learns_nothing(monkeypatch):
    """Replicas take as much longer than one of them as the cycle model says."""
    monkeypatch.setattr(machine, "ENOUGH_LAYERS", 0)
    plan, _, request = planned(4, 96, 48, half_frozen)
    assert machine.takes_few(plan)
    alone = request_for(cluster_of(2), half_frozen, 48, 24)
    cycles = [
        cycles_of(made, machine.lower_plan(made, half_frozen(2), asked.cluster), asked.cluster)
        for made, asked in ((plan, request), (best_plan(alone, "tiny").plan, alone))
    ]
    more, planned_more = (both - one for both, one in zip(*cycles, strict=True))
    assert planned_more == pytest.approx(more, abs=0.005 * cycles[0][0])


def test_cores_have_room_for_the_links_of_all_replicas():
    """Two devices alone would need one link each; a plan was accepted that did not fit."""
    cluster = cluster_of(4, "kv260")
    request = request_for(cluster, tiny, 16, 4, array=None)
    plan, _ = plan_replicas(request, "tiny")
    for node, device in zip(plan.nodes, cluster.devices, strict=True):
        assert core_fits(device, node.core) == []


def test_clipped_gradients():
    plan, _, request = planned(options=StepOptions(clip_norm=1.0))
    check_prices(plan, request, 1e-9)


def test_inference():
    plan, _, request = planned(train=False)
    assert plan.replicas == 2
    check_prices(plan, request, 1e-9)
    assert all(node.update_s == 0 for node in plan.nodes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replicas": 3}, "stage 0 must have one node for each of 3 replicas, not 2"),
        ({"batch": 15, "num_microbatches": 3}, "3 micro-batches cannot be shared equally by 2 rep"),
    ],
)
def test_plans_that_are_none_are_refused(change, message):
    plan, _, _ = planned()
    with pytest.raises(ValueError, match=message):
        Plan.model_validate_json(json.dumps(json.loads(plan.to_json()) | change))


def test_an_only_stage_has_no_replicas():
    plan, _, _ = planned()
    value = json.loads(plan.to_json())
    value["stages"][0]["layers"] += value["stages"].pop()["layers"]
    with pytest.raises(ValueError, match="replicas have two stages or more"):
        Plan.model_validate_json(json.dumps(value))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"devices": 5}, "5 devices cannot be divided into equal pipelines of two devices or more"),
        ({"devices": 2}, "2 devices cannot be divided"),
        ({"batch": 15, "microbatches": None}, "15 samples cannot be shared equally by 2 replicas"),
        ({"batch": 15, "microbatches": 3}, "15 samples cannot be shared equally"),
        ({"microbatches": 1}, "1 micro-batch cannot be shared equally by 2 replicas"),
        ({"schedules": ("fbp-as",)}, "replicas with schedule fbp-as; take 1f1b-as"),
        ({"schedules": ("pipedream",)}, "replicas with schedule pipedream; take 1f1b-as"),
        (
            {"network": unbuilt, "batch": 32, "microbatches": None},
            "core has no local_response",
        ),
    ],
)
def test_requests_without_such_a_plan(fields, message):
    with pytest.raises(UserError, match=message):
        planned(**fields)


def test_unequal_devices_are_no_replicas():
    cluster = cluster_of(4)
    other = replace(cluster.devices[3], clk_hz=200e6)
    unequal = replace(cluster, devices=(*cluster.devices[:3], other))
    with pytest.raises(UserError, match="devices u280-1 and u280-3 differ"):
        plan_replicas(request_for(unequal, tiny, 16, 4), "tiny")
    slow = replace(cluster.links[2], line_rate_bits_per_s=1e9)
    links = (*cluster.links[:2], slow, *cluster.links[3:])
    with pytest.raises(UserError, match="links to devices u280-1, u280-3 from those before"):
        plan_replicas(request_for(replace(cluster, links=links), tiny, 16, 4), "tiny")


def test_nodes_of_boards_that_differ_at_the_ends_of_their_chain():
    """Each replica has cores that fit all; links of some boards have longer latencies."""
    cluster = chain_of(load_board("u280"), 3, 2).spec
    assert len(set(cluster.devices)) > 2
    request = request_for(cluster, tiny, 12, 6)
    plan, _ = plan_replicas(request, "tiny")
    assert plan.replicas == 3
    for number, name in enumerate(cluster.device_names):
        core = plan.nodes[number].core
        assert plan.nodes[number].device == name
        assert replace(core, links=()) == replace(plan.nodes[number % 2].core, links=())
    check_prices(plan, request, 1e-9)


def test_a_build_trains_as_pytorch(tmp_path):
    plan, _, request = planned()
    write_build(plan, tiny(plan.microbatch), request.cluster, tmp_path / "some", seed=3)
    build = open_build(tmp_path / "some")
    assert build.plan == plan
    assert_trains_as_pytorch(build)
    with pytest.raises(UserError, match="a replicas build has no measured tasks"):
        measure_build(build)


def test_command_line(cli, tmp_path):
    boards = ("--board", "u280", "--devices", 4, "--array", "4x4", "--batch", 16)
    picture = tmp_path / "t.svg"
    _, shown, _ = cli(
        "plan", "digits-cnn", *boards, "--strategy", "replicas", "--schedule", "gpipe",
        "--svg", picture,
    )  # fmt: skip
    assert "gpipe in 2 replicas over" in shown
    assert "u280-3" in picture.read_text()
    _, shown, _ = cli("plan", "digits-cnn", *boards, "--strategy", "auto")
    assert "replicas" in shown
    cli("build", *boards, "--strategy", "replicas", "-o", tmp_path / "b", "--no-verify")
    _, shown, _ = cli("run", tmp_path / "b", "--backend", "model", "--check", "torch", "--steps", 2)
    assert "differ" not in shown
    cli("report", tmp_path / "b")
    page = (tmp_path / "b/run/report.html").read_text()
    assert "4 devices in 2 pipelines that share the samples" in page
