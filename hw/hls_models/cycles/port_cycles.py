"""Ends of the links in the cycle model of several cores: frames that are sent and that arrive.

A link takes words as long as the other end has room for them; a frame is sent when it is full and
the wire is free; room becomes free again when the words of a frame have been taken (docs/links.md).
Words of an on-chip link go as they come, and its room is counted in words (`end_cycles`).
Wires are assumed to be free of errors.
"""

from fpgapipe.hw.hls_models.cycles.bus_cycles import ask
from fpgapipe.hw.hls_models.cycles.cycle_tables import State
from fpgapipe.hw.hls_models.cycles.engine_cycles import (
    LOAD_CYCLES,
    RECEIVE_CYCLES,
    SEND_CYCLES,
    end_instruction,
)
from fpgapipe.hw.hls_models.cycles.event_queue import (
    ARRIVED,
    ENTERED,
    FREED,
    ON_CHIP_READ,
    ON_CHIP_WRITTEN,
    ROOM,
    at,
    larger,
)
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.two_speeds import compilable

ENTER_CYCLES = 4
"""Cycles from the end of a word's beat on the bus to the word's entry into the link."""

WRITE_CYCLES = 6
"""Cycles from the end of the last word of a burst that a RECEIVE takes to the burst's first beat on
the bus."""

ON_CHIP_READ_CYCLES = 6
"""Cycles from the start of a SEND of words in the scratchpad to the first of them."""

ON_CHIP_WRITE_CYCLES = 1
"""Cycles from the last word of a RECEIVE into the scratchpad to its end."""

_PORTS = 1 << 16
"""Ports that an event can name beside a channel and a number of frames."""


@compilable
def _enter(s: State, port: int, now: float) -> None:
    """Let frames into the link as far as the other end has room."""
    p = s.ports[port]
    while p.entering < p.waiting:
        chunk = s.sends[p.entering]
        takes = chunk.link_words if p.cuts_through else 1
        if p.room[chunk.channel] < takes:
            return
        p.room[chunk.channel] -= takes
        p.entering += 1
        # Words follow their beats on the bus, but only after all earlier words have entered.
        behind = now + ENTER_CYCLES
        p.enter_from = larger(behind, p.enter_from + chunk.link_words * p.parts)
        at(s, p.device, p.enter_from, ENTERED, port)


@compilable
def _ask_sends(s: State, port: int, now: float) -> None:
    """Request as many words from memory, or from the scratchpad, as there is room for.

    An instruction with words of the scratchpad has the engine to itself.
    """
    p = s.ports[port]
    d = s.devices[p.device]
    while p.asked < p.wanted and s.sends[p.asked].words <= p.words_room:
        chunk = s.sends[p.asked]
        on_chip = s.code[chunk.index].on_chip
        if p.asked > p.entered:
            before = s.sends[p.asked - 1].index
            if before != chunk.index and (on_chip or s.code[before].on_chip):
                return
        p.asked += 1
        p.words_room -= chunk.words
        since = larger(now, s.code[chunk.index].since)
        if on_chip:
            p.read_from = larger(p.read_from, since + ON_CHIP_READ_CYCLES) + chunk.words
            at(s, p.device, p.read_from, ON_CHIP_READ, port)
            continue
        begins = since + LOAD_CYCLES + d.latency
        ask(s, p.sent_channel, chunk.index, chunk.words, 1, begins)
        d.bus_changes = 1


@compilable
def start_send(s: State, port: int, index: int, now: float) -> None:
    """Begin a SEND, whose frames are read when there is room for their words."""
    s.code[index].since = now
    s.ports[port].wanted += s.code[index].chunks
    _ask_sends(s, port, now)


@compilable
def frame_read(s: State, port: int, now: float) -> None:
    """Take the words of a frame that have been read."""
    s.ports[port].waiting += 1
    _enter(s, port, now)


@compilable
def _entered(s: State, port: int, now: float) -> None:
    """Handle a frame whose words have entered the link: it is sent when the wire is free."""
    p = s.ports[port]
    number = p.entered
    p.entered += 1
    chunk = s.sends[number]
    p.words_room += chunk.words
    _ask_sends(s, port, now)
    if chunk.is_last:
        end_instruction(s, p.device, chunk.index, now + SEND_CYCLES - ENTER_CYCLES)
    if p.other < 0:
        return
    takes = (chunk.link_words * WORD_BYTES + p.overhead_bytes) / p.rate
    begins = now + p.transmit
    if p.cuts_through:
        p.wire_from = larger(p.wire_from + takes, begins + WORD_BYTES / p.rate)
        chunk.trailer = -1.0
    else:
        p.wire_from = larger(p.wire_from, begins) + takes
        chunk.trailer = p.wire_from
    p.words += chunk.link_words
    p.frames += 1
    p.busy += takes
    comes = p.wire_from + p.wire_latency + p.arrive
    at(s, s.ports[p.other].device, comes, ARRIVED, p.other * 4 + chunk.channel)


@compilable
def _look_receives(s: State, port: int, now: float) -> None:
    """Take words that have arrived."""
    p = s.ports[port]
    while p.taken < p.awaited:
        chunk = s.receives[p.taken]
        arrived = p.arrived[chunk.channel]
        if arrived <= chunk.frame:
            return
        on_chip = s.code[chunk.index].on_chip
        if p.taken > p.written:
            before = s.receives[p.taken - 1].index
            if before != chunk.index and (on_chip or s.code[before].on_chip):
                return
        p.taken += 1
        # Words of earlier frames were taken as they arrived. If the burst's last frame is the
        # newest one, one word is left to be taken; otherwise all words of the burst are.
        words = chunk.words * p.parts
        last = words if arrived > chunk.frame + 1 else p.parts
        taken = larger(now + last, s.code[chunk.index].since + words)
        taken = larger(taken, p.take_from + words)
        p.take_from = taken
        if chunk.frees:
            at(s, p.device, taken, FREED, (chunk.frees * 4 + chunk.channel) * _PORTS + port)
        if on_chip:
            at(s, p.device, taken + ON_CHIP_WRITE_CYCLES, ON_CHIP_WRITTEN, port)
            continue
        begins = taken + WRITE_CYCLES
        ask(s, p.sent_channel + 1, chunk.index, chunk.words, 1, begins)
        s.devices[p.device].bus_changes = 1


@compilable
def start_receive(s: State, port: int, index: int, now: float) -> None:
    """Begin a RECEIVE, whose bursts are written when the frames with their words have arrived."""
    s.code[index].since = now + RECEIVE_CYCLES - WRITE_CYCLES
    s.ports[port].awaited += s.code[index].chunks
    _look_receives(s, port, now)


@compilable
def burst_written(s: State, port: int, index: int, now: float) -> None:
    """Note that the words of a burst of a RECEIVE have been written to memory."""
    p = s.ports[port]
    p.written += 1
    if s.receives[p.written - 1].is_last:
        end_instruction(s, p.device, index, now + s.devices[p.device].latency)
    _look_receives(s, port, now)


@compilable
def _written_on_chip(s: State, port: int, now: float) -> None:
    """Note that words of a RECEIVE have been written to the scratchpad."""
    p = s.ports[port]
    p.written += 1
    chunk = s.receives[p.written - 1]
    if chunk.is_last:
        end_instruction(s, p.device, chunk.index, now)
    _look_receives(s, port, now)


@compilable
def _free_frames(s: State, port: int, channel: int, count: int, now: float) -> None:
    """Free frames or words that have been taken; the next trailer or beat tells the other end."""
    p = s.ports[port]
    ready = now + p.freed
    # Find the first trailer of a transmitted frame that can report it; if nothing is on its way, a
    # frame of a trailer alone does.
    sent = p.first_send + p.frames
    while p.told < sent and s.sends[p.told].trailer < ready:
        p.told += 1
    told = s.sends[p.told].trailer if p.told < sent else ready + p.overhead_bytes / p.rate
    heard = told + p.wire_latency + p.heard
    what = (count * 4 + channel) * _PORTS + p.other
    at(s, s.ports[p.other].device, heard, ROOM, what)


@compilable
def happen_at_port(s: State, event: int, what: int, now: float) -> None:
    """Handle an event of a link."""
    if event == ENTERED:
        _entered(s, what, now)
    elif event == ARRIVED:
        s.ports[what >> 2].arrived[what & 3] += 1
        _look_receives(s, what >> 2, now)
    elif event == ON_CHIP_READ:
        frame_read(s, what, now)
    elif event == ON_CHIP_WRITTEN:
        _written_on_chip(s, what, now)
    else:
        port, channel, count = what % _PORTS, what // _PORTS & 3, what // _PORTS >> 2
        if event == FREED:
            _free_frames(s, port, channel, count, now)
        else:
            s.ports[port].room[channel] += count
            _enter(s, port, now)
