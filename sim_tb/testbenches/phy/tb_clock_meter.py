"""Checks the counter of a PHY's clock against its model, cycle by cycle."""

import random
from typing import Any

import cocotb
from cocotb.triggers import FallingEdge

from fpgapipe.hw.hls_models.model.link_clock import ClockMeter
from fpgapipe.hw.hls_models.spec.link_clock import METER_CYCLES
from fpgapipe.sim_tb.drivers.stream import start


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def counts_as_the_model(dut: Any) -> None:
    """Ticks come regularly, at random, never, and in each cycle; a count begins in each."""
    dut.valid.value = 0
    await start(dut)
    model, rng = ClockMeter(), random.Random(cocotb.RANDOM_SEED)
    rates = (1 / 16, rng.random(), 0.0, 1.0)
    dut.rst.value = 1
    await FallingEdge(dut.clk)
    dut.rst.value = 0
    for number in range(int(3.5 * METER_CYCLES)):
        valid = rng.random() < rates[number * 8 // (7 * METER_CYCLES)]
        dut.valid.value = valid
        await FallingEdge(dut.clk)
        model.step(valid)
        found = int(dut.ticks.value), bool(dut.known.value)
        assert found == (model.ticks, model.known), f"cycle {number}"
    assert model.known
