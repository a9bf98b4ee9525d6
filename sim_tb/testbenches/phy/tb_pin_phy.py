"""Checks the gateware between a link and plain pins against the model, with two clocks."""

import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, Edge, RisingEdge, Timer

from fpgapipe.hw.hls_models.model.aurora import AuroraBeat, received, sent
from fpgapipe.hw.hls_models.spec.link_clock import TICK_CYCLES
from fpgapipe.hw.hls_models.spec.pins import PinsSpec
from fpgapipe.sim_tb.drivers.stream import parameters
from fpgapipe.sim_tb.testbenches.phy.tb_aurora_bridge import (
    faulty_frame,
    frame,
    send_words,
    ticks_in,
)

CLOCK_PS, WIRE_PS = 20_000, 39_900
"""Periods: a core at 50 MHz, and the clock of another board, a quarter of a percent faster."""


async def started(dut: Any) -> PinsSpec:
    """Start the core's clock and reset the design, while no clock comes from the other board."""
    for name in ("s_axis_tvalid", "in_clock", "in_valid", "in_last", "in_data"):
        getattr(dut, name).value = 0
    dut.m_axis_tready.value = 1
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, CLOCK_PS, unit="ps").start())
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    return PinsSpec(**parameters())


def pins_out(dut: Any) -> AuroraBeat:
    """The byte at the pins to the other board."""
    return AuroraBeat(bytes([int(dut.out_data.value)]), bool(dut.out_last.value), 1)


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def bytes_of_the_link_go_out(dut: Any) -> None:
    """The other board takes the bytes of the model, at full rate if the link has some."""
    spec = await started(dut)
    rng = random.Random(cocotb.RANDOM_SEED)
    for rate in (1.0, 0.3, 0.05):
        beats = [each for _ in range(6) for each in frame(spec, rng.randrange(4), rng)]
        expected = list(sent(spec, beats))
        sender = cocotb.start_soon(send_words(dut, beats, rng, rate))
        found: list[AuroraBeat] = []
        cycles = 0
        while len(found) < len(expected):
            await RisingEdge(dut.out_clock)
            cycles += bool(found)
            if dut.out_valid.value:
                found.append(pins_out(dut))
        assert found == expected
        assert rate < 1 or cycles == len(expected) - 1, "a byte in each period"
        await sender


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def pins_change_when_the_clock_falls(dut: Any) -> None:
    """Half a period is left before and after the clock rises."""
    spec = await started(dut)
    rng = random.Random(cocotb.RANDOM_SEED)
    beats = [each for _ in range(6) for each in frame(spec, rng.randrange(4), rng)]
    cocotb.start_soon(send_words(dut, beats, rng, 0.4))
    changes = 0
    before = None
    for _ in range(400):
        await Edge(dut.out_clock)
        await Timer(1, "ps")
        now = (int(dut.out_valid.value), int(dut.out_last.value), int(dut.out_data.value))
        if dut.out_clock.value:
            assert before is None or now == before
        else:
            changes += now != before
            before = now
        await Timer(CLOCK_PS - 10, "ps")
        assert now == (
            int(dut.out_valid.value),
            int(dut.out_last.value),
            int(dut.out_data.value),
        )
    assert changes > 50


@cocotb.test(timeout_time=4000, timeout_unit="us")
async def bytes_of_the_pins_are_joined(dut: Any) -> None:
    """Frames arrive as they were sent; those cut or joined on the way have the model's marks."""
    spec = await started(dut)
    rng = random.Random(cocotb.RANDOM_SEED)
    pieces = [
        beat for index in range(30) for beat in faulty_frame(spec, index, rng.randrange(3), rng)
    ]
    expected = list(received(spec, pieces))

    async def give() -> None:
        """Change the pins when the clock falls, with pauses in every second frame."""
        waiting = list(reversed(pieces))
        rate = 1.0
        for _ in range(8):
            dut.in_clock.value = 1
            await Timer(WIRE_PS // 2, "ps")
            dut.in_clock.value = 0
            await Timer(WIRE_PS // 2, "ps")
        while waiting:
            dut.in_clock.value = 0
            valid = rng.random() < rate
            dut.in_valid.value = valid
            if valid:
                piece = waiting.pop()
                dut.in_data.value, dut.in_last.value = piece.data[0], piece.last
                if piece.last:
                    rate = 1.3 - rate
            await Timer(WIRE_PS // 2, "ps")
            dut.in_clock.value = 1
            await Timer(WIRE_PS // 2, "ps")
        for _ in range(4):
            dut.in_clock.value = 0
            dut.in_valid.value = 0
            await Timer(WIRE_PS // 2, "ps")
            dut.in_clock.value = 1
            await Timer(WIRE_PS // 2, "ps")

    cocotb.start_soon(give())
    for number, beat in enumerate(expected):
        await RisingEdge(dut.clk)
        while not dut.m_axis_tvalid.value:
            await RisingEdge(dut.clk)
        found = int(dut.m_axis_tdata.value).to_bytes(spec.phy_bytes, "little")
        marks = (bool(dut.m_axis_tlast.value), int(dut.m_axis_tkeep.value))
        assert marks == (beat.last, beat.keep), f"beat {number}"
        valid = (beat.keep or 0).bit_length()
        assert found[:valid] == beat.data[:valid], f"beat {number}"


@cocotb.test(timeout_time=4000, timeout_unit="us")
async def the_clock_of_the_pins_ticks(dut: Any) -> None:
    """The core gets a tick for 16 periods of the other board's clock, and none if it stands."""
    await started(dut)
    assert await ticks_in(dut, 500) == 0
    clock = Clock(dut.in_clock, WIRE_PS, unit="ps")
    clock.start()
    cycles = 20 * TICK_CYCLES * WIRE_PS // CLOCK_PS
    assert 19 <= await ticks_in(dut, cycles) <= 21
    clock.stop()
    await ClockCycles(dut.clk, 4)
    assert await ticks_in(dut, 500) == 0
