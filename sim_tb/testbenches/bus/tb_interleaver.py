"""Checks the interleavers: bytes, ports, order, errors, latency and throughput.

The master is cocotbext.axi's, so bursts and responses are also checked by what others wrote. The
memories behind both ports are `AxiMemory` over the same bytes, which check the protocol.
"""

import random
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, Combine, FallingEdge
from cocotbext.axi import AxiBus, AxiMaster
from cocotbext.axi.constants import AxiResp

from fpgapipe.hw.hls_models.spec.interleave import BLOCK_BYTES, WORD_CYCLES, port_of
from fpgapipe.sim_tb.drivers.axi_memory import SLVERR, AxiMemory, Pauses
from fpgapipe.sim_tb.drivers.stream import cycle, parameters, start

MEMORY_BYTES = 1 << 15
PORTS = ("m_axi", "m_axi1")
LATENCY_CYCLES = 20


class Bench:
    """The interleavers with a master and two memories."""

    def __init__(self, dut: Any, rng: random.Random | None, **memory: Any) -> None:
        self.dut, self.bus_bytes = dut, parameters()["bus_bytes"]
        values = np.random.default_rng(cocotb.RANDOM_SEED)
        self.memory = values.integers(0, 256, MEMORY_BYTES, np.uint8)
        longest = BLOCK_BYTES // self.bus_bytes
        self.master = AxiMaster(AxiBus.from_prefix(dut, "s_axi"), dut.clk, max_burst_len=longest)
        reads, writes = self.master.read_if, self.master.write_if
        if rng is not None:
            for channel in (reads.ar_channel, reads.r_channel, writes.aw_channel, writes.w_channel):
                pauses = Pauses(random.Random(rng.random()))
                channel.set_pause_generator(iter(pauses, None))
        self.ports = [
            AxiMemory(dut, prefix, self.memory, rng=rng, max_beats=longest, **memory)
            for prefix in PORTS
        ]

    async def end(self) -> None:
        """Check where the bursts went, and stop the memories."""
        await ClockCycles(self.dut.clk, 5)
        for number, memory in enumerate(self.ports):
            assert memory.idle
            for request in (*memory.reads, *memory.writes):
                assert port_of(request.address) == number, f"port {number}: {request.address:#x}"
            memory.stop()


def within_blocks(
    rng: random.Random, bus_bytes: int, first: int, end: int
) -> list[tuple[int, int]]:
    """Ranges of whole beats, none of which crosses a block."""
    found, at = [], first
    while at < end:
        left = (BLOCK_BYTES - at % BLOCK_BYTES) // bus_bytes
        size = bus_bytes * min(rng.choice((1, 2, 5, 12, left)), left)
        found.append((at, size))
        at += size
    return found


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def bytes_are_right(dut: Any) -> None:
    """Reads of several IDs and writes at the same time, with pauses on every channel."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    bench = Bench(dut, rng, latency=(1, 30))
    before, half = bench.memory.copy(), MEMORY_BYTES // 2
    sent = random.Random(5).randbytes(half)
    writes = [
        cocotb.start_soon(bench.master.write(at, sent[at : at + size], awid=rng.randrange(2)))
        for at, size in within_blocks(rng, bench.bus_bytes, 0, half)
    ]
    reads = [
        (at, size, cocotb.start_soon(bench.master.read(at, size, arid=rng.randrange(4))))
        for at, size in within_blocks(rng, bench.bus_bytes, half, MEMORY_BYTES)
    ]
    await Combine(*writes, *(task for _, _, task in reads))
    assert all(task.result().resp is AxiResp.OKAY for task in writes)
    for at, size, task in reads:
        assert task.result().data == before[at : at + size].tobytes(), f"{at:#x}"
    assert bench.memory[:half].tobytes() == sent
    np.testing.assert_array_equal(bench.memory[half:], before[half:])
    assert all(memory.reads and memory.writes for memory in bench.ports)
    await bench.end()


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def errors_come_back(dut: Any) -> None:
    """A bad answer of either port reaches the master, with the burst that it belongs to."""
    await start(dut)
    bench = Bench(dut, random.Random(cocotb.RANDOM_SEED))
    starts = range(0, 8 * BLOCK_BYTES, BLOCK_BYTES)
    for bad in (3 * BLOCK_BYTES, 4 * BLOCK_BYTES):
        for memory in bench.ports:
            memory.bad = [(range(bad, bad + 1), SLVERR)]
        reads = [cocotb.start_soon(bench.master.read(at, 64)) for at in starts]
        writes = [cocotb.start_soon(bench.master.write(at, bytes(64))) for at in starts]
        await Combine(*reads, *writes)
        for at, read, write in zip(starts, reads, writes, strict=True):
            expected = AxiResp.SLVERR if at == bad else AxiResp.OKAY
            assert read.result().resp is expected, f"read of {at:#x}"
            assert write.result().resp is expected, f"write of {at:#x}"
    await bench.end()


async def moves(dut: Any, prefix: str, channel: str) -> int:
    """Cycle in which a channel moves its next beat."""
    valid, ready = (getattr(dut, f"{prefix}_{channel}{name}") for name in ("valid", "ready"))
    while True:
        await FallingEdge(dut.clk)
        if valid.value and ready.value:
            return cycle()


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def takes_stated_cycles(dut: Any) -> None:
    """A request passes at once; words are late by `WORD_CYCLES`, behind a port and before it."""
    await start(dut)
    bench = Bench(dut, None, latency=(LATENCY_CYCLES, LATENCY_CYCLES))
    for at in (0, BLOCK_BYTES):
        port = PORTS[port_of(at)]
        watched = [
            cocotb.start_soon(moves(dut, prefix, channel))
            for prefix, channel in (("s_axi", "ar"), (port, "ar"), (port, "r"), ("s_axi", "r"))
        ]
        await bench.master.read(at, 64)
        asked, passed, came, given = [await each for each in watched]
        assert (passed - asked, given - came) == (0, WORD_CYCLES)
        watched = [cocotb.start_soon(moves(dut, prefix, "w")) for prefix in ("s_axi", port)]
        await bench.master.write(at, bytes(64))
        given, came = [await each for each in watched]
        assert came - given == WORD_CYCLES
    await bench.end()


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def wastes_no_cycle(dut: Any) -> None:
    """A word moves in each cycle, from block to block and from port to port."""
    await start(dut)
    bench = Bench(dut, None, latency=(LATENCY_CYCLES, LATENCY_CYCLES))
    size = 16 * BLOCK_BYTES
    for channel in ("r", "w"):
        read, write = bench.master.read, bench.master.write
        task = cocotb.start_soon(read(0, size) if channel == "r" else write(0, bytes(size)))
        found = [await moves(dut, "s_axi", channel) for _ in range(size // bench.bus_bytes)]
        await task
        lost = found[-1] - found[0] + 1 - len(found)
        assert lost == 0, f"channel {channel}: {lost} cycles without a word"
    await bench.end()
