"""Testbenches in Icarus Verilog, where it is installed."""

import re

import pytest
from test_dma import TESTS, Engines, spec_of

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.spec.systolic import Form, SystolicSpec
from fpgapipe.hw.rtl.arith.fp32 import Fp32Adder
from fpgapipe.hw.rtl.gemm.systolic import SystolicArray
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.icarus import missing_for_icarus
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog

installed = pytest.mark.skipif(
    bool(missing_for_icarus()), reason=missing_for_icarus() or "is there"
)


@installed
@pytest.mark.sim
def test_pipeline_matches_model(tmp_path, monkeypatch):
    monkeypatch.setenv("FPGAPIPE_SIMULATOR", "icarus")
    found = simulate(SystolicArray(SystolicSpec(2, 3)), "tb_systolic", tmp_path, waves=True, seed=1)
    assert "$var" in found.waves.read_text()
    assert (tmp_path / "top.vvp").exists()


@installed
@pytest.mark.sim
def test_packed_cells_match_model(tmp_path):
    """Icarus has the same model of a DSP as Verilator."""
    array = SystolicArray(SystolicSpec(3, 4, form=Form.PACKED))
    simulate(array, "tb_systolic", tmp_path, seed=1, simulator="icarus")


@installed
@pytest.mark.sim
def test_buses_match_model(tmp_path):
    """Both kinds of memory, pauses, errors; ports that a test does not drive are 0."""
    spec = spec_of(64, 16, 16)
    found = simulate(Engines(spec), "bus.tb_dma", tmp_path, seed=1, simulator="icarus")
    assert found.tests == TESTS


@installed
@pytest.mark.sim
def test_faults_are_seen(tmp_path):
    wrong, count = re.subn(r"(assign swap = [^;]*);", r"\1 & 1'h0;", verilog_of(Fp32Adder()))
    assert count == 1
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(
            wrong, "tb_fp32", tmp_path, parameters={"block": "adder"}, seed=1, simulator="icarus"
        )
    assert list(caught.value.failures) == ["adds"]


def test_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^Icarus Verilog \(iverilog\) is not installed: apt"):
        simulate_verilog(
            "module top(input clk); endmodule", "tb_fp32", tmp_path, simulator="icarus"
        )


def test_names_the_simulators(tmp_path):
    with pytest.raises(UserError, match=r"^the simulator must be verilator or icarus, not 'vcs'$"):
        simulate_verilog("", "tb_fp32", tmp_path, simulator="vcs")
