"""Depth of the logic of each block: LUTs in series between registers, by Yosys.

Prints one JSON object: for each block of a 16 x 16 core with a vector engine and two links the
levels of its deepest path, its LUTs and carries, and where it begins and ends. A LUT, or a memory
of LUTs that is read at once, counts as a level and a carry of four bits as a quarter of one; wider
multiplexers in the slices of LUTs are free. Ports count as registers.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from bench_resources import COMMANDS, blocks, yosys

from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.tools import run_tool

SPEC = CoreSpec(
    16, 16, 1, 1024, ScratchpadSpec(4, 1 << 16), 64,
    vector=VectorSpec(16, 4), links=(LinkEngineSpec(),) * 2,
)  # fmt: skip

LUTS = ("LUT", "INV", "RAM32", "RAM64", "RAM128", "RAM256", "SRL")
"""Beginnings of the names of cells that count as a level."""

CARRY = 0.25
FREE = ("MUXF",)


@dataclass(frozen=True)
class DeepestPath:
    """The deepest path of a block.

    Attributes
    ----------
    levels : float
    luts, carries : int
    begin, end : str
        Names of registers or ports.
    """

    levels: float
    luts: int
    carries: int
    begin: str
    end: str


def weight(kind: str) -> float | None:
    """Levels of a cell; None if paths end there."""
    if kind.startswith("CARRY"):
        return CARRY
    if kind.startswith(LUTS):
        return 1
    return 0 if kind.startswith(FREE) else None


def sorted_bits(cell: dict[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Bits that a cell drives, bits that reach these in the same cycle, bits that it stores."""
    driven, through, kept = [], [], []
    memory = cell["type"].startswith(("RAM", "SRL"))
    for port, bits in cell["connections"].items():
        if cell["port_directions"][port] == "output":
            driven += bits
        elif weight(cell["type"]) is None or (memory and not port.startswith(("A", "DPRA"))):
            kept += bits
        else:
            through += bits
    return driven, through, kept


def deepest(module: dict[str, Any]) -> DeepestPath:
    """The deepest path of a module that was mapped to cells."""
    names: dict[Any, str] = {}
    for name, net in module["netnames"].items():
        for place, bit in enumerate(net["bits"]):
            known = names.get(bit)
            if known is None or (net.get("hide_name", 0), len(name)) < (
                known.startswith("$"),
                len(known),
            ):
                names[bit] = f"{name}[{place}]" if len(net["bits"]) > 1 else name
    cells = module["cells"]
    through: dict[str, list[Any]] = {}  # bits that reach a cell's outputs in the same cycle
    makers: dict[Any, str] = {}
    ends = {
        bit: name
        for name, port in module["ports"].items()
        if port["direction"] == "output"
        for bit in port["bits"]
    }
    for name, cell in cells.items():
        driven, through[name], kept = sorted_bits(cell)
        register = next((names[bit] for bit in driven if bit in names), name)
        ends |= dict.fromkeys(kept, register)
        if weight(cell["type"]) is not None:
            makers |= dict.fromkeys(driven, name)
    before = {
        name: {makers[bit] for bit in bits if bit in makers} for name, bits in through.items()
    }
    found: dict[str, tuple[float, int, int, str]] = {}
    for name in TopologicalSorter(before).static_order():
        kind = cells[name]["type"]
        begins = (names[bit] for bit in through[name] if bit in names and bit not in makers)
        start = 0.0, 0, 0, next(begins, "a constant")
        levels, luts, carries, begin = max((found[each] for each in before[name]), default=start)
        is_carry, is_lut = kind.startswith("CARRY"), kind.startswith(LUTS)
        found[name] = levels + (weight(kind) or 0), luts + is_lut, carries + is_carry, begin
    last = max((bit for bit in ends if bit in makers), key=lambda bit: found[makers[bit]])
    return DeepestPath(*found[makers[last]], ends[last])


def measure(component: Any, folder: Path, family: str = "xcup") -> DeepestPath:
    """The deepest path of a component."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "top.v").write_text(verilog_of(component))
    script = f"read_verilog top.v; {COMMANDS[family]} -flatten; write_json top.json"
    run_tool([yosys(), "-q", "-p", script], log=folder / "yosys.log", outputs=[folder / "top.json"],
             cwd=folder, timeout_s=3600, name="Yosys")  # fmt: skip
    return deepest(json.loads((folder / "top.json").read_text())["modules"]["top"])


def main() -> None:
    """Measure, and print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = blocks(SPEC)
    few = ["sequencer", "load", "store", "function unit", "arbiter"]
    parser.add_argument("--blocks", nargs="+", metavar="BLOCK", choices=known, default=few)
    parser.add_argument("--work", type=Path, help="keep designs and logs here")
    arguments = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.blocks:
            folder = (arguments.work or Path(temporary)) / name.replace(" ", "_")
            found[name] = asdict(measure(known[name].make(), folder))
            print(f"{name}: {found[name]['levels']} levels", file=sys.stderr)
    print(json.dumps({"bench": "depth", "family": "xcup", "blocks": found}, indent=2))


if __name__ == "__main__":
    main()
