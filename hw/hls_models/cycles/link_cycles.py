"""What a link adds to the times of SEND and RECEIVE, for the cycle model of several cores."""

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
"""From behind a word's beat on the bus to its entry into the link."""

TRANSMIT_CYCLES = 7
"""From the entry of a frame's last word to its first beat on the wire."""

ARRIVE_CYCLES = 11
"""From behind a frame's last beat, at the other end, to its first word there."""

FREED_CYCLES = 5
"""From the leaving of a frame's last word to a trailer that can say so."""

HEARD_CYCLES = 8
"""From behind a trailer's beat, at the other end, to a word that takes the room it tells of."""

WRITE_CYCLES = 6
"""From behind the last word of a burst that a RECEIVE takes to the burst's first beat."""


@dataclass(frozen=True)
class WireTiming:
    """A cable between two links, in either direction.

    Parameters
    ----------
    bytes_per_cycle : float
        Line rate.
    latency_cycles : int
        From a beat's departure to its arrival, at least 1.
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
    """When packets are in memory, if RECEIVEs wait for them and the wire is free.

    Parameters
    ----------
    begins, reads : sequence of float
        When their SENDs begin, in order, and when they would end with a link that takes everything.
    words : sequence of int
        Of each, without its tag.
    ends : (LinkEngineSpec, CoreSpec)
        The link that sends, and the core that receives.
    memories : (MemorySpec, MemorySpec)
        Of both devices.
    wire : WireTiming

    Returns
    -------
    list of float
        When something that waits for the RECEIVE can begin.
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
        # A frame goes when it is full.
        free = max(free, read + last_behind + (last * WORD_BYTES + TRAILER_BYTES) / rate)
        burst = min((count - 1) % burst_words(core) + 1, count)
        found.append(free + behind + min(last, burst) + burst)
    return found
