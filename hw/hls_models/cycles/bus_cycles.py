"""The core's memory bus in the cycle model: which transfers move words, how fast, in which order.

Loads and the program are read in the order of their requests, so program words wait for the words
that loads have requested before. Each direction can keep a limited number of bursts under way, so
short bursts are limited by the memory's latency.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf, nextafter
from typing import Any

from fpgapipe.hw.hls_models.cycles.instruction_cycles import words_of_transfer
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.model.link_dma import send_words
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

LOAD_HOLD_CYCLES = 2
"""Cycles for which a read burst counts as under way, in addition to its latency and its data."""

STORE_HOLD_CYCLES = 9
"""Cycles for which a write burst counts as under way, in addition to its latency and its data."""

NEVER = inf
"""Time of an event that does not happen."""

_EPSILON = 1e-6


class Flow:
    """Words that are still to move over the bus, in one direction.

    Attributes
    ----------
    index : int
        Number of the instruction that ends with these words; negative if none does.
    words : float
        Number of words that are left.
    burst_words : float
        Words per burst; 0 for words of the program.
    begins : float
        Earliest time at which the first word may move.
    began : float
        Time at which it moved; `NEVER` if it has not.
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
        """Keep another flow from moving until `hold` cycles after the beginning of this one."""
        if self.began < NEVER:
            follower.begins = max(follower.begins, self.began + hold)
        else:
            self._follower, self._hold = follower, hold

    def begin(self, now: float) -> None:
        """Note that the first word moves now, if it has not moved before."""
        if self.began == NEVER:
            self.began = now
            if self._follower is not None:
                self.precede(self._follower, self._hold)

    def split(self, words: float) -> "Flow":
        """Keep `words` words, and return the others as a flow of their own."""
        rest = Flow(self.index, self.words - words, self.burst_words, self.begins)
        self.index, self.words = -1, words
        return rest


class Channel:
    """One direction of the bus: words move in the order in which they were requested.

    Parameters
    ----------
    core : CoreSpec
    rate : float
        Largest number of words per cycle.
    hold : int
        Cycles for which a burst counts as under way, in addition to its data.
    most_words : int
        Largest number of words that may be requested at a time.
    """

    def __init__(self, core: CoreSpec, rate: float, hold: int, most_words: int) -> None:
        self.core = core
        self.most_words = most_words
        self.outstanding = core.outstanding
        self.fastest = rate
        self.hold = hold
        self.queue: deque[Flow] = deque()
        self.rate = 0.0
        self.free = 0.0  # earliest begin of the next burst, given the earlier requests
        self.opener: Flow | None = None  # the flow whose first burst took the first place
        self.places = 0  # places that are left for bursts under way
        self.waiting = 0  # flows of bursts in the queue
        self.emptied = -NEVER  # time at which the last one of them ended

    def transfer(self, index: int, body: Mapping[str, Any], begins: float) -> None:
        """Request the words of a load, a store or a packet."""
        self.ask(index, *words_of_transfer(body, self.core), begins)

    def ask(self, index: int, words: int, bursts: int, begins: float) -> None:
        """Request words.

        If all places are taken while the first burst is still under way, the next ones wait for it.
        """
        burst = words / bursts
        hold = self.hold + burst / self.fastest
        # One burst is requested per cycle, and one cycle is lost between instructions.
        begins = max(begins, self.free)
        self.free = begins + bursts + 1
        if not self.waiting and begins >= self.emptied + self.hold:
            self.opener, self.places = None, 0  # no burst is under way any more
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
            self.waiting += 1

    def wants(self, now: float) -> float:
        """Return how many words per cycle the channel could move now."""
        if not self.queue or self.queue[0].begins > now + _EPSILON:
            return 0.0
        self.queue[0].begin(now)
        return self.fastest

    def asked(self) -> float:
        """Return the approximate number of words that are requested at present."""
        words = 0.0
        for flow in self.queue:
            words += flow.words
            if words >= self.most_words:
                break
        # A frame that has only the tag has no words to move, but it needs a share to be finished.
        return max(min(words, self.most_words), _EPSILON)

    def move(self, elapsed: float, now: float) -> Flow | None:
        """Move words until now, and return the flow that has ended, if one has."""
        if not self.rate:
            return None
        flow = self.queue[0]
        flow.words -= self.rate * elapsed
        if flow.words > _EPSILON:
            return None
        self.rate = 0.0
        if flow.burst_words:
            self.waiting -= 1
            self.emptied = now
        return self.queue.popleft()

    def next(self, now: float) -> float:
        """Return the time at which the first flow ends or can begin."""
        if self.rate:
            then = now + self.queue[0].words / self.rate
            # At late times, the rest may take less than the resolution of a floating-point number.
            return then if then > now else nextafter(now, NEVER)
        return self.queue[0].begins if self.queue and self.queue[0].begins > now else NEVER


class Bus:
    """The memory bus: a channel for reads and one for writes, which share the memory's bandwidth.

    Each link has two further channels, for sent and for received packets, which are no faster than
    the link.

    Parameters
    ----------
    core : CoreSpec
    bytes_per_cycle : float
        Bandwidth of the memory, reads and writes together.
    latency_cycles : int
        Cycles from a read's request to its data, and from a write's data to its response.
    link_bytes_per_cycle : sequence of float
        Payload bandwidth of each link.

    Attributes
    ----------
    packets : list of (Channel, Channel)
        For each link, the channel of the packets that it sends and that of those it receives.
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
        # Loads and stores are no faster than their ports of the scratchpad.
        own = min(rate, core.scratchpad.port_bytes / WORD_BYTES)
        self.reads = Channel(core, own, hold, words)
        self.writes = Channel(core, own, store_hold, burst)
        self.packets = []
        for link in link_bytes_per_cycle:
            most = min(rate, link / WORD_BYTES)
            sent = Channel(core, most, hold, min(words, send_words(core)))
            self.packets.append((sent, Channel(core, most, store_hold, burst)))
        self.last = 0.0  # time until which words have been moved
        self.next = NEVER  # time at which the first flow ends or can begin
        self.written = 0.0  # time at which the last word was written

    def fetch(self, words: int, now: float) -> None:
        """Request words of the program, which come after the words that loads have requested."""
        queue = self.reads.queue
        places = float(self.reads.outstanding)
        place = 0
        for at, flow in enumerate(queue):
            if flow.burst_words:
                if flow.begins - self.latency > now:
                    break
                # One burst per cycle has been requested so far.
                places = min(places, now - flow.begins + self.latency + 1)
                asked = places * flow.burst_words
                if flow.words > asked:
                    if asked > _EPSILON:
                        place = at + 1
                        queue.insert(place, flow.split(asked))
                        self.reads.waiting += 1
                    break
                places -= flow.words / flow.burst_words
            place = at + 1
        # Program words that wait here were requested before.
        while place < len(queue) and not queue[place].burst_words:
            place += 1
        queue.insert(place, Flow(-1, words, 0, now + self.latency))

    def move(self, now: float) -> tuple[Flow | None, Flow | None, list[tuple[bool, Flow]]]:
        """Move words until now, and return the flows of reads, writes and packets that have ended.

        The flow of a packet comes with whether the packet was sent (or else received).
        """
        elapsed = now - self.last
        self.last = now
        read, write = self.reads.move(elapsed, now), self.writes.move(elapsed, now)
        ended = []
        for pair in self.packets:
            for channel in pair:
                if (flow := channel.move(elapsed, now)) is not None:
                    ended.append((channel is pair[0], flow))
        if write is not None or not all(sent for sent, _ in ended):
            self.written = now
        return read, write, ended

    def share(self, now: float) -> None:
        """Set the rates: each direction gets up to half of the rate, and what the other leaves."""
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
        """Raise all rates until each is as high as wanted, or a direction or the memory is full.

        The two directions alternate at the memory. Within a direction, the rates grow in proportion
        to the words that each channel has requested: reads are served in the order of their
        requests, and writers alternate with one burst each.
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
