"""The core's memory bus in the cycle model: which transfers move words, how fast, in which order.

Loads and the program are read in the order of their requests, so program words wait for the words
that loads have requested before. Each direction can keep a limited number of bursts under way, so
short bursts are limited by the memory's latency.

A bus has a channel for reads and one for writes, which share the memory's bandwidth. Each link has
two further channels, for sent and for received packets, which are no faster than the link. So the
channels of a bus are reads and writes by turns.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.cycles.cycle_tables import CHANNEL, State
from fpgapipe.hw.hls_models.cycles.event_queue import EPSILON, larger, smaller
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.model.link_dma import send_words
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.interleave import BLOCK_BYTES
from fpgapipe.two_speeds import compilable

LOAD_HOLD_CYCLES = 2
"""Cycles for which a read burst counts as under way, in addition to its latency and its data."""

STORE_HOLD_CYCLES = 9
"""Cycles for which a write burst counts as under way, in addition to its latency and its data."""

NEVER = inf
"""Time of an event that does not happen."""


def channels_of_bus(
    core: CoreSpec, rate: float, latency_cycles: int, link_bytes_per_cycle: Sequence[float]
) -> NDArray[Any]:
    """Return the channels of a bus before any requests.

    Parameters
    ----------
    core : CoreSpec
    rate : float
        Bandwidth of the memory in words per cycle, reads and writes together.
    latency_cycles : int
        Cycles from a read's request to its data, and from a write's data to its response.
    link_bytes_per_cycle : sequence of float
        Payload bandwidth of each link.

    Returns
    -------
    array of CHANNEL
        Reads, writes and, for each link, the packets that it sends and those that it receives.
    """
    port = rate / core.memory_ports
    rate = min(core.bus_bytes / WORD_BYTES, rate)
    # Loads and stores are no faster than their ports of the scratchpad.
    own = min(rate, core.scratchpad.port_bytes / WORD_BYTES)
    links = [min(rate, link / WORD_BYTES) for link in link_bytes_per_cycle]
    burst = max(core.burst_beats * core.bus_bytes // WORD_BYTES, 1)
    words = core.outstanding * burst
    table = np.zeros(2 + 2 * len(links), CHANNEL)
    for name in ("head", "tail", "opener"):
        table[name] = -1
    table["outstanding"] = core.outstanding
    table["emptied"] = -NEVER
    reads, writes = table[::2], table[1::2]
    reads["hold"] = latency_cycles + LOAD_HOLD_CYCLES
    writes["hold"] = latency_cycles + STORE_HOLD_CYCLES
    reads["fastest"] = writes["fastest"] = [own, *links]
    on_link = [min(link / WORD_BYTES, 1) for link in link_bytes_per_cycle]
    reads["on_link"] = writes["on_link"] = [0, *on_link]
    # The chunks of a packet are blocks that follow one another, and so at both ports.
    table["in_block"] = table["fastest"]
    table["in_block"][:2] = np.minimum(own, port)
    reads["most_words"] = [words, *[min(words, send_words(core))] * len(links)]
    writes["most_words"] = burst
    return table


@compilable
def _new_flow(s: State, index: int, words: float, burst: float, begins: float) -> int:
    """Create a flow, and return its number."""
    whole = s.whole[0]
    number: int = whole.free_flow
    if number < 0:
        raise MemoryError("flows")
    flow = s.flows[number]
    whole.free_flow = flow.next
    flow.index, flow.words, flow.asked = index, words, words
    flow.burst, flow.begins = burst, begins
    flow.began, flow.follower, flow.hold, flow.next = NEVER, -1, 0.0, -1
    return number


@compilable
def _free_flow(s: State, number: int) -> None:
    whole = s.whole[0]
    s.flows[number].next = whole.free_flow
    whole.free_flow = number


@compilable
def ask(s: State, channel: int, index: int, words: int, bursts: int, begins: float) -> None:
    """Request words.

    If all places are taken while the first burst is still under way, the next ones wait for it.
    """
    ch = s.channels[channel]
    burst = words / bursts
    hold = ch.hold + burst / ch.fastest
    # One burst is requested per cycle, and one cycle is lost between instructions.
    begins = larger(begins, ch.free)
    ch.free = begins + bursts + 1
    if ch.waiting == 0 and begins >= ch.emptied + ch.hold:
        # No burst is under way any more.
        if ch.opener_left:
            _free_flow(s, ch.opener)
        ch.opener, ch.opener_left, ch.places = -1, 0, 0
    while bursts:
        opens = ch.opener < 0 or ch.places == 0
        if opens:
            ch.places = ch.outstanding
        some = min(bursts, ch.places)
        bursts -= some
        ch.places -= some
        number = _new_flow(s, -1 if bursts else index, some * burst, burst, begins)
        begins += some
        if opens:
            if ch.opener >= 0:
                opener = s.flows[ch.opener]
                if opener.began < NEVER:
                    flow = s.flows[number]
                    flow.begins = larger(flow.begins, opener.began + hold)
                else:
                    opener.follower, opener.hold = number, hold
                if ch.opener_left:
                    _free_flow(s, ch.opener)
            ch.opener, ch.opener_left = number, 0
        if ch.head < 0:
            ch.head = number
        else:
            s.flows[ch.tail].next = number
        ch.tail = number
        ch.waiting += 1


@compilable
def _insert(s: State, channel: int, before: int, number: int) -> None:
    """Insert a flow into a channel's queue after flow `before`, or at the head if that is -1."""
    ch = s.channels[channel]
    if before < 0:
        s.flows[number].next = ch.head
        ch.head = number
    else:
        s.flows[number].next = s.flows[before].next
        s.flows[before].next = number
    if ch.tail == before:
        ch.tail = number


@compilable
def fetch_words(s: State, device: int, now: float) -> None:
    """Request words of the program, which come after the words that loads have requested."""
    d = s.devices[device]
    channel = d.first_channel
    ch = s.channels[channel]
    places = float(ch.outstanding)
    before, number = -1, ch.head
    while number >= 0:
        flow = s.flows[number]
        if flow.burst != 0.0:
            if flow.begins - d.latency > now:
                break
            # One burst per cycle has been requested so far.
            places = smaller(places, now - flow.begins + d.latency + 1)
            asked = places * flow.burst
            if flow.words > asked:
                if asked > EPSILON:
                    rest = _new_flow(s, flow.index, flow.words - asked, flow.burst, flow.begins)
                    flow.index, flow.words, flow.asked = -1, asked, asked
                    before = number
                    _insert(s, channel, before, rest)
                    ch.waiting += 1
                break
            places -= flow.words / flow.burst
        before, number = number, flow.next
    # Program words that wait here were requested before.
    number = ch.head if before < 0 else s.flows[before].next
    while number >= 0 and s.flows[number].burst == 0.0:
        before, number = number, s.flows[number].next
    new = _new_flow(s, -1, float(d.fetch_words), 0.0, now + d.latency)
    _insert(s, channel, before, new)


@compilable
def move_words(s: State, device: int, now: float) -> None:
    """Move words until now, and note in each channel what has ended."""
    d = s.devices[device]
    elapsed = now - d.last
    d.last = now
    for number in range(d.first_channel, d.end_channel):
        ch = s.channels[number]
        ch.ended, ch.ended_program = -1, 0
        if ch.rate == 0.0:
            continue
        flow = s.flows[ch.head]
        flow.words -= ch.rate * elapsed
        if flow.words > EPSILON:
            continue
        ch.rate = 0.0
        ch.ended, ch.ended_program = flow.index, flow.burst == 0.0
        if flow.burst != 0.0:
            ch.waiting -= 1
            ch.emptied = now
        gone = ch.head
        ch.head = flow.next
        if ch.head < 0:
            ch.tail = -1
        if ch.opener == gone:
            ch.opener_left = 1
        else:
            _free_flow(s, gone)
        if (number - d.first_channel) % 2:
            d.written = now


@compilable
def _wants(s: State, channel: int, now: float) -> float:
    """Return how many words per cycle a channel could move now.

    The first word of its first flow then moves, if it has not moved before.
    """
    ch = s.channels[channel]
    if ch.head < 0:
        return 0.0
    flow = s.flows[ch.head]
    if flow.begins > now + EPSILON:
        return 0.0
    if flow.began == NEVER:
        flow.began = now
        if flow.follower >= 0:
            follower = s.flows[flow.follower]
            follower.begins = larger(follower.begins, now + flow.hold)
    if flow.asked <= BLOCK_BYTES // WORD_BYTES:
        return smaller(ch.fastest, ch.in_block)
    fastest: float = ch.fastest
    return fastest


@compilable
def _next_of(s: State, channel: int, now: float) -> float:
    """Return the time at which a channel's first flow ends or can begin."""
    ch = s.channels[channel]
    if ch.head < 0:
        return NEVER
    flow = s.flows[ch.head]
    if ch.rate != 0.0:
        then: float = now + flow.words / ch.rate
        if not then > now:
            # At late times, the rest may take less than the resolution of a number.
            then = float(np.nextafter(now, NEVER))
        return then
    begins: float = flow.begins
    return begins if begins > now else NEVER


@compilable
def _asked(s: State, channel: int) -> float:
    """Return the approximate number of words that a channel has requested at a time.

    Those of its first flow that have moved count as well: what was requested together comes at one
    rate to its end, in the time in which all that was requested before it comes, too.
    """
    ch = s.channels[channel]
    words = 0.0
    number = ch.head
    while number >= 0:
        words += s.flows[number].asked
        if words >= ch.most_words:
            break
        number = s.flows[number].next
    # A frame that has only the tag has no words to move, but it needs a share to be finished.
    return larger(smaller(words, float(ch.most_words)), EPSILON)


@compilable
def _share(s: State, device: int, now: float) -> None:
    """Set the rates: each direction gets up to half of the rate, and what the other leaves."""
    d = s.devices[device]
    reads, writes = s.channels[d.first_channel], s.channels[d.first_channel + 1]
    read, write = _wants(s, d.first_channel, now), _wants(s, d.first_channel + 1, now)
    if read + write > d.rate:
        half = d.rate / 2
        read, write = (
            smaller(read, larger(half, d.rate - write)),
            smaller(write, larger(half, d.rate - read)),
        )
    reads.rate, writes.rate = read, write
    first = _next_of(s, d.first_channel, now)
    d.bus_next = smaller(first, _next_of(s, d.first_channel + 1, now))


@compilable
def _share_with_packets(s: State, device: int, now: float) -> None:
    """Raise all rates until each is as high as wanted, or a direction or the memory is full.

    The two directions alternate at the memory. Within a direction, the rates grow in proportion to
    the words that each channel has requested: reads are served in the order of their requests, and
    writers alternate with one burst each.
    """
    d = s.devices[device]
    first, end = d.first_channel, d.end_channel
    growing = 0
    for number in range(first, end):
        ch = s.channels[number]
        ch.want = _wants(s, number, now)
        ch.rate, ch.share = 0.0, 0.0
        ch.grows = ch.want != 0.0
        growing += ch.grows
    while growing:
        for side in range(2):
            total = 0.0
            for number in range(first + side, end, 2):
                ch = s.channels[number]
                ch.share = 0.0
                if ch.grows:
                    ch.share = _asked(s, number)
                    total += ch.share
            for number in range(first + side, end, 2):
                if s.channels[number].grows:
                    s.channels[number].share /= total
        step = NEVER
        for number in range(first, end):
            ch = s.channels[number]
            if ch.grows:
                step = smaller(step, (ch.want - ch.rate) / ch.share)
        sharers, rates = 0.0, 0.0
        for side in range(2):
            own, rate = 0.0, 0.0
            for number in range(first + side, end, 2):
                own += s.channels[number].share
                rate += s.channels[number].rate
                sharers += s.channels[number].share
                rates += s.channels[number].rate
            if own != 0.0:
                step = smaller(step, (d.width - rate) / own)
        if sharers != 0.0:
            step = smaller(step, (d.rate - rates) / sharers)
        for number in range(first, end):
            ch = s.channels[number]
            if ch.grows:
                ch.rate += step * ch.share
                ch.grows = ch.want - ch.rate > EPSILON
        rates, full = 0.0, 0
        for side in range(2):
            rate = 0.0
            for number in range(first + side, end, 2):
                rate += s.channels[number].rate
                rates += s.channels[number].rate
            if d.width - rate <= EPSILON:
                full += 1 + side
        if d.rate - rates <= EPSILON:
            full = 3
        growing = 0
        for number in range(first, end):
            ch = s.channels[number]
            if full == 3 or full == 1 + (number - first) % 2:
                ch.grows = 0
            growing += ch.grows
    d.bus_next = NEVER
    for number in range(first, end):
        d.bus_next = smaller(d.bus_next, _next_of(s, number, now))


@compilable
def share_rates(s: State, device: int, now: float) -> None:
    """Set the rates of all channels of a core's bus."""
    d = s.devices[device]
    if d.end_channel - d.first_channel > 2:
        _share_with_packets(s, device, now)
    else:
        _share(s, device, now)
