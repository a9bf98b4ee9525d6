"""Checks the bridge between a link and Aurora, with three clocks, against its model."""

import random
from collections.abc import Iterator
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from fpgapipe.hw.hls_models.model.aurora import AuroraBeat, received, sent
from fpgapipe.hw.hls_models.spec.aurora import RELEASE_CYCLES, AuroraSpec
from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES
from fpgapipe.hw.hls_models.spec.link_clock import TICK_CYCLES
from fpgapipe.hw.hls_models.spec.pins import PinsSpec
from fpgapipe.sim_tb.drivers.stream import parameters

CLOCKS_PS = {"clk": 3334, "user_clk": 2482, "init_clk": 10_000}
"""Periods: a core at 300 MHz, four lanes of 25.78125 Gb/s, and a free-running clock."""


async def started(dut: Any) -> AuroraSpec:
    """Start the clocks and reset the design."""
    for name in ("s_axis_tvalid", "rx_tvalid", "tx_tready", "m_axis_tready", "channel_up"):
        getattr(dut, name).value = 0
    dut.rst.value = 1
    for name, period_ps in CLOCKS_PS.items():
        cocotb.start_soon(Clock(getattr(dut, name), period_ps, unit="ps").start())
    await ClockCycles(dut.init_clk, 4)
    await RisingEdge(dut.clk)
    dut.rst.value = 0
    await ClockCycles(dut.init_clk, 4)
    return AuroraSpec(**parameters())


def frame(spec: AuroraSpec | PinsSpec, num_words: int, rng: random.Random) -> Iterator[AuroraBeat]:
    """Beats of a frame of the link: words of 64 bytes, and a trailer of 16."""
    text = rng.randbytes(64 * num_words + TRAILER_BYTES)
    for begin in range(0, len(text), spec.phy_bytes):
        piece = text[begin : begin + spec.phy_bytes]
        keep = (1 << len(piece)) - 1
        last = begin + spec.phy_bytes >= len(text)
        yield AuroraBeat(piece.ljust(spec.phy_bytes, b"\0"), last, keep)


def faulty_frame(
    spec: AuroraSpec | PinsSpec, index: int, num_words: int, rng: random.Random
) -> list[AuroraBeat]:
    """Beats of a frame as it is sent: of four frames, one lacks a beat and one does not end."""
    beats = list(sent(spec, frame(spec, num_words, rng)))
    if index % 4 == 1:
        del beats[rng.randrange(len(beats))]
    if index % 4 == 2:
        beats[-1] = beats[-1]._replace(last=False)
    return beats


async def send_words(dut: Any, beats: list[AuroraBeat], rng: random.Random, rate: float) -> None:
    """Send beats into the port of the link."""
    for beat in beats:
        while rng.random() > rate:
            await RisingEdge(dut.clk)
        dut.s_axis_tdata.value = int.from_bytes(beat.data, "little")
        dut.s_axis_tkeep.value = beat.keep
        dut.s_axis_tlast.value = int(beat.last)
        dut.s_axis_tvalid.value = 1
        await RisingEdge(dut.clk)
        while not dut.s_axis_tready.value:
            await RisingEdge(dut.clk)
        dut.s_axis_tvalid.value = 0


async def ticks_in(dut: Any, cycles: int) -> int:
    """Ticks of the PHY's clock that the core gets in some cycles."""
    found = 0
    for _ in range(cycles):
        await RisingEdge(dut.clk)
        found += int(dut.m_axis_clock_tvalid.value)
    return found


async def take_sent(
    dut: Any, count: int, rng: random.Random, rate: float, up_rate: float = 1.0
) -> list[AuroraBeat]:
    """Take beats as Aurora does, which is not ready all the time, and goes down now and then."""
    taken: list[AuroraBeat] = []
    width = len(dut.tx_tdata) // 8
    while len(taken) < count:
        dut.tx_tready.value = int(rng.random() < rate)
        dut.channel_up.value = int(rng.random() < up_rate)
        await RisingEdge(dut.user_clk)
        if dut.tx_tvalid.value and dut.tx_tready.value:
            taken.append(
                AuroraBeat(
                    int(dut.tx_tdata.value).to_bytes(width, "little"),
                    bool(dut.tx_tlast.value),
                    int(dut.tx_tkeep.value),
                )
            )
    dut.tx_tready.value = 0
    return taken


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def beats_of_the_link_are_split(dut: Any) -> None:
    """Whatever the pauses of both sides, Aurora gets the beats of the model."""
    spec = await started(dut)
    rng = random.Random(cocotb.RANDOM_SEED)
    for rate, ready, up in ((1.0, 1.0, 1.0), (1.0, 0.4, 1.0), (0.3, 1.0, 1.0), (0.8, 0.8, 0.9)):
        beats = [each for _ in range(12) for each in frame(spec, rng.randrange(4), rng)]
        expected = list(sent(spec, beats))
        sender = cocotb.start_soon(send_words(dut, beats, rng, rate))
        assert await take_sent(dut, len(expected), rng, ready, up) == expected
        await sender


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def nothing_leaves_while_the_channel_is_down(dut: Any) -> None:
    """Beats wait for the channel, and none is lost."""
    spec = await started(dut)
    rng = random.Random(cocotb.RANDOM_SEED)
    beats = list(frame(spec, 1, rng))
    sender = cocotb.start_soon(send_words(dut, beats, rng, 1.0))
    dut.tx_tready.value = 1
    for _ in range(60):
        await RisingEdge(dut.user_clk)
        assert not dut.tx_tvalid.value
    expected = list(sent(spec, beats))
    assert await take_sent(dut, len(expected), rng, 1.0) == expected
    await sender


async def give_received(dut: Any, beats: list[AuroraBeat], rng: random.Random) -> None:
    """Give beats as Aurora does, which does not wait, at a rate that each link can take."""
    for beat in beats:
        while rng.random() > 0.4:
            dut.rx_tvalid.value = 0
            await RisingEdge(dut.user_clk)
        dut.rx_tdata.value = int.from_bytes(beat.data, "little")
        dut.rx_tlast.value = int(beat.last)
        dut.rx_tvalid.value = 1
        await RisingEdge(dut.user_clk)
    dut.rx_tvalid.value = 0


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def beats_of_aurora_are_joined(dut: Any) -> None:
    """Frames arrive as they were sent; those cut or joined on the way have the model's marks."""
    spec = await started(dut)
    rng = random.Random(cocotb.RANDOM_SEED)
    beats = [
        beat for index in range(40) for beat in faulty_frame(spec, index, rng.randrange(4), rng)
    ]
    expected = list(received(spec, beats))
    dut.m_axis_tready.value = 1
    giver = cocotb.start_soon(give_received(dut, beats, rng))
    width = spec.phy_bytes
    for number, beat in enumerate(expected):
        await RisingEdge(dut.clk)
        while not dut.m_axis_tvalid.value:
            await RisingEdge(dut.clk)
        found = AuroraBeat(
            int(dut.m_axis_tdata.value).to_bytes(width, "little"),
            bool(dut.m_axis_tlast.value),
            int(dut.m_axis_tkeep.value),
        )
        assert (found.last, found.keep) == (beat.last, beat.keep), f"beat {number}"
        valid = (beat.keep or 0).bit_length()
        assert found.data[:valid] == beat.data[:valid], f"beat {number}"
    await giver


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def aurora_never_waits(dut: Any) -> None:
    """Beats at Aurora's full rate all arrive at a link that takes one beat a cycle."""
    spec = await started(dut)
    rng = random.Random(cocotb.RANDOM_SEED)
    beats = [each for _ in range(20) for each in sent(spec, frame(spec, 16, rng))]
    expected = list(received(spec, beats))
    dut.m_axis_tready.value = 1
    count = 0

    async def give() -> None:
        for beat in beats:
            dut.rx_tdata.value = int.from_bytes(beat.data, "little")
            dut.rx_tlast.value = int(beat.last)
            dut.rx_tvalid.value = 1
            await RisingEdge(dut.user_clk)
        dut.rx_tvalid.value = 0

    giver = cocotb.start_soon(give())
    idle = 0
    while idle < 100:
        await RisingEdge(dut.clk)
        idle = 0 if dut.m_axis_tvalid.value else idle + 1
        count += int(dut.m_axis_tvalid.value)
    await giver
    # Where the link is slower than Aurora, beats are lost, and nothing stops.
    carries = spec.phy_bytes * CLOCKS_PS["user_clk"] >= spec.lane_bytes * CLOCKS_PS["clk"]
    assert count == len(expected) if carries else 0 < count < len(expected)


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def resets_are_long_enough(dut: Any) -> None:
    """The transceivers are held in reset for as long as asked, the rest a little longer."""
    spec = await started(dut)
    for _ in range(2):
        lengths = {"pma_init": 0, "reset_pb": 0}
        for _ in range(spec.reset_cycles + RELEASE_CYCLES + 20):
            await RisingEdge(dut.init_clk)
            for name in lengths:
                lengths[name] += int(getattr(dut, name).value)
        assert not dut.pma_init.value
        assert not dut.reset_pb.value
        assert spec.reset_cycles - 4 <= lengths["pma_init"] <= spec.reset_cycles + 4
        assert lengths["reset_pb"] - lengths["pma_init"] == RELEASE_CYCLES
        dut.rst.value = 1
        await ClockCycles(dut.clk, 3)
        dut.rst.value = 0
        await ClockCycles(dut.init_clk, 3)


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def the_clock_of_aurora_ticks(dut: Any) -> None:
    """The core gets a tick for 16 cycles of Aurora's clock."""
    await started(dut)
    cycles = 20 * TICK_CYCLES * CLOCKS_PS["user_clk"] // CLOCKS_PS["clk"]
    assert 19 <= await ticks_in(dut, cycles) <= 21
