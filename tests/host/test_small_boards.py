"""digits-cnn on the cores that small boards hold: the core that is built, and a step in RTL."""

import json

import pytest

from fpgapipe.host.build.build import open_build
from fpgapipe.partition.pricing.plan_cores import core_specs

BOARDS = ("ulx3s", "pynq-z2", "arty-a7-100t")
SIZES = ("--devices", 1, "--network", "digits-cnn", "--batch", 2, "--micro-batches", 1)


def build_for(cli, board, folder):
    code, _, err = cli("build", "--board", board, *SIZES, "-o", folder)
    assert code == 0, err
    return open_build(folder)


@pytest.mark.parametrize("board", BOARDS)
def test_each_board_holds_a_core(board, cli, tmp_path):
    build = build_for(cli, board, tmp_path / "b")
    (core,) = core_specs(build.plan)
    assert core.scratchpad.port_bytes < 64
    assert not core.counters
    (found,) = build.resources
    assert all(found["used"][name] <= limit for name, limit in found["limits"].items())


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.parametrize("board", BOARDS)
def test_a_step_in_rtl_equals_the_model(board, cli, tmp_path):
    build = build_for(cli, board, tmp_path / "b")
    steps = ("--backend", "sim", "--steps", 1, "--check", "--no-validation", "--json")
    code, out, err = cli("run", tmp_path / "b", *steps)
    assert code == 0, err
    predicted = build.plan.predicted.minibatch_s * build.plan.stages[0].core.clk_hz
    assert predicted == pytest.approx(json.loads(out)["cycles"], rel=0.03)
