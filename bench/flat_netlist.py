"""A design of Yosys as one flat netlist, with the names of its modules' instances."""

from dataclasses import dataclass, field
from typing import Any

Bit = int | str
"""A net by its number, or a constant: ``"0"``, ``"1"``, ``"x"`` or ``"z"``."""


@dataclass
class Cell:
    """A cell of a flat netlist.

    Attributes
    ----------
    name, kind : str
    where : str
        Instance of a module in which it lies; empty for the design itself.
    inputs, outputs : dict of str to list
        Bits of each port.
    parameters : dict
    """

    name: str
    kind: str
    where: str
    inputs: dict[str, list[Bit]]
    outputs: dict[str, list[Bit]]
    parameters: dict[str, Any]


@dataclass
class Netlist:
    """A flat netlist.

    Attributes
    ----------
    cells : list of Cell
    names : dict of Bit to str
        Names of nets, with those of the instances in which they lie.
    inputs, outputs : list of Bit
        Bits of the ports of the design.
    """

    cells: list[Cell] = field(default_factory=list)
    names: dict[Bit, str] = field(default_factory=dict)
    inputs: list[Bit] = field(default_factory=list)
    outputs: list[Bit] = field(default_factory=list)


def flat(design: dict[str, Any], top: str = "top") -> Netlist:
    """Flatten a design that Yosys wrote with ``write_json``."""
    modules = design["modules"]
    parents: dict[Bit, Bit] = {}
    next_bit = 0

    def root(bit: Bit) -> Bit:
        while bit in parents:
            bit = parents[bit]
        return bit

    found = Netlist()
    raw: list[Cell] = []
    raw_names: list[tuple[Bit, str, bool]] = []

    def add(module: dict[str, Any], path: str, bound: dict[str, list[Bit]]) -> None:
        nonlocal next_bit
        local: dict[Bit, Bit] = {}

        def whole(bit: Bit) -> Bit:
            nonlocal next_bit
            if isinstance(bit, str):
                return bit
            if bit not in local:
                local[bit] = next_bit
                next_bit += 1
            return local[bit]

        for name, port in module["ports"].items():
            # A net may be several ports, so it may join nets of the parent, or be a constant.
            for inner, outer in zip(port["bits"], bound.get(name, ()), strict=False):
                one, other = root(whole(inner)), root(outer)
                if one != other:
                    if isinstance(one, str):
                        one, other = other, one
                    parents[one] = other
        for name, net in module["netnames"].items():
            hidden = bool(net.get("hide_name"))
            for place, bit in enumerate(net["bits"]):
                if not isinstance(bit, str):
                    suffix = f"[{place}]" if len(net["bits"]) > 1 else ""
                    raw_names.append((whole(bit), f"{path}{name}{suffix}", hidden))
        for name, cell in module["cells"].items():
            ports = {
                port: [whole(bit) for bit in bits] for port, bits in cell["connections"].items()
            }
            if cell["type"] in modules and not _is_primitive(cell["type"], modules):
                add(modules[cell["type"]], f"{path}{name}.", ports)
                continue
            directions = cell["port_directions"]
            raw.append(
                Cell(
                    f"{path}{name}",
                    cell["type"],
                    path.removesuffix("."),
                    {port: bits for port, bits in ports.items() if directions[port] == "input"},
                    {port: bits for port, bits in ports.items() if directions[port] != "input"},
                    cell.get("parameters", {}),
                )
            )

    module = modules[top]
    bound: dict[str, list[Bit]] = {}
    for name, port in module["ports"].items():
        number = len(port["bits"])
        bound[name] = list(range(next_bit, next_bit + number))
        next_bit += number
        (found.inputs if port["direction"] == "input" else found.outputs).extend(bound[name])
    add(module, "", bound)
    for cell in raw:
        cell.inputs = {port: [root(bit) for bit in bits] for port, bits in cell.inputs.items()}
        cell.outputs = {port: [root(bit) for bit in bits] for port, bits in cell.outputs.items()}
    found.cells = raw
    found.inputs, found.outputs = [list(map(root, bits)) for bits in (found.inputs, found.outputs)]
    ranks: dict[Bit, tuple[bool, int]] = {}
    for bit, name, hidden in raw_names:
        bit = root(bit)
        rank = hidden, len(name)
        if bit not in ranks or rank < ranks[bit]:
            ranks[bit], found.names[bit] = rank, name
    return found


def _is_primitive(kind: str, modules: dict[str, Any]) -> bool:
    return bool(int(modules[kind].get("attributes", {}).get("blackbox", "0"), 2))
