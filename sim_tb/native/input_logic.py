"""Leaves out of Verilator's C++ what is evaluated twice a cycle with the same result."""

import re
from pathlib import Path

_FIRST_ITERATION = "__VicoFirstIteration = 1U;"
_FIRST_AT_FALL = "__VicoFirstIteration = (0U == (IData)(vlSelfRef.clk));"
_CLOCK_USES = re.compile(
    r"//[^\n]*|\bmodule\b[^;]*;|\b(?:input|wire)\s+clk\b|\b(?:pos|neg)edge\s+clk\b"
    r"|\.clk\s*\(\s*(?:clk|idle_clk\[\d+\])\s*\)"
)


def evaluate_inputs_once(folder: Path, top: str) -> None:
    """Leave out the evaluation of what inputs drive at rising edges of the clock.

    Inputs change before the falling edge only, so at the rising one that logic would be evaluated a
    second time, with the same result. A design that uses its clock as a value stays as it is.

    Parameters
    ----------
    folder : Path
        Folder with the Verilog and with what Verilator wrote.
    top : str
        Name of the top module and of the file with its Verilog.
    """
    if re.search(r"\bclk\b", _CLOCK_USES.sub("", (folder / f"{top}.v").read_text())):
        return
    for path in folder.glob("Vtop___024root__*.cpp"):
        text = path.read_text()
        if _FIRST_ITERATION in text:
            path.write_text(text.replace(_FIRST_ITERATION, _FIRST_AT_FALL))
