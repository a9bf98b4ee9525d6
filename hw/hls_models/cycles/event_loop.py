"""Event loop of the cycle model, for one core or several cores joined by links.

It is an event simulation of the things that instructions share: the memory bus, over which the
program is read as well (`bus_cycles`), dispatch, queues, semaphores, engines (`engine_cycles`) and
links (`port_cycles`). It runs as plain Python or as machine code; the results are equal in every
bit.
"""

import numpy as np

from fpgapipe.hw.hls_models.cycles.bus_cycles import (
    NEVER,
    ask,
    fetch_words,
    move_words,
    share_rates,
)
from fpgapipe.hw.hls_models.cycles.cycle_tables import FETCHED, State
from fpgapipe.hw.hls_models.cycles.engine_cycles import (
    GEMM,
    HELD,
    KEPT_CYCLES,
    LINK_RECEIVE,
    LINK_SEND,
    LOAD,
    LOAD_CYCLES,
    LOADED_CYCLES,
    OFFER_CYCLES,
    RECEIVE,
    RECEIVE_CYCLES,
    SEND,
    SEND_CYCLES,
    STORE,
    STORE_CYCLES,
    TAKE_CYCLES,
    VECTOR,
    end_instruction,
    start_product,
)
from fpgapipe.hw.hls_models.cycles.event_queue import (
    DISPATCH,
    EPSILON,
    ISSUE,
    LEAVE,
    SIGNAL,
    at,
    drop_event,
    larger,
    smaller,
)
from fpgapipe.hw.hls_models.cycles.port_cycles import (
    ON_CHIP_READ_CYCLES,
    ON_CHIP_WRITE_CYCLES,
    burst_written,
    frame_read,
    happen_at_port,
    start_receive,
    start_send,
)
from fpgapipe.two_speeds import compilable

START_CYCLES = 4
"""Cycles from the start command to the first fetch, which follows as if after a dispatch."""

FETCH_CYCLES = 3
"""Cycles from a dispatch to the bus request for the program words that refill the freed room."""

FETCHED_CYCLES = 2
"""Cycles from the end of a program word's beat on the bus to the dispatch of its last part."""


@compilable
def _moved(s: State, device: int, index: int, now: float) -> None:
    """Handle the end of a transfer."""
    latency = s.devices[device].latency
    engine = s.engines[s.code[index].engine]
    kind = engine.kind
    if kind == LOAD:
        end_instruction(s, device, index, now + LOADED_CYCLES)
    elif kind in (STORE, RECEIVE):
        end_instruction(s, device, index, now + latency)
    elif kind == SEND:
        end_instruction(s, device, index, now + SEND_CYCLES)
    elif kind == LINK_SEND:
        frame_read(s, engine.port, now)
    else:
        burst_written(s, engine.port, index, now)


@compilable
def _look(s: State, device: int) -> None:
    """Schedule the dispatch of the next instruction, if all of its words are here."""
    d = s.devices[device]
    if d.dispatching or d.next == d.end:
        return
    words = s.code[d.next].program_words
    if d.fetched_end - d.fetched_begin < words:
        return
    d.dispatching = 1
    # The first part of a word is here before its last one.
    header = larger(d.next_header, d.fetched[d.fetched_begin % FETCHED] - (d.word_parts - 1))
    last = d.fetched[(d.fetched_begin + words - 1) % FETCHED]
    handed_out = header + d.header_parts - 1 + d.word_parts * words
    at(s, device, larger(handed_out, last), DISPATCH, 0)


@compilable
def _move(s: State, device: int, now: float) -> None:
    """Move words until now, and handle the transfers that end."""
    d = s.devices[device]
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
        here = now + FETCHED_CYCLES
        for later in range(d.fetch_words - 1, -1, -1):
            d.fetched[d.fetched_end % FETCHED] = here - d.word_parts * later
            d.fetched_end += 1
        _look(s, device)


@compilable
def _fetch(s: State, device: int, now: float) -> None:
    """Request program words as far as there is room."""
    d = s.devices[device]
    _move(s, device, now)
    while d.room >= d.fetch_words:
        d.room -= d.fetch_words
        fetch_words(s, device, now + FETCH_CYCLES)


@compilable
def _release(s: State, device: int, number: int, task: int, now: float) -> None:
    """End the RECEIVEs of all tasks up to this one."""
    engine = s.engines[number]
    engine.until = max(engine.until, task)
    while engine.released < engine.head and s.code[s.queue[engine.released]].task <= engine.until:
        engine.released += 1
        end_instruction(s, device, s.queue[engine.released - 1], now)


@compilable
def _start(s: State, device: int, number: int, index: int, now: float) -> float:
    """Begin an instruction, and return the time at which its engine takes it."""
    d, engine = s.devices[device], s.engines[number]
    code = s.code[index]
    kind = engine.kind
    if kind == GEMM:
        return start_product(s, device, number, index, now)
    if kind == VECTOR:
        # The next instruction is taken in the cycle in which one is done.
        taken = larger(now, engine.busy_until)
        engine.busy_until = taken + code.takes + code.lost
        end_instruction(s, device, index, engine.busy_until)
        return taken
    if kind == HELD:
        _release(s, device, number, engine.until, now)
        return now
    if kind == LINK_SEND:
        start_send(s, engine.port, index, now)
        return now
    if kind == LINK_RECEIVE:
        start_receive(s, engine.port, index, now)
        return now
    if code.on_chip:
        # The words pass as fast as the link, behind those of the instruction before.
        channel = s.channels[engine.channel]
        before = ON_CHIP_READ_CYCLES if kind == SEND else RECEIVE_CYCLES
        behind = SEND_CYCLES if kind == SEND else ON_CHIP_WRITE_CYCLES
        channel.free = larger(now + before, channel.free) + code.words / channel.on_link
        end_instruction(s, device, index, channel.free + behind)
        return now
    if kind == STORE:
        begins = now + STORE_CYCLES
    elif kind == RECEIVE:
        begins = now + RECEIVE_CYCLES + d.longest / s.channels[engine.channel].fastest
    else:
        begins = now + LOAD_CYCLES + d.latency
    ask(s, engine.channel, index, code.words, code.bursts, begins)
    d.bus_changes = 1
    return now


@compilable
def _issue(s: State, device: int, number: int, now: float) -> None:
    """Start the instruction at the head of a queue if it can start."""
    engine = s.engines[number]
    if engine.head == engine.tail or not engine.may_begin:
        return
    d = s.devices[device]
    index = s.queue[engine.head]
    code = s.code[index]
    earliest = larger(code.offer, engine.ready)
    if code.waits:
        earliest += TAKE_CYCLES
        left, semaphore = code.waits, 0
        while left:
            if left & 1 and not d.semaphores[semaphore]:
                return
            left >>= 1
            semaphore += 1
    if earliest > now + EPSILON:
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
    # The parts of the next instruction are collected one by one, which frees room in the queue.
    engine.leaving = code.program_words
    kept = KEPT_CYCLES if engine.kind == GEMM else 0
    engine.ready = code.start + kept + d.word_parts * engine.leaving + 1
    at(s, device, engine.ready, LEAVE, number)


@compilable
def _dispatch(s: State, device: int, now: float) -> None:
    """Hand an instruction to its queue, or wait for room in it."""
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
    code.offer = now + OFFER_CYCLES
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


@compilable
def _signal(s: State, device: int, index: int, now: float) -> None:
    """Add an instruction's signals to the semaphores."""
    d, code = s.devices[device], s.code[index]
    s.engines[code.engine].may_begin += 1
    left, semaphore = code.signals, 0
    while left:
        d.semaphores[semaphore] += left & 1
        left >>= 1
        semaphore += 1
    for number in range(d.first_engine, d.end_engine):
        _issue(s, device, number, now)


@compilable
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
    else:
        happen_at_port(s, event, what, now)


@compilable
def _step(s: State, device: int, now: float) -> None:
    """Handle the next events, whose time is `now`."""
    d = s.devices[device]
    if d.bus_next <= now:
        _move(s, device, now)
    first = device * s.whole[0].most_events
    while d.num_events and s.events[first].time <= now + EPSILON:
        event, what = s.events[first].event, s.events[first].what
        drop_event(s, device)
        _happen(s, device, event, what, now)
    if d.bus_changes:
        _move(s, device, now)
        share_rates(s, device, now)
        d.bus_changes = 0


@compilable
def _first_time(s: State, device: int) -> float:
    d = s.devices[device]
    bus_next: float = d.bus_next
    if not d.num_events:
        return bus_next
    return smaller(s.events[device * s.whole[0].most_events].time, bus_next)


@compilable
def _next_time(s: State, device: int) -> float:
    """Return the time of the next event; if nothing happens otherwise, let held data arrive.

    If two tasks are concurrent, the program gets the data that it waits for first.
    """
    then = _first_time(s, device)
    d = s.devices[device]
    if then != NEVER:
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


@compilable
def follow_events(s: State, window: float) -> None:
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
        _fetch(s, device, d.begins + START_CYCLES)
        share_rates(s, device, 0.0)
    while True:
        now = NEVER
        for device in range(len(s.devices)):
            now = smaller(now, _next_time(s, device))
        if now == NEVER:
            return
        # At late times, a window may be smaller than the resolution of a number.
        horizon = larger(now + window, float(np.nextafter(now, NEVER)))
        for device in range(len(s.devices)):
            then = _next_time(s, device)
            while then < horizon:
                _step(s, device, then)
                if whole.failed >= 0:
                    return
                then = _next_time(s, device)
