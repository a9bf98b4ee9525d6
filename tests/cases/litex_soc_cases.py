"""SoCs of LiteX packages in Verilator, reached through LiteX's server as boards are."""

import contextlib
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from build_cases import plan_of
from litex_cases import served
from package_cases import files_of, target_of, verilog

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.cache import cache_dir
from fpgapipe.host.build.build import write_build
from fpgapipe.host.package.package import write_package
from fpgapipe.host.transports.litex import LitexTransport
from fpgapipe.sim_tb.native.compiler import native_compiler
from fpgapipe.sim_tb.native.verilate import (
    SIMULATOR,
    VERILATOR_FLAGS,
    compile_model,
)

PORTS = ("gpio/0",)
ANSWER_LIMIT_S = 120.0
"""Seconds for an answer of a SoC that may be simulated beside other tests."""


def packaged(folder):
    """Write the package of a device with a small core and a link; gives its folder."""
    target = target_of("ulx3s", PORTS)
    package = folder / "package" / "litex" / "0"
    package.mkdir(parents=True)
    core = folder / target.core_file
    core.parent.mkdir()
    core.write_text(verilog(target.core))
    files = files_of("ulx3s", PORTS)
    for name, text in files.items():
        (package / name).write_text(text)
    return package


def built(folder, board, devices, **options):
    """Build the network ``tiny`` and package it; gives the build and a device's package."""
    plan, graph, cluster = plan_of(devices, board=board, **options)
    build = write_build(plan, graph, cluster, folder)
    package = write_package(build, chain_of(load_board(board), devices), "litex")
    return build, min(package.iterdir())


def compiled(package, *, num_boards):
    """Compile SoCs, made by a package's own script; gives the program and the map.

    Parameters
    ----------
    package : Path
        Folder of a device in a package. All boards have its SoC.
    num_boards : int
        One without links, or two whose links are joined.
    """
    subprocess.run(
        [sys.executable, "soc.py", "--simulated"],
        cwd=package,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    made = package / "sim"
    (core,) = package.parents[2].glob("hardware/*.v")
    for source in (core, *package.glob("*.v")):
        (made / f"part_{source.name}").write_text(source.read_text())
    for name in ("litex_bench.v", "litex_bench.cpp"):
        (made / name).write_text((Path(__file__).parent / name).read_text())
    sources = sorted(path.name for path in made.glob("*.v"))
    options = [
        *VERILATOR_FLAGS,
        *("--top-module", "bench"),
        *("-Wno-fatal", "-Wno-lint", "-Wno-MULTITOP"),
        f"+define+BOARDS={num_boards}",
        *("-CFLAGS", f"-std=gnu++20 -DBOARDS={num_boards}"),
    ]
    if num_boards > 1:
        options.append("+define+LINKED")
    compiler = native_compiler()
    if compiler.libraries:
        options += ["-LDFLAGS", compiler.libraries]
    log = made / "build.log"
    arguments = [*options, *sources, "litex_bench.cpp"]
    compile_model(made, arguments, compiler.variables, cache_dir(), log)
    return made / SIMULATOR, made / "csr.csv"


@contextlib.contextmanager
def servers(program):
    """Run the SoCs, and LiteX's server for each; gives host and port of the servers.

    Meanwhile transports wait for `ANSWER_LIMIT_S` by default.
    """
    with contextlib.ExitStack() as stack:
        defaults = LitexTransport.__init__.__kwdefaults__
        stack.enter_context(patch.dict(defaults, limit_s=ANSWER_LIMIT_S))
        process = stack.enter_context(
            subprocess.Popen([program], cwd=program.parent, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(process.kill)
        ports = [int(port) for port in process.stdout.readline().split()]
        yield [stack.enter_context(served(port)) for port in ports]


@contextlib.contextmanager
def transports(program, csr):
    """Transports to all SoCs."""
    with contextlib.ExitStack() as stack:
        places = stack.enter_context(servers(program))
        yield [stack.enter_context(LitexTransport(place, csr)) for place in places]


def cluster_file(places, csr, board="ulx3s"):
    """Text of a cluster file, in which a device is behind each server."""
    devices = [
        f"  - {{name: soc-{number}, board: {board}, address: {{device: '{place}', csr: {csr}}}}}"
        for number, place in enumerate(places)
    ]
    return "\n".join(["format: 1", "name: simulated", "devices:", *devices, "topology: chain", ""])
