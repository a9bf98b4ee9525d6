"""Two SoCs of a LiteX package in Verilator, reached through LiteX's server as boards are."""

import contextlib
import subprocess
import sys
from pathlib import Path

from cases.package_cases import files_of, target_of, verilog
from litex_cases import served

from fpgapipe.cache import cache_dir
from fpgapipe.host.transports.litex import LitexTransport
from fpgapipe.sim_tb.native.compiler import GXX
from fpgapipe.sim_tb.native.verilate import (
    SIMULATOR,
    VERILATOR_FLAGS,
    compile_model,
)

PORTS = ("gpio/0",)
ANSWER_LIMIT_S = 120.0
"""Seconds for an answer of a SoC that may be simulated beside other tests."""


def compiled(folder):
    """Compile two SoCs, made by the package's own script; gives the program and the map."""
    target = target_of("ulx3s", PORTS)
    package = folder / "package" / "litex" / "0"
    package.mkdir(parents=True)
    core = folder / target.core_file
    core.parent.mkdir()
    core.write_text(verilog(target.core))
    files = files_of("ulx3s", PORTS)
    for name, text in files.items():
        (package / name).write_text(text)
    subprocess.run(
        [sys.executable, "soc.py", "--simulated"],
        cwd=package,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    made = package / "sim"
    for source in (core, *package.glob("*.v")):
        (made / f"part_{source.name}").write_text(source.read_text())
    for name in ("litex_bench.v", "litex_bench.cpp"):
        (made / name).write_text((Path(__file__).parent / name).read_text())
    sources = sorted(path.name for path in made.glob("*.v"))
    options = [
        *VERILATOR_FLAGS,
        "--top-module",
        "bench",
        "-Wno-fatal",
        "-Wno-lint",
        "-Wno-MULTITOP",
    ]
    log = made / "build.log"
    arguments = [*options, *sources, "litex_bench.cpp"]
    compile_model(made, arguments, GXX.variables, cache_dir(), log)
    return made / SIMULATOR, made / "csr.csv"


@contextlib.contextmanager
def transports(program, csr):
    """Transports to both SoCs."""
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen([program], cwd=program.parent, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(process.kill)
        ports = [int(port) for port in process.stdout.readline().split()]
        yield [
            stack.enter_context(
                LitexTransport(stack.enter_context(served(port)), csr, limit_s=ANSWER_LIMIT_S)
            )
            for port in ports
        ]
