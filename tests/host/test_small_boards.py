"""digits-cnn on the cores that small boards hold: the core that is built, and a step in RTL."""

import json

import pytest

from fpgapipe.host.build.build import open_build

BOARDS = ("ulx3s", "pynq-z2", "arty-a7-100t")
SIZES = ("--devices", 1, "--network", "digits-cnn", "--batch", 2, "--micro-batches", 1)


def build_for(cli, board, folder):
    code, _, err = cli("build", "--board", board, *SIZES, "-o", folder)
    assert code == 0, err
    return open_build(folder)


@pytest.mark.parametrize("board", BOARDS)
def test_each_board_holds_a_core(board, cli, tmp_path):
    build = build_for(cli, board, tmp_path / "b")
    (core,) = build.plan.cores
    assert core.scratchpad.port_bytes < 64
    assert not core.counters
    (found,) = build.resources
    assert all(found["used"][name] <= limit for name, limit in found["limits"].items())


LINKED = ("--devices", 2, "--network", "digits-cnn", "--batch", 2, "--micro-batches", 2)


def test_a_core_with_a_link_fits_ulx3s(cli, tmp_path):
    code, _, err = cli("build", "--board", "ulx3s", *LINKED, "-o", tmp_path / "b")
    assert code == 0, err
    build = open_build(tmp_path / "b")
    core, other = build.plan.cores
    assert core == other
    assert [(link.port_bytes, link.phy_bytes) for link in core.links] == [(4, 4)]
    assert (core.rows, core.cols, core.scratchpad.banks) == (8, 4, 2)
    for found in build.resources:
        assert all(found["used"][name] <= limit for name, limit in found["limits"].items())


@pytest.mark.sim
@pytest.mark.slow
def test_a_step_of_two_ulx3s_in_rtl_equals_the_model(cli, tmp_path):
    code, _, err = cli("build", "--board", "ulx3s", *LINKED, "-o", tmp_path / "b")
    assert code == 0, err
    predicted = open_build(tmp_path / "b").plan.predicted.minibatch_s * 40e6
    steps = ("--backend", "sim", "--steps", 1, "--check", "--no-validation", "--json")
    code, out, err = cli("run", tmp_path / "b", *steps)
    assert code == 0, err
    assert predicted == pytest.approx(json.loads(out)["cycles"], rel=0.03)


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.parametrize("board", BOARDS)
def test_a_step_in_rtl_equals_the_model(board, cli, tmp_path):
    build = build_for(cli, board, tmp_path / "b")
    steps = ("--backend", "sim", "--steps", 1, "--check", "--no-validation", "--json")
    code, out, err = cli("run", tmp_path / "b", *steps)
    assert code == 0, err
    predicted = build.plan.predicted.minibatch_s * build.plan.nodes[0].spec.clk_hz
    assert predicted == pytest.approx(json.loads(out)["cycles"], rel=0.03)
