"""Runs programs on a device and checks memory, registers, interrupt and errors, with pauses.

It is not a test by itself: the caller prepares programs, memory images and expected results. The
file ``cases.json`` in the parameter ``folder`` is a list of cases, which run one after another
without a reset; ``images.npz`` has their arrays. A case has these fields:

``name``
    Name of the case.
``image``, ``expected``, ``exact``
    Names of arrays of bytes: the memory before the program, the memory after it, and a mask. After
    the program, each byte must be as expected; where the mask is 0, it may also be unchanged.
``base``, ``limit``, ``entry``
    Values of the registers MEMORY_BASE, MEMORY_LIMIT and PROGRAM. Reads with ID 0 must be at
    addresses in ``entry..limit - 1``, and those with ID 1 must not, if there is one memory port.
``bad``
    Triples of the first byte, the byte after the last, and the response to accesses to this range.
``ends``
    Expected end: ``done``, ``error`` or ``aborted``.
``error``
    Expected code, engine and index of the error; zeros if there is none.
``nan``
    Whether STATUS must report NaN afterwards.
``counters``
    Expected values of some counters.
``abort_after``, ``start_again_after``
    Cycles after the start at which the host aborts the program, or starts it again; or null.
``scalars``
    Values of the scalar registers; empty without a vector engine.
``latency``
    Least and most cycles of the memory's latency.
"""

import json
import random
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, RisingEdge

from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.interleave import port_of
from fpgapipe.sim_tb.drivers.axi_memory import AxiMemory
from fpgapipe.sim_tb.drivers.registers import Host
from fpgapipe.sim_tb.drivers.stream import cycle, parameters, start

MOST_CYCLES = 15_000
"""Limit for a program, cycles; one that takes longer is considered stuck."""

IRQ_CYCLES = 3
"""Cycles from the end of a program to its interrupt, together with those from the start command to
its first cycle."""


@cocotb.test()
async def runs_programs(dut: Any) -> None:
    """Every case ends as expected, after any other case."""
    given = parameters()
    folder = Path(given.pop("folder"))
    if "fault" in given:
        dut.fault.value = given.pop("fault")
    names = given.pop("cases", None)
    given["scratchpad"] = ScratchpadSpec(**given["scratchpad"])
    given["vector"] = given["vector"] and VectorSpec(**given["vector"])
    spec = CoreSpec(**given)
    rng = random.Random(cocotb.RANDOM_SEED)
    arrays = dict(np.load(folder / "images.npz", allow_pickle=False))
    cases = json.loads((folder / "cases.json").read_text())

    host = Host(dut, RegisterMap(spec), rng=rng)
    memories = [
        AxiMemory(dut, prefix, np.zeros(4096, np.uint8), rng=rng)
        for prefix in ("m_axi", "m_axi1")[: spec.memory_ports]
    ]
    await start(dut)
    await RisingEdge(dut.clk)
    assert await host.status() == {"idle"}
    for case in cases:
        if names is None or case["name"] in names:
            first = cycle()
            await _run(dut, host, memories, case, arrays, rng)
            cocotb.log.info("%s: %d cycles", case["name"], cycle() - first)


async def _run(
    dut: Any,
    host: Host,
    memories: list[AxiMemory],
    case: dict[str, Any],
    arrays: dict[str, Any],
    rng: random.Random,
) -> None:
    """Run a case and check all its results."""
    name, ends = case["name"], case["ends"]
    before, expected = arrays[case["image"]], arrays[case["expected"]]
    data = before.copy()
    for memory in memories:
        memory.data, memory.latency = data, tuple(case["latency"])
        memory.bad = [(range(first, end), response) for first, end, response in case["bad"]]
        memory.reads.clear()
    for register, value in (
        ("PROGRAM", case["entry"]),
        ("MEMORY_BASE", case["base"]),
        ("MEMORY_LIMIT", case["limit"]),
    ):
        await host.write(register, value)
    for number, value in enumerate(case["scalars"]):
        await host.write(f"SCALAR{number}", value)
    # After the status is cleared, the interrupt must be low.
    enabled = host.map["IRQ_ENABLE"].fields
    await host.write("IRQ_ENABLE", sum(field.mask for field in enabled))
    await host.command("clear_status", "clear_counters")
    await ClockCycles(dut.clk, IRQ_CYCLES)
    assert not dut.irq.value, f"{name}: the interrupt stays"
    host.irq.rises.clear()
    # An abort together with the start has no effect, because nothing runs yet.
    await host.command("start", *["abort"] * rng.randrange(2))
    started = host.bus.response_cycle
    if case["start_again_after"] is not None:
        await ClockCycles(dut.clk, case["start_again_after"])
        assert "running" in await host.status(), name
        await host.command("start")
        assert "running" in await host.status(), name
    if case["abort_after"] is not None:
        await ClockCycles(dut.clk, case["abort_after"])
        await host.command("abort")
        while "running" in await host.status():
            assert cycle() < started + MOST_CYCLES, f"{name}: does not end"
    else:
        while not host.irq.rises:
            await RisingEdge(dut.clk)
            assert cycle() < started + MOST_CYCLES, f"{name}: does not end"
    assert all(memory.idle for memory in memories), f"{name}: ended with bursts under way"

    status = await host.status()
    wanted = {"idle"} | {ends} - {"aborted"} | ({"nan"} if case["nan"] else set())
    found = await host.error()
    assert status == wanted, f"{name}: STATUS {status}, not {wanted}, ERROR {found}"
    assert found == case["error"], f"{name}: ERROR {found}, not {case['error']}"

    counters = await host.counters()
    if ends != "aborted":
        took = host.irq.rises[0] - started - IRQ_CYCLES
        assert counters["CYCLES"] == took, f"{name}: CYCLES {counters['CYCLES']}, not {took}"
    for counter, value in case["counters"].items():
        assert counters[counter] == value, f"{name}: {counter} {counters[counter]}, not {value}"
    for counter, value in counters.items():
        at_once = host.map.amount_bits(counter) == 1
        assert value <= counters["CYCLES"] or not at_once, f"{name}: {counter} {value}"

    program = range(case["entry"], case["limit"])
    for number, memory in enumerate(memories):
        for request in memory.reads:
            if len(memories) > 1:
                right = (port_of(request.address), request.id) == (number, 0)
            else:
                right = (request.address in program) == (request.id == 0)
            assert right, f"{name}: port {number}, ID {request.id} read {request.address:#x}"
    exact = arrays[case["exact"]].astype(bool)
    wrong = (data != expected) & (exact | (data != before))
    at = np.flatnonzero(wrong)
    assert not at.size, (
        f"{name}: {at.size} bytes are wrong, the first at {at[0]:#x}: {data[at[0]]:#04x} "
        f"for {expected[at[0]]:#04x}, before {before[at[0]]:#04x}"
    )
    # If its event is disabled or cleared, the interrupt falls and does not rise again.
    if rng.randrange(2):
        await host.write("IRQ_ENABLE", 0)
    else:
        await host.command("clear_status")
    await ClockCycles(dut.clk, IRQ_CYCLES)
    assert not dut.irq.value, f"{name}: the interrupt stays"
    assert len(host.irq.rises) == (ends != "aborted"), f"{name}: interrupts {host.irq.rises}"
