"""Latencies that a link adds to SEND and RECEIVE, for the cycle model of several cores."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.engine_cycles import LOAD_CYCLES, SEND_CYCLES, SIGNAL_CYCLES
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.model.dma import burst_words
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES, LinkEngineSpec

ENTER_CYCLES = 4
"""Cycles from the end of a word's beat on the bus to the word's entry into the link."""

TRANSMIT_CYCLES = 7
"""Cycles from the entry of a frame's last word to the frame's first beat on the wire."""

ARRIVE_CYCLES = 11
"""Cycles from the end of a frame's last beat, at the receiving end, to the frame's first word."""

FREED_CYCLES = 5
"""Cycles from the moment a frame's last word leaves the link to a trailer that can report it."""

HEARD_CYCLES = 8
"""Cycles from the end of a trailer's beat, at the end that receives it, to the entry of a word that
takes the room which the trailer reports."""

WRITE_CYCLES = 6
"""Cycles from the end of the last word of a burst that a RECEIVE takes to the burst's first beat on
the bus."""


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


def slot_cycles(link: LinkEngineSpec, wire: WireTiming) -> float:
    """Cycles from the entry of a full frame into its slot to the entry of the next frame in it.

    The other end writes a frame's words to memory in bursts, the last of which also has words of
    the next frame. Then a trailer reports that the frame's buffer is free.
    """
    rate = min(wire.bytes_per_cycle, link.phy_bytes)
    frame = (link.frame_words * WORD_BYTES + TRAILER_BYTES) / rate
    there = TRANSMIT_CYCLES + 2 * frame + wire.latency_cycles + ARRIVE_CYCLES
    return there + 1 + FREED_CYCLES + TRAILER_BYTES / rate + wire.latency_cycles + HEARD_CYCLES


def transfer_cycles(words: int, link: LinkEngineSpec, slots: int, wire: WireTiming) -> float:
    """Cycles for which a packet occupies the wire, or its frames the slots, if that is longer."""
    rate = min(wire.bytes_per_cycle, link.phy_bytes)
    frames = -(-(words + 1) // link.frame_words)
    takes = ((words + 1) * WORD_BYTES + frames * TRAILER_BYTES) / rate
    if not _waits_for_slots(link, slots, wire):
        return takes
    return max(takes, frames * slot_cycles(link, wire) / slots)


def _waits_for_slots(link: LinkEngineSpec, slots: int, wire: WireTiming) -> bool:
    """Whether full frames fill all slots before the first one is free again."""
    rate = min(wire.bytes_per_cycle, link.phy_bytes)
    frame = (link.frame_words * WORD_BYTES + TRAILER_BYTES) / rate
    return slots * frame < slot_cycles(link, wire)


def arrivals(
    begins: Sequence[float],
    reads: Sequence[float],
    words: Sequence[int],
    ends: tuple[LinkEngineSpec, CoreSpec],
    memories: tuple[MemorySpec, MemorySpec],
    wire: WireTiming,
    slots: int,
) -> list[float]:
    """Times at which packets are in memory, if RECEIVEs wait for them and the link is free.

    Parameters
    ----------
    begins, reads : sequence of float
        Times at which the packets' SENDs begin, in order, and times at which they would end if the
        link took every word at once.
    words : sequence of int
        Number of words of each packet, without its tag.
    ends : (LinkEngineSpec, CoreSpec)
        The link that sends, and the core that receives.
    memories : (MemorySpec, MemorySpec)
        Memories of the sending and the receiving device.
    wire : WireTiming
        The cable between them.
    slots : int
        Frames of the packets' channel that either end of the link buffers, all free before.

    Returns
    -------
    list of float
        Times at which an instruction that waits for each RECEIVE can begin.
    """
    link, core = ends
    rate = min(wire.bytes_per_cycle, link.phy_bytes)
    before = LOAD_CYCLES + memories[0].latency_cycles + ENTER_CYCLES + TRANSMIT_CYCLES
    last_behind = ENTER_CYCLES - SEND_CYCLES + TRANSMIT_CYCLES
    behind = wire.latency_cycles + ARRIVE_CYCLES + WRITE_CYCLES
    behind += memories[1].latency_cycles + SIGNAL_CYCLES
    free = -inf
    found = []
    waits = _waits_for_slots(link, slots, wire)
    credit = _Credit(link, burst_words(core), rate, wire.latency_cycles, slots)
    for begin, read, count in zip(begins, reads, words, strict=True):
        frames, last = divmod(count + 1 + link.frame_words - 1, link.frame_words)
        last += 1  # words of the last frame
        first = min(count + 1, link.frame_words)
        takes = (count + 1) * WORD_BYTES + frames * TRAILER_BYTES
        free = max(free, begin + before + first) + takes / rate
        # A frame is sent when it is full.
        free = max(free, read + last_behind + (last * WORD_BYTES + TRAILER_BYTES) / rate)
        if waits:
            free = max(free, credit.sent(count, begin + before))
        burst = min((count - 1) % burst_words(core) + 1, count)
        found.append(free + behind + min(last, burst) + burst)
    return found


class _Credit:
    """Times at which frames are sent if they have to wait for free slots at the other end.

    Parameters
    ----------
    link : LinkEngineSpec
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
        self, link: LinkEngineSpec, burst: int, rate: float, latency_cycles: int, slots: int
    ) -> None:
        self._frame_words = link.frame_words
        self._burst = burst
        self._rate = rate
        self._latency = latency_cycles
        self._free: deque[float] = deque([-inf] * slots)  # when each free slot became free
        self._wire_from = self._enter_from = -inf

    def sent(self, words: int, first: float) -> float:
        """Send a packet, and return the time at which its last frame has been sent.

        `first` is the time at which its first word could be on the wire. One further word follows
        per cycle.
        """
        total = words + 1
        held = 0  # frames of this packet that keep their slots
        taken = 0  # words that the other end has written to memory
        for at in range(0, total, self._frame_words):
            size = min(self._frame_words, total - at)
            slot = self._free.popleft() if self._free else self._wire_from
            self._enter_from = max(slot, first + at + size - TRANSMIT_CYCLES, self._enter_from)
            self._enter_from += size if self._enter_from == slot else 0
            takes = (size * WORD_BYTES + TRAILER_BYTES) / self._rate
            self._wire_from = max(self._wire_from, self._enter_from + TRANSMIT_CYCLES) + takes
            held += 1
            come = at + size - 1  # words without the tag
            taken = words if come == words else come // self._burst * self._burst
            freed = held if taken == words else (taken + 1) // self._frame_words
            before = at // self._frame_words + 1 - held
            heard = self._wire_from + self._latency + ARRIVE_CYCLES + 1 + FREED_CYCLES
            heard += TRAILER_BYTES / self._rate + self._latency + HEARD_CYCLES
            some = held if taken == words else max(freed - before, 0)
            self._free.extend([heard] * some)
            held -= some
        return self._wire_from
