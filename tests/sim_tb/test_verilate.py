"""The way to a simulator: what is compiled when, and what is said when something is wrong."""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from cocotb_tools import config

from fpgapipe import cache as cache_module
from fpgapipe.cache import cache_dir
from fpgapipe.errors import ToolError, UserError
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate_verilog
from fpgapipe.sim_tb.drivers.stream import pack, unpack
from fpgapipe.sim_tb.native import small_models, verilate
from fpgapipe.sim_tb.native.verilate import build

REGISTER = """\
module top(input clk, input rst, input [7:0] i, output reg [7:0] o);
  always @(posedge clk) o <= rst ? 8'd0 : i;
endmodule
"""


@pytest.fixture(autouse=True)
def _plain_logging(monkeypatch):
    """Log as a library does, whatever the command line set up in tests before."""
    logger = logging.getLogger("fpgapipe")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    """A cache with Verilator's runtime library, if that of the other tests has it."""
    folder = tmp_path_factory.mktemp("cache")
    shutil.copytree(cache_dir() / "runtime", folder / "runtime")
    return folder


@pytest.fixture
def cache(shared_cache, monkeypatch):
    """A cache of this module's own."""
    monkeypatch.setenv("FPGAPIPE_CACHE", str(shared_cache))
    return shared_cache


@pytest.fixture
def compilations(monkeypatch):
    """The designs that are compiled during a test."""
    tops = []
    compile_ = verilate._compile

    def count(folder, top, *rest):
        tops.append(top)
        compile_(folder, top, *rest)

    monkeypatch.setattr(verilate, "_compile", count)
    return tops


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """The designs that are compiled during a test, in which none really is; an empty cache."""
    tops = []

    def pretend(folder, top, *rest):
        tops.append(top)
        (folder / verilate.SIMULATOR).write_text(f"simulator {len(tops)}")

    monkeypatch.setattr(verilate, "_compile", pretend)
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "cache"))
    return tops


def commented(text):
    """Verilog that differs from all other tests' and does the same."""
    return f"{REGISTER}// {text}\n"


def testbench(folder, monkeypatch, body):
    """Write a testbench module into a folder of Python's path; return its name."""
    name = "tb_" + re.sub(r"\W", "_", folder.name)
    (folder / f"{name}.py").write_text(
        "import cocotb\nfrom cocotb.triggers import ClockCycles, Timer\n"
        "from fpgapipe.sim_tb.drivers.stream import parameters, start\n" + textwrap.dedent(body)
    )
    monkeypatch.syspath_prepend(str(folder))
    return name


testbench.__test__ = False

COPIES = """
@cocotb.test(timeout_time=10, timeout_unit="us")
async def copies(dut):
    await start(dut)
    dut.i.value = parameters().get("value", 7)
    await ClockCycles(dut.clk, 3)
    assert dut.o.value == 7, "it does not copy"
"""


@pytest.mark.sim
def test_unchanged_design_is_not_compiled_again(cache, compilations, monkeypatch):
    simulator = build(commented("hit"))
    assert compilations == ["top"]
    monkeypatch.setenv("MAKEFLAGS", "-n")
    assert build(commented("hit")) == simulator
    assert compilations == ["top"]


@pytest.mark.parametrize(
    "change",
    [
        {"verilog": commented("changed")},
        {"flags": ["-Wno-UNUSED"]},
        {"waves": True},
        {"threads": 2},
    ],
    ids=["verilog", "flags", "waves", "threads"],
)
def test_changed_design_is_compiled(pretended, change):
    simulator = build(REGISTER)
    assert build(REGISTER) == simulator
    other = build(**({"verilog": REGISTER} | change))
    assert other != simulator
    assert pretended == ["top", "top"]
    assert (simulator.read_text(), other.read_text()) == ("simulator 1", "simulator 2")


def test_another_compiler_compiles_again(pretended, tmp_path, monkeypatch):
    build(REGISTER)
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    build(REGISTER)
    build(REGISTER)
    assert pretended == ["top", "top"]


def test_another_verilator_compiles_again(pretended, tmp_path, monkeypatch):
    build(REGISTER)
    shutil.copytree(verilate.verilator_root(), tmp_path / "verilator")
    with (tmp_path / "verilator" / "bin" / "verilator_bin").open("ab") as file:
        file.write(b" ")
    monkeypatch.setattr(verilate, "verilator_root", lambda: tmp_path / "verilator")
    build(REGISTER)
    assert pretended == ["top", "top"]


@pytest.mark.parametrize("damage", ["truncated", "no simulator", "no note", "nonsense note"])
def test_damaged_entry_is_compiled_again(pretended, damage, caplog):
    simulator = build(REGISTER)
    note = simulator.parent / "entry.json"
    if damage == "truncated":
        simulator.write_text("simul")
    elif damage == "no simulator":
        simulator.unlink()
    elif damage == "no note":
        note.unlink()
    else:
        note.write_text("[1]")
    assert build(REGISTER) == simulator
    assert simulator.read_text() == "simulator 2"
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"the cache entry {simulator.parent} is damaged and is made again"]
    build(REGISTER)
    assert pretended == ["top", "top"]


def test_least_recently_used_goes_first(pretended, tmp_path, monkeypatch):
    designs = [commented(text) for text in ("first", "second", "third")]
    simulators = [build(design) for design in designs]
    for age, simulator in enumerate(simulators):
        os.utime(simulator.parent, (1 + age, 1 + age))
    build(designs[0])  # a hit makes it the youngest
    size = sum(path.stat().st_size for path in tmp_path.glob("cache/simulators/*/*"))
    monkeypatch.setattr(cache_module, "CACHE_LIMIT_BYTES", size)
    build(commented("fourth"))
    assert [simulator.exists() for simulator in simulators] == [True, False, True]


@pytest.mark.sim
def test_killed_build_leaves_nothing_in_the_way(cache, compilations):
    script = f"from fpgapipe.sim_tb.native.verilate import build\nbuild({commented('killed')!r})\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=python_environment(), start_new_session=True
    )
    begin = time.monotonic()
    while not list((cache / "building").glob("*/Vtop.mk")):
        assert process.poll() is None
        assert time.monotonic() - begin < 60
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list((cache / "building").iterdir())
    assert build(commented("killed")).is_file()
    assert compilations == ["top"]
    # What it left is removed by a later build, once no process can still be at work in it.
    for folder in (cache / "building").iterdir():
        os.utime(folder, (0, 0))
    build(commented("after the killed one"))
    assert not list((cache / "building").iterdir())


@pytest.mark.sim
def test_two_processes_compile_once(cache):
    script = (
        "import logging; logging.basicConfig(level='INFO')\n"
        f"from fpgapipe.sim_tb.native.verilate import build\nprint(build({commented('twice')!r}))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=python_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0][0] == outputs[1][0]
    assert "".join(log for _, log in outputs).count("compiling top for Verilator") == 1


def python_environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.mark.sim
def test_shell_does_not_matter(cache, compilations, tmp_path, monkeypatch):
    tb = testbench(tmp_path, monkeypatch, COPIES)
    decoy = tmp_path / "bin"
    decoy.mkdir()
    for name in ("verilator", "verilator_bin", "yosys", "vvp"):
        (decoy / name).write_text("#!/bin/sh\nexit 1\n")
        (decoy / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{decoy}:{os.environ['PATH']}")
    for name, value in {
        "VERILATOR_ROOT": "/nonsense",
        "VERILATOR_BIN": "/nonsense",
        "MAKEFLAGS": "-n",
        "MAKEFILES": "/nonsense",
        "CXXFLAGS": "-nonsense",
        "CPPFLAGS": "-nonsense",
        "LDFLAGS": "-nonsense",
        "CXX": "nonsense",
        "OPT": "-nonsense",
        "VPATH": "/nonsense",
        "COCOTB_TEST_FILTER": "nonsense",
        "COCOTB_TESTCASE": "nonsense",
        "COCOTB_TEST_MODULES": "nonsense",
        "COCOTB_RESULTS_FILE": "nonsense",
        "COCOTB_TOPLEVEL": "nonsense",
        "GPI_EXTRA": "nonsense",
        "GPI_USERS": "nonsense",
        "MODULE": "nonsense",
        "PYTHONHOME": "/nonsense",
        "WAVES": "1",
    }.items():
        monkeypatch.setenv(name, value)
    simulation = simulate_verilog(commented("shell"), tb, tmp_path / "work")
    assert simulation.tests == ("copies",)
    assert compilations == ["top"]


@pytest.mark.sim
@pytest.mark.slow
def test_folders_may_have_spaces(tmp_path, monkeypatch):
    project = tmp_path / "my project"
    project.mkdir()
    monkeypatch.setenv("FPGAPIPE_CACHE", str(project / "a cache"))
    # As if the virtual environment were in the folder too.
    for name, path in {
        "verilator": verilate.verilator_root(),
        "share": config.share_dir,
        "libs": config.libs_dir,
        "python": sys.executable,
    }.items():
        (project / name).symlink_to(path)
    monkeypatch.setattr(verilate, "verilator_root", lambda: project / "verilator")
    monkeypatch.setattr(config, "share_dir", project / "share")
    monkeypatch.setattr(config, "libs_dir", project / "libs")
    monkeypatch.setattr(sys, "executable", str(project / "python"))
    tb = testbench(project, monkeypatch, COPIES)
    simulation = simulate_verilog(REGISTER, tb, project / "a work folder", waves=True)
    assert simulation.waves == project / "a work folder" / "dump.vcd"
    assert "$enddefinitions" in simulation.waves.read_text()


def test_no_folder_without_spaces(tmp_path, monkeypatch):
    folder = tmp_path / "a b"
    folder.mkdir()
    monkeypatch.setenv("FPGAPIPE_CACHE", str(folder / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    message = (
        f"make cannot work in a folder with a space in its path, as in {folder}/cache/building; "
        "set FPGAPIPE_CACHE or TMPDIR to one without"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        build(REGISTER)


@pytest.mark.sim
def test_broken_verilog_is_shown(cache):
    broken = REGISTER.replace("o <= rst", "o <= reset")
    with pytest.raises(ToolError) as caught:
        build(broken)
    text = str(caught.value)
    assert text.startswith("verilator_bin failed (exit code 1)\n  | $ ")
    assert "Can't find definition of variable: 'reset'" in text
    assert text.endswith(f"the whole log is {caught.value.log}")
    kept = caught.value.log.with_suffix(".v")
    assert kept.read_text() == broken
    assert f"top.v is kept as {kept}" in caught.value.log.read_text()
    assert not [folder for folder in (cache / "building").iterdir() if (folder / "top.v").exists()]


def test_missing_compiler_is_named(tmp_path, cache, monkeypatch):
    for name in ("make", "ar"):
        (tmp_path / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path))
    message = (
        "simulators are compiled with g++, which is not on PATH; "
        "'fpgapipe doctor' names the package"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        build(commented("no compiler"))


def test_top_must_be_there():
    with pytest.raises(ValueError, match=r"^the Verilog has no module named 'bottom'$"):
        build(REGISTER, "bottom")
    with pytest.raises(ValueError, match=r"^Verilog module 'top' has no ports$"):
        build("module top; endmodule")


@pytest.mark.parametrize(
    "verilog",
    [
        "module top(a, b, c, d); input a; input [7:0] b; output reg [3:0] c; output d; endmodule",
        "module top(input wire a, input logic signed [7:0] b, output reg [3:0] c, d);\nendmodule",
        "module inner(input x); endmodule\n(* top = 1 *)\nmodule top // input no;\n"
        " #(parameter W = 8) (input a, b, output c = 1'b0, d); wire e; endmodule",
    ],
)
def test_ports_are_found_however_they_are_declared(verilog):
    control = verilate._control_file(verilog, "top").splitlines()
    assert control == [
        "`verilator_config",
        'public_flat_rw -module "top" -var "a"',
        'public_flat_rw -module "top" -var "b"',
        'public_flat_rd -module "top" -var "c"',
        'public_flat_rd -module "top" -var "d"',
    ]


@pytest.mark.sim
def test_failed_test_is_named(cache, tmp_path, monkeypatch):
    tb = testbench(tmp_path, monkeypatch, COPIES)
    monkeypatch.setenv("COCOTB_RANDOM_SEED", "1234")
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(commented("shell"), tb, tmp_path / "work", parameters={"value": 8})
    log = tmp_path / "work" / f"{tb}.log"
    assert caught.value.seed == 1234
    assert caught.value.log == log
    assert list(caught.value.failures) == ["copies"]
    assert str(caught.value).startswith(
        f"1 of 1 tests of {tb} failed: copies; "
        "the same stimulus again: COCOTB_RANDOM_SEED=1234\ncopies: it does not copy\n  | "
    )
    assert "Seeding Python random module with 1234" in log.read_text()


@pytest.mark.sim
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the simulator left no results of {tb}"),
        ("@cocotb.test(skip=True)\nasync def skipped(dut): pass", "{tb} has no tests that ran"),
    ],
    ids=["no test", "a skipped test"],
)
def test_no_result_is_an_error(cache, tmp_path, monkeypatch, body, message):
    tb = testbench(tmp_path, monkeypatch, body)
    with pytest.raises(ToolError) as caught:
        simulate_verilog(commented("shell"), tb, tmp_path)
    assert str(caught.value).startswith(message.format(tb=tb) + "\n")


@pytest.mark.sim
def test_crash_is_an_error(cache, tmp_path, monkeypatch):
    tb = testbench(
        tmp_path,
        monkeypatch,
        """
        @cocotb.test()
        async def dies(dut):
            import os
            os.abort()
        """,
    )
    with pytest.raises(ToolError) as caught:
        simulate_verilog(commented("shell"), tb, tmp_path)
    assert str(caught.value).startswith("simulator failed (signal 6)\n")


@pytest.mark.sim
def test_endless_test_is_ended(cache, tmp_path, monkeypatch):
    tb = testbench(
        tmp_path,
        monkeypatch,
        """
        @cocotb.test()
        async def hangs(dut):
            while True:
                await Timer(1, "us")
        """,
    )
    with pytest.raises(ToolError) as caught:
        simulate_verilog(commented("shell"), tb, tmp_path, timeout_s=2)
    assert str(caught.value).startswith("simulator was ended after 2 s without a result\n")


def test_testbench_must_be_there(tmp_path):
    message = (
        "there is no testbench module 'tb_nonsense', "
        "neither in fpgapipe.sim_tb.testbenches nor on Python's path"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        simulate_verilog(REGISTER, "tb_nonsense", tmp_path)


def test_seed_must_be_a_number(tmp_path, monkeypatch):
    monkeypatch.setenv("COCOTB_RANDOM_SEED", "seven")
    with pytest.raises(
        UserError, match=r"^COCOTB_RANDOM_SEED must be a whole number, not 'seven'$"
    ):
        simulate_verilog(REGISTER, "tb_systolic", tmp_path)


def test_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "chosen"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "chosen"
    monkeypatch.delenv("FPGAPIPE_CACHE")
    assert cache_dir() == tmp_path / "xdg" / "fpgapipe"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == tmp_path / "home" / ".cache" / "fpgapipe"


def test_cache_folder_must_be_writable(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "file" / "cache"))
    message = (
        f"cannot write {tmp_path}/file/cache: Not a directory; "
        "set FPGAPIPE_CACHE to a folder that can be written"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        cache_dir()


def test_home_must_be_there(monkeypatch):
    monkeypatch.delenv("FPGAPIPE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    message = (
        "there is no home folder to keep simulators in; "
        "set FPGAPIPE_CACHE to a folder that can be written"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        cache_dir()


def test_words_are_packed_from_the_least_significant_bit():
    assert pack([-1, 2, 1], [8, 8, 1]) == 0x1_02_FF
    assert unpack(0x1_02_FF, [8, 8, 1]) == [-1, 2, -1]
    assert unpack(0x1_02_FF, [8, 8, 1], signed=False) == [255, 2, 1]
    with pytest.raises(ValueError, match=r"^stream word must have 2 fields, not 1$"):
        pack(1, [8, 8])
    with pytest.raises(ValueError, match=r"^stream field must fit in 8 bits, not 256$"):
        pack(256, [8])


@pytest.mark.sim
def test_large_designs_are_compiled_in_many_pieces(cache, compilations, monkeypatch):
    monkeypatch.setattr(small_models, "SMALL_BYTES", 0)
    assert build(commented("in many pieces")).is_file()
    assert compilations == ["top"]
