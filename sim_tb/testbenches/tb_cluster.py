"""Runs a job on a cluster and writes the result for `fpgapipe.sim_tb.cluster.cluster_job`.

It is not a test by itself. The parameters ``job`` and ``result`` are the paths of the job's file
and of the result's file.
"""

import pickle
from pathlib import Path
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge, Timer

from fpgapipe.hw.hls_models.isa.instructions import MAX_LINKS
from fpgapipe.sim_tb.cluster.cluster_job import (
    RESET_CYCLES,
    SETTLE_CYCLES,
    ClusterJob,
    ClusterResult,
    Read,
    Run,
    Write,
)
from fpgapipe.sim_tb.drivers.axi_memory import OKAY
from fpgapipe.sim_tb.drivers.registers import Interrupt, RegisterBus
from fpgapipe.sim_tb.drivers.stream import cycle, parameters, start
from fpgapipe.sim_tb.drivers.timed_memory import TimedMemory
from fpgapipe.sim_tb.worlds.link_wire import LinkPort, LinkWire


class Bench:
    """All devices with their memories, hosts and wires; the cycle of creation is cycle 0."""

    def __init__(self, dut: Any, job: ClusterJob) -> None:
        self.dut, self.job = dut, job
        self.origin = cycle()
        self.memories: dict[int, TimedMemory] = {}
        self.interrupts: dict[int, Interrupt] = {}
        self.buses: dict[int, RegisterBus] = {}
        for number, node in enumerate(job.nodes):
            if hasattr(dut, f"d{number}_m_axi_araddr"):
                self.memories[number] = TimedMemory(
                    dut, node.memory.copy(), node.timing, prefix=f"d{number}_m_axi"
                )
            if hasattr(dut, f"d{number}_irq"):
                self.interrupts[number] = Interrupt(getattr(dut, f"d{number}_irq"))
            if hasattr(dut, f"d{number}_s_axil_awaddr"):
                self.buses[number] = RegisterBus(dut, f"d{number}_s_axil")
        self.wires = [
            LinkWire(self._port(each.source), self._port(each.target), each.wire)
            for each in job.connections
        ]
        self._leave_open()

    def _port(self, end: tuple[int, int]) -> LinkPort:
        number, port = end
        return LinkPort(self.dut, port, f"d{number}_")

    def _leave_open(self) -> None:
        """Set tready of all ports without a wire, so that their beats are lost."""
        joined = {each.source for each in self.job.connections}
        for number in range(len(self.job.nodes)):
            for port in range(MAX_LINKS):
                ready = getattr(self.dut, f"d{number}_m_axis_link{port}_tready", None)
                if ready is not None and (number, port) not in joined:
                    ready.value = 1

    @property
    def cycle(self) -> int:
        """Cycles since the reset."""
        return cycle() - self.origin

    def irq_cycle(self, number: int) -> int | None:
        """First cycle since which a device's interrupt is high; None if it is low."""
        interrupt = self.interrupts.get(number)
        if interrupt is None or not interrupt.is_high:
            return None
        return interrupt.rises[-1] - self.origin

    async def run(self, cycles: int) -> None:
        """Let all devices run for a number of cycles."""
        if cycles > 0:
            await ClockCycles(self.dut.clk, cycles)

    async def until_irq(self, most_cycles: int) -> None:
        """Run until `SETTLE_CYCLES` after the last awaited interrupt has risen."""
        awaited = [number for number in self.interrupts if self.job.nodes[number].awaited]
        end = self.cycle + most_cycles
        while not all(self.interrupts[number].is_high for number in awaited):
            assert self.cycle < end, f"not all interrupts came within {most_cycles} cycles"
            await RisingEdge(self.dut.clk)
        # At the falling edge, all monitors have seen the last interrupt, too.
        await FallingEdge(self.dut.clk)
        highs = [self.irq_cycle(number) or 0 for number in awaited]
        await RisingEdge(self.dut.clk)
        await self.run(max(highs) + SETTLE_CYCLES - self.cycle)

    def result(self, step_cycles: list[int], values: dict[Any, int]) -> ClusterResult:
        """Result at the end of this cycle, once all ports have settled."""
        numbers = range(len(self.job.nodes))
        irq_cycles = tuple(self.irq_cycle(number) for number in numbers)
        memories = [self.memories.get(number) for number in numbers]
        return ClusterResult(
            tuple(step_cycles),
            values,
            irq_cycles,
            tuple(
                memory.data if memory else node.memory
                for memory, node in zip(memories, self.job.nodes, strict=True)
            ),
            tuple(
                memory.statistics(irq_cycle) if memory else None
                for memory, irq_cycle in zip(memories, irq_cycles, strict=True)
            ),
            tuple(wire.counts for wire in self.wires),
        )


@cocotb.test()
async def does_job(dut: Any) -> None:
    """Run all steps of the job and write the result."""
    given = parameters()
    job: ClusterJob = pickle.loads(Path(given["job"]).read_bytes())
    await start(dut, RESET_CYCLES)
    bench = Bench(dut, job)
    step_cycles: list[int] = []
    values: dict[Any, int] = {}
    for step in job.steps:
        if isinstance(step, Write):
            response = await bench.buses[step.node].write(job.address(step), step.value)
            assert response == OKAY, f"{step} got the response {response}"
        elif isinstance(step, Read):
            response, value = await bench.buses[step.node].read(job.address(step))
            assert response == OKAY, f"{step} got the response {response}"
            values[step.node, step.register] = value
        elif isinstance(step, Run):
            await bench.run(step.cycles)
        else:
            await bench.until_irq(step.most_cycles)
        step_cycles.append(bench.cycle)
    await FallingEdge(dut.clk)
    # After this, all concurrent tasks have processed the edge.
    await Timer(1, "ns")
    result = bench.result(step_cycles, values)
    Path(given["result"]).write_bytes(pickle.dumps(result))
