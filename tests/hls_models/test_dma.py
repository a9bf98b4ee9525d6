"""Loads and stores: the model against cases worked by hand, the gateware against the model."""

import dataclasses
import re

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import ErrorCode
from fpgapipe.hw.hls_models.model.dma import (
    LOAD_FILL_CYCLES,
    STORE_FILL_CYCLES,
    burst_words,
    bursts,
    first_error,
    load,
    load_cycles,
    row_starts,
    store,
    store_cycles,
    transfer,
)
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.rtl.dma.dma import TRANSFER_LAYOUT
from fpgapipe.hw.rtl.dma.load import LoadEngine
from fpgapipe.hw.rtl.dma.scratchpad import ReadPort, WritePort
from fpgapipe.hw.rtl.dma.store import StoreEngine
from fpgapipe.hw.rtl.lib.axi import (
    AxiRead,
    AxiWrite,
    ReadArbiter,
    connect_flat,
    flat_members,
)
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog

TESTS = (
    "loads_match_model",
    "stores_match_model",
    "loads_take_predicted_cycles",
    "stores_take_predicted_cycles",
    "banks_hold_bursts_up",
    "loads_stop_at_errors",
    "stores_stop_at_errors",
    "loads_stop_at_bad_answers",
    "stores_stop_at_bad_answers",
    "loads_halt",
    "stores_halt",
    "readers_share_the_port",
    "memory_of_cocotbext_agrees",
)


class Engines(wiring.Component):
    """Both engines at a port named as tools expect, with another reader beside the load engine."""

    def __init__(self, spec):
        self.spec = spec
        self._axi = (AxiRead(spec.bus_bytes), AxiWrite(spec.bus_bytes))
        engine = {
            "i": In(stream.Signature(TRANSFER_LAYOUT)),
            "halt": In(1),
            "done": Out(1),
            "busy": Out(1),
            "idle": Out(1),
            "bytes_moved": Out(range(spec.bus_bytes + 1)),
            "error_valid": Out(1),
            "error_code": Out(8),
            "error_index": Out(32),
        }
        members = {
            f"{name}_{member}": shape
            for name in ("load", "store")
            for member, shape in engine.items()
        }
        address_bits = spec.scratchpad.address_bits
        super().__init__(
            {
                **members,
                "memory_base": In(64),
                "memory_limit": In(64),
                "write": Out(WritePort(address_bits)),
                "held": In(1),
                "read": Out(ReadPort(address_bits)),
                "fetch": In(AxiRead(spec.bus_bytes)),
                **flat_members(self._axi[0], "m_axi"),
                **flat_members(self._axi[1], "m_axi"),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.load = load = LoadEngine(self.spec)
        m.submodules.store = store = StoreEngine(self.spec)
        m.submodules.arbiter = arbiter = ReadArbiter(2, self.spec.bus_bytes)
        for name, engine in (("load", load), ("store", store)):
            wiring.connect(m, wiring.flipped(getattr(self, f"{name}_i")), engine.i)
            m.d.comb += [
                engine.memory_base.eq(self.memory_base),
                engine.memory_limit.eq(self.memory_limit),
                engine.halt.eq(getattr(self, f"{name}_halt")),
            ]
            for member in ("done", "busy", "idle", "bytes_moved"):
                m.d.comb += getattr(self, f"{name}_{member}").eq(getattr(engine, member))
            for member in ("error_valid", "error_code", "error_index"):
                m.d.comb += getattr(self, f"{name}_{member}").eq(getattr(engine, member))
        wiring.connect(m, load.write, wiring.flipped(self.write))
        m.d.comb += load.held.eq(self.held)
        wiring.connect(m, store.read, wiring.flipped(self.read))
        wiring.connect(m, wiring.flipped(self.fetch), arbiter.masters[0])
        wiring.connect(m, load.axi, arbiter.masters[1])
        connect_flat(m, self, "m_axi", arbiter.o)
        connect_flat(m, self, "m_axi", store.axi)
        return m


def spec_of(bus_bytes, burst_beats, outstanding):
    pad = ScratchpadSpec(banks=1, bank_bytes=8192)
    return CoreSpec(
        4, 4, scratchpad=pad, bus_bytes=bus_bytes, burst_beats=burst_beats, outstanding=outstanding
    )


def test_rows_run_within_planes():
    body = transfer(1000, 40, 8, 2, 100, -36, 3, 10_000, 64)
    assert list(row_starts(body)) == [
        (1000, 40), (1100, 4), (11_000, 104), (11_100, 68), (21_000, 168), (21_100, 132),
    ]  # fmt: skip


def test_bursts_end_at_blocks():
    assert bursts(0, 1, words=4) == [(0, 64)]
    assert bursts(63, 2, words=4) == [(0, 128)]
    assert bursts(130, 500, words=4) == [(128, 128), (256, 256), (512, 128)]
    # A block is at most 4 KiB, which no burst may cross.
    assert bursts(4095, 2, words=64) == [(4032, 64), (4096, 64)]


@pytest.mark.parametrize(
    ("bus_bytes", "burst_beats", "words"),
    [(64, 16, 16), (64, 256, 64), (64, 1, 1), (64, 15, 8), (4, 16, 1), (4, 256, 16), (16, 8, 2)],
)
def test_longest_burst_is_a_power_of_two(bus_bytes, burst_beats, words):
    assert burst_words(spec_of(bus_bytes, burst_beats, 4)) == words


def test_refuses_bursts_shorter_than_a_word():
    message = "core burst_beats must be at least 16 (a word of 64 bytes on a bus of 4), not 15"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        burst_words(spec_of(4, 15, 4))


def test_loads_words_and_stores_bytes():
    spec = spec_of(64, 16, 4)
    memory = np.arange(256, dtype=np.uint8)
    scratchpad = np.full(spec.scratchpad.size_bytes, 255, np.uint8)
    assert load(spec, transfer(70, 6, 3), memory, scratchpad) is ErrorCode.NONE
    np.testing.assert_array_equal(scratchpad[:65], [*range(64, 128), 255])
    assert store(spec, transfer(134, 6, 3), memory, scratchpad) is ErrorCode.NONE
    np.testing.assert_array_equal(memory[132:140], [132, 133, 70, 71, 72, 137, 138, 139])


def test_an_error_keeps_what_comes_before_it():
    spec = spec_of(64, 16, 4)
    memory = np.ones(256, np.uint8)
    scratchpad = np.zeros(spec.scratchpad.size_bytes, np.uint8)
    body = transfer(128, 0, 64, rows=3, row_memory=64, row_scratchpad=64)
    assert first_error(spec, body, 0, 256) == (2, ErrorCode.MEMORY_RANGE)
    assert load(spec, body, memory, scratchpad) is ErrorCode.MEMORY_RANGE
    assert scratchpad.sum() == 128
    body = transfer(0, 0, 192)
    assert load(spec, body, 2 * memory, scratchpad, bad=range(64, 65)) is ErrorCode.AXI_READ
    assert scratchpad.sum() == 128 + 64
    # The burst from 64 on fails as a whole.
    assert store(spec, body, memory, scratchpad, bad=range(64, 65)) is ErrorCode.AXI_WRITE
    np.testing.assert_array_equal(memory, 1)


def test_predicts_cycles_counted_by_hand():
    spec = spec_of(64, 16, 16)
    body = transfer(0, 0, 4096)
    assert load_cycles(spec, [body], 100) == LOAD_FILL_CYCLES + 100 + 64
    assert store_cycles(spec, [body], 100) == STORE_FILL_CYCLES + 100 + 63
    # A row a cycle, each a beat; the second instruction's beats follow at once.
    rows = transfer(0, 0, 64, rows=8, row_memory=128, row_scratchpad=64)
    assert load_cycles(spec, [rows, rows], 10) == LOAD_FILL_CYCLES + 10 + 17
    # One burst at a time: each takes the round trip.
    single = spec_of(64, 16, 1)
    assert load_cycles(single, [body], 100) == LOAD_FILL_CYCLES + 4 * (100 + 16) + 3


@pytest.mark.sim
@pytest.mark.parametrize(
    ("bus_bytes", "burst_beats", "outstanding"), [(64, 16, 16), (16, 8, 8), (4, 16, 3)]
)
def test_gateware_matches_model(bus_bytes, burst_beats, outstanding, tmp_path):
    engines = Engines(spec_of(bus_bytes, burst_beats, outstanding))
    assert simulate(engines, "bus.tb_dma", tmp_path).tests == TESTS


# A fault in the Verilog, and the test that has to see it.
FAULTS = {
    "believes a bad answer": (r"axi__rresp\[1\]", "1'h0", "loads_stop_at_bad_answers"),
    "writes whole words": (r"wanted(?= >>)", "64'hffffffffffffffff", "stores_match_model"),
    "ends bursts early": (r"2'h3 - row4\[1:0\]", "2'h2 - row4[1:0]", "loads_match_model"),
    "begins below the memory": (r"below(?= \|)", "1'h0", "loads_stop_at_errors"),
    "mixes up the readers": (r"! o__rid", "o__rid", "readers_share_the_port"),
    "reads on after a halt": (r"halt \? 1'h1 : closed", "closed", "loads_halt"),
    "writes on after a halt": (r"halt \? 1'h1 : (\S+) ", r"\1 ", "stores_halt"),
    "forgets the last beat": (r"(?<=axi__wlast <= )(\S+) ", "1'h0", "stores_match_model"),
    "takes back a request": (
        r"(?<=requesting <= )(\S+) ",
        r"\1 & ~requesting",
        "loads_match_model",
    ),
    "keeps little under way": (r"5'h10(?= :)", "5'h04", "stores_take_predicted_cycles"),
}


@pytest.mark.sim
def test_testbench_sees_faults(tmp_path):
    """All faults are in one design, whose port `fault` says which of them counts."""
    verilog = verilog_of(Engines(spec_of(64, 4, 4)))
    for number, (pattern, replacement, _) in enumerate(FAULTS.values(), start=1):

        def choice(match, number=number, replacement=replacement):
            return f"(top.fault == {number} ? {match.expand(replacement)} : {match[0]})"

        verilog, count = re.subn(pattern, choice, verilog)
        assert count, pattern
    verilog = re.sub(
        r"\bmodule top\((.*?);", r"module top(fault, \1;\n  input [7:0] fault;", verilog, flags=re.S
    )
    parameters = dataclasses.asdict(spec_of(64, 4, 4))
    unharmed = simulate_verilog(
        verilog, "bus.tb_dma", tmp_path, parameters=parameters | {"fault": 0}, seed=1
    )
    assert unharmed.tests == TESTS
    for number, (name, (*_, test)) in enumerate(FAULTS.items(), start=1):
        chosen = parameters | {"fault": number, "only": test}
        with pytest.raises(SimulationError) as caught:
            simulate_verilog(verilog, "bus.tb_dma", tmp_path, parameters=chosen, seed=1)
        assert list(caught.value.failures) == [test], name
