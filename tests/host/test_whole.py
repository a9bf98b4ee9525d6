"""The whole path: network, plan, Verilog, programs, simulated devices, numbers checked, report."""

import json

import pytest
from build_cases import plan_of
from run_cases import COUNT, MICROBATCH, small_network

from fpgapipe.host.build.build import open_build, write_build
from fpgapipe.host.data.data import load_data
from fpgapipe.host.report.pages.page import write_report
from fpgapipe.host.runtime.measure import measure_build
from fpgapipe.host.runtime.runtime import RunOptions, run_build
from fpgapipe.host.runtime.settings import Settings

STEPS = 3


@pytest.mark.sim
def test_trains_on_two_simulated_devices(tmp_path):
    plan, graph, cluster = plan_of(
        load=small_network,
        batch=MICROBATCH * COUNT,
        microbatches=COUNT,
        array=(8, 8),
        scratchpad_bytes=1 << 17,
    )
    folder = tmp_path / "small"
    write_build(plan, graph, cluster, folder)
    build = open_build(folder)
    data = load_data("random", build.graph)
    settings = Settings(steps=STEPS)
    summary = run_build(build, data, settings, RunOptions("sim", check="model", validates=False))
    assert summary.difference is None
    lines = [json.loads(line) for line in (folder / "run/sim/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(STEPS))
    run_build(build, data, settings, RunOptions("model", validates=False))
    alone = [json.loads(line) for line in (folder / "run/model/log.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [line["loss"] for line in alone]

    # What 'make run' does: to the end in the model, and on from there in simulated hardware.
    trained = run_build(build, data, Settings(epochs=1), RunOptions("model"))
    begun = RunOptions("sim", check="model", source=folder / "run/model")
    on = run_build(build, data, Settings(more=1, learning_rate=0.001), begun)
    assert (on.difference, on.ran, on.steps) == (None, 1, trained.steps + 1)
    assert on.accuracy is not None

    cycles = measure_build(build).to_dict()["minibatch_cycles"]
    assert cycles["rtl"] == lines[-1]["cycles"] == on.cycles
    for level in ("event", "cycle_model"):
        assert cycles[level] == pytest.approx(cycles["rtl"], rel=0.02), level
    page = write_report(build).read_text()
    assert f"{cycles['rtl']:,}" in page
