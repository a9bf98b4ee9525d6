"""Tests of the choice of the compiler of native simulators."""

import os
import shutil
import time
from pathlib import Path

import pytest

from fpgapipe.cache import cache_dir
from fpgapipe.errors import UserError
from fpgapipe.sim_tb.native import compiler
from fpgapipe.sim_tb.native.compiler import GXX, instruction_set, native_compiler
from fpgapipe.sim_tb.native.input_logic import evaluate_inputs_once
from fpgapipe.sim_tb.native.verilate import SIMULATOR, VERILATOR_FLAGS, compile_model

V3 = "fpu sse4_2 avx avx2 bmi1 bmi2 fma f16c movbe abm"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Make a PATH that has no compilers but the ones that are asked for, as shell scripts."""
    monkeypatch.delenv("FPGAPIPE_CXX", raising=False)
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FPGAPIPE_ANSWERS", raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    gxx = shutil.which("g++")
    old = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(folder))

    def install(name, line):
        (folder / name).write_text(f"#!/bin/sh\nPATH={old}\n{line}\n")
        (folder / name).chmod(0o755)

    return install, gxx


def test_gxx_compiles_where_there_is_no_clang(programs):
    assert native_compiler() is GXX


def test_a_clang_that_works_is_taken(programs):
    install, gxx = programs
    install("clang++-17", f'exec {gxx} "$@"')
    found = native_compiler()
    assert (found.program, "-ffp-contract=off" in found.hot) == ("clang++-17", True)
    assert "CXX=clang++-17" in found.variables
    assert found.identity


@pytest.mark.parametrize("line", ["exit 1", "exec /nowhere/clang++"])
def test_a_clang_that_does_not_work_is_not_taken(programs, line):
    install, gxx = programs
    install("clang++", line)
    assert native_compiler() is GXX
    install("clang++-15", f'exec {gxx} "$@"')
    compiler._found.cache_clear()
    assert native_compiler().program == "clang++-15"


def tried(programs):
    """Calls of a clang++ that counts them and works."""
    install, gxx = programs
    calls = Path(os.environ["PATH"], "calls")
    install("clang++", f'echo call >> {calls}\nexec {gxx} "$@"')
    return calls


def again():
    """Name of the compiler that another process finds."""
    compiler._found.cache_clear()
    compiler._works.cache_clear()
    return native_compiler().program


def test_a_clang_that_works_is_tried_once(programs, monkeypatch):
    calls = tried(programs)
    assert [again() for _ in range(3)] == ["clang++"] * 3
    assert calls.read_text() == "call\n"
    with Path(os.environ["PATH"], "clang++").open("a") as file:
        file.write("# another version\n")
    assert again() == "clang++"
    assert calls.read_text() == "call\n" * 2
    monkeypatch.setenv("FPGAPIPE_ANSWERS", "0")
    assert again() == "clang++"
    assert calls.read_text() == "call\n" * 3


def test_a_clang_that_does_not_work_is_tried_again_after_an_hour(programs, monkeypatch):
    install, gxx = programs
    lacking = Path(os.environ["PATH"], "lacking")
    install("clang++", f'[ -e {lacking} ] || exit 1\nexec {gxx} "$@"')
    assert again() == "g++"
    lacking.touch()
    assert again() == "g++"
    now = time.time()
    monkeypatch.setattr(compiler.time, "time", lambda: now + 3600)
    assert again() == "clang++"


def test_a_clang_that_hangs_is_not_taken(programs, monkeypatch, caplog):
    install, _ = programs
    install("clang++", "exec sleep 100")
    monkeypatch.setattr(compiler, "PROBE_S", 0.5)
    begin = time.monotonic()
    assert native_compiler() is GXX
    assert time.monotonic() - begin < 20
    says = "clang++ compiles no simulators: clang++ was ended after 0.5 s without a result"
    assert says in caplog.text
    caplog.clear()
    assert again() == "g++"
    assert not caplog.text
    monkeypatch.setenv("FPGAPIPE_CXX", "clang++")
    with pytest.raises(UserError, match="names 'clang\\+\\+', which cannot compile a C\\+\\+20"):
        native_compiler()


def test_the_environment_chooses(programs, monkeypatch):
    install, gxx = programs
    install("clang++", f'exec {gxx} "$@"')
    install("clang++-14", f'exec {gxx} "$@"')
    for name in ("clang++-14", "clang++"):
        monkeypatch.setenv("FPGAPIPE_CXX", name)
        assert native_compiler().program == name
    monkeypatch.setenv("FPGAPIPE_CXX", "g++")
    assert native_compiler() is GXX


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tcc", "FPGAPIPE_CXX must name g\\+\\+ or a clang\\+\\+, not 'tcc'"),
        (
            "clang++-99",
            "FPGAPIPE_CXX names 'clang\\+\\+-99', which cannot compile a C\\+\\+20 program",
        ),
    ],
)
def test_what_the_environment_cannot_choose(programs, monkeypatch, name, message):
    monkeypatch.setenv("FPGAPIPE_CXX", name)
    with pytest.raises(UserError, match=message):
        native_compiler()


@pytest.mark.parametrize(
    ("flags", "option"),
    [
        (V4, "-march=x86-64-v4 -mprefer-vector-width=512"),
        (V3, "-march=x86-64-v3"),
        (V4.replace("avx512vl", ""), "-march=x86-64-v3"),
        ("fpu sse4_2", ""),
    ],
)
def test_instruction_set(tmp_path, flags, option):
    processor = tmp_path / "cpuinfo"
    processor.write_text(f"processor\t: 0\nflags\t\t: {flags}\nprocessor\t: 1\nflags\t: none\n")
    assert instruction_set(processor) == option


def test_other_machines_have_no_options(tmp_path):
    assert instruction_set(tmp_path / "missing") == ""
    (tmp_path / "arm").write_text("Features\t: fp asimd\n")
    assert instruction_set(tmp_path / "arm") == ""


INPUTS = """
module top(clk, rst, a, y);
  input clk;
  input rst;
  input [7:0] a;
  output [7:0] y;
  wire clk;
  reg [7:0] sum = 0;
  assign y = sum ^ a{gated};
  always @(posedge clk) sum <= rst ? 8'h00 : sum + a;
endmodule
"""


@pytest.mark.sim
@pytest.mark.parametrize(("gated", "changes"), [("", True), (" & {8{clk}}", False)])
def test_inputs_are_evaluated_at_falling_edges_only(tmp_path, gated, changes):
    """Verilator's text has the place that is changed; a clock that is a value keeps both edges."""
    (tmp_path / "top.v").write_text(INPUTS.replace("{gated}", gated))
    (tmp_path / "none.cpp").write_text("int fpgapipe_none;\n")
    before = {}

    def change(folder):
        before.update({path: path.read_text() for path in folder.glob("Vtop*.cpp")})
        evaluate_inputs_once(folder, "top")

    arguments = [*VERILATOR_FLAGS, "--top-module", "top", "-CFLAGS", "-fPIC", "-LDFLAGS", "-shared"]
    log = tmp_path / "log"
    compile_model(
        tmp_path, [*arguments, "none.cpp", "top.v"], GXX.variables, cache_dir(), log, change
    )
    assert (tmp_path / SIMULATOR).is_file()
    differing = [path for path, text in before.items() if path.read_text() != text]
    assert len(differing) == changes
