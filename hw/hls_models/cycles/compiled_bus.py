"""Bus and events of the cycle model as machine code that works on tables.

`Channel`, `Bus` and `CoreRun.at` define what it computes. Every sum adds the same numbers in the
same order, so the results are equal in every bit. The tables come from
:mod:`fpgapipe.hw.hls_models.cycles.compiled_tables`. This module needs numba.
"""

from typing import Any, NamedTuple

import numpy as np

from fpgapipe.hw.hls_models.cycles.engine_cycles import Event
from fpgapipe.machine_code import compiled_without_counts

_KIND_BITS = 56
_CALL = np.int64(Event.CALL)  # calls of one time happen in the order of their scheduling


class State(NamedTuple):
    """The tables of a simulation, arrays of records."""

    whole: Any
    devices: Any
    engines: Any
    channels: Any
    ports: Any
    flows: Any
    events: Any
    code: Any
    queue: Any
    products: Any
    sends: Any
    receives: Any


@compiled_without_counts
def larger(one: float, other: float) -> float:
    """Return the larger number, with the rules of `max`."""
    return other if other > one else one


@compiled_without_counts
def smaller(one: float, other: float) -> float:
    """Return the smaller number, with the rules of `min`."""
    return other if other < one else one


@compiled_without_counts
def at(s: State, device: int, time: float, event: int, what: int) -> None:
    """Schedule an event, as `CoreRun.at` does."""
    d = s.devices[device]
    if d.num_events == s.whole[0].most_events:
        raise MemoryError("events")
    d.number += 1
    key = (min(np.int64(event), _CALL) << _KIND_BITS) + d.number
    here, first = d.num_events, device * s.whole[0].most_events
    d.num_events += 1
    while here > 0:
        above = (here - 1) >> 1
        parent = s.events[first + above]
        if parent.time < time or (parent.time == time and parent.key < key):
            break
        place = s.events[first + here]
        place.time, place.key = parent.time, parent.key
        place.event, place.what = parent.event, parent.what
        here = above
    place = s.events[first + here]
    place.time, place.key, place.event, place.what = time, key, event, what


@compiled_without_counts
def drop_event(s: State, device: int) -> None:
    """Remove the earliest event from the heap."""
    d = s.devices[device]
    d.num_events -= 1
    size, first = d.num_events, device * s.whole[0].most_events
    last = s.events[first + size]
    time, key, event, what = last.time, last.key, last.event, last.what
    here = 0
    while True:
        below = 2 * here + 1
        if below >= size:
            break
        child = s.events[first + below]
        if below + 1 < size:
            other = s.events[first + below + 1]
            if other.time < child.time or (other.time == child.time and other.key < child.key):
                child = other
                below += 1
        if time < child.time or (time == child.time and key < child.key):
            break
        place = s.events[first + here]
        place.time, place.key = child.time, child.key
        place.event, place.what = child.event, child.what
        here = below
    place = s.events[first + here]
    place.time, place.key, place.event, place.what = time, key, event, what


@compiled_without_counts
def _new_flow(s: State, index: int, words: float, burst: float, begins: float) -> int:
    """Create a `Flow`, and return its number."""
    whole = s.whole[0]
    number: int = whole.free_flow
    if number < 0:
        raise MemoryError("flows")
    flow = s.flows[number]
    whole.free_flow = flow.next
    flow.index, flow.words, flow.burst, flow.begins = index, words, burst, begins
    flow.began, flow.follower, flow.hold, flow.next = np.inf, -1, 0.0, -1
    return number


@compiled_without_counts
def _free_flow(s: State, number: int) -> None:
    whole = s.whole[0]
    s.flows[number].next = whole.free_flow
    whole.free_flow = number


@compiled_without_counts
def ask(s: State, channel: int, index: int, words: int, bursts: int, begins: float) -> None:
    """Request words, as `Channel.ask` does."""
    ch = s.channels[channel]
    burst = words / bursts
    hold = ch.hold + burst / ch.fastest
    begins = larger(begins, ch.free)
    ch.free = begins + bursts + 1
    if ch.waiting == 0 and begins >= ch.emptied + ch.hold:
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
                if opener.began < np.inf:
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


@compiled_without_counts
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


@compiled_without_counts
def fetch_words(s: State, device: int, now: float) -> None:
    """Request words of the program, as `Bus.fetch` does."""
    d, epsilon = s.devices[device], s.whole[0].epsilon
    channel = d.first_channel
    ch = s.channels[channel]
    places = float(ch.outstanding)
    before, number = -1, ch.head
    while number >= 0:
        flow = s.flows[number]
        if flow.burst != 0.0:
            if flow.begins - d.latency > now:
                break
            places = smaller(places, now - flow.begins + d.latency + 1)
            asked = places * flow.burst
            if flow.words > asked:
                if asked > epsilon:
                    rest = _new_flow(s, flow.index, flow.words - asked, flow.burst, flow.begins)
                    flow.index, flow.words = -1, asked
                    before = number
                    _insert(s, channel, before, rest)
                    ch.waiting += 1
                break
            places -= flow.words / flow.burst
        before, number = number, flow.next
    number = ch.head if before < 0 else s.flows[before].next
    while number >= 0 and s.flows[number].burst == 0.0:
        before, number = number, s.flows[number].next
    new = _new_flow(s, -1, float(d.fetch_words), 0.0, now + d.latency)
    _insert(s, channel, before, new)


@compiled_without_counts
def move_words(s: State, device: int, now: float) -> None:
    """Move words until now, as `Bus.move` does, and note in each channel what has ended."""
    d, whole = s.devices[device], s.whole[0]
    elapsed = now - d.last
    d.last = now
    for number in range(d.first_channel, d.end_channel):
        ch = s.channels[number]
        ch.ended, ch.ended_program = -1, 0
        if ch.rate == 0.0:
            continue
        flow = s.flows[ch.head]
        flow.words -= ch.rate * elapsed
        if flow.words > whole.epsilon:
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


@compiled_without_counts
def _wants(s: State, channel: int, now: float) -> float:
    """Return how many words per cycle a channel could move, as `Channel.wants` does."""
    ch = s.channels[channel]
    if ch.head < 0:
        return 0.0
    flow = s.flows[ch.head]
    if flow.begins > now + s.whole[0].epsilon:
        return 0.0
    if flow.began == np.inf:
        flow.began = now
        if flow.follower >= 0:
            follower = s.flows[flow.follower]
            follower.begins = larger(follower.begins, now + flow.hold)
    fastest: float = ch.fastest
    return fastest


@compiled_without_counts
def _next_of(s: State, channel: int, now: float) -> float:
    """Return when a channel's first flow ends or can begin, as `Channel.next` does."""
    ch = s.channels[channel]
    if ch.head < 0:
        return np.inf
    flow = s.flows[ch.head]
    if ch.rate != 0.0:
        then: float = now + flow.words / ch.rate
        if not then > now:
            then = np.nextafter(now, np.inf)
        return then
    begins: float = flow.begins
    return begins if begins > now else np.inf


@compiled_without_counts
def _asked(s: State, channel: int) -> float:
    """Return about how many words a channel has requested, as `Channel.asked` does."""
    ch = s.channels[channel]
    words = 0.0
    number = ch.head
    while number >= 0:
        words += s.flows[number].words
        if words >= ch.most_words:
            break
        number = s.flows[number].next
    return larger(smaller(words, float(ch.most_words)), s.whole[0].epsilon)


@compiled_without_counts
def _share(s: State, device: int, now: float) -> None:
    """Set the rates of a core without links, as `Bus.share` does."""
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


@compiled_without_counts
def _share_with_packets(s: State, device: int, now: float) -> None:
    """Set the rates of a core with links, as `Bus._share_with_packets` does."""
    d, epsilon = s.devices[device], s.whole[0].epsilon
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
        step = np.inf
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
                ch.grows = ch.want - ch.rate > epsilon
        rates, full = 0.0, 0
        for side in range(2):
            rate = 0.0
            for number in range(first + side, end, 2):
                rate += s.channels[number].rate
                rates += s.channels[number].rate
            if d.width - rate <= epsilon:
                full += 1 + side
        if d.rate - rates <= epsilon:
            full = 3
        growing = 0
        for number in range(first, end):
            ch = s.channels[number]
            if full == 3 or full == 1 + (number - first) % 2:
                ch.grows = 0
            growing += ch.grows
    d.bus_next = np.inf
    for number in range(first, end):
        d.bus_next = smaller(d.bus_next, _next_of(s, number, now))


@compiled_without_counts
def share_rates(s: State, device: int, now: float) -> None:
    """Set the rates of all channels of a core's bus."""
    d = s.devices[device]
    if d.end_channel - d.first_channel > 2:
        _share_with_packets(s, device, now)
    else:
        _share(s, device, now)
