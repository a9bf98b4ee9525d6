"""Gateware to Verilog: blocks of their own, with helpers and without."""

import os
import re
from dataclasses import dataclass

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.errors import UserError
from fpgapipe.hw.rtl import verilog
from fpgapipe.hw.rtl.lib.modules import own_module
from fpgapipe.hw.rtl.verilog import verilog_of


@dataclass(frozen=True)
class StageSpec:
    """A register, with `depth` others in front of it, each a module of its own."""

    bits: int
    depth: int


class Stage(wiring.Component):
    """Gateware of `StageSpec`."""

    def __init__(self, spec: StageSpec) -> None:
        self.spec = spec
        super().__init__({"i": In(spec.bits), "choose": In(1), "o": Out(spec.bits)})

    def elaborate(self, platform):
        m = Module()
        value = self.i
        if self.spec.depth:
            spec = StageSpec(self.spec.bits, self.spec.depth - 1)
            m.submodules.before = before = own_module(Stage(spec), f"stage{spec.depth}")
            m.d.comb += [before.i.eq(self.i), before.choose.eq(self.choose)]
            value = before.o
        with m.If(self.choose):
            m.d.sync += self.o.eq(value)
        return m


class Pair(wiring.Component):
    """Two chains of stages of one kind, and one stage of another."""

    def __init__(self, kind=Stage, names=("stage7", "stage7", "wide")):
        self.kind, self.names = kind, names
        super().__init__({"i": In(8), "choose": In(1), "o": Out(8)})

    def elaborate(self, platform):
        m = Module()
        value = self.i
        for number, (name, bits) in enumerate(zip(self.names, (8, 8, 9), strict=True)):
            stage = self.kind(StageSpec(bits, 7 if bits == 8 else 0))
            m.submodules[f"chain{number}"] = own_module(stage, name)
            m.d.comb += [stage.i.eq(value), stage.choose.eq(self.choose)]
            value = stage.o
        m.d.comb += self.o.eq(value)
        return m


def modules_of(text):
    return re.findall(r"^module (\S+)\(", text, re.M)


def forget():
    """Keep nothing of designs that were made."""
    verilog._parts.clear()
    verilog._pieces.clear()


@pytest.fixture
def processors(monkeypatch):
    """Sets how many processors there seem to be."""
    return lambda number: monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(number)))


def test_each_block_is_one_module():
    assert modules_of(verilog_of(Pair())) == ["top", *(f"stage{n}" for n in range(8)), "wide"]


def test_text_does_not_depend_on_helpers(processors):
    processors(1)
    alone = verilog_of(Pair())
    forget()
    processors(3)
    assert verilog_of(Pair()) == alone


def test_blocks_of_an_earlier_design_are_not_converted_again(processors, monkeypatch):
    """Blocks inside such blocks and files that they add are part of the next design, too."""
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.hw.rtl.device import Device

    processors(1)
    core = Device(CoreSpec(4, 4))
    apart = verilog_of(core)
    assert any(part.files for part in verilog._parts.values())
    assert any(part.blocks for part in verilog._parts.values())
    forget()
    converted = []
    convert = verilog._convert_block
    monkeypatch.setattr(
        verilog, "_convert_block", lambda block: converted.append(block) or convert(block)
    )
    verilog_of(Device(CoreSpec(4, 8)))
    of_other = converted.copy()
    converted.clear()
    assert verilog_of(Device(CoreSpec(4, 4))) == apart
    assert 0 < len(converted) < len(of_other)
    assert not set(converted) & set(of_other)
    converted.clear()
    assert verilog_of(Device(CoreSpec(4, 4))) == apart
    assert not converted


def test_few_blocks_are_kept(processors, monkeypatch):
    monkeypatch.setattr(verilog, "MAX_KEPT", 3)
    first = verilog_of(Pair())
    assert len(verilog._parts) == len(verilog._pieces) == 3
    assert verilog_of(Pair()) == first


def test_a_block_that_is_kept_is_not_taken_for_another_of_its_name():
    verilog_of(Pair())
    wrong = Pair(names=("stage7", "stage7", "stage7"))
    with pytest.raises(ValueError, match=r"^gateware has two different modules named stage7$"):
        verilog_of(wrong)


def test_blocks_that_helpers_cannot_make_are_made_here(processors):
    class Local(Stage):
        """No other process can import it."""

    processors(3)
    expected = verilog_of(Pair())
    assert verilog_of(Pair(Local)) == expected  # a kind of its own, so nothing is kept of it


def test_helpers_that_end_early_are_not_missed(processors, monkeypatch):
    processors(3)
    monkeypatch.setattr(verilog, "_SERVE", "import sys; sys.exit('no helper today')")
    assert "wide" in modules_of(verilog_of(Pair()))


def test_different_blocks_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"^gateware has two different modules named stage7$"):
        verilog_of(Pair(names=("stage7", "stage7", "stage7")))


def test_names_the_design_that_yosys_refuses(monkeypatch):
    monkeypatch.setattr(verilog, "_SCRIPT", "no_such_command\n{}\n")
    with pytest.raises(UserError, match=r"^Yosys did not convert Pair to Verilog: .*no_such_comma"):
        verilog_of(Pair())


def test_errors_in_a_block_come_out(processors):
    class Broken(Stage):
        def elaborate(self, platform):
            raise RuntimeError("broken for good")

    processors(3)
    with pytest.raises(RuntimeError, match=r"^broken for good$"):
        verilog_of(Pair(Broken))


def test_a_block_is_part_of_the_design_without_a_platform():
    text = rtlil.convert(Pair())
    assert r"module \top.chain0.before" in text
    assert r"cell \wide" not in text


def test_no_function_has_a_name_that_icarus_takes_for_its_own():
    """An escaped name that begins with a dollar is a system function to Icarus."""
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.hw.rtl.control.registers import Registers

    text = verilog_of(Registers(CoreSpec(4, 4)))
    functions = re.findall(r"^ *function .*;$", text, re.MULTILINE)
    assert functions
    assert not [each for each in functions if "\\$" in each]
