"""Latencies that a link adds to SEND and RECEIVE, for the cycle model of several cores."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.end_cycles import end_cycles
from fpgapipe.hw.hls_models.cycles.engine_cycles import LOAD_CYCLES, SEND_CYCLES, SIGNAL_CYCLES
from fpgapipe.hw.hls_models.cycles.port_cycles import ENTER_CYCLES, WRITE_CYCLES
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.model.dma import burst_words
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec


@dataclass(frozen=True)
class WireTiming:
    """A cable between two links, in either direction.

    Parameters
    ----------
    bytes_per_cycle : float
        Line rate, per direction.
    latency_cycles : int
        Cycles from a beat's departure to its arrival, at least 1.
    """

    bytes_per_cycle: float = 16
    latency_cycles: int = 128

    def __post_init__(self) -> None:
        if not self.bytes_per_cycle > 0:
            raise ValueError(f"wire bytes_per_cycle must be above 0, not {self.bytes_per_cycle!r}")
        if self.latency_cycles < 1:
            raise ValueError(f"wire latency_cycles must be at least 1, not {self.latency_cycles!r}")


def slot_cycles(link: LinkEndSpec, wire: WireTiming) -> float:
    """Cycles from the entry of a full frame into its slot to the entry of the next frame in it.

    The other end writes a frame's words to memory in bursts, the last of which also has words of
    the next frame. Then a trailer reports that the frame's buffer is free.
    """
    rate = min(wire.bytes_per_cycle, link.phy_bytes)
    frame = (link.frame_words * WORD_BYTES + link.overhead_bytes) / rate
    ends = end_cycles(link)
    there = ends.transmit + 2 * frame + wire.latency_cycles + ends.arrive
    # The words of a frame leave while later ones arrive, but pass in parts as slowly as they came.
    leaves = 1 if link.parts == 1 else link.frame_parts
    back = ends.freed + link.overhead_bytes / rate + wire.latency_cycles + ends.heard
    return there + leaves + back


def transfer_cycles(words: int, link: LinkEndSpec, slots: int, wire: WireTiming) -> float:
    """Cycles for which a packet occupies the wire, or its frames the slots, if that is longer."""
    rate = min(wire.bytes_per_cycle, link.phy_bytes)
    frames = -(-(words + 1) // link.frame_words)
    takes = ((words + 1) * WORD_BYTES + frames * link.overhead_bytes) / rate
    if not waits_for_slots(link, slots, wire):
        return takes
    return max(takes, frames * slot_cycles(link, wire) / slots)


def waits_for_slots(link: LinkEndSpec, slots: int, wire: WireTiming) -> bool:
    """Whether full frames fill all slots of a channel before the first one is free again."""
    rate = min(wire.bytes_per_cycle, link.phy_bytes)
    frame = (link.frame_words * WORD_BYTES + link.overhead_bytes) / rate
    return slots * frame < slot_cycles(link, wire)


class PacketTimes:
    """When packets that follow each other on a channel of a link have arrived.

    The other end waits for them with RECEIVEs, and the link has nothing else to send. The slots are
    all free before the first packet.

    Parameters
    ----------
    ends : (LinkEndSpec, CoreSpec)
        The link that sends, and the core that receives.
    memories : (MemorySpec, MemorySpec)
        Memories of the sending and the receiving device.
    wire : WireTiming
        The cable between them.
    slots : int
        Frames of the packets' channel that either end of the link buffers.

    Attributes
    ----------
    sent : float
        Time at which the last packet so far has left the sending end.
    """

    def __init__(
        self,
        ends: tuple[LinkEndSpec, CoreSpec],
        memories: tuple[MemorySpec, MemorySpec],
        wire: WireTiming,
        slots: int,
    ) -> None:
        link, core = ends
        self._link, self._burst = link, burst_words(core)
        self._parts = link.parts
        self._rate = min(wire.bytes_per_cycle, link.phy_bytes)
        self._ends = end_cycles(link)
        self._before = LOAD_CYCLES + memories[0].latency_cycles + ENTER_CYCLES + self._ends.transmit
        self._behind = wire.latency_cycles + self._ends.arrive + WRITE_CYCLES
        self._behind += memories[1].latency_cycles + SIGNAL_CYCLES
        self._credit = None
        if waits_for_slots(link, slots, wire):
            self._credit = _Credit(link, self._burst, self._rate, wire.latency_cycles, slots)
        self.sent = -inf

    def arrival(self, begin: float, read: float, count: int, taken_from: float = -inf) -> float:
        """Send a packet, and return when an instruction that waits for its RECEIVE can begin.

        Parameters
        ----------
        begin, read : float
            Times at which the packet's SEND begins, and at which it would end if the link took
            every word at once.
        count : int
            Number of words of the packet, without its tag.
        taken_from : float
            Time from which on the other end takes the packet's words. Slots are not free before;
            the arrival that is returned does not take it into account.
        """
        frame_words = self._link.frame_words
        frames, last = divmod(count + 1 + frame_words - 1, frame_words)
        last += 1  # words of the last frame
        first = begin + self._before + min(count + 1, frame_words) * self._parts
        takes = (count + 1) * WORD_BYTES + frames * self._link.overhead_bytes
        sent = max(self.sent, first) + takes / self._rate
        # A frame is sent when it is full.
        last_from = read + ENTER_CYCLES - SEND_CYCLES + self._ends.transmit
        sent = max(sent, last_from + (last * WORD_BYTES + self._link.overhead_bytes) / self._rate)
        if self._credit is not None:
            sent = max(sent, self._credit.sent(count, begin + self._before, taken_from))
        self.sent = sent
        burst = min((count - 1) % self._burst + 1, count)
        return sent + self._behind + min(last, burst) * self._parts + burst


def arrivals(
    begins: Sequence[float], reads: Sequence[float], words: Sequence[int], times: PacketTimes
) -> list[float]:
    """Times at which packets are in memory; the arguments are as for `PacketTimes.arrival`."""
    return [times.arrival(*each) for each in zip(begins, reads, words, strict=True)]


class _Credit:
    """Times at which frames are sent if they have to wait for free slots at the other end.

    Parameters
    ----------
    link : LinkEngineSpec or OnChipSpec
    burst : int
        Words of the bursts in which the other end writes to memory.
    rate : float
        Bytes that go over the wire each cycle.
    latency_cycles : int
        Latency of the wire.
    slots : int
        Slots of the channel.
    """

    def __init__(
        self, link: LinkEndSpec, burst: int, rate: float, latency_cycles: int, slots: int
    ) -> None:
        self._frame_words, self._parts = link.frame_words, link.parts
        self._burst = burst
        self._leaves = 1 if link.parts == 1 else link.frame_parts
        self._rate = rate
        self._overhead_bytes, self._ends = link.overhead_bytes, end_cycles(link)
        self._latency = latency_cycles
        self._free: deque[float] = deque([-inf] * slots)  # when each free slot became free
        self._wire_from = self._enter_from = -inf

    def sent(self, words: int, first: float, taken_from: float) -> float:
        """Send a packet, and return the time at which its last frame has been sent.

        `first` is the time at which its first word could be on the wire. One further word follows
        per cycle. The other end takes words from `taken_from` on.
        """
        total = words + 1
        held = 0  # frames of this packet that keep their slots
        taken = 0  # words that the other end has written to memory
        for at in range(0, total, self._frame_words):
            size = min(self._frame_words, total - at)
            slot = self._free.popleft() if self._free else self._wire_from
            self._enter_from = max(
                slot, first + (at + size) * self._parts - self._ends.transmit, self._enter_from
            )
            self._enter_from += size * self._parts if self._enter_from == slot else 0
            takes = (size * WORD_BYTES + self._overhead_bytes) / self._rate
            self._wire_from = max(self._wire_from, self._enter_from + self._ends.transmit) + takes
            held += 1
            come = at + size - 1  # words without the tag
            taken = words if come == words else come // self._burst * self._burst
            freed = held if taken == words else (taken + 1) // self._frame_words
            before = at // self._frame_words + 1 - held
            heard = max(self._wire_from + self._latency + self._ends.arrive, taken_from)
            heard += self._leaves + self._ends.freed
            heard += self._overhead_bytes / self._rate + self._latency + self._ends.heard
            some = held if taken == words else max(freed - before, 0)
            self._free.extend([heard] * some)
            held -= some
        return self._wire_from
