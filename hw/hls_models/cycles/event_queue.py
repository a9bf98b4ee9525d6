"""Events of the cycle model: what happens at which time, for each device in a heap."""

from enum import IntEnum

from fpgapipe.hw.hls_models.cycles.cycle_tables import State
from fpgapipe.two_speeds import compilable

EPSILON = 1e-6
"""Difference below which two times are equal, since times are sums of fractions."""


class Event(IntEnum):
    """Kinds of events; those of the same time happen in this order."""

    SIGNAL = 0  # an instruction signals its semaphores
    LEAVE = 1  # an instruction has left its engine's queue
    ISSUE = 2  # an engine's next instruction may start
    DISPATCH = 3  # the next instruction may be dispatched
    ENTERED = 4  # a frame's words have entered the link
    ARRIVED = 5  # a frame has arrived completely
    FREED = 6  # the words of frames have been taken
    ROOM = 7  # a trailer reports that frames are free again
    ON_CHIP_READ = 8  # words of a SEND have been read from the scratchpad
    ON_CHIP_WRITTEN = 9  # words of a RECEIVE have been written to the scratchpad


SIGNAL, LEAVE, ISSUE, DISPATCH, ENTERED, ARRIVED, FREED, ROOM, ON_CHIP_READ, ON_CHIP_WRITTEN = map(
    int, Event
)

_KIND_BITS = 56


@compilable
def larger(one: float, other: float) -> float:
    """Return the larger number, with the rules of `max`."""
    return other if other > one else one


@compilable
def smaller(one: float, other: float) -> float:
    """Return the smaller number, with the rules of `min`."""
    return other if other < one else one


@compilable
def at(s: State, device: int, time: float, event: int, what: int) -> None:
    """Schedule an event.

    Events of the same time happen in the order of `Event`. Those of links happen in the order in
    which they are scheduled.
    """
    d = s.devices[device]
    if d.num_events == s.whole[0].most_events:
        raise MemoryError("events")
    d.number += 1
    key = (min(event, ENTERED) << _KIND_BITS) + d.number
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


@compilable
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
