"""Simulated host that accesses a design's registers over AXI4-Lite, by address or by name.

A host without pauses takes as many cycles as `fpgapipe.sim_tb.native.native.NativeDevice`: each
access begins in the cycle in which it is requested and ends with the cycle in which its response
is transferred.
"""

import random
from collections.abc import Sequence
from typing import Any

import cocotb
from cocotb.triggers import FallingEdge, Lock, RisingEdge

from fpgapipe.hw.hls_models.model.registers import DATA_BITS, RegisterMap
from fpgapipe.sim_tb.drivers.axi_memory import OKAY
from fpgapipe.sim_tb.drivers.stream import Pauses, cycle, to_rising_edge

MOST_CYCLES = 1000
"""Limit for an access without pauses, cycles; if it takes longer, the test fails."""


class RegisterBus:
    """Master for an AXI4-Lite slave of a design, 32 bits wide; runs one access at a time.

    Parameters
    ----------
    dut
        The design, with its clock ``clk``.
    prefix : str
        Prefix of the port: ``s_axil`` for ``s_axil_awaddr``.
    rng : random.Random, optional
        Source of the pauses on all channels; without it there are none.

    Attributes
    ----------
    response_cycle : int
        Clock cycle in which the design first offered the response to the last access.
    """

    def __init__(self, dut: Any, prefix: str = "s_axil", rng: random.Random | None = None) -> None:
        self.response_cycle = 0
        self._clk = dut.clk
        self._dut, self._prefix = dut, prefix
        self._is_quick = rng is None
        self._lock = Lock()
        self._pauses = {channel: Pauses(rng) for channel in ("aw", "w", "ar", "b", "r")}
        for name in ("awvalid", "wvalid", "arvalid", "bready", "rready"):
            self._port(name).value = 0

    def _port(self, name: str) -> Any:
        return getattr(self._dut, f"{self._prefix}_{name}")

    async def write(self, address: int, value: int) -> int:
        """Write 32 bits, and return the response.

        The access begins now if the clock is high, otherwise at the next rising edge. The function
        returns right after the edge at which the response is transferred.
        """
        async with self._lock:
            await to_rising_edge(self._clk)
            self._port("awaddr").value = address
            self._port("wdata").value = value
            self._port("wstrb").value = 0xF
            response, _ = await self._access(("aw", "w"), "b")
            return response

    async def read(self, address: int) -> tuple[int, int]:
        """Read 32 bits; returns response and value. The timing is that of `write`."""
        async with self._lock:
            await to_rising_edge(self._clk)
            self._port("araddr").value = address
            return await self._access(("ar",), "r")

    async def _access(self, requests: Sequence[str], answer: str) -> tuple[int, int]:
        shown: set[str] = set()
        taken: set[str] = set()
        begin, answered = cycle(), False
        while True:
            for channel in requests:
                if channel not in shown and not self._pauses[channel]():
                    shown.add(channel)
                    self._port(f"{channel}valid").value = 1
            ready = not self._pauses[answer]()
            self._port(f"{answer}ready").value = int(ready)
            await FallingEdge(self._clk)
            now_taken = {
                channel for channel in shown - taken if self._port(f"{channel}ready").value
            }
            taken |= now_taken
            found = None
            if self._port(f"{answer}valid").value:
                assert taken == set(requests), (
                    f"{self._prefix}_{answer}valid came before its request"
                )
                if not answered:
                    answered, self.response_cycle = True, cycle()
                if ready:
                    response = int(self._port(f"{answer}resp").value)
                    found = response, int(self._port("rdata").value) if answer == "r" else 0
            assert not self._is_quick or cycle() - begin < MOST_CYCLES, (
                f"{self._prefix}: no answer within {MOST_CYCLES} cycles"
            )
            await RisingEdge(self._clk)
            for channel in now_taken:
                self._port(f"{channel}valid").value = 0
            if found:
                self._port(f"{answer}ready").value = 0
                return found


class Interrupt:
    """Monitor of a design's interrupt.

    Parameters
    ----------
    irq
        Port of the interrupt.

    Attributes
    ----------
    rises : list of int
        Clock cycles in which the interrupt has risen.
    """

    def __init__(self, irq: Any) -> None:
        self.rises: list[int] = []
        self._irq = irq
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        while True:
            await RisingEdge(self._irq)
            self.rises.append(cycle())

    @property
    def is_high(self) -> bool:
        """Whether the interrupt is high now."""
        return bool(self._irq.value)


class Host:
    """Host of a core, which accesses its registers by name and monitors its interrupt.

    If a register consists of two halves ``NAME_LO`` and ``NAME_HI``, ``NAME`` stands for both.

    Parameters
    ----------
    dut
        The design, with its clock ``clk``.
    registers : RegisterMap
    prefix : str
        Prefix of the names of its ports, such as ``d0_`` for ``d0_irq``.
    rng : random.Random, optional
        Source of the pauses; without it there are none.

    Attributes
    ----------
    map : RegisterMap
    bus : RegisterBus
    irq : Interrupt
    """

    def __init__(
        self,
        dut: Any,
        registers: RegisterMap,
        *,
        prefix: str = "",
        rng: random.Random | None = None,
    ) -> None:
        self.map = registers
        self.bus = RegisterBus(dut, f"{prefix}s_axil", rng)
        self.irq = Interrupt(getattr(dut, f"{prefix}irq"))
        self._names = {register.name for register in registers}
        self._clk = dut.clk

    def _halves(self, name: str) -> list[int]:
        """Offset of a register, or offsets of both halves of a pair."""
        names = [name] if name in self._names else [f"{name}_LO", f"{name}_HI"]
        return [self.map.offset(each) for each in names]

    async def write(self, name: str, value: int) -> None:
        """Write a register, or both halves of a pair, the lower first.

        Raises
        ------
        KeyError
            If there is no register of that name.
        """
        for number, offset in enumerate(self._halves(name)):
            part = value >> DATA_BITS * number & (1 << DATA_BITS) - 1
            response = await self.bus.write(offset, part)
            assert response == OKAY, f"the write of {name} got the response {response}"

    async def read(self, name: str, field: str | None = None) -> int:
        """Read a register, one of its fields, or both halves of a pair; raises as `write` does."""
        value = 0
        for number, offset in enumerate(self._halves(name)):
            response, part = await self.bus.read(offset)
            assert response == OKAY, f"the read of {name} got the response {response}"
            value |= part << DATA_BITS * number
        return self.map[name].field(field).of(value) if field else value

    async def command(self, *names: str) -> None:
        """Write commands to CONTROL, all at once."""
        await self.write("CONTROL", sum(self.map["CONTROL"].field(name).mask for name in names))

    async def status(self) -> set[str]:
        """Names of the bits of STATUS that are 1."""
        value = await self.read("STATUS")
        return {field.name for field in self.map["STATUS"].fields if field.of(value)}

    async def error(self) -> list[int]:
        """Code, engine and index of the error in which a program ended; zeros without an error."""
        value = await self.read("ERROR")
        fields = [field.of(value) for field in self.map["ERROR"].fields]
        return [*fields, await self.read("ERROR_INDEX")]

    async def counters(self) -> dict[str, int]:
        """Values of all counters, by name."""
        return {name: await self.read(name) for name in self.map.counters}

    async def start(self, program: int, memory_limit: int, memory_base: int = 0) -> None:
        """Start a program; its end, or an error, raises the interrupt."""
        await self.write("PROGRAM", program)
        await self.write("MEMORY_BASE", memory_base)
        await self.write("MEMORY_LIMIT", memory_limit)
        await self.write("IRQ_ENABLE", sum(field.mask for field in self.map["IRQ_ENABLE"].fields))
        await self.command("start")

    async def wait_for_irq(self, most_cycles: int = 1_000_000) -> None:
        """Wait until the interrupt is high; the test fails if that takes longer."""
        begin = cycle()
        while not self.irq.is_high:
            await RisingEdge(self._clk)
            assert cycle() - begin <= most_cycles, f"no interrupt within {most_cycles} cycles"
