"""Latencies that a link adds to SEND and RECEIVE, for the cycle model of several cores."""

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


def arrivals(
    begins: Sequence[float],
    reads: Sequence[float],
    words: Sequence[int],
    ends: tuple[LinkEngineSpec, CoreSpec],
    memories: tuple[MemorySpec, MemorySpec],
    wire: WireTiming,
) -> list[float]:
    """Times at which packets are in memory, if RECEIVEs wait for them and the wire is free.

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
    for begin, read, count in zip(begins, reads, words, strict=True):
        frames, last = divmod(count + 1 + link.frame_words - 1, link.frame_words)
        last += 1  # words of the last frame
        first = min(count + 1, link.frame_words)
        takes = (count + 1) * WORD_BYTES + frames * TRAILER_BYTES
        free = max(free, begin + before + first) + takes / rate
        # A frame is sent when it is full.
        free = max(free, read + last_behind + (last * WORD_BYTES + TRAILER_BYTES) / rate)
        burst = min((count - 1) % burst_words(core) + 1, count)
        found.append(free + behind + min(last, burst) + burst)
    return found
