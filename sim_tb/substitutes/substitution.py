"""Substitution of blocks in a design by models in C++, behind the same Verilog ports.

`substitute` rewrites the Verilog for the native simulator. A substituted module keeps its name and
ports; its inside calls functions in C++ through Verilog's interface DPI-C. Each instance has its
own state, so devices may run in different threads. A module that a model does not cover, because
its ports or parts are not those that the model was made for, stays in Verilog. So does one whose
gateware or text is not what the model was compared with (`compared`), unless both are simulated.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fpgapipe.hw.rtl.verilog import is_generated
from fpgapipe.sim_tb.substitutes.array_block import ARRAY
from fpgapipe.sim_tb.substitutes.block import Block
from fpgapipe.sim_tb.substitutes.compared import is_compared
from fpgapipe.sim_tb.substitutes.lanes_block import LANES
from fpgapipe.sim_tb.substitutes.pipeline_blocks import ACCUMULATORS, QUANTISER
from fpgapipe.sim_tb.substitutes.reader_block import READER
from fpgapipe.sim_tb.substitutes.scratchpad_block import SCRATCHPAD
from fpgapipe.sim_tb.substitutes.simulation import Blocks, Simulation
from fpgapipe.sim_tb.substitutes.verilog_module import (
    Port,
    ports,
    reachable,
    split_modules,
    width,
)

BLOCKS: tuple[Block, ...] = (ARRAY, ACCUMULATORS, QUANTISER, SCRATCHPAD, LANES, READER)
"""All kinds of modules that can be substituted."""

_COMMON = ("block_common.cpp",)
_IMPORTS = """\
import "DPI-C" function void fpgapipe_differs(input string block, input string signal);
"""


@dataclass(frozen=True)
class Substituted:
    """A design after the substitution.

    Attributes
    ----------
    verilog : str
        Text of all modules that are left.
    sources : tuple of str
        C++ files of this folder that belong to it.
    blocks : Blocks
    modules : frozenset of str
        Names of the modules that were substituted.
    """

    verilog: str
    sources: tuple[str, ...]
    blocks: Blocks
    modules: frozenset[str] = frozenset()


def substitute(
    verilog: str,
    top: str,
    simulation: Simulation,
    blocks: Sequence[Block] = BLOCKS,
    *,
    modules: frozenset[str] | None = None,
) -> Substituted:
    """Substitute blocks of a design.

    Parameters
    ----------
    verilog : str
        Text that `fpgapipe.hw.rtl.verilog` generated, or its clock-enable rewriting.
    top : str
        Name of the top module.
    simulation : Simulation
    blocks : sequence of Block
        Kinds of blocks that may be substituted.
    modules : frozenset of str, optional
        Names of the modules that may be substituted, for a text that was rewritten. By default,
        they have the text that the gateware gives, and the gateware is what was compared.
    """
    if simulation is Simulation.VERILOG:
        return Substituted(verilog, (), Blocks(simulation, (), ()))
    texts = split_modules(verilog)
    originals = dict(texts)
    found: dict[str, str] = {}
    left: list[str] = []
    changed: list[str] = []
    for module, text in list(texts.items()):
        block = next((each for each in blocks if re.fullmatch(each.module, module)), None)
        if block is None:
            continue
        body = block.body(ports(text), text)
        if body is None:
            left.append(module)
            continue
        trusted = (
            module in modules
            if modules is not None
            else is_compared(block)
            and all(is_generated(originals[part]) for part in reachable(originals, module))
        )
        if simulation is Simulation.FAST and not trusted:
            changed.append(module)
            continue
        found[module] = block.name
        if simulation is Simulation.FAST:
            texts[module] = _module(module, ports(text), body)
        else:
            verilog_name, fast_name = f"{module}__verilog", f"{module}__fast"
            texts[verilog_name] = text.replace(f"module {module}", f"module {verilog_name}", 1)
            texts[fast_name] = _module(fast_name, ports(text), body)
            texts[module] = _comparison(module, ports(text))
    used = [block for block in blocks if block.name in found.values()]
    if not used:
        return Substituted(verilog, (), Blocks(simulation, (), tuple(left), tuple(changed)))
    imports = "".join([_IMPORTS, *(block.imports for block in used)])
    head = texts.pop("")
    kept = reachable(texts, top)
    sources = {source: None for block in used for source in block.sources}
    return Substituted(
        "".join([head, imports, *(text for name, text in texts.items() if name in kept)]),
        (*_COMMON, *sources),
        Blocks(simulation, tuple(block.name for block in used), tuple(left), tuple(changed)),
        frozenset(found),
    )


def _module(name: str, its_ports: dict[str, Port], body: str) -> str:
    """Text of a module with the given ports."""
    lines = [f"module {name}({', '.join(its_ports)});"]
    lines += [f"  {port.declared(each)};" for each, port in its_ports.items()]
    return "\n".join(lines) + f"\n{body}endmodule\n\n"


def _comparison(module: str, its_ports: dict[str, Port]) -> str:
    """Text of a module that has both, the Verilog and its substitute, and compares them."""
    lines, checks = [], []
    for kind in ("verilog", "fast"):
        connections = []
        for name, port in its_ports.items():
            net = name
            if kind == "fast" and not port.is_input:
                net = f"fast__{name}"
                lines.append(f"  wire {width(port.bits)}{net};")
                checks.append(
                    f'    if ({name} != {net}) fpgapipe_differs($sformatf("%m"), "{name}");'
                )
            connections.append(f"    .{name}({net})")
        lines += [f"  {module}__{kind} {kind}_ (", ",\n".join(connections), "  );"]
    lines += ["  always @(posedge clk) begin", *checks, "  end"]
    return _module(module, its_ports, "\n".join(lines) + "\n")
