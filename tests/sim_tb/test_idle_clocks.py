"""Tests of engines that are not clocked while they rest."""

import re

import pytest

from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.rtl.core_verilog import device_verilog
from fpgapipe.sim_tb.native import native_library
from fpgapipe.sim_tb.native.clock_enable import clock_enable
from fpgapipe.sim_tb.native.idle_clocks import idle_clocks
from fpgapipe.sim_tb.native.native import DeviceError, NativeDevice, build_native
from fpgapipe.sim_tb.substitutes.lockstep import Driven, lockstep_top
from fpgapipe.sim_tb.substitutes.simulation import Simulation
from fpgapipe.sim_tb.substitutes.verilog_module import split_modules

ENGINES = (
    "link_engine0",
    "receive_engine",
    "send_engine",
    "sequencer",
    "store_engine",
    "vector_engine",
)
CORE = CoreSpec(
    2, 2, scratchpad=ScratchpadSpec(2, 512), vector=VectorSpec(4), links=(LinkEngineSpec(),)
)


def driven(names, more=""):
    """Design that gives random inputs to engines of a core, or to others, with long pauses."""
    texts = split_modules(device_verilog(CORE))
    del texts["top"]
    blocks = [Driven(name, counted="rst") for name in names]
    return lockstep_top("".join(texts.values()) + more, blocks, 100, pauses=True)


@pytest.fixture(scope="module")
def engines():
    """Design with all engines that can rest."""
    return driven(ENGINES)


def outcome(library):
    with NativeDevice(library) as device:
        return device.run(stall_cycles=None)


@pytest.mark.sim
def test_engines_that_rest_equal_engines_that_do_not(engines):
    """No output differs in any cycle, over random inputs, pauses and resets."""
    library = build_native(engines, "lockstep", simulation=Simulation.VERIFIED)
    assert outcome(library) > 50_000


@pytest.mark.sim
@pytest.mark.parametrize(
    ("text", "other"),
    [
        (r"(  assign idle_wake\[\d\] = ~\w+) \| \w+;", r"\1;"),
        (r"observed_differs <= \(.*;", "observed_differs <= 0;"),
    ],
    ids=["inputs", "registers"],
)
def test_comparison_sees_engines_that_rest_wrongly(engines, text, other, monkeypatch):
    """The signal that wakes an engine, or the one that keeps it awake, is left out."""

    def faulty(*arguments, **options):
        found, number = re.subn(text, other, idle_clocks(*arguments, **options))
        assert number
        return found

    monkeypatch.setattr(native_library, "idle_clocks", faulty)
    library = build_native(f"{engines}// {text}\n", "lockstep", simulation=Simulation.VERIFIED)
    with pytest.raises(DeviceError, match=r"the substitute of lockstep\.\w+ differs from its "):
        outcome(library)


COUNTS_IN_MEMORY = """
module link_engine9(clk, rst, a, y);
  input clk;
  input rst;
  input [7:0] a;
  output [7:0] y;
  reg [7:0] words [1:0];
  reg [7:0] seen;
  assign y = words[0] ^ seen;
  always @(posedge clk)
    words[0] <= rst ? 8'h00 : words[0] + 8'h01;
  always @(posedge clk)
    seen <= a;
endmodule
"""
"""An engine whose memory changes although its registers and inputs do not."""


@pytest.mark.sim
@pytest.mark.parametrize("counts", [True, False])
def test_writes_to_memories_keep_an_engine_awake(counts, monkeypatch):
    # Clocks are rewritten only where something else is substituted, as in the vector engine.
    design = driven(("vector_engine", "link_engine9"), COUNTS_IN_MEMORY)

    def found(*arguments, **options):
        text = idle_clocks(*arguments, **options)
        begin = text.index("module link_engine9__observed")
        own, number = re.subn(r"(observed_writes\d+) <= \1 \+ 1;", r"\1 <= 0;", text[begin:])
        assert number == 1
        return text if counts else text[:begin] + own

    monkeypatch.setattr(native_library, "idle_clocks", found)
    design += f"// writes count: {counts}\n"
    library = build_native(design, "lockstep", simulation=Simulation.VERIFIED)
    if counts:
        assert outcome(library) > 10_000
        return
    with pytest.raises(DeviceError, match=r"the substitute of lockstep\.\w+ differs from its "):
        outcome(library)


def test_engines_get_clocks_of_their_own():
    verilog = clock_enable(device_verilog(CORE))
    found = idle_clocks(verilog, "top")
    assert "input [5:0] idle_clk;" in found
    assert [found.count(f".clk (idle_clk[{k}])") for k in range(6)] == [1] * 6
    assert idle_clocks(found, "nothing") == found


def test_state_of_an_unknown_form_is_clocked():
    """An engine that assigns what is not declared as a register keeps the clock of the design."""
    verilog = clock_enable(device_verilog(CORE))
    changed = verilog.replace(
        "endmodule", "  always @(posedge clk)\n    {one, other} <= 2'h1;\nendmodule"
    )
    assert idle_clocks(changed, "top") == changed
