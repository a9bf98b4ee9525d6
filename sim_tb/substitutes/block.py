"""Substitution of a block: its Verilog around a model in C++."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fpgapipe.sim_tb.substitutes.verilog_module import Port

Ports = Mapping[str, Port]


@dataclass(frozen=True)
class Block:
    """A kind of module that can be substituted.

    Attributes
    ----------
    name : str
        Name of the block for users.
    module : str
        Regular expression for the names of its modules.
    gateware : str
        Python module that describes these modules.
    sources : tuple of str
        C++ files of this folder that hold its model.
    imports : str
        Declarations of the functions in C++ that the Verilog calls.
    body : callable
        Function that writes the inside of a module, given the ports and the text of the original.
        It returns None for a module that the model does not cover.
    """

    name: str
    module: str
    gateware: str
    sources: tuple[str, ...]
    imports: str
    body: Callable[[Ports, str], str | None]


def has_ports(ports: Ports, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> bool:
    """Whether a module has exactly these ports, given their widths in bits."""
    wanted = {name: Port(True, bits) for name, bits in inputs.items()}
    wanted |= {name: Port(False, bits) for name, bits in outputs.items()}
    return dict(ports) == wanted
