"""A memory for an AXI4 port of a design, with the same timing as that of the native simulator.

`TimedMemory` does what ``native_memory.hpp`` does, bit for bit and cycle by cycle. So a design sees
no difference between a cocotb testbench and a `fpgapipe.sim_tb.native.native.NativeDevice`, whose
documentation describes bandwidth, latency, pauses and banks. For a memory that responds at random
times and out of order, see `fpgapipe.sim_tb.drivers.axi_memory.AxiMemory`.
"""

from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge, ReadWrite, RisingEdge
from numpy.typing import NDArray

from fpgapipe.sim_tb.drivers.axi_memory import DECERR, OKAY, PAGE_BYTES, SLVERR
from fpgapipe.sim_tb.drivers.stream import to_rising_edge
from fpgapipe.sim_tb.native.native_library import Statistics

_MASK = (1 << 64) - 1
_CHANNELS = ("ar", "aw", "r", "w", "b")
"""Channels, in the order in which parts of a random number decide on their pauses."""


@dataclass(frozen=True)
class MemoryTiming:
    """Timing of a memory; see the parameters of `fpgapipe.sim_tb.native.native.NativeDevice`.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    bytes_per_cycle: int | Fraction = 64
    latency_cycles: int = 64
    write_latency_cycles: int | None = None
    outstanding: int = 64
    pause: float = 0
    seed: int = 0
    banks: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        numbers = (self.latency_cycles, self.write_cycles, self.outstanding, *(self.banks or ()))
        if min(numbers) < 1 or not 0 < self.rate <= 1 << 20 or not 0 <= self.pause <= 0.99:
            raise ValueError(f"a memory's timing is out of range: {self}")

    @property
    def rate(self) -> Fraction:
        """Bandwidth in use: `bytes_per_cycle` with a denominator of at most 65536."""
        return Fraction(self.bytes_per_cycle).limit_denominator(1 << 16)

    @property
    def write_cycles(self) -> int:
        """Write latency in use, cycles: `write_latency_cycles`, by default `latency_cycles`."""
        if self.write_latency_cycles is None:
            return self.latency_cycles
        return self.write_latency_cycles


class Request(NamedTuple):
    """A burst that the design requests."""

    address: int
    length: int
    size: int
    burst: int
    id: int


class Data(NamedTuple):
    """A beat of data that the design writes."""

    value: int
    strobes: int
    last: bool


@dataclass
class _Burst:
    """A burst in progress.

    `address` is that of the next beat, and `unusable` is a mask of that beat's strobes that must
    be 0, because they lie before the burst's first byte.
    """

    address: int
    unusable: int
    id: int
    beats_left: int
    bank: int
    due: int = 0
    begun: bool = False
    response: int = OKAY


@dataclass(frozen=True)
class _Fault:
    begin: int
    end: int
    response: int
    reads: bool
    writes: bool


@dataclass
class _Counts:
    """The fields of `Statistics` that are updated as events occur."""

    read_bursts: int = 0
    write_bursts: int = 0
    read_beats: int = 0
    write_beats: int = 0
    first_read_cycle: int | None = None
    last_read_cycle: int | None = None
    first_write_cycle: int | None = None
    last_write_cycle: int | None = None
    read_wait_cycles: int = 0
    write_wait_cycles: int = 0
    active_cycle: int | None = None


@dataclass
class _Requests:
    """An address channel: its ports, and the request that waits to be accepted."""

    name: str
    ports: dict[str, Any]
    waiting: Request | None = None
    ready: bool = field(default=False)


class TimedMemory:
    """Memory, which runs from its creation on.

    The cycle of its creation is cycle 0 if the clock is high then, as it is after
    `fpgapipe.sim_tb.drivers.stream.start`; otherwise the following cycle is. If the design breaks a
    rule of AXI4, the test fails.

    Parameters
    ----------
    dut
        The design, with its clock ``clk``.
    data : uint8 array, shape (bytes,)
        Contents from address 0 on, which are changed in place. The size must be a multiple of 4096
        bytes. Accesses beyond the end get the response DECERR.
    timing : MemoryTiming, optional
    prefix : str
        Prefix of the port: ``m_axi`` for ``m_axi_araddr``.

    Raises
    ------
    ValueError
        If the size is not a multiple of 4096.
    """

    def __init__(
        self,
        dut: Any,
        data: NDArray[np.uint8],
        timing: MemoryTiming | None = None,
        *,
        prefix: str = "m_axi",
    ) -> None:
        if data.size % PAGE_BYTES:
            raise ValueError(f"memory must be a multiple of {PAGE_BYTES} bytes, not {data.size}")
        self.data = data
        self.timing = timing = timing or MemoryTiming()
        self._dut, self._prefix, self._clk = dut, prefix, dut.clk
        self._ports: dict[str, Any] = {}
        self._driven: dict[str, int] = {}  # values that the ports were last driven to
        self._bytes = len(self._port("rdata")) // 8
        self._has_ids = hasattr(dut, f"{prefix}_arid")
        names = ("addr", "len", "size", "burst", *(("id",) if self._has_ids else ()))
        self._ar, self._aw = (
            _Requests(channel, {name: self._port(channel + name) for name in names})
            for channel in ("ar", "aw")
        )
        # Credits are in bytes times the denominator of the rate.
        self._rate = timing.rate.numerator
        self._beat_cost = self._bytes * timing.rate.denominator
        self._credit = 0
        self._pause = round(timing.pause * 4096)
        self._random = timing.seed * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D & _MASK or 1
        self._bank_free = [0] * (timing.banks[0] if timing.banks else 0)
        self._faults: list[_Fault] = []
        # Bursts are in _reads and _writes until their last beat; _responses holds completed writes
        # until their responses are accepted.
        self._reads: deque[_Burst] = deque()
        self._writes: deque[_Burst] = deque()
        self._responses: deque[_Burst] = deque()
        self._read_shown = self._response_shown = self._takes_data = False
        self._read_turn = True  # whether a read goes first if there is credit for one beat
        self._waiting: Data | None = None
        self._counts = _Counts()
        self._cycle = 0
        self._task = cocotb.start_soon(self._run())

    def _port(self, name: str) -> Any:
        if name not in self._ports:
            self._ports[name] = getattr(self._dut, f"{self._prefix}_{name}")
        return self._ports[name]

    def _drive(self, name: str, value: int) -> None:
        """Drive a port unless it already has the value."""
        if self._driven.get(name) != value:
            self._driven[name] = value
            self._port(name).value = value

    def stop(self) -> None:
        """Stop responding."""
        self._task.cancel()

    def inject_error(
        self,
        begin: int,
        end: int,
        response: int = SLVERR,
        *,
        reads: bool = True,
        writes: bool = True,
    ) -> None:
        """Answer beats that overlap the bytes ``begin..end - 1`` with an error.

        These beats neither read nor write the memory. This holds until `clear_errors`.
        """
        self._faults.append(_Fault(begin, end, response, reads, writes))

    def clear_errors(self) -> None:
        """Remove all injected errors."""
        self._faults.clear()

    def statistics(self, irq_cycle: int | None = None) -> Statistics:
        """Statistics so far, including the current cycle."""
        return Statistics(
            cycle=self._cycle + 1,
            **vars(self._counts),
            reads_in_flight=len(self._reads),
            writes_in_flight=len(self._writes) + len(self._responses),
            irq=irq_cycle is not None,
            irq_cycle=irq_cycle,
        )

    async def _run(self) -> None:
        await to_rising_edge(self._clk)
        while True:
            await self._offer()
            await FallingEdge(self._clk)
            self._take()
            await RisingEdge(self._clk)
            self._cycle += 1

    def _pauses(self, channel: str) -> bool:
        """Whether a channel pauses, which a part of the cycle's random number decides."""
        return (self._random >> 12 * _CHANNELS.index(channel) & 0xFFF) < self._pause

    def _may_go_on(self, burst: _Burst) -> bool:
        """Whether a burst may move data: it has begun already, or its bank is free."""
        return not self._bank_free or burst.begun or self._bank_free[burst.bank] <= self._cycle

    def _begin(self, burst: _Burst) -> None:
        """Note that a beat of a burst moves; the first one makes the burst's bank busy."""
        if self.timing.banks and not burst.begun:
            burst.begun = True
            self._bank_free[burst.bank] = self._cycle + self.timing.banks[2]

    async def _offer(self) -> None:
        """Drive the ports for a cycle, which depends on the memory's state only."""
        if self._pause:
            number = self._random
            number ^= number << 13 & _MASK
            number ^= number >> 7
            self._random = number ^ number << 17 & _MASK
        # A beat may make the credit negative, and later cycles make up for it.
        self._credit = min(self._credit + self._rate, self._rate)
        most = self.timing.outstanding
        self._ar.ready = len(self._reads) < most and not self._pauses("ar")
        under_way = len(self._writes) + len(self._responses)
        self._aw.ready = under_way < most and not self._pauses("aw")

        reads = (
            not self._read_shown
            and bool(self._reads)
            and self._reads[0].due <= self._cycle
            and self._credit > 0
            and self._may_go_on(self._reads[0])
            and not self._pauses("r")
        )
        writes = (
            bool(self._writes)
            and self._credit > 0
            and self._may_go_on(self._writes[0])
            and not self._pauses("w")
        )
        if reads and writes and self._credit <= self._beat_cost:
            # The credit suffices for one of the two. wvalid is read after the design's registers
            # have changed, but before this cycle's inputs are driven. Its value only decides which
            # direction goes first.
            await ReadWrite()
            reads = not self._port("wvalid").value or self._read_turn
            writes = not reads
        if reads:
            self._credit -= self._beat_cost
            self._read_turn = False
            self._begin(self._reads[0])
            self._show_read(self._reads[0])
            writes = writes and self._may_go_on(self._writes[0])
        self._takes_data = writes

        if (
            not self._response_shown
            and self._responses
            and self._responses[0].due <= self._cycle
            and not self._pauses("b")
        ):
            self._response_shown = True
            self._drive("bresp", self._responses[0].response)
            if self._has_ids:
                self._drive("bid", self._responses[0].id)
        for name, value in (
            ("arready", self._ar.ready),
            ("awready", self._aw.ready),
            ("rvalid", self._read_shown),
            ("wready", writes),
            ("bvalid", self._response_shown),
        ):
            self._drive(name, int(value))

    def _show_read(self, burst: _Burst) -> None:
        self._read_shown = True
        response = self._response(burst.address, False)
        beat = self.data[burst.address : burst.address + self._bytes]
        value = int.from_bytes(beat.tobytes(), "little") if response == OKAY else 0
        self._port("rdata").value = value
        self._drive("rresp", response)
        self._drive("rlast", int(burst.beats_left == 1))
        if self._has_ids:
            self._drive("rid", burst.id)

    def _response(self, address: int, write: bool) -> int:
        """Response to a beat at an address."""
        if address >= self.data.size:
            return DECERR
        for fault in self._faults:
            counts = fault.writes if write else fault.reads
            if counts and address < fault.end and fault.begin < address + self._bytes:
                return fault.response
        return OKAY

    def _take(self) -> None:
        """Process the transfers that the end of the cycle completes; all ports have settled."""
        counts, cycle = self._counts, self._cycle
        active = False
        if request := self._request(self._ar):
            burst = self._burst(request)
            burst.due = cycle + self.timing.latency_cycles
            self._reads.append(burst)
            counts.read_bursts += 1
            active = True
        if self._read_shown:
            if self._port("rready").value:
                self._read_shown = False
                burst = self._reads[0]
                burst.address += self._bytes
                burst.beats_left -= 1
                if not burst.beats_left:
                    self._reads.popleft()
                if not counts.read_beats:
                    counts.first_read_cycle = cycle
                counts.read_beats += 1
                counts.last_read_cycle = cycle
                active = True
            else:
                counts.read_wait_cycles += 1
        active |= self._take_data()
        if request := self._request(self._aw):
            self._writes.append(self._burst(request))
            counts.write_bursts += 1
            active = True
        if self._response_shown and self._port("bready").value:
            self._response_shown = False
            self._responses.popleft()
            active = True
        if active:
            counts.active_cycle = cycle

    def _name(self, text: str) -> str:
        return f"cycle {self._cycle}: {self._prefix}_{text}"

    def _request(self, channel: _Requests) -> Request | None:
        """Check an address channel; returns the request that it transfers in this cycle, if any."""
        name = channel.name
        if not self._port(f"{name}valid").value:
            assert channel.waiting is None, self._name(f"{name}valid fell before ready rose")
            return None
        values = [int(port.value) for port in channel.ports.values()]
        request = Request(*values, *(() if self._has_ids else (0,)))
        assert channel.waiting in (None, request), self._name(
            f"{name}addr, len, size, burst or id changed while valid waited for ready"
        )
        channel.waiting = None if channel.ready else request
        if not channel.ready:
            return None
        size = self._bytes
        begin = request.address // size * size
        end = begin + (request.length + 1) * size
        assert request.burst == 1, self._name(f"{name}burst must be 1 (INCR), not {request.burst}")
        assert 1 << request.size == size, self._name(
            f"{name}size must be that of the bus, {size} bytes, not {1 << request.size}"
        )
        assert begin // PAGE_BYTES == (end - 1) // PAGE_BYTES, self._name(
            f"{name}addr {request.address:#x}: a burst of {end - begin} bytes crosses a boundary "
            "of 4 KiB"
        )
        return request

    def _burst(self, request: Request) -> _Burst:
        offset = request.address % self._bytes
        banks = self.timing.banks
        return _Burst(
            address=request.address - offset,
            unusable=(1 << offset) - 1,
            id=request.id,
            beats_left=request.length + 1,
            bank=request.address // banks[1] % banks[0] if banks else 0,
        )

    def _take_data(self) -> bool:
        """Check the write data channel; returns whether a beat is accepted."""
        if not self._port("wvalid").value:
            assert self._waiting is None, self._name("wvalid fell before wready rose")
            return False
        data = Data(
            int(self._port("wdata").value),
            int(self._port("wstrb").value),
            bool(self._port("wlast").value),
        )
        assert self._waiting in (None, data), self._name(
            "wdata, wstrb or wlast changed while wvalid waited for wready"
        )
        self._waiting = None if self._takes_data else data
        counts = self._counts
        if not self._takes_data:
            counts.write_wait_cycles += 1
            return False
        self._credit -= self._beat_cost
        self._read_turn = True
        burst = self._writes[0]
        self._begin(burst)
        where = "low in" if burst.beats_left == 1 else "high before"
        assert data.last == (burst.beats_left == 1), self._name(
            f"wlast is {where} the last beat of a burst"
        )
        assert not data.strobes & burst.unusable, self._name(
            "wstrb selects bytes before the burst's address"
        )
        response = self._response(burst.address, True)
        if response == OKAY:
            self._store(burst.address, data)
        burst.response = max(burst.response, response)
        burst.address += self._bytes
        burst.unusable = 0
        burst.beats_left -= 1
        if not burst.beats_left:
            burst.due = self._cycle + self.timing.write_cycles
            self._responses.append(self._writes.popleft())
        if not counts.write_beats:
            counts.first_write_cycle = self._cycle
        counts.write_beats += 1
        counts.last_write_cycle = self._cycle
        return True

    def _store(self, address: int, data: Data) -> None:
        size = self._bytes
        new = np.frombuffer(data.value.to_bytes(size, "little"), np.uint8)
        strobes = np.frombuffer(data.strobes.to_bytes(-(-size // 8), "little"), np.uint8)
        mask = np.unpackbits(strobes, bitorder="little")[:size].astype(bool)
        self.data[address : address + size][mask] = new[mask]
