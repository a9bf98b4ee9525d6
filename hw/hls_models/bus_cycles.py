"""The core's memory bus in the cycle model: who moves words, how fast, and what waits for what.

Loads and the program are read in the order of their requests, so program words wait for those that
loads have asked for. Either direction keeps a number of bursts under way, so short ones wait for
the memory's latency.
"""

from collections import deque
from collections.abc import Mapping
from math import inf
from typing import Any

from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.instruction_cycles import words_of_transfer
from fpgapipe.hw.hls_models.isa import WORD_BYTES

LOAD_HOLD_CYCLES = 2
"""For which a read burst keeps its place among those under way, beside its latency and data."""

STORE_HOLD_CYCLES = 9
"""For which a write burst keeps its place among those under way, beside its latency and data."""

NEVER = inf
"""The time of what does not happen."""

_EPSILON = 1e-6


class Flow:
    """Words that are still to move over the bus, in one direction.

    Attributes
    ----------
    index : int
        The instruction that ends with them; negative if none does.
    words : float
    burst_words : float
        0 for words of the program.
    begins : float
        When the first may move at the earliest.
    began : float
        When it moved.
    """

    __slots__ = ("_follower", "_hold", "began", "begins", "burst_words", "index", "words")

    def __init__(self, index: int, words: float, burst_words: float, begins: float) -> None:
        self.index = index
        self.words = words
        self.burst_words = burst_words
        self.begins = begins
        self.began = NEVER
        self._follower: Flow | None = None
        self._hold = 0.0

    def precede(self, follower: "Flow", hold: float) -> None:
        """Keep another flow from moving for some cycles from the beginning of this one."""
        if self.began < NEVER:
            follower.begins = max(follower.begins, self.began + hold)
        else:
            self._follower, self._hold = follower, hold

    def begin(self, now: float) -> None:
        """The first word moves, if it has not."""
        if self.began == NEVER:
            self.began = now
            if self._follower is not None:
                self.precede(self._follower, self._hold)

    def split(self, words: float) -> "Flow":
        """Keep so many words; returns the others as a flow of their own."""
        rest = Flow(self.index, self.words - words, self.burst_words, self.begins)
        self.index, self.words = -1, words
        return rest


class Channel:
    """One direction of the bus: words move in the order in which they were asked for.

    Parameters
    ----------
    core : CoreSpec
    rate : float
        Words a cycle at most.
    hold : int
        Cycles for which a burst keeps its place among those under way, beside its data.
    """

    def __init__(self, core: CoreSpec, rate: float, hold: int) -> None:
        self.core = core
        self.outstanding = core.outstanding
        self.fastest = rate
        self.hold = hold
        self.queue: deque[Flow] = deque()
        self.rate = 0.0
        self.free = 0.0  # when the next burst can begin, by what was asked for before
        self.opener: Flow | None = None  # whose first burst took the first of the places
        self.places = 0  # that are left

    def transfer(self, index: int, body: Mapping[str, Any], begins: float) -> None:
        """Ask for the words of a load or store.

        If the first burst is still under way when all places are taken, the next ones wait for it.
        """
        words, bursts = words_of_transfer(body, self.core)
        burst = words / bursts
        hold = self.hold + burst / self.fastest
        # Bursts are asked for one a cycle; a cycle is lost between instructions.
        begins = max(begins, self.free)
        self.free = begins + bursts + 1
        while bursts:
            opener = self.opener
            opens = opener is None or not self.places
            if opens:
                self.places = self.outstanding
            some = min(bursts, self.places)
            bursts -= some
            self.places -= some
            flow = Flow(-1 if bursts else index, some * burst, burst, begins)
            begins += some
            if opens:
                self.opener = flow
                if opener is not None:
                    opener.precede(flow, hold)
            self.queue.append(flow)

    def wants(self, now: float) -> float:
        """Words a cycle that it could move."""
        if not self.queue or self.queue[0].begins > now + _EPSILON:
            return 0.0
        self.queue[0].begin(now)
        return self.fastest

    def move(self, elapsed: float) -> Flow | None:
        """Move words; returns the flow that has ended."""
        if not self.rate:
            return None
        flow = self.queue[0]
        flow.words -= self.rate * elapsed
        if flow.words > _EPSILON:
            return None
        self.rate = 0.0
        return self.queue.popleft()

    def next(self, now: float) -> float:
        """When the first of the flows ends or can begin."""
        if self.rate:
            return now + self.queue[0].words / self.rate
        return self.queue[0].begins if self.queue and self.queue[0].begins > now else NEVER


class Bus:
    """The memory bus: a channel for reads and one for writes, which share what the memory can do.

    Parameters
    ----------
    core : CoreSpec
    bytes_per_cycle : float
        Of the memory, read and written together.
    latency_cycles : int
        From a read's request to its data, and from a write's data to its response.
    """

    def __init__(self, core: CoreSpec, bytes_per_cycle: float, latency_cycles: int) -> None:
        self.latency = latency_cycles
        self.rate = bytes_per_cycle / WORD_BYTES
        rate = min(core.bus_bytes / WORD_BYTES, self.rate)
        self.reads = Channel(core, rate, self.latency + LOAD_HOLD_CYCLES)
        self.writes = Channel(core, rate, self.latency + STORE_HOLD_CYCLES)
        self.last = 0.0  # when words were moved
        self.next = NEVER  # when the first of the flows ends or can begin
        self.written = 0.0  # when the last word was

    def fetch(self, words: int, now: float) -> None:
        """Ask for words of the program: they come behind what loads have asked for."""
        queue = self.reads.queue
        places = float(self.reads.outstanding)
        place = 0
        for at, flow in enumerate(queue):
            if flow.burst_words:
                if flow.begins - self.latency > now:
                    break
                # One burst a cycle has been asked for.
                places = min(places, now - flow.begins + self.latency + 1)
                asked = places * flow.burst_words
                if flow.words > asked:
                    if asked > _EPSILON:
                        place = at + 1
                        queue.insert(place, flow.split(asked))
                    break
                places -= flow.words / flow.burst_words
            place = at + 1
        # Program words that wait further behind were asked for before.
        while place < len(queue) and not queue[place].burst_words:
            place += 1
        queue.insert(place, Flow(-1, words, 0, now + self.latency))

    def move(self, now: float) -> tuple[Flow | None, Flow | None]:
        """Move words until now; returns what of reads and of writes has ended."""
        elapsed = now - self.last
        self.last = now
        read, write = self.reads.move(elapsed), self.writes.move(elapsed)
        if write is not None:
            self.written = now
        return read, write

    def share(self, now: float) -> None:
        """Settle rates: either direction gets half if it can use it, and what the other leaves."""
        read, write = self.reads.wants(now), self.writes.wants(now)
        if read + write > self.rate:
            half = self.rate / 2
            read, write = (
                min(read, max(half, self.rate - write)),
                min(write, max(half, self.rate - read)),
            )
        self.reads.rate, self.writes.rate = read, write
        self.next = min(self.reads.next(now), self.writes.next(now))
