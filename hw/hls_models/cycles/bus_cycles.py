"""The core's memory bus in the cycle model: who moves words, how fast, and what waits for what.

Loads and the program are read in the order of their requests, so program words wait for those that
loads have asked for. Either direction keeps a number of bursts under way, so short ones wait for
the memory's latency.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf, nextafter
from typing import Any

from fpgapipe.hw.hls_models.cycles.instruction_cycles import words_of_transfer
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.model.link_dma import SEND_WORDS
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

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
    most_words : int
        That may be asked for at a time.
    """

    def __init__(self, core: CoreSpec, rate: float, hold: int, most_words: int) -> None:
        self.core = core
        self.most_words = most_words
        self.outstanding = core.outstanding
        self.fastest = rate
        self.hold = hold
        self.queue: deque[Flow] = deque()
        self.rate = 0.0
        self.free = 0.0  # when the next burst can begin, by what was asked for before
        self.opener: Flow | None = None  # whose first burst took the first of the places
        self.places = 0  # that are left

    def transfer(self, index: int, body: Mapping[str, Any], begins: float) -> None:
        """Ask for the words of a load or store, or of a packet."""
        self.ask(index, *words_of_transfer(body, self.core), begins)

    def ask(self, index: int, words: int, bursts: int, begins: float) -> None:
        """Ask for words.

        If the first burst is still under way when all places are taken, the next ones wait for it.
        """
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

    def asked(self) -> float:
        """Words that it has asked for, about."""
        words = 0.0
        for flow in self.queue:
            words += flow.words
            if words >= self.most_words:
                break
        # A frame of a tag alone has none, but its turn comes, too.
        return max(min(words, self.most_words), _EPSILON)

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
            then = now + self.queue[0].words / self.rate
            # Of late times, fractions of a word take less than a number can tell.
            return then if then > now else nextafter(now, NEVER)
        return self.queue[0].begins if self.queue and self.queue[0].begins > now else NEVER


class Bus:
    """The memory bus: a channel for reads and one for writes, which share what the memory can do.

    Each link has two more, for what it sends and receives, which are no faster than the link.

    Parameters
    ----------
    core : CoreSpec
    bytes_per_cycle : float
        Of the memory, read and written together.
    latency_cycles : int
        From a read's request to its data, and from a write's data to its response.
    link_bytes_per_cycle : sequence of float
        Payload of each link.

    Attributes
    ----------
    packets : list of (Channel, Channel)
        Of each link, what it sends and what it receives.
    """

    def __init__(
        self,
        core: CoreSpec,
        bytes_per_cycle: float,
        latency_cycles: int,
        link_bytes_per_cycle: Sequence[float] = (),
    ) -> None:
        self.latency = latency_cycles
        self.rate = bytes_per_cycle / WORD_BYTES
        self._width = core.bus_bytes / WORD_BYTES
        rate = min(self._width, self.rate)
        hold, store_hold = self.latency + LOAD_HOLD_CYCLES, self.latency + STORE_HOLD_CYCLES
        burst = max(core.burst_beats * core.bus_bytes // WORD_BYTES, 1)
        words = core.outstanding * burst
        self.reads = Channel(core, rate, hold, words)
        self.writes = Channel(core, rate, store_hold, burst)
        self.packets = []
        for link in link_bytes_per_cycle:
            most = min(rate, link / WORD_BYTES)
            sent = Channel(core, most, hold, min(words, SEND_WORDS))
            self.packets.append((sent, Channel(core, most, store_hold, burst)))
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

    def move(self, now: float) -> tuple[Flow | None, Flow | None, list[tuple[bool, Flow]]]:
        """Move words until now; returns what of reads, of writes and of packets has ended.

        Of packets, with whether they were sent.
        """
        elapsed = now - self.last
        self.last = now
        read, write = self.reads.move(elapsed), self.writes.move(elapsed)
        ended = []
        for pair in self.packets:
            for channel in pair:
                if (flow := channel.move(elapsed)) is not None:
                    ended.append((channel is pair[0], flow))
        if write is not None or not all(sent for sent, _ in ended):
            self.written = now
        return read, write, ended

    def share(self, now: float) -> None:
        """Settle rates: either direction gets half if it can use it, and what the other leaves."""
        if self.packets:
            self._share_with_packets(now)
            return
        read, write = self.reads.wants(now), self.writes.wants(now)
        if read + write > self.rate:
            half = self.rate / 2
            read, write = (
                min(read, max(half, self.rate - write)),
                min(write, max(half, self.rate - read)),
            )
        self.reads.rate, self.writes.rate = read, write
        self.next = min(self.reads.next(now), self.writes.next(now))

    def _share_with_packets(self, now: float) -> None:
        """Let all grow until they have what they want, or a direction or the memory is full.

        The two directions take turns at the memory. Reads come in the order of their requests, so
        each reader gets as much as it may have asked for; writers take turns.
        """
        reads = [self.reads, *(sent for sent, _ in self.packets)]
        writes = [self.writes, *(received for _, received in self.packets)]
        wants = {channel: channel.wants(now) for channel in (*reads, *writes)}
        growing = {channel for channel, most in wants.items() if most}
        for channel in wants:
            channel.rate = 0.0
        limits = [(reads, self._width), (writes, self._width), (reads + writes, self.rate)]
        while growing:
            shares: dict[Channel, float] = {}
            for members in (reads, writes):
                parts = {each: each.asked() for each in members if each in growing}
                total = _total(parts.values())
                shares |= {each: part / total for each, part in parts.items()}
            step = min((wants[channel] - channel.rate) / shares[channel] for channel in growing)
            for members, most in limits:
                if sharers := _total(shares.get(channel, 0.0) for channel in members):
                    step = min(step, (most - _total(each.rate for each in members)) / sharers)
            for channel in growing:
                channel.rate += step * shares[channel]
            growing = {each for each in growing if wants[each] - each.rate > _EPSILON}
            for members, most in limits:
                if most - _total(channel.rate for channel in members) <= _EPSILON:
                    growing -= set(members)
        self.next = min(channel.next(now) for channel in wants)


def _total(values: Iterable[float]) -> float:
    """Add up in order, and round each time; `sum` does so up to Python 3.11 only."""
    total = 0.0
    for value in values:
        total += value
    return total
