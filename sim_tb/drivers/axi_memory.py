"""A memory for an AXI4 port of a design, with latency, pauses, errors and a protocol check.

The memory answers bursts in order; with random behaviour, those with different IDs in any order.
The test fails if the design breaks a rule of AXI4 (ARM IHI 0022E): if a valid signal falls or its
data change before they are accepted, if a burst crosses a boundary of 4 KiB, or if WLAST is wrong.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge, RisingEdge
from numpy.typing import NDArray

from fpgapipe.sim_tb.drivers.stream import Pauses as Pauses
from fpgapipe.sim_tb.drivers.stream import cycle

OKAY, SLVERR, DECERR = 0, 2, 3
"""Codes of responses."""

PAGE_BYTES = 4096


@dataclass
class Request:
    """A burst that the design requested.

    Attributes
    ----------
    cycle : int
        Cycle of the request.
    id, address, beats : int
        ID, byte address and number of beats.
    ready : int
        First cycle in which the memory may answer it.
    done : int
        Number of beats that have been transferred.
    response : int
        Response to a write.
    """

    cycle: int
    id: int
    address: int
    beats: int
    ready: int
    done: int = 0
    response: int = OKAY


@dataclass(frozen=True)
class Written:
    """An accepted beat of write data: its cycle, its address and its strobes."""

    cycle: int
    address: int
    strobes: int


class AxiMemory:
    """Memory and protocol checker, which runs from its creation on.

    Parameters
    ----------
    dut
        The design, with its clock ``clk``, in or out of reset.
    prefix : str
        Prefix of the port: ``m_axi`` for ``m_axi_araddr``.
    data : uint8 array
        Contents, which are changed in place.
    origin : int
        Address of the first byte. Accesses outside of the data get the response DECERR.
    rng : random.Random, optional
        Source of pauses on all channels and of the order in which reads of different IDs are
        answered. Without it there are no pauses.
    latency : (int, int)
        Least and most cycles from a read's request to its first beat, and from a write's last beat
        to its response, both at least 1.
    bad : sequence of (range, int)
        Ranges of addresses, and the response to accesses that overlap them. Such a write does not
        change the memory.
    read, write : bool
        Whether the port has the channels for reads, and those for writes.
    max_beats, max_open : int, optional
        Longest burst, and largest number of reads and of writes in flight, that the design may use.
    banks : (int, int, int), optional
        See `fpgapipe.sim_tb.native.native.NativeDevice`. With banks, the data of a write are
        accepted only after their address.

    Attributes
    ----------
    reads, writes : list of Request
        Requests in the order of their arrival.
    beats : list of Written
        Accepted beats of write data.
    most_open : dict
        Largest number of bursts that were in flight, for the keys ``read`` and ``write``.
    """

    def __init__(
        self,
        dut: Any,
        prefix: str,
        data: NDArray[np.uint8],
        *,
        origin: int = 0,
        rng: random.Random | None = None,
        latency: tuple[int, int] = (1, 1),
        bad: Sequence[tuple[range, int]] = (),
        read: bool = True,
        write: bool = True,
        max_beats: int = 256,
        max_open: int | None = None,
        banks: tuple[int, int, int] | None = None,
    ) -> None:
        self.data, self.origin, self.latency, self.bad = data, origin, latency, bad
        self.reads: list[Request] = []
        self.writes: list[Request] = []
        self.beats: list[Written] = []
        self.most_open = {"read": 0, "write": 0}
        self._banks = banks
        self._bank_free: dict[int, int] = {}  # by bank, first cycle in which a burst may begin
        self._clk = dut.clk
        self._dut, self._prefix = dut, prefix
        self._bytes = len(self._port("rdata" if read else "wdata")) // 8
        self._rng = rng
        self._max_beats, self._max_open = max_beats, max_open
        # Number of the coming cycle. The clock may start at any time, so it is computed at each
        # falling edge.
        self._next = 0
        self._waiting: dict[str, tuple[int, ...] | None] = {}
        self._answers: dict[int, deque[Request]] = {}  # reads by ID
        self._open_reads = 0
        self._offer: Request | None = None  # the read whose beat is on the bus
        self._open_writes: deque[Request] = deque()  # writes whose response is not yet accepted
        self._writing: deque[Request] = deque()  # writes whose data have not been received fully
        self._early: deque[tuple[int, ...]] = deque()  # beats whose address is not yet accepted
        self._confirmed: Request | None = None
        names = []
        if read:
            names += ["arready", "rvalid"]
        if write:
            names += ["awready", "wready", "bvalid"]
        self._pauses = {name: Pauses(rng) for name in names}
        for name in names:
            self._port(name).value = 0
        self._tasks = [cocotb.start_soon(self._run(read, write))]

    def _port(self, name: str) -> Any:
        return getattr(self._dut, f"{self._prefix}_{name}")

    def stop(self) -> None:
        """Stop responding."""
        for task in self._tasks:
            task.cancel()

    @property
    def idle(self) -> bool:
        """Whether no burst is in flight."""
        return not (self._open_reads or self._open_writes)

    async def _run(self, read: bool, write: bool) -> None:
        while True:
            await RisingEdge(self._clk)
            if read:
                self._drive_reads()
            if write:
                self._drive_writes()
            await FallingEdge(self._clk)
            self._next = cycle() + 1
            if read:
                self._sample_reads()
            if write:
                self._sample_writes()

    def _latency(self) -> int:
        least, most = self.latency
        return self._rng.randint(least, most) if self._rng and most > least else least

    def _moved(self, channel: str, names: Sequence[str]) -> tuple[int, ...] | None:
        """Check a channel of the design; returns the word that moves in this cycle, if any."""
        valid = bool(self._port(f"{channel}valid").value)
        waiting = self._waiting.get(channel)
        if not valid:
            assert waiting is None, f"{channel}valid went away before the word was taken"
            return None
        word = tuple(int(self._port(channel + name).value) for name in names)
        assert waiting in (None, word), f"{channel} changed a word that was waiting"
        if self._port(f"{channel}ready").value:
            self._waiting[channel] = None
            return word
        self._waiting[channel] = word
        return None

    def _request(self, channel: str, kind: str, open_bursts: int) -> Request | None:
        """Check an address channel; returns the burst that is requested in this cycle, if any."""
        word = self._moved(channel, ("id", "addr", "len", "size", "burst"))
        if word is None:
            return None
        number, address, length, size, burst = word
        size_bytes = self._bytes * (length + 1)
        name = f"{kind} of {length + 1} beats at {address:#x}"
        assert burst == 1, f"{name} is no INCR burst"
        assert 1 << size == self._bytes, f"{name} has beats of {1 << size} bytes"
        assert address % self._bytes == 0, f"{name} is not aligned"
        assert address // PAGE_BYTES == (address + size_bytes - 1) // PAGE_BYTES, (
            f"{name} crosses {PAGE_BYTES} bytes"
        )
        assert length < self._max_beats, f"{name} is longer than {self._max_beats}"
        self.most_open[kind] = max(self.most_open[kind], open_bursts + 1)
        assert self._max_open is None or open_bursts < self._max_open, (
            f"{name} is one more than {self._max_open} under way"
        )
        return Request(cycle(), number, address, length + 1, cycle() + self._latency())

    def _response(self, address: int, size: int) -> int:
        """Response to an access to some bytes."""
        if not self.origin <= address <= self.origin + self.data.size - size:
            return DECERR
        for addresses, response in self.bad:
            if address < addresses.stop and addresses.start < address + size:
                return response
        return OKAY

    def _bank(self, request: Request) -> int:
        """Bank in which a burst begins."""
        if self._banks is None:
            return 0
        count, size, _ = self._banks
        return request.address // size % count

    def _may_go_on(self, request: Request) -> bool:
        """Whether a burst has begun, or may begin in the coming cycle."""
        return bool(request.done) or self._bank_free.get(self._bank(request), 0) <= self._next

    def _begin(self, request: Request, now: int) -> None:
        """Mark the bank of a burst that begins in the cycle `now` as busy."""
        if self._banks:
            self._bank_free[self._bank(request)] = now + self._banks[2]

    def _drive_reads(self) -> None:
        """Drive the channels for reads at the begin of a cycle."""
        self._port("arready").value = int(not self._pauses["arready"]())
        if self._offer is None and not self._pauses["rvalid"]():
            due = [
                queue[0]
                for queue in self._answers.values()
                if queue and queue[0].ready <= self._next and self._may_go_on(queue[0])
            ]
            if due:
                self._offer = (
                    self._rng.choice(due)
                    if self._rng
                    else min(due, key=lambda request: request.ready)
                )
                if not self._offer.done:
                    self._begin(self._offer, self._next)
                self._put_beat(self._offer)
        self._port("rvalid").value = int(self._offer is not None)

    def _takes_data(self) -> bool:
        """Whether the banks allow a beat of data to be accepted in the coming cycle."""
        if self._banks is None:
            return True
        return bool(self._writing) and self._may_go_on(self._writing[0])

    def _put_beat(self, request: Request) -> None:
        address = request.address + request.done * self._bytes
        response = self._response(address, self._bytes)
        if response in (OKAY, 1):
            at = address - self.origin
            value = int.from_bytes(self.data[at : at + self._bytes].tobytes(), "little")
        else:
            value = (1 << (8 * self._bytes)) - 1  # a value that the design must not use
        self._port("rdata").value = value
        self._port("rid").value = request.id
        self._port("rresp").value = response
        self._port("rlast").value = int(request.done == request.beats - 1)

    def _sample_reads(self) -> None:
        """Process the channels for reads at the end of a cycle."""
        if self._offer is not None and self._port("rready").value:
            answered, self._offer = self._offer, None
            answered.done += 1
            if answered.done == answered.beats:
                self._answers[answered.id].popleft()
                self._open_reads -= 1
        if request := self._request("ar", "read", self._open_reads):
            self.reads.append(request)
            self._answers.setdefault(request.id, deque()).append(request)
            self._open_reads += 1

    def _drive_writes(self) -> None:
        """Drive the channels for writes at the begin of a cycle."""
        self._port("awready").value = int(not self._pauses["awready"]())
        self._port("wready").value = int(not self._pauses["wready"]() and self._takes_data())
        if self._confirmed is None and self._open_writes:
            first = self._open_writes[0]
            complete = first.done == first.beats
            if complete and first.ready <= self._next and not self._pauses["bvalid"]():
                self._confirmed = first
                self._port("bid").value = first.id
                self._port("bresp").value = first.response
        self._port("bvalid").value = int(self._confirmed is not None)

    def _sample_writes(self) -> None:
        """Process the channels for writes at the end of a cycle."""
        if self._confirmed is not None and self._port("bready").value:
            self._confirmed = None
            self._open_writes.popleft()
        if request := self._request("aw", "write", len(self._open_writes)):
            self.writes.append(request)
            self._open_writes.append(request)
            self._writing.append(request)
            request.response = self._response(request.address, request.beats * self._bytes)
        if word := self._moved("w", ("data", "strb", "last")):
            # Data may be accepted before their address is accepted, but not before it is offered.
            assert self._writing or self._waiting.get("aw"), "w came before its address"
            self._early.append((cycle(), *word))
        while self._early and self._writing:
            self._write(*self._early.popleft())

    def _write(self, taken: int, value: int, strobes: int, last: int) -> None:
        """Write a beat to the memory that was accepted in the cycle `taken`."""
        request = self._writing[0]
        address = request.address + request.done * self._bytes
        self.beats.append(Written(taken, address, strobes))
        if not request.done:
            self._begin(request, taken)
        if request.response == OKAY and strobes:
            at = address - self.origin
            mask = np.array([strobes >> lane & 1 for lane in range(self._bytes)], bool)
            new = np.frombuffer(value.to_bytes(self._bytes, "little"), np.uint8)
            self.data[at : at + self._bytes][mask] = new[mask]
        request.done += 1
        assert last == (request.done == request.beats), (
            f"wlast is {last} at beat {request.done} of {request.beats} of {request.address:#x}"
        )
        if last:
            request.ready = cycle() + self._latency()
            self._writing.popleft()
