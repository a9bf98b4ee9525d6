"""Verilog rewritten for the native simulator: what moves, what stays, and that nothing changes."""

import dataclasses
import re

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.hw.rtl.arith.fp32 import Fp32Adder
from fpgapipe.hw.rtl.dma.scratchpad import Scratchpad, ScratchpadPorts
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import simulate_verilog
from fpgapipe.sim_tb.native.clock_enable import clock_enable

MOVED = {"only", "lower", "upper"}
KEPT = {"both", "shown", "always", "enabling", "asked"}


class Mixture(wiring.Component):
    """Wires of all kinds; `first` and `second` enable registers."""

    def __init__(self):
        inputs = {name: In(8) for name in "abc"} | {"first": In(1), "second": In(1)}
        super().__init__(inputs | {name: Out(8) for name in "opqrst"})

    def elaborate(self, platform):
        m = Module()
        only, lower, upper, both, shown, always, asked = (
            Signal(8, name=name)
            for name in ("only", "lower", "upper", "both", "shown", "always", "asked")
        )
        enabling = Signal()
        held = {name: Signal(8, name=f"held_{name}", reset_less=True) for name in "opqt"}
        m.d.comb += [getattr(self, name).eq(value) for name, value in held.items()]
        m.d.comb += [
            only.eq(lower ^ upper),
            lower.eq(self.a * self.b),
            upper.eq(self.a + self.b),
            both.eq(self.b - self.c),
            shown.eq(self.b & ~self.c),
            always.eq(self.a | self.c),
            asked.eq(self.a - 1),
            enabling.eq(self.second & (asked == 3)),
            self.s.eq(shown),
        ]
        with m.If(self.first):
            m.d.sync += [held["o"].eq(only + 1), held["p"].eq(both + shown)]
        with m.If(enabling):
            m.d.sync += [held["q"].eq(both * 3), held["t"].eq(asked)]
        m.d.sync += self.r.eq(always + self.r)
        return m


def places(verilog):
    """Names of wires that are assigned inside and outside of blocks."""
    found = []
    for indent in (" {6}", "  assign "):
        targets = re.findall(rf"^{indent}([^;=\n]*) = ", verilog, re.MULTILINE)
        found.append({name for target in targets for name in re.findall(r"\b[a-z]\w*", target)})
    inside, outside = found
    return inside, outside


def test_wires_of_one_enable_move_below_it():
    before = verilog_of(Mixture())
    assert places(before)[0] == set()
    assert places(before)[1] >= MOVED
    inside, outside = places(clock_enable(before))
    assert inside >= MOVED
    assert not inside & KEPT
    assert not outside & MOVED
    assert "reg [7:0] only;" in clock_enable(before)


def test_only_what_was_generated_is_rewritten():
    before = verilog_of(Mixture())
    text = before.partition("*/\n\n")[2]
    assert clock_enable(text) == text
    assert clock_enable(clock_enable(before)) == clock_enable(before)


@pytest.mark.sim
def test_adder_is_as_before(tmp_path):
    verilog = clock_enable(verilog_of(Fp32Adder()))
    assert "      swap = " in verilog
    simulate_verilog(verilog, "tb_fp32", tmp_path, parameters={"block": "adder"}, seed=1)


@pytest.mark.sim
def test_scratchpad_is_as_before(tmp_path):
    spec = ScratchpadPorts(ScratchpadSpec(2, 256), 2, 1)
    verilog = clock_enable(verilog_of(Scratchpad(spec)))
    memory = verilog.partition("module memory_")[2].partition("endmodule")[0]
    assert memory.count("always") == 1
    assert memory.index("<= words[") < memory.index("if (|write)") < memory.index("] = write_data")
    ports = {"aligned_reads": [], "aligned_writes": [], "narrow_reads": [], "turned_reads": []}
    simulate_verilog(
        verilog,
        "tb_scratchpad",
        tmp_path,
        parameters=dataclasses.asdict(spec) | ports,
        seed=1,
    )
