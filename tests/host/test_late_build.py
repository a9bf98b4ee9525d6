"""Builds whose weights are updated after each micro-batch: from the plan to a resumed training."""

import json

import numpy as np
import pytest
from run_cases import small_build

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.build.build import open_build
from fpgapipe.host.runtime import runtime
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings
from fpgapipe.partition.pricing.prediction import PipelineTiming

MODEL = ("--backend", "model", "--data", "random")


@pytest.mark.parametrize("kind", ["pipedream", "pipedream-newest"])
def test_trained_checked_and_resumed(kind, cli, tmp_path, monkeypatch):
    small_build(tmp_path / "b", monkeypatch, schedule=kind)
    build = open_build(tmp_path / "b")
    assert build.plan.schedule == kind
    count = build.plan.num_microbatches
    with ModelBackend(build.pipeline, build.parameters) as backend:
        assert backend.num_updates == count
    assert runtime.late_weights(build.plan).most_late == min(len(build.plan.stages), count) - 1
    code, out, err = cli("run", tmp_path / "b", *MODEL, "--steps", 4, "--check", "torch", "--json")
    assert code == 0, err
    whole = json.loads(out)
    worst = whole["worst_share_of_tolerance"]
    assert 0 < max(worst.values()) < 0.1
    assert any(name.endswith(".momentum") for name in worst)
    small_build(tmp_path / "c", monkeypatch, schedule=kind)
    for more in (("--steps", 2), ("--steps", 4, "--resume")):
        code, out, err = cli("run", tmp_path / "c", *MODEL, *more, "--json")
        assert code == 0, err
    assert json.loads(out)["loss"] == whole["loss"]
    code, _, err = cli("report", tmp_path / "b")
    assert code == 0, err


def test_a_wrong_reference_is_noticed(cli, tmp_path, monkeypatch):
    small_build(tmp_path / "b", monkeypatch, schedule="pipedream")
    monkeypatch.setattr(runtime, "late_weights", lambda plan: None)
    code, out, err = cli("run", tmp_path / "b", *MODEL, "--steps", 4, "--check", "torch")
    assert code == 1
    assert "torch" in out + err


@pytest.mark.parametrize("kind", ["pipedream", "pipedream-newest"])
def test_prices_are_those_of_the_programs(kind, tmp_path, monkeypatch):
    small_build(tmp_path / "b", monkeypatch, schedule=kind)
    build = open_build(tmp_path / "b")
    plan, pipeline = build.plan, build.pipeline
    assert plan.predicted.level == "machine"
    assert [node.memory_bytes for node in plan.nodes] == [
        part.memory_bytes for part in pipeline.parts
    ]
    found = predict_cluster(
        [part.instructions for part in pipeline.parts],
        plan.cores,
        pipeline.wiring,
        memories=memory_specs(plan),
        wires=wire_timings(plan, build.cluster),
    )
    cycles = plan.predicted.minibatch_s * plan.nodes[0].spec.clk_hz
    assert cycles == pytest.approx(found.cycles, rel=0.02)
    timing = PipelineTiming.of(pipeline, memory_specs(plan), wire_timings(plan, build.cluster))
    assert timing.event_cycles == pytest.approx(found.cycles, rel=0.02)
    busy = plan.nodes[0].forward_s + plan.nodes[0].input_gradient_s
    busy += plan.nodes[0].weight_gradient_s + plan.nodes[0].update_s
    assert plan.predicted.period_s >= busy * (1 - 1e-9)
    assert np.isfinite(plan.predicted.bubble_rate)
