"""Checks the scratchpad against an array of bytes: data, latency, and which accesses wait."""

import random
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge, RisingEdge

from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.hw.rtl.dma.scratchpad import GRANULES, READ_LATENCY
from fpgapipe.sim_tb.drivers.stream import PAUSE_RATES, PHASE_CYCLES, parameters, reset, start

WORD = 64


def memories_of(spec: ScratchpadSpec, address: int) -> set[int]:
    """Numbers of the memories that hold as many bytes from an address as a word has.

    Each bank has a memory for even words and one for odd words.
    """
    size = spec.port_bytes
    words = {address // size, (address + size - 1) // size}
    num_words = spec.size_bytes // size
    banks = spec.bank_bytes // size
    return {word % num_words // banks * 2 + word % 2 for word in words}


def exchanged(address: int, value: int, bits: int) -> int:
    """Data or a mask of a write as it goes to the port: with its halves exchanged, or as it is."""
    half = bits // 2
    return value if not address & WORD // 2 else value >> half | value % (1 << half) << half


class Port:
    """Client of a port, which offers accesses with random pauses and holds those that wait."""

    def __init__(self, dut: Any, kind: str, index: int, rng: random.Random) -> None:
        prefix = f"{kind}__{index}"
        self.address = getattr(dut, f"{prefix}__address")
        self.valid = getattr(dut, f"{prefix}__valid")
        self.ready = getattr(dut, f"{prefix}__ready")
        self.data = getattr(dut, f"{prefix}__data")
        # Only writes have a mask, and only reads have data_valid and a turn.
        self.turn: Any = getattr(dut, f"{prefix}__turn", None)
        self.mask: Any = getattr(dut, f"{prefix}__mask", None)
        self.data_valid: Any = getattr(dut, f"{prefix}__data_valid", None)
        self.is_write = kind == "writes"
        self.rng = random.Random(rng.random())
        self.turns = False  # whether it rotates what it reads
        self.offered: Any = None  # address, and either data and mask or a turn
        self.part = 0  # number of the word of the access that is read or written next
        self.parts = 1  # words of an access
        self.seen: list[tuple[Any, Any]] = []  # values of the words that were read
        self.decisions = self.rng.randrange(1000)
        self.valid.value = 0

    def offer(self, address: int) -> None:
        """Offer an access, with random data and mask if it is a write."""
        mask = self.rng.choice([self.rng.getrandbits(GRANULES), (1 << GRANULES) - 1, 0, 1, 1 << 31])
        turn = self.rng.choice([0, self.rng.randrange(GRANULES)])
        self.address.value = address
        if self.is_write:
            self.offered = (address, self.rng.getrandbits(8 * WORD), mask)
            self.data.value = exchanged(address, self.offered[1], 8 * WORD)
            self.mask.value = exchanged(address, mask, GRANULES)
        else:
            self.offered = (address, turn if self.turns else 0)
            self.turn.value = turn
        self.valid.value = 1

    def pauses(self) -> bool:
        """Whether to offer nothing in this cycle."""
        self.decisions += 1
        return self.rng.random() < PAUSE_RATES[self.decisions // PHASE_CYCLES % len(PAUSE_RATES)]


class Bench:
    """All ports of a scratchpad, and a model of their behaviour."""

    def __init__(self, dut: Any) -> None:
        given = parameters()
        self.dut = dut
        self.spec = ScratchpadSpec(**given["memory"])
        self.aligned = {kind: set(given[f"aligned_{kind}"]) for kind in ("reads", "writes")}
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.reads = [Port(dut, "reads", index, self.rng) for index in range(given["num_reads"])]
        self.writes = [Port(dut, "writes", index, self.rng) for index in range(given["num_writes"])]
        for index, port in enumerate(self.reads + self.writes):
            is_narrow = index in given["narrow_reads"]
            port.parts = 1 if is_narrow else self.spec.parts
            port.turns = index in given["turned_reads"]
        self.bytes = np.zeros(self.spec.size_bytes, np.uint8)
        # For each read port, the cycles in which data is due, and the values that each byte may
        # have: those before and after the writes of the cycle that accepted the read.
        self.due: list[list[tuple[int, int, Any, Any]]] = [[] for _ in self.reads]
        self.cycle = 0
        self.waited = False
        self.held: Any = None  # the aligned port's write that waits, as `written` takes it
        self.moved = {id(port): 0 for port in self.reads + self.writes}

    def address(self, port: Port, index: int) -> int:
        """Draw an address: anywhere, close to others, or around the end of a bank."""
        size = self.spec.size_bytes
        near_end = self.spec.bank_bytes * self.rng.randrange(self.spec.banks) - WORD
        address = self.rng.choice(
            [
                self.rng.randrange(size),
                self.rng.randrange(2 * WORD),
                near_end + self.rng.randrange(2 * WORD),
                WORD * self.rng.randrange(size // WORD),
            ]
        )
        step = WORD if index in self.aligned["writes" if port.is_write else "reads"] else 2
        return address % size // step * step

    def _span(self, address: int) -> Any:
        return (address + np.arange(self.spec.port_bytes)) % self.spec.size_bytes

    def _write(self, place: int, access: tuple[int, int, int], part: int) -> None:
        """Write a word, which is a part of what a port offers, to an address."""
        size, span = self.spec.port_bytes, self._span(place)
        _, data, mask = access
        kept = np.repeat([mask >> granule & 1 for granule in range(GRANULES)], 2) == 1
        new = np.frombuffer(data.to_bytes(WORD, "little"), np.uint8)
        words = slice(part * size, (part + 1) * size)
        self.bytes[span[kept[words]]] = new[words][kept[words]]

    def _write_late(self, port: Port, place: int, busy: set[int]) -> bool:
        """Write what the aligned port holds or else offers, unless it has to wait for others.

        A write that is accepted goes into its memory in the next cycle, if no other port's does.
        Returns whether what the port offers moves.
        """
        moves = self.held is None and port.offered is not None
        write = (place, port.offered, port.part) if moves else self.held
        self.held = None
        if write and memories_of(self.spec, write[0]) & busy:
            self.held = write
        elif write:
            self._write(*write)
        return moves

    async def step(self) -> None:
        """Simulate a cycle, from right after a rising edge to right after the next one."""
        await FallingEdge(self.dut.clk)
        assert bool(self.dut.held.value) == (self.held is not None)
        assert bool(self.dut.waits.value) == (self.waited or self.held is not None)
        self.waited = False
        size = self.spec.port_bytes
        accepted, moving = [], []
        before = self.bytes.copy()
        for kind, ports in (("reads", self.reads), ("writes", self.writes)):
            offered: set[int] = set()
            taken: set[int] = set()
            for index, port in enumerate(ports):
                is_late = kind == "writes" and index in self.aligned[kind]
                address = (port.offered[0] if port.offered else 0) + port.part * size
                address %= self.spec.size_bytes
                if is_late:
                    moves = self._write_late(port, address, taken)
                if port.offered is None:
                    continue
                if not is_late:
                    needs = memories_of(self.spec, address)
                    moves = not needs & offered
                    offered |= needs
                    self.waited |= not moves
                    taken |= needs if moves else set()
                    if moves and port.is_write:
                        self._write(address, port.offered, port.part)
                is_last = port.part == port.parts - 1
                ready = bool(port.ready.value)
                assert ready == (moves and is_last), f"port {index} ready is {ready}"
                if moves:
                    moving.append((port, self._span(address)))
                if ready:
                    accepted.append(port)
                    self.moved[id(port)] += 1
        for port, span in moving:
            if not port.is_write:
                port.seen.append((before[span], self.bytes[span]))
            port.part = (port.part + 1) % port.parts
        for index, port in enumerate(self.reads):
            if port in accepted:
                old, new = (np.concatenate(each) for each in zip(*port.seen, strict=True))
                port.seen = []
                self.due[index].append((self.cycle + READ_LATENCY, port.offered[1], old, new))
            is_due = bool(self.due[index]) and self.due[index][0][0] == self.cycle
            assert bool(port.data_valid.value) == is_due, f"port {index} data_valid"
            if is_due:
                _, turn, old, new = self.due[index].pop(0)
                data = port.data.value.to_unsigned().to_bytes(WORD, "little")
                seen = np.roll(np.frombuffer(data, np.uint8)[: len(old)], -2 * turn)
                np.testing.assert_array_equal(seen, np.where(seen == old, old, new))
        await RisingEdge(self.dut.clk)
        self.cycle += 1
        for port in accepted:
            port.offered = None
            port.valid.value = 0

    async def fill(self) -> None:
        """Write all bytes."""
        port = self.writes[0]
        for address in range(0, self.spec.size_bytes, WORD):
            port.offer(address)
            port.mask.value = (1 << GRANULES) - 1
            port.offered = (*port.offered[:2], (1 << GRANULES) - 1)
            while port.offered:
                await self.step()


@cocotb.test(timeout_time=500, timeout_unit="us")
async def matches_model(dut: Any) -> None:
    """Reads return the written data in time, and accesses wait only for conflicting ones."""
    bench = Bench(dut)
    await start(dut)
    await bench.fill()
    for _ in range(1500 * bench.spec.parts):
        for ports in (bench.reads, bench.writes):
            for index, port in enumerate(ports):
                if port.offered is None and not port.pauses():
                    port.offer(bench.address(port, index))
        await bench.step()
    assert min(bench.moved.values()) > 100, bench.moved


@cocotb.test(timeout_time=100, timeout_unit="us")
async def streams_side_by_side(dut: Any) -> None:
    """Two ports that access consecutive words of the same bank soon have no more conflicts."""
    bench = Bench(dut)
    await start(dut)
    await bench.fill()
    accesses = 64
    for ports in (bench.reads, bench.writes):
        count = dict.fromkeys(range(len(ports[:2])), 0)
        for _ in range(accesses * bench.spec.parts):
            for index, port in enumerate(ports[:2]):
                if port.offered is None:
                    port.offer(WORD * count[index] % bench.spec.bank_bytes)
                    count[index] += 1
            await bench.step()
        assert min(count.values()) >= accesses - 1, count
        while any(port.offered for port in ports):
            await bench.step()


@cocotb.test(timeout_time=100, timeout_unit="us")
async def forgets_reads_at_reset(dut: Any) -> None:
    """After a reset, pending reads return no data, and earlier writes have been executed."""
    bench = Bench(dut)
    await start(dut)
    await bench.fill()
    for age in range(1, READ_LATENCY + 1):
        for port in bench.reads:
            port.offer(0)
        await bench.step()
        for port in bench.reads:
            port.valid.value = 0
            port.offered = None
            port.part, port.seen = 0, []
        for _ in range(age - 1):
            await bench.step()
        bench.due = [[] for _ in bench.reads]
        bench.waited = False
        await reset(dut)
        for _ in range(2 * READ_LATENCY):
            await bench.step()
    bench.reads[0].offer(WORD)
    for _ in range(READ_LATENCY + bench.reads[0].parts):
        await bench.step()
    assert not bench.due[0]
