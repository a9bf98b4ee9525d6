"""Connects a design's links in cocotb, by wires to other designs or to a model of the other end.

Link `n` of a design has the streams ``m_axis_link{n}_*`` and ``s_axis_link{n}_*``. The wires are
simulated by `fpgapipe.sim_tb.native.phy.Wire`, so the streams behave cycle by cycle as in a cluster
of native devices (`fpgapipe.sim_tb.cluster.cluster`).

Wires and peers run from their creation on. The cycle of their creation is cycle 0 if the clock is
high then, as it is after `fpgapipe.sim_tb.drivers.stream.start`; otherwise the following cycle is.
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
        Number of the link.
    prefix : str
        Prefix of the names of its ports, such as ``d0_`` for ``d0_m_axis_link0_tdata``.
    """

    dut: Any
    number: int = 0
    prefix: str = ""

    @property
    def transmits(self) -> AxiStreamPorts:
        """Ports of the outgoing stream."""
        return AxiStreamPorts(self.dut, f"{self.prefix}m_axis_link{self.number}")

    @property
    def receives(self) -> AxiStreamPorts:
        """Ports of the incoming stream."""
        return AxiStreamPorts(self.dut, f"{self.prefix}s_axis_link{self.number}")


class _FromDesign:
    """The end of a wire into which a design transmits."""

    def __init__(self, wire: Wire, ports: AxiStreamPorts) -> None:
        _check_width(wire, ports)
        self._wire, self._ports = wire, ports
        self._was_ready: bool | None = None
        self._waiting: Beat | None = None

    def drive(self, cycle: int) -> None:
        """Drive tready at the begin of a cycle."""
        ready = self._wire.tready(cycle)
        if ready is not self._was_ready:
            self._ports.ready.value = int(ready)
            self._was_ready = ready

    def sample(self, cycle: int) -> None:
        """Accept the beat that moves in a cycle, once all ports have settled."""
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
    """The end of a wire from which a design receives."""

    def __init__(self, wire: Wire, ports: AxiStreamPorts) -> None:
        _check_width(wire, ports)
        self._wire, self._ports = wire, ports
        self._shown: bool | None = None

    def drive(self, cycle: int) -> None:
        """Show the beat that arrives in a cycle, if any, at the begin of the cycle."""
        beat = self._wire.arrival(cycle)
        if beat is not None:
            self._ports.show(beat)
        if self._shown is not (beat is not None):
            self._shown = beat is not None
            self._ports.valid.value = int(self._shown)

    def sample(self, cycle: int) -> None:
        """Check that the design accepts the beat that arrives in a cycle."""
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
    """A wire in one direction between two links.

    Parameters
    ----------
    source, target : LinkPort
        Links of one design, or of two designs with the same clock.
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
        """Event counts so far, including the current cycle."""
        return replace(self._wire.counts)

    def stop(self) -> None:
        """Stop the simulation of the wire; its ports keep their last values."""
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
    """Connect two links in both directions; the wire `there` leads from `one` to `other`."""
    return LinkWire(one, other, there), LinkWire(other, one, back)


class LinkPeer:
    """The other end of a design's link, simulated by the model `LinkEnd`.

    Parameters
    ----------
    port : LinkPort
        Link of the design.
    spec : LinkEngineSpec
        Specification of both ends.
    there, back : WireSpec, optional
        Wires from the design and to it; by default wires without faults.
    seed : int
        Seed of the session numbers.

    Attributes
    ----------
    end : LinkEnd
        Model, with its state and its counts.
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
        self._coming = bytearray()  # bytes so far of the frame that arrives
        self._going: deque[Beat] = deque()
        self._to_send: list[deque[tuple[bytes, bool]]] = [deque() for _ in range(NUM_CHANNELS)]
        self._words: list[list[bytes]] = [[] for _ in range(NUM_CHANNELS)]
        self._packets: list[Queue[Packet]] = [Queue() for _ in range(NUM_CHANNELS)]
        self.end.enable()
        self._task = cocotb.start_soon(self._run())

    def stop(self) -> None:
        """Stop the peer."""
        self._task.cancel()

    def send(self, channel: int, packet: Packet) -> None:
        """Queue a packet to be sent."""
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
        """Pass words to the model, and take out the words that have arrived."""
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
    """Packet that consists of the words of a channel; the first word has the tag."""
    data = np.frombuffer(b"".join(words[1:]), np.uint8)
    return Packet(int.from_bytes(words[0][:STREAM_BYTES], "little"), data.reshape(-1, WORD_BYTES))
