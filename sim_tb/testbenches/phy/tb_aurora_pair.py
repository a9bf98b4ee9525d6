"""Checks two packaged Aurora modules, joined by their lanes, with a stand-in for AMD's IP."""

import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge, with_timeout

from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES
from fpgapipe.hw.hls_models.spec.link_clock import TICK_CYCLES
from fpgapipe.sim_tb.drivers.axi_stream import AxiStreamDriver, AxiStreamSink
from fpgapipe.sim_tb.drivers.stream import PERIOD_NS, start

NUM_FRAMES = 8
USER_NS = 7


def frames_of(rng: random.Random) -> list[bytes]:
    """Frames of the link: up to four words of 64 bytes and a trailer."""
    return [rng.randbytes(64 * rng.randrange(5) + TRAILER_BYTES) for _ in range(NUM_FRAMES)]


@cocotb.test(timeout_time=4000, timeout_unit="us")
async def frames_pass_both_ways(dut: Any) -> None:
    """Frames go through module, lanes and module, in both directions at a time, unchanged."""
    rng = random.Random(cocotb.RANDOM_SEED)
    cocotb.start_soon(Clock(dut.user_clk, USER_NS, "ns").start())
    cocotb.start_soon(Clock(dut.init_clk, 13, "ns").start())
    await start(dut)
    sent = {}
    for end, other in (("a", "b"), ("b", "a")):
        sent[other] = frames_of(rng)
        driver = AxiStreamDriver(dut, f"{end}_tx_axis", rng)
        cocotb.start_soon(driver.send_frames(sent[other]))

    async def receive(end: str) -> list[bytes]:
        sink = AxiStreamSink(dut, f"{end}_rx_axis")
        return [await sink.receive_frame() for _ in sent[end]]

    receivers = {end: cocotb.start_soon(receive(end)) for end in sent}
    for end, receiver in receivers.items():
        assert await with_timeout(receiver, 1000, "us") == sent[end]
    ticks = dict.fromkeys(sent, 0)
    for _ in range(20 * TICK_CYCLES * USER_NS // PERIOD_NS):
        await RisingEdge(dut.clk)
        for end in ticks:
            ticks[end] += int(getattr(dut, f"{end}_clock_axis_tvalid").value)
    assert all(19 <= each <= 21 for each in ticks.values()), "the core hears of the user clock"
