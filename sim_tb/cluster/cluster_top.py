"""Combines several devices in one module, so that one simulator with cocotb runs all of them."""

import re
from collections.abc import Sequence

TOP = "cluster_top"
"""Name of the module that contains the devices."""

_SHARED = ("clk", "rst")
_PORT = re.compile(r"^  (input|output) (\[\d+:0\] )?(\w+);$", re.MULTILINE)
# An escaped name ends with a space, after which Yosys writes another space.
_MODULE = re.compile(r"^module (\\\S+ |\w+)", re.MULTILINE)
_INSTANCE = re.compile(r"^  (\\\S+ |\w+) (?=\\?\S+ {1,2}\($)", re.MULTILINE)


def cluster_verilog(designs: Sequence[str]) -> str:
    """Instantiate several designs in one module, with a common clock and a common reset.

    Parameters
    ----------
    designs : sequence of str
        Verilog of each design, as `fpgapipe.hw.rtl.verilog.verilog_of` generates it, with the top
        module ``top``. Designs of the same text become instances of the same modules.

    Returns
    -------
    str
        Verilog of the module `TOP` and of all modules in it. The ports of `TOP` are ``clk``,
        ``rst`` and, for each other port ``x`` of design `n`, ``d{n}_x``.

    Raises
    ------
    ValueError
        If a text has no module ``top`` with ports.
    """
    names: dict[str, str] = {}
    for text in designs:
        names.setdefault(text, f"device{len(names)}")
    ports = [f"  input {name}" for name in _SHARED]
    instances = []
    for number, text in enumerate(designs):
        inside = []
        for direction, width, name in _ports(text):
            outside = name if name in _SHARED else f"d{number}_{name}"
            inside.append(f"    .{name}({outside})")
            if name not in _SHARED:
                ports.append(f"  {direction} {width}{outside}")
        instances.append(f"  {names[text]}_top d{number} (\n" + ",\n".join(inside) + "\n  );\n")
    header = f"module {TOP}(\n" + ",\n".join(ports) + "\n);\n"
    modules = [_renamed(text, name) for text, name in names.items()]
    return "\n".join([header + "".join(instances) + "endmodule\n", *modules])


def _ports(text: str) -> list[tuple[str, str, str]]:
    """Direction, width and name of each port of the top module."""
    found = re.search(r"^module top\(.*?^endmodule$", text, re.MULTILINE | re.DOTALL)
    ports = _PORT.findall(found[0]) if found else []
    if not ports:
        raise ValueError("the Verilog of a device must have a module top with ports")
    return ports


def _renamed(text: str, prefix: str) -> str:
    """Add a prefix to the names of all modules, so that they differ from those of other designs."""
    modules = {name.strip("\\ ") for name in _MODULE.findall(text)}

    def rename(match: re.Match[str]) -> str:
        name = match[1].strip("\\ ")
        if name not in modules:
            return match[0]
        new = f"\\{prefix}_{name} " if match[1].startswith("\\") else f"{prefix}_{name}"
        return match[0].replace(match[1], new, 1)

    return _INSTANCE.sub(rename, _MODULE.sub(rename, text))
