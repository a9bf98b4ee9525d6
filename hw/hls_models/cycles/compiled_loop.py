"""Event loop of the cycle model as machine code, for one core or several cores joined by links.

`CoreRun`, the engines and the ports of `cluster_cycles` define what it computes. Every sum adds the
same numbers in the same order, so the results are equal in every bit. This module needs numba.
"""

import numpy as np

from fpgapipe.hw.hls_models.cycles.compiled_bus import (
    State,
    ask,
    at,
    drop_event,
    fetch_words,
    larger,
    move_words,
    share_rates,
    smaller,
)
from fpgapipe.hw.hls_models.cycles.engine_cycles import Event, Kind
from fpgapipe.machine_code import compiled_without_counts

SIGNAL, LEAVE, ISSUE, DISPATCH = (
    int(event) for event in (Event.SIGNAL, Event.LEAVE, Event.ISSUE, Event.DISPATCH)
)
ENTERED, ARRIVED, FREED, ROOM = range(int(Event.CALL), int(Event.CALL) + 4)
"""Events in place of the functions that `cluster_cycles` schedules."""

LOAD, STORE, GEMM, VECTOR, SEND, RECEIVE, LINK_SEND, LINK_RECEIVE, HELD = map(int, Kind)

FETCHED = 512
"""Largest number of program words that wait for dispatch, at least `prefetch_words` of any core."""

_PORTS = 1 << 16


@compiled_without_counts
def _end(s: State, device: int, index: int, now: float) -> None:
    """End an instruction, as `Engine.end` does."""
    s.code[index].end = now
    at(s, device, now + s.whole[0].signal_cycles, SIGNAL, index)


@compiled_without_counts
def _enter(s: State, port: int, now: float) -> None:
    """Let frames into the link as far as the other end has room, as `_Port._enter` does."""
    p = s.ports[port]
    while p.entering < p.waiting:
        chunk = s.sends[p.entering]
        takes = chunk.link_words if p.cuts_through else 1
        if p.room[chunk.channel] < takes:
            return
        p.room[chunk.channel] -= takes
        p.entering += 1
        behind = now + s.whole[0].enter_cycles
        p.enter_from = larger(behind, p.enter_from + chunk.link_words * p.parts)
        at(s, p.device, p.enter_from, ENTERED, port)


@compiled_without_counts
def _ask_sends(s: State, port: int, now: float) -> None:
    """Request as many words from memory as there is room for, as `_Sender._ask` does."""
    p = s.ports[port]
    d = s.devices[p.device]
    while p.asked < p.wanted and s.sends[p.asked].words <= p.words_room:
        chunk = s.sends[p.asked]
        p.asked += 1
        p.words_room -= chunk.words
        since = larger(now, s.code[chunk.index].since)
        begins = since + s.whole[0].load_cycles + d.latency
        ask(s, p.sent_channel, chunk.index, chunk.words, 1, begins)
        d.bus_changes = 1


@compiled_without_counts
def _entered(s: State, port: int, now: float) -> None:
    """Handle a frame that is in the link, as `_Sender.entered` and `_Port._transmit` do."""
    p, whole = s.ports[port], s.whole[0]
    number = p.entered
    p.entered += 1
    chunk = s.sends[number]
    p.words_room += chunk.words
    _ask_sends(s, port, now)
    if chunk.is_last:
        _end(s, p.device, chunk.index, now + whole.send_cycles - whole.enter_cycles)
    if p.other < 0:
        return
    takes = (chunk.link_words * whole.word_bytes + p.overhead_bytes) / p.rate
    begins = now + p.transmit
    if p.cuts_through:
        p.wire_from = larger(p.wire_from + takes, begins + whole.word_bytes / p.rate)
        chunk.trailer = -1.0
    else:
        p.wire_from = larger(p.wire_from, begins) + takes
        chunk.trailer = p.wire_from
    p.words += chunk.link_words
    p.frames += 1
    p.busy += takes
    comes = p.wire_from + p.wire_latency + p.arrive
    at(s, s.ports[p.other].device, comes, ARRIVED, p.other * 4 + chunk.channel)


@compiled_without_counts
def _look_receives(s: State, port: int, now: float) -> None:
    """Take words that have arrived, as `_Receiver.look` does."""
    p, whole = s.ports[port], s.whole[0]
    while p.taken < p.awaited:
        chunk = s.receives[p.taken]
        arrived = p.arrived[chunk.channel]
        if arrived <= chunk.frame:
            return
        p.taken += 1
        words = chunk.words * p.parts
        last = words if arrived > chunk.frame + 1 else p.parts
        taken = larger(now + last, s.code[chunk.index].since + words)
        taken = larger(taken, p.take_from + words)
        p.take_from = taken
        if chunk.frees:
            at(s, p.device, taken, FREED, (chunk.frees * 4 + chunk.channel) * _PORTS + port)
        begins = taken + whole.write_cycles
        ask(s, p.sent_channel + 1, chunk.index, chunk.words, 1, begins)
        s.devices[p.device].bus_changes = 1


@compiled_without_counts
def _free_frames(s: State, port: int, channel: int, count: int, now: float) -> None:
    """Free frames whose words have been taken, as `_Port.free` does."""
    p = s.ports[port]
    ready = now + p.freed
    # Find the first trailer of a transmitted frame that can report it.
    sent = p.first_send + p.frames
    while p.told < sent and s.sends[p.told].trailer < ready:
        p.told += 1
    told = s.sends[p.told].trailer if p.told < sent else ready + p.overhead_bytes / p.rate
    heard = told + p.wire_latency + p.heard
    what = (count * 4 + channel) * _PORTS + p.other
    at(s, s.ports[p.other].device, heard, ROOM, what)


@compiled_without_counts
def _moved(s: State, device: int, index: int, now: float) -> None:
    """Handle the end of a transfer, as `Mover.moved` does."""
    whole, latency = s.whole[0], s.devices[device].latency
    engine = s.engines[s.code[index].engine]
    kind = engine.kind
    if kind == LOAD:
        _end(s, device, index, now + whole.loaded_cycles)
    elif kind in (STORE, RECEIVE):
        _end(s, device, index, now + latency)
    elif kind == SEND:
        _end(s, device, index, now + whole.send_cycles)
    elif kind == LINK_SEND:
        s.ports[engine.port].waiting += 1
        _enter(s, engine.port, now)
    else:
        p = s.ports[engine.port]
        p.written += 1
        if s.receives[p.written - 1].is_last:
            _end(s, device, index, now + latency)


@compiled_without_counts
def _look(s: State, device: int) -> None:
    """Schedule the dispatch of the next instruction, as `CoreRun._look` does."""
    d = s.devices[device]
    if d.dispatching or d.next == d.end:
        return
    words = s.code[d.next].program_words
    if d.fetched_end - d.fetched_begin < words:
        return
    d.dispatching = 1
    header = larger(d.next_header, d.fetched[d.fetched_begin % FETCHED] - (d.word_parts - 1))
    last = d.fetched[(d.fetched_begin + words - 1) % FETCHED]
    handed_out = header + d.header_parts - 1 + d.word_parts * words
    at(s, device, larger(handed_out, last), DISPATCH, 0)


@compiled_without_counts
def _move(s: State, device: int, now: float) -> None:
    """Move words until now, and handle the transfers that end, as `CoreRun._move` does."""
    d, whole = s.devices[device], s.whole[0]
    d.bus_changes = 1
    move_words(s, device, now)
    for number in range(d.first_channel + 2, d.end_channel):
        if s.channels[number].ended >= 0:
            _moved(s, device, s.channels[number].ended, now)
    write, read = s.channels[d.first_channel + 1], s.channels[d.first_channel]
    if write.ended >= 0:
        _moved(s, device, write.ended, now)
    if read.ended >= 0:
        _moved(s, device, read.ended, now)
    elif read.ended_program:
        here = now + whole.fetched_cycles
        for later in range(d.fetch_words - 1, -1, -1):
            d.fetched[d.fetched_end % FETCHED] = here - d.word_parts * later
            d.fetched_end += 1
        _look(s, device)


@compiled_without_counts
def _fetch(s: State, device: int, now: float) -> None:
    """Request program words as far as there is room, as `CoreRun._fetch` does."""
    d = s.devices[device]
    _move(s, device, now)
    while d.room >= d.fetch_words:
        d.room -= d.fetch_words
        fetch_words(s, device, now + s.whole[0].fetch_cycles)


@compiled_without_counts
def _start_product(s: State, device: int, number: int, index: int, now: float) -> float:
    """Begin a product, as `Gemm.start` does."""
    whole, engine = s.whole[0], s.engines[number]
    timing = s.products[s.code[index].product]
    first_b = larger(
        now + whole.reader_cycles + timing.b_late + engine.load,
        engine.weights_until + timing.b_words,
    )
    taken = larger(now, engine.busy_until)
    first_a = taken + whole.reader_cycles + timing.a_late
    begins = larger(larger(first_b, first_a), engine.streams_until)
    ends = begins + timing.stream_cycles
    last_tile_from = ends - timing.last_tile_cycles
    engine.weights_until = larger(
        last_tile_from + timing.stall_cycles, first_b + timing.later_b_words
    )
    engine.streams_until = ends
    engine.busy_until = ends - whole.read_ahead_cycles - timing.a_ahead
    s.devices[device].gemm_cycles += ends - begins
    _end(s, device, index, ends + engine.latency + timing.latest)
    return taken


@compiled_without_counts
def _release(s: State, device: int, number: int, task: int, now: float) -> None:
    """End the RECEIVEs of all tasks up to this one, as `_Held.release` does."""
    engine = s.engines[number]
    engine.until = max(engine.until, task)
    while engine.released < engine.head and s.code[s.queue[engine.released]].task <= engine.until:
        engine.released += 1
        _end(s, device, s.queue[engine.released - 1], now)


@compiled_without_counts
def _start(s: State, device: int, number: int, index: int, now: float) -> float:
    """Begin an instruction, as `Engine.start` does; return when its engine takes it."""
    whole, d, engine = s.whole[0], s.devices[device], s.engines[number]
    code = s.code[index]
    kind = engine.kind
    if kind == GEMM:
        return _start_product(s, device, number, index, now)
    if kind == VECTOR:
        taken = larger(now, engine.busy_until)
        engine.busy_until = taken + code.takes + code.lost
        _end(s, device, index, engine.busy_until)
        return taken
    if kind == HELD:
        _release(s, device, number, engine.until, now)
        return now
    if kind == LINK_SEND:
        code.since = now
        s.ports[engine.port].wanted += code.chunks
        _ask_sends(s, engine.port, now)
        return now
    if kind == LINK_RECEIVE:
        code.since = now + whole.receive_cycles - whole.write_cycles
        s.ports[engine.port].awaited += code.chunks
        _look_receives(s, engine.port, now)
        return now
    if kind == STORE:
        begins = now + whole.store_cycles
    elif kind == RECEIVE:
        begins = now + whole.receive_cycles + d.longest / s.channels[engine.channel].fastest
    else:
        begins = now + whole.load_cycles + d.latency
    ask(s, engine.channel, index, code.words, code.bursts, begins)
    d.bus_changes = 1
    return now


@compiled_without_counts
def _issue(s: State, device: int, number: int, now: float) -> None:
    """Start the instruction at the head of a queue if it can start, as `Engine.issue` does."""
    engine = s.engines[number]
    if engine.head == engine.tail or not engine.may_begin:
        return
    whole, d = s.whole[0], s.devices[device]
    index = s.queue[engine.head]
    code = s.code[index]
    earliest = larger(code.offer, engine.ready)
    if code.waits:
        earliest += whole.take_cycles
        left, semaphore = code.waits, 0
        while left:
            if left & 1 and not d.semaphores[semaphore]:
                return
            left >>= 1
            semaphore += 1
    if earliest > now + whole.epsilon:
        if not now < engine.wakes <= earliest:
            engine.wakes = earliest
            at(s, device, earliest, ISSUE, number)
        return
    left, semaphore = code.waits, 0
    while left:
        d.semaphores[semaphore] -= left & 1
        left >>= 1
        semaphore += 1
    engine.head += 1
    engine.may_begin -= 1
    code.start = _start(s, device, number, index, now)
    engine.leaving = code.program_words
    kept = whole.kept_cycles if engine.kind == GEMM else 0
    engine.ready = code.start + kept + d.word_parts * engine.leaving + 1
    at(s, device, engine.ready, LEAVE, number)


@compiled_without_counts
def _dispatch(s: State, device: int, now: float) -> None:
    """Hand an instruction to its queue, or wait for room in it, as `CoreRun._dispatch` does."""
    d = s.devices[device]
    code = s.code[d.next]
    number = code.engine
    if code.is_end:
        d.next = d.end
        return
    if number < 0:
        s.whole[0].failed = device
        return
    engine = s.engines[number]
    if engine.words > engine.depth:
        d.full = number
        return
    d.full = -1
    code.offer = now + s.whole[0].offer_cycles
    engine.tail += 1
    words = code.program_words
    engine.words += words
    _issue(s, device, number, now)
    d.fetched_begin += words
    d.room += words
    d.next += 1
    d.next_header = now + 1
    d.dispatching = 0
    _fetch(s, device, now)
    _look(s, device)


@compiled_without_counts
def _signal(s: State, device: int, index: int, now: float) -> None:
    """Add an instruction's signals to the semaphores, as `CoreRun._signal` does."""
    d, code = s.devices[device], s.code[index]
    s.engines[code.engine].may_begin += 1
    left, semaphore = code.signals, 0
    while left:
        d.semaphores[semaphore] += left & 1
        left >>= 1
        semaphore += 1
    for number in range(d.first_engine, d.end_engine):
        _issue(s, device, number, now)


@compiled_without_counts
def _happen(s: State, device: int, event: int, what: int, now: float) -> None:
    """Handle one event."""
    if event == SIGNAL:
        _signal(s, device, what, now)
    elif event == ISSUE:
        _issue(s, device, what, now)
    elif event == LEAVE:
        engine = s.engines[what]
        engine.words -= engine.leaving
        engine.leaving = 0
        _issue(s, device, what, now)
        if s.devices[device].full == what:
            _dispatch(s, device, now)
    elif event == DISPATCH:
        _dispatch(s, device, now)
    elif event == ENTERED:
        _entered(s, what, now)
    elif event == ARRIVED:
        s.ports[what >> 2].arrived[what & 3] += 1
        _look_receives(s, what >> 2, now)
    else:
        port, channel, count = what % _PORTS, what // _PORTS & 3, what // _PORTS >> 2
        if event == FREED:
            _free_frames(s, port, channel, count, now)
        else:
            s.ports[port].room[channel] += count
            _enter(s, port, now)


@compiled_without_counts
def _step(s: State, device: int, now: float) -> None:
    """Handle the next events, whose time is `now`, as `CoreRun.step` does."""
    d, whole = s.devices[device], s.whole[0]
    if d.bus_next <= now:
        _move(s, device, now)
    first = device * whole.most_events
    while d.num_events and s.events[first].time <= now + whole.epsilon:
        event, what = s.events[first].event, s.events[first].what
        drop_event(s, device)
        _happen(s, device, event, what, now)
    if d.bus_changes:
        _move(s, device, now)
        share_rates(s, device, now)
        d.bus_changes = 0


@compiled_without_counts
def _first_time(s: State, device: int) -> float:
    d = s.devices[device]
    bus_next: float = d.bus_next
    if not d.num_events:
        return bus_next
    return smaller(s.events[device * s.whole[0].most_events].time, bus_next)


@compiled_without_counts
def _next_time(s: State, device: int) -> float:
    """Return the time of the next event, as `CoreRun.next` and `_PausingRun.next` do."""
    then = _first_time(s, device)
    d = s.devices[device]
    if then != np.inf:
        d.recent = then
        return then
    found, waiter = -1, 0
    for number in range(d.first_engine, d.end_engine):
        engine = s.engines[number]
        if engine.kind == HELD and engine.released < engine.head:
            own = s.code[s.queue[engine.released]].waiter
            if found < 0 or own < waiter:
                found, waiter = number, own
    if found < 0:
        return then
    task = s.code[s.queue[s.engines[found].released]].task
    _release(s, device, found, task, d.recent)
    return _first_time(s, device)


@compiled_without_counts
def simulate(s: State, window: float) -> None:
    """Simulate until there are no more events, or an instruction's engine is missing.

    Parameters
    ----------
    s : State
        The tables, which are changed.
    window : float
        Number of cycles by which a device may be ahead of another.

    Raises
    ------
    MemoryError
        If a table is too small. The message is its name, "events" or "flows".
    """
    whole = s.whole[0]
    for device in range(len(s.devices)):
        d = s.devices[device]
        _fetch(s, device, d.begins + whole.start_cycles)
        share_rates(s, device, 0.0)
    while True:
        now = np.inf
        for device in range(len(s.devices)):
            now = smaller(now, _next_time(s, device))
        if now == np.inf:
            return
        horizon = larger(now + window, np.nextafter(now, np.inf))
        for device in range(len(s.devices)):
            then = _next_time(s, device)
            while then < horizon:
                _step(s, device, then)
                if whole.failed >= 0:
                    return
                then = _next_time(s, device)
