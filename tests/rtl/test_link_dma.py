"""SEND and RECEIVE engines: the model against cases worked by hand, the gateware against it."""

import dataclasses
import re

import numpy as np
import pytest
from amaranth.hdl import Const, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import LINK, WORD_BYTES, ErrorCode
from fpgapipe.hw.hls_models.model.link_dma import (
    Packet,
    first_error,
    packet,
    receive,
    send,
    words_of_packet,
)
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.rtl.dma import link_dma
from fpgapipe.hw.rtl.dma.dma import TRANSFER_LAYOUT
from fpgapipe.hw.rtl.dma.link_dma import ReceiveEngine, SendEngine
from fpgapipe.hw.rtl.dma.load import LoadEngine
from fpgapipe.hw.rtl.dma.scratchpad import ReadPort, WritePort
from fpgapipe.hw.rtl.dma.shared_ports import SharedPort
from fpgapipe.hw.rtl.dma.store import StoreEngine
from fpgapipe.hw.rtl.lib.axi import ReadArbiter, WriteArbiter, connect_flat, flat_members
from fpgapipe.hw.rtl.lib.queue import issue_layout
from fpgapipe.hw.rtl.link.link_beats import word_layout
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog
from fpgapipe.sim_tb.worlds.whole_words import join_words, split_words

TESTS = (
    "packets_match_model",
    "sends_stop_at_errors",
    "receives_stop_at_errors",
    "receives_stop_at_bad_answers",
    "sends_halt",
    "receives_halt",
    "receives_into_scratchpad_halt",
    "links_go_down",
    "bus_never_waits_for_links",
    "take_stated_cycles",
)


class Engines(wiring.Component):
    """The engines of a link with load and store engines, all at a port named as tools expect."""

    def __init__(self, spec):
        self.spec = spec
        self._reads = ReadArbiter(2, spec.bus_bytes)
        self._writes = WriteArbiter(2, spec.bus_bytes)
        engine = {
            "halt": In(1),
            "done": Out(1),
            "busy": Out(1),
            "idle": Out(1),
            "error_valid": Out(1),
            "error_code": Out(8),
            "error_index": Out(32),
        }
        of_links = {
            "i": In(stream.Signature(issue_layout(LINK))),
            "down": In(1),
            "waits": Out(1),
        }
        of_pads = {"i": In(stream.Signature(TRANSFER_LAYOUT))}
        self._engines = {
            "load": (LoadEngine(spec), engine | of_pads),
            "store": (StoreEngine(spec), engine | of_pads),
            "send": (SendEngine(spec), engine | of_links),
            "receive": (ReceiveEngine(spec), engine | of_links),
        }
        address_bits = spec.scratchpad.address_bits
        super().__init__(
            {
                **{
                    f"{name}_{member}": shape
                    for name, (_, members) in self._engines.items()
                    for member, shape in members.items()
                },
                "send_o": Out(stream.Signature(word_layout())).array(3),
                "receive_words": In(stream.Signature(word_layout())).array(3),
                "memory_base": In(64),
                "memory_limit": In(64),
                "write": Out(WritePort(address_bits)),
                "held": In(1),
                "read": Out(ReadPort(address_bits)),
                **flat_members(self._reads.o.signature, "m_axi"),
                **flat_members(self._writes.o.signature, "m_axi"),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.reads, m.submodules.writes = self._reads, self._writes
        for name, (engine, members) in self._engines.items():
            m.submodules[name] = engine
            m.d.comb += [
                engine.memory_base.eq(self.memory_base),
                engine.memory_limit.eq(self.memory_limit),
            ]
            for member, shape in members.items():
                port, inner = getattr(self, f"{name}_{member}"), getattr(engine, member)
                if member == "i":
                    wiring.connect(m, wiring.flipped(port), inner)
                else:
                    m.d.comb += inner.eq(port) if shape.flow == In else port.eq(inner)
        load, store, send, receive = (engine for engine, _ in self._engines.values())
        for channel in range(3):
            sent, came = self.send_o[channel], self.receive_words[channel]
            if self.spec.link_port_bytes < WORD_BYTES:
                join_words(m, send.o[channel], sent)
                split_words(m, came, receive.i_words[channel])
                continue
            wiring.connect(m, send.o[channel], wiring.flipped(sent))
            wiring.connect(m, wiring.flipped(came), receive.i_words[channel])
        m.d.comb += load.held.eq(self.held)
        if self.spec.links_reach_scratchpad:
            m.d.comb += receive.held.eq(self.held)
        pairs = [(self.write, load.write, "write", receive), (self.read, store.read, "read", send)]
        for port, own, name, engine in pairs:
            if not self.spec.links_reach_scratchpad:
                wiring.connect(m, own, wiring.flipped(port))
                continue
            m.submodules[f"shared_{name}"] = shared = SharedPort(port.signature, 2)
            wiring.connect(m, own, shared.engines[0])
            wiring.connect(m, getattr(engine, name), shared.engines[1])
            wiring.connect(m, shared.o, wiring.flipped(port))
        wiring.connect(m, load.axi, self._reads.masters[0])
        wiring.connect(m, send.axi, self._reads.masters[1])
        wiring.connect(m, store.axi, self._writes.masters[0])
        wiring.connect(m, receive.axi, self._writes.masters[1])
        connect_flat(m, self, "m_axi", self._reads.o)
        connect_flat(m, self, "m_axi", self._writes.o)
        return m


def spec_of(bus_bytes, burst_beats, outstanding, *, narrow=False):
    return CoreSpec(
        *(4, 4),
        scratchpad=ScratchpadSpec(banks=1, bank_bytes=8192),
        bus_bytes=bus_bytes,
        burst_beats=burst_beats,
        outstanding=outstanding,
        links=(LinkEngineSpec(bus_bytes, port_bytes=bus_bytes),) if narrow else (),
    )


def test_packets_are_words_of_rows():
    memory = np.arange(256, dtype=np.uint8)
    body = packet(60, 8, rows=2, row_memory=70, stream=9)
    assert words_of_packet(body) == 2 + 2 - 1  # the second row lies in one word
    spec = spec_of(64, 16, 4)
    pad = np.zeros(spec.scratchpad.size_bytes, np.uint8)
    sent, code = send(spec, body, memory, pad)
    assert code is ErrorCode.NONE
    assert sent.stream == 9
    np.testing.assert_array_equal(sent.words.reshape(-1), [*range(128), *range(128, 192)])
    into = np.zeros(256, np.uint8)
    assert receive(spec, body, sent, into, pad) is ErrorCode.NONE
    np.testing.assert_array_equal(np.flatnonzero(into), [*range(60, 68), *range(130, 138)])
    np.testing.assert_array_equal(into[130:138], range(130, 138))


def test_a_wrong_packet_is_an_error():
    spec = spec_of(64, 1, 4)  # a word a burst
    pad = np.zeros(spec.scratchpad.size_bytes, np.uint8)
    body = packet(0, 192, stream=9)
    words = np.ones((4, 64), np.uint8)
    for tag, count, written in [(8, 3, 0), (9, 2, 2), (9, 4, 2), (9, 3, 3)]:
        memory = np.zeros(256, np.uint8)
        code = receive(spec, body, Packet(tag, words[:count]), memory, pad)
        assert code is (ErrorCode.NONE if written == 3 else ErrorCode.LINK_STREAM)
        assert memory.sum() == 64 * written
    bad = range(64, 65)
    assert receive(spec, body, Packet(9, words), memory, pad, bad=bad) is ErrorCode.AXI_WRITE
    for wrong, code in [
        (body | {"channel": 3}, ErrorCode.BAD_FIELD),
        (body | {"row_bytes": 0}, ErrorCode.BAD_FIELD),
        (body | {"memory": 65}, ErrorCode.MEMORY_RANGE),
    ]:
        assert first_error(spec, wrong, 0, 256) == (0, code)
        assert send(spec, wrong, memory, pad)[1] is code
        assert receive(spec, wrong, Packet(0, words), memory, pad) is code
    sent, code = send(spec, body, memory, pad, bad=range(130, 131))
    assert (len(sent.words), code) == (2, ErrorCode.AXI_READ)


@pytest.mark.sim
@pytest.mark.parametrize(
    ("bus_bytes", "burst_beats", "outstanding", "narrow"),
    [
        (64, 16, 16, False),
        (16, 4, 8, True),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((16, 8, 8, False), (8, 8, 4, True), (4, 32, 8, True))
        ),
    ],
)
def test_gateware_matches_model(bus_bytes, burst_beats, outstanding, narrow, tmp_path):
    engines = Engines(spec_of(bus_bytes, burst_beats, outstanding, narrow=narrow))
    assert simulate(engines, "bus.tb_link_dma", tmp_path).tests == TESTS


# A fault in the Verilog, and the test that has to see it.
FAULTS = {
    "sends packets without an end": (
        r"(?<=word\.last  = )[^;]+",
        "1'h0",
        "packets_match_model",
    ),
    "asks for more than there is room for": (
        r"room > gate__words",
        "1'h1",
        "bus_never_waits_for_links",
    ),
    "sends on a channel that does not exist": (
        r"\S+\[225:224\] >= 2'h3",
        "1'h0",
        "sends_stop_at_errors",
    ),
    "takes any tag": (r"tag != \S+ \[33:2\]", "1'h0", "receives_stop_at_errors"),
    "takes packets that are too long": (
        r"(?<=exact = )complete & (\S+) ",
        r"\1 ",
        "receives_stop_at_errors",
    ),
    "waits for the rest of a short packet": (
        r"(?<=  : )complete(?=;)",
        "1'h0",
        "receives_stop_at_errors",
    ),
    "begins a burst before its words are there": (
        r"have > gate__words",
        "(have != 0)",
        "bus_never_waits_for_links",
    ),
    "sends on after a halt": (
        r"\\halt\S* +\| \\error_valid\S* ",
        "1'h0",
        "sends_halt",
    ),
    "takes words after a halt": (
        r"\\halt\S* +\| (\\error_valid\S* )",
        r"\1",
        "receives_halt",
    ),
    "does not see that a link is down": (r"down & \\\S+ ", "1'h0", "links_go_down"),
    "mixes up responses": (r"! o__bid", "o__bid", "bus_never_waits_for_links"),
    "mixes up the data of writers": (r"(?<=o__wdata = )r_data", "~r_data", "packets_match_model"),
    "takes words that the scratchpad has not": (
        r"is_on_chip & \\\$signal\S+ ",
        "is_on_chip ",
        "sends_stop_at_errors",
    ),
    "does not end a packet of the scratchpad": (r"coming == 1'h1", "1'h0", "packets_match_model"),
    "takes packets that are too long for the scratchpad": (
        r"have == 1'h1",
        "1'h1",
        "receives_stop_at_errors",
    ),
    "gives words to another reader": (r"owner3\[1\]", "owner3[0]", "packets_match_model"),
    "ends a load while its last word is held": (
        r"(?<=done = )(\\\$signal\S+ +)& \S+ (?=;)",
        r"\1",
        "packets_match_model",
    ),
    "ends a packet while its last word is held": (
        r"last_word & \\\S+ ",
        "last_word",
        "packets_match_model",
    ),
    "changes turns while a word waits": (
        r"(?<=assign moves = )\\\$\S+ +& (\\\$\S+) ",
        r"\1",
        "packets_match_model",
    ),
}


@pytest.mark.sim
@pytest.mark.slow
def test_testbench_sees_faults(tmp_path):
    """All faults are in one design, whose port `fault` says which of them counts."""
    verilog = verilog_of(Engines(spec_of(64, 4, 16)))
    for number, (pattern, replacement, _) in enumerate(FAULTS.values(), start=1):

        def choice(match, number=number, replacement=replacement):
            return f"(top.fault == {number} ? {match.expand(replacement)} : {match[0]})"

        verilog, count = re.subn(pattern, choice, verilog)
        assert count, pattern
    verilog = re.sub(
        r"\bmodule top\((.*?);", r"module top(fault, \1;\n  input [7:0] fault;", verilog, flags=re.S
    )
    parameters = dataclasses.asdict(spec_of(64, 4, 16))
    unharmed = simulate_verilog(
        verilog, "bus.tb_link_dma", tmp_path, parameters=parameters | {"fault": 0}, seed=1
    )
    assert unharmed.tests == TESTS
    for number, (name, (*_, test)) in enumerate(FAULTS.items(), start=1):
        chosen = parameters | {"fault": number, "only": test}
        with pytest.raises(SimulationError) as caught:
            simulate_verilog(verilog, "bus.tb_link_dma", tmp_path, parameters=chosen, seed=1)
        assert list(caught.value.failures) == [test], name


FAULTS_OF_PARTS = {
    "takes each part for a word": lambda at_end, at_begin: (Const(1), at_begin),
    "takes the last part for the tag": lambda at_end, at_begin: (at_end, at_end),
}


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS_OF_PARTS)
def test_testbench_sees_wrong_parts(fault, tmp_path, monkeypatch):
    def last_part(m, moves, parts):
        return FAULTS_OF_PARTS[fault](*right(m, moves, parts))

    right = link_dma.last_part
    monkeypatch.setattr(link_dma, "last_part", last_part)
    engines = Engines(spec_of(16, 4, 8, narrow=True))
    with pytest.raises(SimulationError) as caught:
        simulate(engines, "bus.tb_link_dma", tmp_path)
    assert "packets_match_model" in caught.value.failures
