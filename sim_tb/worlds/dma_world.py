"""Environment of load and store engines in their testbench, and transfers for them."""

import random
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.instructions import TRANSFER, WORD_BYTES, ErrorCode
from fpgapipe.hw.hls_models.model.dma import (
    READ_LATENCY,
    burst_words,
    bursts,
    first_error,
    load,
    row_starts,
    store,
    transfer,
)
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.sim_tb.drivers.axi_memory import AxiMemory, Pauses
from fpgapipe.sim_tb.drivers.stream import StreamDriver, cycle, parameters, reset

ORIGIN = 0xA5_0000_0000
"""Address of the memory's first byte, which needs more than 32 bits."""

MEMORY_BYTES = 1 << 15
FIRST_INDEX = 1000
"""Number of a test's first instruction."""

LIMIT_CYCLES = 20_000


def bench_test(test: Any) -> Any:
    """Decorate a test; the parameter `only` of the testbench names the only test that runs."""
    skip = parameters().get("only", test.__name__) != test.__name__
    return cocotb.test(timeout_time=2, timeout_unit="ms", skip=skip)(test)


def spec_of_parameters() -> CoreSpec:
    """Return the core of the design."""
    values = parameters()
    for name in ("fault", "only"):
        values.pop(name, None)
    links = [LinkEngineSpec(**{**link, "slots": tuple(link["slots"])}) for link in values["links"]]
    pad = ScratchpadSpec(**values["scratchpad"])
    return CoreSpec(**{**values, "scratchpad": pad, "links": tuple(links)})


class Scratchpad:
    """Model of the scratchpad, with a read and a write port that pause; records all writes.

    A word that was accepted may be held for some cycles before it is written.
    """

    def __init__(self, dut: Any, data: NDArray[np.uint8], rng: random.Random | None) -> None:
        self.data = data
        self.writes: list[int] = []  # cycles of the writes
        self._dut = dut
        self._pauses = Pauses(rng), Pauses(rng), Pauses(rng)
        self._accepted: tuple[int, ...] | None = None
        self._coming: deque[int | None] = deque([None] * READ_LATENCY)
        self._waiting: tuple[int, ...] | None = None
        self._asked: int | None = None  # address of a read that waits
        self._task = cocotb.start_soon(self._run())

    def stop(self) -> None:
        """Stop responding."""
        self._task.cancel()

    async def _run(self) -> None:
        dut = self._dut
        while True:
            await RisingEdge(dut.clk)
            held = self._pauses[2]() and self._accepted is not None
            dut.held.value = int(held)
            dut.write__ready.value = int(not held and not self._pauses[0]())
            dut.read__ready.value = int(not self._pauses[1]())
            address = self._coming.popleft()
            dut.read__data_valid.value = int(address is not None)
            if address is not None:
                read = self.data[address : address + WORD_BYTES].tobytes()
                dut.read__data.value = int.from_bytes(read, "little")
            await FallingEdge(dut.clk)
            self._coming.append(None)
            asked = dut.read__address.value.to_unsigned() if dut.read__valid.value else None
            assert self._asked in (None, asked), "read changed a request that was waiting"
            self._asked = None if dut.read__ready.value else asked
            if dut.read__ready.value:
                self._coming[-1] = asked
            if self._accepted is not None and not held:
                self._write(*self._accepted)
                self._accepted = None
            if dut.write__valid.value:
                ports = (dut.write__address, dut.write__data, dut.write__mask)
                word = tuple(int(port.value) for port in ports)
                assert self._waiting in (None, word), "write changed a word that was waiting"
                self._waiting = None if dut.write__ready.value else word
                if dut.write__ready.value:
                    self._accepted = word
                    self.writes.append(cycle())
            else:
                assert self._waiting is None, "write took back a word that was waiting"

    def _write(self, address: int, value: int, mask: int) -> None:
        assert address % WORD_BYTES == 0
        assert mask == (1 << 32) - 1
        word = np.frombuffer(value.to_bytes(WORD_BYTES, "little"), np.uint8)
        self.data[address : address + WORD_BYTES] = word


class Bench:
    """An engine with its memory and its scratchpad.

    Attributes
    ----------
    memory, scratchpad : uint8 array
        Contents that the gateware changes.
    expected_memory, expected_scratchpad : uint8 array
        Contents that the model changes.
    done : list of int
        Cycles in which instructions were done.
    errors : list of (int, int)
        Codes and indices of the errors.
    bytes_moved : int
        Number of bytes that the engine has counted.
    """

    def __init__(
        self,
        dut: Any,
        engine: str,
        rng: random.Random | None,
        *,
        origin: int = ORIGIN,
        own_memory: bool = True,
        **memory: Any,
    ) -> None:
        self.dut, self.engine, self.spec = dut, engine, spec_of_parameters()
        values = np.random.default_rng(cocotb.RANDOM_SEED)
        self.memory = values.integers(0, 256, MEMORY_BYTES, np.uint8)
        self.scratchpad = values.integers(0, 256, self.spec.scratchpad.size_bytes, np.uint8)
        self.expected_memory, self.expected_scratchpad = self.memory.copy(), self.scratchpad.copy()
        self.done: list[int] = []
        self.errors: list[tuple[int, int]] = []
        self.bytes_moved = 0
        self.origin = origin
        self._rng = rng
        self._own_memory, self._memory_options = own_memory, memory
        self.driver: Any = None
        self._tasks: list[Any] = []

    async def begin(self, base: int | None = None, limit: int | None = None) -> None:
        """Reset the design and start its environment; returns right after a rising edge."""
        dut = self.dut
        if hasattr(dut, "fault"):
            dut.fault.value = parameters()["fault"]
        for engine in ("load", "store"):
            self._port("halt", engine).value = 0
            self._port("i__valid", engine).value = 0
        self._limits = {
            "memory_base": self.origin if base is None else base,
            "memory_limit": self.origin + MEMORY_BYTES if limit is None else limit,
        }
        for name, value in self._limits.items():
            getattr(dut, name).value = value
        dut.fetch__arvalid.value = 0
        dut.fetch__rready.value = 1  # the second reader can accept data
        await reset(dut)
        self.pad = Scratchpad(dut, self.scratchpad, self._rng)
        if self._own_memory:
            self.axi = AxiMemory(
                dut,
                "m_axi",
                self.memory,
                origin=self.origin,
                rng=self._rng,
                max_beats=burst_words(self.spec) * WORD_BYTES // self.spec.bus_bytes,
                **self._memory_options,
            )
        widths = [32, TRANSFER.bits]
        self.driver = StreamDriver(dut, f"{self.engine}_i", self._rng, fields=widths)
        self._tasks = [cocotb.start_soon(self._watch())]
        await ClockCycles(dut.clk, 3)

    def _port(self, name: str, engine: str | None = None) -> Any:
        return getattr(self.dut, f"{engine or self.engine}_{name}")

    async def _watch(self) -> None:
        while True:
            await FallingEdge(self.dut.clk)
            if self._port("done").value:
                assert not (self.engine == "load" and self.dut.held.value), "done too early"
                self.done.append(cycle())
            if self._port("error_valid").value:
                code, index = self._port("error_code").value, self._port("error_index").value
                self.errors.append((int(code), int(index)))
            self.bytes_moved += int(self._port("bytes_moved").value)
            assert bool(self._port("busy").value) != bool(self._port("idle").value)

    def send(self, bodies: Sequence[dict[str, int]]) -> None:
        """Send instructions in the background."""
        words = [[FIRST_INDEX + n, TRANSFER.pack(body)] for n, body in enumerate(bodies)]
        self._tasks.append(cocotb.start_soon(self.driver.send(words)))

    async def settle(self, done: int | None = None) -> None:
        """Wait until `done` instructions are done, or an error occurs, and the engine is idle."""
        quiet = 0
        for _ in range(LIMIT_CYCLES):
            await RisingEdge(self.dut.clk)
            await FallingEdge(self.dut.clk)
            ended = self.errors or done is None or len(self.done) >= done
            quiet = quiet + 1 if ended and self._port("idle").value else 0
            if quiet == 40:  # longer than the latency of any transfer
                return
        raise AssertionError(
            f"{len(self.done)} of {done} done, {self.errors}, idle {self._port('idle').value}"
        )

    async def end(self) -> None:
        """Stop the design's environment and reset the design."""
        for task in self._tasks:
            task.cancel()
        self.pad.stop()
        if self._own_memory:
            assert self.axi.idle
            self.axi.stop()
        await RisingEdge(self.dut.clk)
        await reset(self.dut)

    def expect(
        self, bodies: Sequence[dict[str, int]], bad: range = range(0)
    ) -> tuple[int, ErrorCode]:
        """Run the model; returns how many instructions succeed, and the error of the next one."""
        model = load if self.engine == "load" else store
        for count, body in enumerate(bodies):
            code = model(
                self.spec,
                body,
                self.expected_memory,
                self.expected_scratchpad,
                origin=self.origin,
                bad=bad,
                **self._limits,
            )
            if code is not ErrorCode.NONE:
                return count, code
        return len(bodies), ErrorCode.NONE

    def compare(self) -> None:
        """Compare every byte of memory and scratchpad with the model's."""
        np.testing.assert_array_equal(self.scratchpad, self.expected_scratchpad, "scratchpad")
        np.testing.assert_array_equal(self.memory, self.expected_memory, "memory")


def bursts_of(
    spec: CoreSpec, bodies: Sequence[dict[str, int]], rows: int | None = None
) -> list[tuple[int, int]]:
    """Addresses and beats of the bursts of transfers, or of the first `rows` rows of each."""
    words = burst_words(spec)
    return [
        (address, size // spec.bus_bytes)
        for body in bodies
        for first, _ in islice(row_starts(body), rows)
        for address, size in bursts(first, body["row_bytes"], words)
    ]


def special_transfers() -> list[dict[str, int]]:
    """Corner cases of transfers that random ones might miss."""
    at = ORIGIN
    return [
        transfer(at, 0, 1),
        transfer(at + 63, 63, 1),
        transfer(at + 63, 127, 2),
        transfer(at + 4095, 63, 2),  # across 4 KiB
        transfer(at + 4096 - 64, 0, 128),
        transfer(at + 3, 8192 - 61, 61),  # up to the scratchpad's end
        transfer(at + MEMORY_BYTES - 100, 28, 100),  # up to the memory's end
        transfer(at + 640, 64, 64, rows=9, row_memory=-64, row_scratchpad=64),
        transfer(at + 1000, 40, 24, rows=3, row_memory=128, row_scratchpad=-0x40 + 128),
        transfer(at + 5000, 2 * 64 + 5000 % 64, 70, 2, 4096, 192, 3, -1024, 64 * 7),
        transfer(at + 7, 7, 5, rows=4, row_memory=9, row_scratchpad=73),  # other lanes in each row
        transfer(at + 100, 36, 1500),
    ]


def random_transfers(spec: CoreSpec, rng: random.Random, count: int) -> list[dict[str, int]]:
    """Draw valid transfers."""
    drawn: list[dict[str, int]] = []
    while len(drawn) < count:
        offset = rng.randrange(64)
        row, plane = rng.choice([0, rng.randrange(64)]), rng.choice([0, rng.randrange(64)])
        body = transfer(
            ORIGIN + offset + 64 * rng.randrange(MEMORY_BYTES // 64),
            offset + 64 * rng.randrange(spec.scratchpad.size_bytes // 64),
            rng.choice([rng.randint(1, 8), rng.randint(1, 130), rng.randint(1, 900)]),
            rng.choice([1, rng.randint(1, 6)]),
            row + 64 * rng.randint(-20, 40),
            row + 64 * rng.randint(-8, 12),
            rng.choice([1, 1, rng.randint(1, 3)]),
            plane + 64 * rng.randint(-60, 60),
            plane + 64 * rng.randint(-20, 20),
        )
        _, code = first_error(spec, body, ORIGIN, ORIGIN + MEMORY_BYTES)
        if code is ErrorCode.NONE:
            drawn.append(body)
    return drawn


def bad_groups() -> list[tuple[ErrorCode, dict[str, int], list[dict[str, int]]]]:
    """Groups of transfers, one of which is wrong, each with the error and options of the memory."""
    at = ORIGIN
    good = transfer(at + 32, 32, 700, rows=2, row_memory=1024, row_scratchpad=1024)
    small = transfer(at + 70, 6 + 64 * 40, 90)
    top = (1 << 48) - MEMORY_BYTES
    anywhere = {"base": 0, "limit": (1 << 64) - 1}
    field, memory, scratchpad = (
        ErrorCode.BAD_FIELD,
        ErrorCode.MEMORY_RANGE,
        ErrorCode.SCRATCHPAD_RANGE,
    )
    odd = {"base": at + 1, "limit": at + MEMORY_BYTES - 1}
    wrong: list[tuple[ErrorCode, dict[str, int], dict[str, int]]] = [
        (field, {}, transfer(at, 0, 0)),
        (field, {}, transfer(at + 1, 0, 9)),
        (field, {}, transfer(at, 0, 9, 1, 64, 65)),
        (field, {}, transfer(at, 0, 9, 1, 0, 0, 1, 63, -64)),
        (memory, {}, transfer(at - 1, 63, 1)),
        (memory, {}, transfer(at + MEMORY_BYTES - 100, 28, 101)),
        (memory, {}, transfer(at + MEMORY_BYTES - 256, 0, 64, 9, 64, 64)),
        (memory, {}, transfer(at + 256, 0, 64, 9, -64, 64)),
        (memory, {}, transfer(at + 256, 0, 64, 2, 0, 64, 9, -64, 64)),
        (memory, {}, transfer(at, 0, 64, 2, (1 << 39) - 64, 0)),
        (memory, {}, transfer(at, 0, 64, 2, -(1 << 39), 0)),
        (memory, {}, transfer(at, 0, (1 << 32) - 1)),
        (memory, odd, transfer(at + 63, 63, 1)),
        (memory, odd, transfer(at + MEMORY_BYTES - 64, 0, 1)),
        (memory, anywhere | {"origin": top}, transfer((1 << 48) - 64, 0, 65)),
        (memory, anywhere | {"origin": top}, transfer((1 << 48) - 128, 0, 64, 4, 64, 64)),
        (memory, anywhere | {"origin": 0}, transfer(128, 0, 64, 4, -64, 64)),
        (memory, {"limit": at}, transfer(at, 0, 1)),
        (scratchpad, {}, transfer(at, 8192 - 64, 65)),
        (scratchpad, {}, transfer(at, 8192, 1)),
        (scratchpad, {}, transfer(at, 256, 64, 9, 64, -64)),
        (scratchpad, {}, transfer(at, 8192 - 192, 64, 2, 64, 64, 9, 64, 64)),
        (scratchpad, {}, transfer(at, (1 << 32) - 64, 1)),
        (scratchpad, {}, transfer(at, 64, 64, 2, 0, -(1 << 31))),
    ]
    groups = []
    for code, options, body in wrong:
        whole = not options
        first, last = ([good, small], [small]) if whole else ([], [body])
        groups.append((code, options, [*first, body, *last]))
    return groups


def separate_transfers() -> list[dict[str, int]]:
    """Transfers that write no byte of the memory and no word of the scratchpad twice."""
    return [
        transfer(ORIGIN + 1024, 0, 300, rows=4, row_memory=512, row_scratchpad=320),
        transfer(ORIGIN + 8000, 2048, 2000),
        transfer(ORIGIN + 12000, 4128, 40, rows=15, row_memory=64, row_scratchpad=128),
        transfer(ORIGIN + 20003, 6144 + 35, 1500),
    ]


class Fetch:
    """Second reader of the memory port, like the one that fetches instructions."""

    def __init__(self, dut: Any, rng: random.Random) -> None:
        self._dut = dut
        self._pauses = Pauses(rng), Pauses(rng)

    def _port(self, name: str) -> Any:
        return getattr(self._dut, f"fetch__{name}")

    async def read(self, requests: Sequence[tuple[int, int]]) -> list[int]:
        """Read bursts, each given as address and beats; returns their words."""
        words: list[int] = []
        total = sum(beats for _, beats in requests)
        asking = cocotb.start_soon(self._ask(requests))
        while len(words) < total:
            self._port("rready").value = int(not self._pauses[0]())
            await FallingEdge(self._dut.clk)
            if self._port("rvalid").value and self._port("rready").value:
                words.append(int(self._port("rdata").value))
            await RisingEdge(self._dut.clk)
        self._port("rready").value = 1
        await asking
        return words

    async def _ask(self, requests: Sequence[tuple[int, int]]) -> None:
        for address, beats in requests:
            while self._pauses[1]():
                await RisingEdge(self._dut.clk)
            size = (len(self._port("rdata")) // 8 - 1).bit_length()
            for name, value in (("addr", address), ("len", beats - 1), ("size", size)):
                self._port(f"ar{name}").value = value
            self._port("arburst").value = 1
            self._port("arvalid").value = 1
            await FallingEdge(self._dut.clk)
            while not self._port("arready").value:
                await FallingEdge(self._dut.clk)
            await RisingEdge(self._dut.clk)
            self._port("arvalid").value = 0
