"""The scratchpad: the gateware against an array of bytes."""

import dataclasses
import re

import pytest
from core_cases import some_of

from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.hw.rtl.dma.scratchpad import ReadPort, Scratchpad, ScratchpadPorts, WritePort
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog

TESTS = ("matches_model", "streams_side_by_side", "forgets_reads_at_reset")
CORE = ScratchpadPorts(
    ScratchpadSpec(4, 256), 3, 3, frozenset({2}), frozenset({2}), turned_reads=frozenset({0})
)


def parameters(spec):
    kinds = ("aligned_reads", "aligned_writes", "narrow_reads", "turned_reads")
    return {**dataclasses.asdict(spec), **{kind: sorted(getattr(spec, kind)) for kind in kinds}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1), "scratchpad num_reads must be at least 1, not 0"),
        ((1, 0), "scratchpad num_writes must be at least 1, not 0"),
        ((1, 2, frozenset({2})), "scratchpad aligned_writes must be in 0..1, not 2"),
        (
            (1, 2, frozenset({0})),
            "scratchpad aligned_writes must be the last write port, 1, not 0",
        ),
        (
            (3, 2, frozenset({1}), frozenset({3})),
            "scratchpad aligned_reads must be in 0..2, not 3",
        ),
        (
            (3, 2, frozenset(), frozenset(), frozenset(), frozenset({-1})),
            "scratchpad turned_reads must be in 0..2, not -1",
        ),
        (
            (3, 2, frozenset(), frozenset({2}), frozenset(), frozenset({2})),
            "scratchpad turned_reads must be ports of 64 bytes for any address, not 2",
        ),
    ],
)
def test_refuses_ports(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ScratchpadPorts(ScratchpadSpec(), *arguments)


def test_ports_of_one_width_are_equal():
    assert ReadPort(8) == ReadPort(8)
    assert WritePort(8) == WritePort(8).flip().flip()
    assert ReadPort(8) != ReadPort(9)
    assert ReadPort(8) != WritePort(8)


def test_memories_are_one_module_without_contents():
    large = verilog_of(Scratchpad(ScratchpadPorts(ScratchpadSpec(4, 1 << 19), 3, 2)))
    modules = re.findall(r"^module (\S+)", large, re.MULTILINE)
    assert sum("memory" in name for name in modules) == 1
    assert "reg [511:0] words [4095:0]" in large
    assert "initial" not in large


@pytest.mark.sim
@pytest.mark.parametrize(
    "spec",
    [
        CORE,
        ScratchpadPorts(ScratchpadSpec(1, 256), 1, 1),
        ScratchpadPorts(ScratchpadSpec(2, 512), 2, 3, turned_reads=frozenset({0, 1})),
        ScratchpadPorts(
            ScratchpadSpec(2, 256, 8), 4, 2, frozenset({1}), frozenset({2}), frozenset({3})
        ),
        ScratchpadPorts(ScratchpadSpec(1, 512, 16), 2, 1),
        ScratchpadPorts(
            ScratchpadSpec(4, 256, 8), 4, 2, frozenset({1}), frozenset({2}), frozenset({3})
        ),
        ScratchpadPorts(ScratchpadSpec(4, 512, 32), 2, 1),
        ScratchpadPorts(ScratchpadSpec(8, 256), 3, 1, frozenset(), frozenset({2})),
    ],
    ids=lambda spec: "x".join(map(str, dataclasses.astuple(spec.memory))),
)
def test_gateware_matches_model(spec, tmp_path):
    done = simulate(Scratchpad(spec), "tb_scratchpad", tmp_path, parameters=parameters(spec))
    assert done.tests == TESTS


# A fault in the Verilog of two banks, or of four, with two ports to read and two to write, and the
# test that has to see it.
FAULTS = {
    "wraps at the end of a bank": (
        r"= ! read0_bank0;",
        "= ! reads__0__address[8];",
        "matches_model",
    ),
    "chooses for another granule": (
        r"\? read0_group16 : read0_group0",
        "? read0_group0 : read0_group0",
        "matches_model",
    ),
    "does not rotate": (r"read0_turn1 <= [^;]*;", "read0_turn1 <= 5'h00;", "matches_model"),
    "does not wait": (r"reads__1__ready = ~ [^;]*;", "reads__1__ready = 1'h1;", "matches_model"),
    "waits for the same bank": (
        r"(assign \S+  = )\S+  & \S+ ;(\s*assign \S+  = read1_uses1 & read0_uses1;)",
        r"\1 read1_bank0 == read0_bank0;\2",
        "streams_side_by_side",
    ),
    "writes beyond the mask": (r"\? write0_mask0 :", "? 32'hffffffff :", "matches_model"),
    "does not hold": (r"writes__1__ready = ~ held", "writes__1__ready = 1'h1", "matches_model"),
    "says that nothing is held": (r"assign held = [^;]*;", "assign held = 1'h0;", "matches_model"),
    "writes over another": (
        r"= \S+ +\? (write1_mask01 : 32'd0)",
        r"= write1_select01[0] ? \1",
        "matches_model",
    ),
    "reads on after a reset": (
        r"rst \? 4'h0 : (\{ read0_valid)",
        r"\1",
        "forgets_reads_at_reset",
    ),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS, kept=1))
def test_testbench_sees(fault, tmp_path):
    pattern, replacement, test = FAULTS[fault]
    memory = ScratchpadSpec(4 if "group" in pattern else 2, 256)
    spec = ScratchpadPorts(memory, 2, 2, frozenset({1}), turned_reads=frozenset({0}))
    faulty, count = re.subn(pattern, replacement, verilog_of(Scratchpad(spec)), count=1)
    assert count == 1
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(faulty, "tb_scratchpad", tmp_path, parameters=parameters(spec), seed=1)
    assert test in caught.value.failures
