"""Tests of the blocks that the native simulator runs as C++.

With ``FPGAPIPE_RECORD=1`` they record what was compared, where no output differed.
"""

import importlib.util
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from array_driver import array_driver
from reader_driver import CHANCES, reader_driver

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.model.datapath import DatapathSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.systolic import Form
from fpgapipe.hw.rtl.arith.mx import BlockQuantiser
from fpgapipe.hw.rtl.dma.scratchpad import Scratchpad, ScratchpadPorts
from fpgapipe.hw.rtl.gemm.datapath import GemmDatapath
from fpgapipe.hw.rtl.gemm.operand import OperandReader
from fpgapipe.hw.rtl.vector.vector_lanes import VectorLanes
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.native.native import DeviceError, NativeDevice, build_native
from fpgapipe.sim_tb.substitutes import compared
from fpgapipe.sim_tb.substitutes.lockstep import Driven, lockstep_top
from fpgapipe.sim_tb.substitutes.simulation import Simulation, chosen_simulation
from fpgapipe.sim_tb.substitutes.substitution import BLOCKS, substitute
from fpgapipe.sim_tb.substitutes.verilog_module import split_modules

pytestmark = pytest.mark.sim

SIMD = ("plain", "avx2", "avx512")
SEED = int(os.environ.get("COCOTB_RANDOM_SEED", "0"))
ARRAY = Driven(
    "systolic_cells",
    {"rst": 0.002, "i_weights__valid": 0.8, "i_activations__valid": 0.9, "advance": 0.9},
    counted="swap",
)
DRIVEN = (
    ARRAY,
    Driven("accumulator_columns"),
    Driven("block_quantiser"),
    Driven("scratchpad", counted="reads__0__valid"),
    Driven("vector_lane_array", {"advance": 0.8}),
    Driven("reader_driver", CHANCES, counted="read__valid"),
)
PACKED = (replace(ARRAY, module="array_driver"), Driven("accumulator_columns"))
"""Modules that are driven where cells are packed: the other blocks are the same."""

PORTS = ScratchpadPorts(
    ScratchpadSpec(2, 512), 3, 3, frozenset({2}), frozenset({2}), turned_reads=frozenset({0})
)
FAULTS = ("-CFLAGS", "-DFPGAPIPE_FAULTS")


def blocks_of(rows, cols):
    """Verilog of all blocks: those of an engine, a quantiser, a scratchpad and lanes."""
    reader_rows = rows if 32 % rows == 0 else 32
    texts = split_modules(verilog_of(GemmDatapath(DatapathSpec(rows, cols, 64)), "datapath"))
    for name, block in (
        ("quantiser", BlockQuantiser()),
        ("scratchpad", Scratchpad(PORTS)),
        ("lanes", VectorLanes(VectorSpec(4))),
        ("operand_reader", OperandReader(CoreSpec(reader_rows, 4))),
    ):
        others = split_modules(verilog_of(block, name))
        del others[""]
        texts |= others
    texts["reader_driver"] = reader_driver(texts["operand_reader"])
    return "".join(texts.values())


def lockstep_library(rows, cols, number, flags=()):
    """Library of a design that compares all blocks with their substitutes."""
    top = lockstep_top(blocks_of(rows, cols), DRIVEN, number, SEED)
    return build_native(top, "lockstep", simulation=Simulation.VERIFIED, flags=flags)


def packed_library(rows, cols, number, flags=()):
    """Library of a design that compares an array of packed cells with its substitute."""
    spec = DatapathSpec(rows, cols, 64, Form.PACKED)
    texts = split_modules(verilog_of(GemmDatapath(spec), "datapath"))
    texts["array_driver"] = array_driver(texts["systolic_cells"])
    top = lockstep_top("".join(texts.values()), PACKED, number, SEED)
    return build_native(top, "lockstep", simulation=Simulation.VERIFIED, flags=flags)


@pytest.fixture(scope="module", params=[(3, 6), (32, 4)], ids=str)
def packed(request):
    """Arrays of packed cells, with one cascade and with two, whose substitutes may have a fault."""
    return packed_library(*request.param, 2000, FAULTS)


@pytest.fixture(scope="module")
def small():
    """Blocks of odd sizes, more columns than rows, whose substitutes may have a fault."""
    return lockstep_library(3, 5, 2000, FAULTS)


@pytest.mark.parametrize("simd", SIMD)
def test_substitutes_equal_their_verilog(small, simd, monkeypatch):
    """No output differs in any cycle, over random inputs, pauses and resets."""
    monkeypatch.setenv("FPGAPIPE_SIMD", simd)
    with NativeDevice(small) as device:
        assert device.run(stall_cycles=None) > 2000


@pytest.mark.parametrize("simd", SIMD)
def test_packed_cells_equal_their_verilog(packed, simd, monkeypatch):
    monkeypatch.setenv("FPGAPIPE_SIMD", simd)
    with NativeDevice(packed) as device:
        assert device.run(stall_cycles=None) > 2000


def test_what_was_compared_is_recorded(small, packed, monkeypatch):
    """The record is renewed only by this test, after all blocks have equalled their models."""
    for library in (small, packed):
        for simd in SIMD:
            monkeypatch.setenv("FPGAPIPE_SIMD", simd)
            with NativeDevice(library) as device:
                device.run(stall_cycles=None)
    found = {block.name: compared.digest_of(block) for block in BLOCKS}
    if os.environ.get("FPGAPIPE_RECORD") == "1":
        compared.RECORD.write_text(json.dumps(found, indent=2) + "\n")
    assert json.loads(compared.RECORD.read_text()) == found, (
        "gateware or models have changed since they were compared: run this test with "
        "FPGAPIPE_RECORD=1, and commit compared.json"
    )


@pytest.mark.parametrize("block", [block.name for block in BLOCKS])
def test_comparison_sees_a_fault(small, block, monkeypatch):
    monkeypatch.setenv("FPGAPIPE_FAULT", block)
    index = [block.name for block in BLOCKS].index(block)
    # The Verilog of the reader has a quantiser, too, which is compared with its own substitute.
    where = {"quantiser": r"(2|5\.reader\.verilog_\.quantiser\.\w+)", "reader": r"5\.reader"}
    with (
        NativeDevice(small) as device,
        pytest.raises(
            DeviceError,
            match=r"^cycle \d+: the model stopped: the substitute of "
            rf"lockstep\.block{where.get(block, index)} differs from its Verilog in signal "
            r"(sums|totals|o__31|reads__\d__data|o__payload)$",
        ),
    ):
        device.run(stall_cycles=None)


@pytest.mark.parametrize("fault", ["array", "array that forgets a swap"])
def test_comparison_sees_a_fault_in_packed_cells(packed, fault, monkeypatch):
    monkeypatch.setenv("FPGAPIPE_FAULT", fault)
    with (
        NativeDevice(packed) as device,
        pytest.raises(DeviceError, match=r"differs from its Verilog in signal sums$"),
    ):
        device.run(stall_cycles=None)


@pytest.mark.parametrize("cycles", [3, 777, 12_345])
def test_a_saved_state_has_that_of_the_substitutes(small, cycles, monkeypatch):
    """The Verilog of each block goes on with its substitute, whatever processor goes on."""
    monkeypatch.setenv("FPGAPIPE_SIMD", "plain")
    with NativeDevice(small) as whole, NativeDevice(small) as one:
        last = whole.run(stall_cycles=None)
        one.run(cycles, until_irq=False)
        state = one.state()
        one.run(500, until_irq=False)
        monkeypatch.delenv("FPGAPIPE_SIMD")
        with NativeDevice(small) as other:
            other.run(99, until_irq=False)
            other.set_state(state)
            assert other.run(stall_cycles=None) + cycles == last


@pytest.mark.parametrize(
    ("fault", "signal"),
    [
        ("array that forgets a swap", "sums"),
        ("quantiser that forgets bits", r"o__\d+"),
        ("reader that forgets a checkpoint", "(read__address|read__valid|error_valid|error_index)"),
    ],
)
def test_comparison_sees_work_that_was_skipped_wrongly(small, fault, signal, monkeypatch):
    """Equal inputs need no new computation, unless something else has changed meanwhile."""
    monkeypatch.setenv("FPGAPIPE_FAULT", fault)
    with (
        NativeDevice(small) as device,
        pytest.raises(DeviceError, match=rf"differs from its Verilog in signal {signal}$"),
    ):
        device.run(stall_cycles=None)


def test_instances_have_their_own_state(small):
    """Two devices in two threads, one of them reset in between, run as one alone does."""
    with NativeDevice(small) as one, NativeDevice(small) as other:
        other.run(777, until_irq=False)
        other.reset()
        found = {}
        threads = [
            threading.Thread(target=lambda d=d, n=n: found.update({n: d.run(stall_cycles=None)}))
            for n, d in enumerate((one, other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found.keys() == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(32, 32), (16, 8), (4, 20), (1, 1), (33, 17)], ids=str)
def test_ten_thousand_tiles(shape, monkeypatch):
    library = lockstep_library(*shape, 10_000)
    for simd in SIMD:
        monkeypatch.setenv("FPGAPIPE_SIMD", simd)
        with NativeDevice(library) as device:
            device.run(stall_cycles=None)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(32, 32), (16, 8), (5, 20), (1, 4)], ids=str)
def test_ten_thousand_tiles_of_packed_cells(shape, monkeypatch):
    library = packed_library(*shape, 10_000)
    for simd in SIMD:
        monkeypatch.setenv("FPGAPIPE_SIMD", simd)
        with NativeDevice(library) as device:
            device.run(stall_cycles=None)


def test_only_covered_modules_are_substituted():
    verilog = blocks_of(2, 2)
    top = lockstep_top(verilog, DRIVEN, 1)
    fast = substitute(top, "lockstep", Simulation.FAST)
    assert fast.blocks.substituted == tuple(block.name for block in BLOCKS)
    assert not fast.blocks.left
    assert str(fast.blocks) == (
        "fast (array, accumulators, quantiser, scratchpad, lanes, reader in C++)"
    )
    assert "systolic_row" not in fast.verilog

    other = top.replace("  input [16:0] i_activations__payload;", "  input [16:0] other;")
    assert other != top
    found = substitute(other, "lockstep", Simulation.FAST)
    assert found.blocks.left == ("systolic_cells",)
    assert str(found.blocks) == (
        "fast (accumulators, quantiser, scratchpad, lanes, reader in C++; "
        "systolic_cells not covered, in Verilog)"
    )
    assert "systolic_row" in found.verilog
    assert substitute(top, "lockstep", Simulation.VERILOG).verilog == top


def test_a_changed_row_is_simulated_as_verilog():
    """A text that the gateware does not give has no model, whatever the name of its module."""
    top = lockstep_top(blocks_of(2, 2), DRIVEN, 1)
    row = split_modules(top)["systolic_row_2x8_17"]
    other = top.replace(row, row.replace(" + ", " - ", 1))
    assert other != top
    found = substitute(other, "lockstep", Simulation.FAST)
    assert found.blocks.changed == ("systolic_cells",)
    assert "systolic_row" in found.verilog
    assert str(found.blocks) == (
        "fast (accumulators, quantiser, scratchpad, lanes, reader in C++; "
        "systolic_cells changed since the comparison with C++, in Verilog)"
    )
    both = substitute(other, "lockstep", Simulation.VERIFIED)
    assert "array" in both.blocks.substituted


def test_changed_gateware_is_simulated_as_verilog(tmp_path, monkeypatch):
    """Blocks whose gateware imports the adder have no model when the adder has changed."""
    top = lockstep_top(blocks_of(2, 2), DRIVEN, 1)
    find_spec = importlib.util.find_spec

    adder = tmp_path / "fp32.py"

    def find(name):
        spec = find_spec(name)
        if name == "fpgapipe.hw.rtl.arith.fp32":
            spec.origin = str(adder)
        return spec

    text = Path(find_spec("fpgapipe.hw.rtl.arith.fp32").origin).read_text()
    for change, changed in (
        ("", ()),
        (
            "CHANGED = 1\n",
            ("accumulator_columns", "block_quantiser", "operand_reader", "vector_lane_array"),
        ),
    ):
        adder.write_text(f"{text}# a comment\n\n{change}")
        monkeypatch.setattr(importlib.util, "find_spec", find)
        compared.digest_of.cache_clear()
        found = substitute(top, "lockstep", Simulation.FAST).blocks.changed
        monkeypatch.undo()
        compared.digest_of.cache_clear()
        assert tuple(sorted(found)) == changed


def test_simulation_is_chosen(monkeypatch):
    monkeypatch.setenv("FPGAPIPE_SIMULATE", "verified")
    assert chosen_simulation() is Simulation.VERIFIED
    assert chosen_simulation(Simulation.VERILOG) is Simulation.VERILOG
    monkeypatch.setenv("FPGAPIPE_SIMULATE", "quick")
    with pytest.raises(UserError) as caught:
        chosen_simulation()
    assert str(caught.value) == (
        "FPGAPIPE_SIMULATE must be one of fast, verilog, verified, not 'quick'"
    )
