"""Runs Icarus Verilog instead of Verilator: it compiles a block in a second, but simulates slowly.

Icarus is not installed with fpgapipe, and it needs Python's shared library. It differs from
Verilator in two ways: all signals are visible to cocotb, and signals that are not driven are X.
Therefore `fpgapipe.sim_tb.drivers.stream.start` sets inputs that are not driven to 0.
"""

import json
import shutil
import sysconfig
from pathlib import Path

from fpgapipe.errors import UserError
from fpgapipe.hw.rtl.lib.primitives import with_primitives
from fpgapipe.sim_tb.native.verilate import ports_of
from fpgapipe.tools import run_tool

_DUMP = """\
module fpgapipe_waves();
  initial begin
    $dumpfile("{waves}");
    $dumpvars(0, {top});
  end
endmodule
"""


def _shared_library() -> Path | None:
    """Shared library of this Python, if there is one; Debian has it in a separate package."""
    folder, multiarch, name = (
        sysconfig.get_config_var(each) or "" for each in ("LIBDIR", "MULTIARCH", "INSTSONAME")
    )
    names = {name, f"libpython{sysconfig.get_python_version()}.so.1.0"}
    places = [Path(folder, *part, each) for part in ((), (multiarch,)) for each in names]
    return next((path for path in places if path.is_file() and ".so" in path.name), None)


def missing_for_icarus() -> str:
    """Reason why Icarus cannot run testbenches; empty if it can."""
    for program in ("iverilog", "vvp"):
        if not shutil.which(program):
            return f"Icarus Verilog ({program}) is not installed: apt install iverilog"
    if not _shared_library():
        return "Icarus Verilog needs the shared library of this Python: apt install libpython3-dev"
    return ""


def compile_for_icarus(
    verilog: str, top: str, work: Path, log: Path, *, waves: Path | None = None
) -> tuple[list[str | Path], dict[str, str]]:
    """Compile a design; returns the command that runs its simulation.

    Parameters
    ----------
    verilog, top
        See `fpgapipe.sim_tb.native.verilate.build`.
    work : Path
        Folder for the compiled design, which is not cached.
    log : Path
        File for the output of Icarus.
    waves : Path, optional
        File for the waves.

    Returns
    -------
    command : list
        Command that runs the simulation.
    variables : dict
        Environment variables that the command needs in addition to those of cocotb.

    Raises
    ------
    UserError
        If Icarus or Python's shared library is missing.
    ToolError
        If Icarus rejects the design.
    """
    from cocotb_tools import config

    if missing := missing_for_icarus():
        raise UserError(missing)
    verilog = with_primitives(verilog)
    ports = ports_of(verilog, top)
    tops = ["-s", top]
    if waves:
        verilog += _DUMP.format(waves=waves, top=top)
        tops += ["-s", "fpgapipe_waves"]
    (work / f"{top}.v").write_text(verilog)
    (work / "icarus.f").write_text("+timescale+1ps/1ps\n")
    design = work / f"{top}.vvp"
    design.unlink(missing_ok=True)
    run_tool(
        ["iverilog", "-g2012", *tops, "-f", "icarus.f", "-o", design.name, f"{top}.v"],
        log=log,
        outputs=[design],
        cwd=work,
        name="Icarus Verilog",
    )
    library = config.lib_entry("vpi", "icarus")
    variables = {
        "GPI_USERS": f"{_shared_library()};{config.pygpi_entry_point()}",
        "FPGAPIPE_INPUTS": json.dumps([name for name, access in ports.items() if access == "rw"]),
    }
    return ["vvp", "-m", library, design, "-none" if not waves else "-vcd"], variables
