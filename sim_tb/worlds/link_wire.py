"""What a design's links are joined to: wires to other designs, or an end that a model plays.

A link `n` of a design has the streams ``m_axis_link{n}_*`` and ``s_axis_link{n}_*``. What is on
them is what `fpgapipe.sim_tb.native.phy.Wire` makes of it, cycle for cycle as in a cluster of
native devices (`fpgapipe.sim_tb.cluster.cluster`).

All here runs from its making on, which is cycle 0 if it is made while the clock is high, as after
`fpgapipe.sim_tb.drivers.stream.start`; else cycle 0 is the next.
"""

from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple

import cocotb
import numpy as np
from cocotb.queue import Queue
from cocotb.triggers import FallingEdge, RisingEdge

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.model.link_dma import STREAM_BYTES, Packet
from fpgapipe.hw.hls_models.model.link_end import LinkEnd
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS, LinkEngineSpec
from fpgapipe.sim_tb.drivers.axi_stream import AxiStreamPorts
from fpgapipe.sim_tb.drivers.stream import to_rising_edge
from fpgapipe.sim_tb.native.phy import Beat, Wire, WireCounts, WireSpec, beats_of, bytes_of


class LinkPort(NamedTuple):
    """A link of a design.

    Parameters
    ----------
    dut
        The design, with its clock ``clk``.
    number : int
        Of the link.
    prefix : str
        What the names of its ports begin with, such as ``d0_`` for ``d0_m_axis_link0_tdata``.
    """

    dut: Any
    number: int = 0
    prefix: str = ""

    @property
    def transmits(self) -> AxiStreamPorts:
        """Ports of what goes out."""
        return AxiStreamPorts(self.dut, f"{self.prefix}m_axis_link{self.number}")

    @property
    def receives(self) -> AxiStreamPorts:
        """Ports of what comes in."""
        return AxiStreamPorts(self.dut, f"{self.prefix}s_axis_link{self.number}")


class _FromDesign:
    """The end of a wire that a design transmits into."""

    def __init__(self, wire: Wire, ports: AxiStreamPorts) -> None:
        _check_width(wire, ports)
        self._wire, self._ports = wire, ports
        self._was_ready: bool | None = None
        self._waiting: Beat | None = None

    def drive(self, cycle: int) -> None:
        """Begin a cycle."""
        ready = self._wire.tready(cycle)
        if ready is not self._was_ready:
            self._ports.ready.value = int(ready)
            self._was_ready = ready

    def sample(self, cycle: int) -> None:
        """Take what moves in a cycle, once all ports have settled."""
        name = f"cycle {cycle}: {self._ports.prefix}"
        if not self._ports.valid.value:
            assert self._waiting is None, f"{name}_tvalid fell before tready rose"
            return
        beat = self._ports.seen()
        assert self._waiting in (None, beat), (
            f"{name}_tdata, tkeep or tlast changed while tvalid waited for tready"
        )
        self._waiting = None if self._was_ready else beat
        if self._was_ready:
            self._wire.accept(cycle, beat)


class _ToDesign:
    """The end of a wire that a design receives from."""

    def __init__(self, wire: Wire, ports: AxiStreamPorts) -> None:
        _check_width(wire, ports)
        self._wire, self._ports = wire, ports
        self._shown: bool | None = None

    def drive(self, cycle: int) -> None:
        """Begin a cycle."""
        beat = self._wire.arrival(cycle)
        if beat is not None:
            self._ports.show(beat)
        if self._shown is not (beat is not None):
            self._shown = beat is not None
            self._ports.valid.value = int(self._shown)

    def sample(self, cycle: int) -> None:
        """Check that the design takes what it is shown in a cycle."""
        if self._shown:
            assert self._ports.ready.value, (
                f"cycle {cycle}: {self._ports.prefix}_tready is low: a wire does not wait"
            )


def _check_width(wire: Wire, ports: AxiStreamPorts) -> None:
    if ports.bytes != wire.spec.phy_bytes:
        raise ValueError(
            f"{ports.prefix} moves {ports.bytes} bytes a beat, its wire {wire.spec.phy_bytes}"
        )


class LinkWire:
    """One direction between two links.

    Parameters
    ----------
    source, target : LinkPort
        Of one design or of two, whose clocks are one.
    spec : WireSpec

    Raises
    ------
    ValueError
        If a port and the wire differ in width.
    """

    def __init__(self, source: LinkPort, target: LinkPort, spec: WireSpec) -> None:
        self._wire = Wire(spec)
        self._from = _FromDesign(self._wire, source.transmits)
        self._to = _ToDesign(self._wire, target.receives)
        self._clk = source.dut.clk
        self._task = cocotb.start_soon(self._run())

    @property
    def counts(self) -> WireCounts:
        """What happened so far, this cycle included."""
        return replace(self._wire.counts)

    def stop(self) -> None:
        """Cut the wire: nothing arrives, and nobody is ready."""
        self._task.cancel()

    async def _run(self) -> None:
        await to_rising_edge(self._clk)
        cycle = 0
        while True:
            self._from.drive(cycle)
            self._to.drive(cycle)
            await FallingEdge(self._clk)
            self._to.sample(cycle)
            self._from.sample(cycle)
            await RisingEdge(self._clk)
            cycle += 1


def join(one: LinkPort, other: LinkPort, there: WireSpec, back: WireSpec) -> tuple[LinkWire, ...]:
    """Join two links in both directions: `there` leads from `one` to `other`."""
    return LinkWire(one, other, there), LinkWire(other, one, back)


class LinkPeer:
    """The other end of a design's link, played by the model `LinkEnd`.

    Parameters
    ----------
    port : LinkPort
    spec : LinkEngineSpec
        Of both ends.
    there, back : WireSpec, optional
        From the design, and to it. Perfect wires if not given.
    seed : int
        Of the session numbers.

    Attributes
    ----------
    end : LinkEnd
        Its state, and its counts.
    there, back : Wire
    """

    def __init__(
        self,
        port: LinkPort,
        spec: LinkEngineSpec,
        there: WireSpec | None = None,
        back: WireSpec | None = None,
        *,
        seed: int = 0,
    ) -> None:
        perfect = WireSpec(spec.phy_bytes, spec.phy_bytes, latency_cycles=16)
        self.end = LinkEnd(spec, seed)
        self.there, self.back = Wire(there or perfect), Wire(back or perfect)
        self._from = _FromDesign(self.there, port.transmits)
        self._to = _ToDesign(self.back, port.receives)
        self._clk = port.dut.clk
        self._phy_bytes = spec.phy_bytes
        self._coming = bytearray()  # of a frame
        self._going: deque[Beat] = deque()
        self._to_send: list[deque[tuple[bytes, bool]]] = [deque() for _ in range(NUM_CHANNELS)]
        self._words: list[list[bytes]] = [[] for _ in range(NUM_CHANNELS)]
        self._packets: list[Queue[Packet]] = [Queue() for _ in range(NUM_CHANNELS)]
        self.end.enable()
        self._task = cocotb.start_soon(self._run())

    def stop(self) -> None:
        """Do nothing more."""
        self._task.cancel()

    def send(self, channel: int, packet: Packet) -> None:
        """Have a packet sent, after those before."""
        words = [packet.stream.to_bytes(WORD_BYTES, "little"), *map(bytes, packet.words)]
        last = len(words) - 1
        self._to_send[channel].extend((word, at == last) for at, word in enumerate(words))

    async def receive(self, channel: int) -> Packet:
        """Wait for a channel's next packet; returns right after a rising edge."""
        packet: Packet = await self._packets[channel].get()
        return packet

    async def _run(self) -> None:
        await to_rising_edge(self._clk)
        cycle = 0
        while True:
            arrived = self.there.arrival(cycle)
            self._transmit(cycle)
            self._from.drive(cycle)
            self._to.drive(cycle)
            await FallingEdge(self._clk)
            self._to.sample(cycle)
            self._from.sample(cycle)
            await RisingEdge(self._clk)
            if arrived is not None:
                self._hear(arrived)
            self._move_words()
            self.end.tick()
            cycle += 1

    def _transmit(self, cycle: int) -> None:
        if not self._going:
            frame = self.end.next_frame()
            self._going.extend(beats_of(frame, self._phy_bytes) if frame else ())
        if self.back.tready(cycle) and self._going:
            self.back.accept(cycle, self._going.popleft())

    def _hear(self, beat: Beat) -> None:
        self._coming += bytes_of(beat)
        if beat.last:
            self.end.hear(bytes(self._coming))
            self._coming.clear()

    def _move_words(self) -> None:
        """Give the end words, and take those that have come."""
        for channel in range(NUM_CHANNELS):
            waiting = self._to_send[channel]
            while waiting and self.end.put(channel, *waiting[0]):
                waiting.popleft()
            while (taken := self.end.take(channel)) is not None:
                word, is_last = taken
                self._words[channel].append(word)
                if is_last:
                    self._packets[channel].put_nowait(_packet_of(self._words[channel]))
                    self._words[channel].clear()


def _packet_of(words: list[bytes]) -> Packet:
    """The packet that words on a channel are."""
    data = np.frombuffer(b"".join(words[1:]), np.uint8)
    return Packet(int.from_bytes(words[0][:STREAM_BYTES], "little"), data.reshape(-1, WORD_BYTES))
