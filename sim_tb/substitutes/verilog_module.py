"""Ports and instances of Verilog modules in the form that Yosys writes."""

import re
from collections.abc import Mapping
from typing import NamedTuple

_NAME = r"\\\S+|[A-Za-z_][\w$]*"
_MODULE = re.compile(rf"^module ({_NAME})", re.MULTILINE)
_PORT = re.compile(rf"^  (input|output) (?:\[(\d+):0\] )?({_NAME}) *;$", re.MULTILINE)
_INSTANCE = re.compile(rf"^  ({_NAME}) +(?:{_NAME}) +\($", re.MULTILINE)


class Port(NamedTuple):
    """Port of a module.

    Attributes
    ----------
    is_input : bool
    bits : int
        Width, bits.
    """

    is_input: bool
    bits: int

    def declared(self, name: str) -> str:
        """Declaration of the port, or of an output's net, under a name."""
        return f"{'input' if self.is_input else 'output'} {width(self.bits)}{name}"


def width(bits: int) -> str:
    """Range of a vector, with a space after it; empty for one bit."""
    return "" if bits == 1 else f"[{bits - 1}:0] "


def split_modules(verilog: str) -> dict[str, str]:
    """Texts of the modules by name, in their order; what precedes them has the name ""."""
    head, *parts = re.split(r"^(?=module )", verilog, flags=re.MULTILINE)
    texts = {"": head}
    for part in parts:
        found = _MODULE.match(part)
        if found is None:
            raise ValueError(f"not a module: {part[:40]!r}")
        texts[found[1]] = part
    return texts


def ports(text: str) -> dict[str, Port]:
    """Ports of a module, sorted by name."""
    found = {
        name: Port(direction == "input", int(high or 0) + 1)
        for direction, high, name in _PORT.findall(text)
    }
    return dict(sorted(found.items()))


def instances(text: str) -> list[str]:
    """Names of the modules that a module has instances of, one for each instance."""
    return _INSTANCE.findall(text)


def reachable(texts: Mapping[str, str], top: str) -> set[str]:
    """Names of the modules in the design of a top module."""
    found: set[str] = set()
    waiting = [top]
    while waiting:
        name = waiting.pop()
        if name in texts and name not in found:
            found.add(name)
            waiting += instances(texts[name])
    return found
