"""Drivers and sinks for AXI4-Streams of a design whose ports have flat names.

A stream with the prefix ``m_axis_x`` has the ports ``m_axis_x_tdata``, ``_tkeep``, ``_tlast``,
``_tvalid`` and ``_tready``; it transfers a `Beat` at each rising clock edge at which tvalid and
tready are high.
"""

import random
from collections.abc import Iterable
from typing import Any

from fpgapipe.sim_tb.drivers.stream import Driver, Sink
from fpgapipe.sim_tb.native.phy import Beat, beats_of, bytes_of


class AxiStreamPorts:
    """Ports of a stream.

    Parameters
    ----------
    dut
        The design, with its clock ``clk``.
    prefix : str

    Attributes
    ----------
    prefix : str
    bytes : int
        Width of the stream, bytes.
    clk, valid, ready
        Ports.
    """

    def __init__(self, dut: Any, prefix: str) -> None:
        self.prefix = prefix
        self.clk = dut.clk
        self.valid = getattr(dut, f"{prefix}_tvalid")
        self.ready = getattr(dut, f"{prefix}_tready")
        self._data = getattr(dut, f"{prefix}_tdata")
        self._keep = getattr(dut, f"{prefix}_tkeep")
        self._last = getattr(dut, f"{prefix}_tlast")
        self.bytes = len(self._data) // 8

    def show(self, beat: Beat) -> None:
        """Drive the data ports to show a beat."""
        self._data.value = beat.data
        self._keep.value = beat.keep
        self._last.value = int(beat.last)

    def seen(self) -> Beat:
        """Beat that the data ports show."""
        return Beat(
            int(self._data.value),
            int(self._keep.value),
            bool(self._last.value),
        )


class AxiStreamDriver(Driver):
    """Sends beats into a slave port of a design.

    Parameters
    ----------
    dut
        The design, with its clock ``clk``.
    prefix : str
        Prefix of the port, such as ``s_axis_x``.
    rng : random.Random, optional
        Source of the pauses; without it there are none.
    """

    def __init__(self, dut: Any, prefix: str, rng: random.Random | None = None) -> None:
        self._ports = ports = AxiStreamPorts(dut, prefix)
        super().__init__(prefix, ports.clk, ports.valid, ports.ready, rng)

    def _show(self, word: Beat) -> None:
        self._ports.show(word)

    async def send_frames(self, frames: Iterable[bytes]) -> None:
        """Send frames, each of which ends with a beat with tlast; the timing is that of `send`."""
        for frame in frames:
            await self.send(beats_of(frame, self._ports.bytes))


class AxiStreamSink(Sink):
    """Receives beats from a master port of a design, and checks that a waiting one does not change.

    Parameters
    ----------
    dut, prefix, rng
        See `AxiStreamDriver`; a prefix is ``m_axis_x``, for example.
    """

    def __init__(self, dut: Any, prefix: str, rng: random.Random | None = None) -> None:
        self._ports = ports = AxiStreamPorts(dut, prefix)
        super().__init__(prefix, ports.clk, ports.valid, ports.ready, rng)

    def _seen(self) -> Beat:
        return self._ports.seen()

    async def receive_frame(self) -> bytes:
        """Receive beats up to one with tlast; returns the kept bytes. Timing as in `receive`."""
        parts = []
        while True:
            (beat,) = await self.receive(1)
            parts.append(bytes_of(beat))
            if beat.last:
                return b"".join(parts)
