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


def cycles_in_rtl(build, cli):
    """Cycles of a step, each byte of which is compared with the model."""
    steps = ("--backend", "sim", "--steps", 1, "--check", "--no-validation", "--json")
    code, out, err = cli("run", build.folder, *steps)
    assert code == 0, err
    return json.loads(out)["cycles"]


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.parametrize("board", BOARDS)
def test_a_step_in_rtl_equals_the_model(board, cli, tmp_path):
    assert cycles_in_rtl(build_for(cli, board, tmp_path / "b"), cli)


BUSY_PORTS = pytest.mark.xfail(
    reason="the cycle model does not know what waits for the scratchpad's ports (docs/limits.md)",
    strict=True,
)


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.parametrize(
    "board",
    [
        "ulx3s",
        pytest.param("pynq-z2", marks=BUSY_PORTS),
        pytest.param("arty-a7-100t", marks=BUSY_PORTS),
    ],
)
def test_a_plan_has_the_cycles_of_the_rtl(board, cli, tmp_path):
    build = build_for(cli, board, tmp_path / "b")
    predicted = build.plan.predicted.minibatch_s * build.plan.stages[0].core.clk_hz
    assert predicted == pytest.approx(cycles_in_rtl(build, cli), rel=0.03)
