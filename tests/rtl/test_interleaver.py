"""Two memory ports: which addresses lie behind each, and the gateware between bus and ports."""

from dataclasses import dataclass

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from test_formal import twin
from xrt_cases import core_address

from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.interleave import (
    BLOCK_BYTES,
    blocks,
    port_address,
    port_of,
)
from fpgapipe.hw.rtl.lib import interleaver
from fpgapipe.hw.rtl.lib.axi import connect_flat, flat_members
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate

TESTS = ("bytes_are_right", "errors_come_back", "takes_stated_cycles", "wastes_no_cycle")
ID_BITS = 2


def test_addresses():
    """Each half of a memory has each address once, in order of the blocks of its port."""
    for half in (1 << 22, 3 << 21, 5 * BLOCK_BYTES):
        for first in (0, 5 << 20):
            addresses = range(2 * first, 2 * (first + half), BLOCK_BYTES)
            found = [port_address(address, half) for address in addresses]
            assert sorted(found) == list(range(first, first + 2 * half, BLOCK_BYTES))
            for address, place in zip(addresses, found, strict=True):
                port = port_of(address)
                assert place // (first + half) == port
                assert core_address(place - port * half, port) == address
            assert port_address(2 * first + 3 * BLOCK_BYTES + 77, half) == found[3] + 77


def test_rows_are_at_both_ports():
    """However far rows are apart, 16 of them are hardly ever at one port alone."""
    distances = [*range(1, 65), *range(66, 129, 2), 192, 256, 384, 512, 1024]
    uneven = {}
    for distance in distances:
        rows = [[first + row * distance for row in range(16)] for first in range(0, 10_000, 1237)]
        odd = [sum(port_of(block * BLOCK_BYTES) for block in blocks) / 16 for blocks in rows]
        uneven[distance] = sum(max(share, 1 - share) for share in odd) / len(odd)
    assert sum(uneven.values()) / len(uneven) < 0.6
    assert max(uneven.values()) <= 0.75, max(uneven, key=uneven.get)


def test_blocks_in_a_row_alternate():
    ports = [port_of(number * BLOCK_BYTES) for number in range(1 << 13)]
    assert not any(len({*ports[at : at + 3]}) == 1 for at in range(len(ports) - 2))


def test_ranges_are_cut_at_blocks():
    assert list(blocks(1000, 1100)) == [
        (1000, slice(0, 24)),
        (1024, slice(24, 1048)),
        (2048, slice(1048, 1100)),
    ]
    assert list(blocks(64, 0)) == []


def test_bursts_stay_within_blocks():
    assert CoreSpec(4, 4, memory_ports=2).memory_ports == 2
    with pytest.raises(ValueError, match="two memory ports must be at most 1,024 bytes, not 2,048"):
        CoreSpec(4, 4, burst_beats=32, memory_ports=2)
    with pytest.raises(ValueError, match="memory_ports must be 1 or 2, not 3"):
        CoreSpec(4, 4, memory_ports=3)


@dataclass(frozen=True)
class Bus:
    """Parameter of the testbench."""

    bus_bytes: int


class Interleavers(wiring.Component):
    """Both interleavers, with ports of the names that cocotbext.axi looks for."""

    def __init__(self, bus_bytes):
        self.spec = Bus(bus_bytes)
        self._parts = {
            "reads": interleaver.ReadInterleaver(bus_bytes, ID_BITS),
            "writes": interleaver.WriteInterleaver(bus_bytes, ID_BITS),
        }
        members = {}
        for part in self._parts.values():
            for prefix, port in zip(("m_axi", "m_axi1"), part.o, strict=True):
                members |= flat_members(port.signature, prefix)
            members |= flat_members(part.i.signature, "s_axi")
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        for name, part in self._parts.items():
            m.submodules[name] = part
            for prefix, port in zip(("m_axi", "m_axi1"), part.o, strict=True):
                connect_flat(m, self, prefix, port)
            connect_flat(m, self, "s_axi", part.i)
        return m


@pytest.mark.sim
@pytest.mark.parametrize("bus_bytes", [16, 64])
def test_interleavers(bus_bytes, tmp_path):
    assert simulate(Interleavers(bus_bytes), "bus.tb_interleaver", tmp_path, seed=1).tests == TESTS


def mixes_ports(reads, m):
    m.d.comb += reads.i.rdata.eq(reads.o[0].rdata)


def forgets_ids(reads, m):
    m.d.comb += reads.i.rid.eq(0)


def hides_errors(writes, m):
    m.d.comb += writes.i.bresp.eq(0)


def sends_all_to_one(writes, m):
    m.d.comb += writes.o[1].awvalid.eq(0)


FAULTS = {
    "gives words of the wrong port": ("ReadInterleaver", mixes_ports, 0),
    "forgets whose words come": ("ReadInterleaver", forgets_ids, 0),
    "hides errors": ("WriteInterleaver", hides_errors, 1),
    "never asks a port": ("WriteInterleaver", sends_all_to_one, 0),
}
"""Where a fault is, and the test that has to see it."""


@pytest.mark.sim
@pytest.mark.parametrize("fault", FAULTS)
def test_testbench_sees(fault, tmp_path, monkeypatch):
    name, change, test = FAULTS[fault]
    monkeypatch.setattr(interleaver, name, twin(getattr(interleaver, name), change))
    with pytest.raises(SimulationError) as caught:
        simulate(Interleavers(16), "bus.tb_interleaver", tmp_path, seed=1)
    assert TESTS[test] in caught.value.failures
