"""The tables on which the cycle model works: arrays of records, or lists of objects.

Machine code reads and writes arrays of records. Plain Python reads and writes lists of objects that
have the fields of the records as attributes, which is many times faster than reading records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import make_dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.instructions import NUM_SEMAPHORES
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS

FETCHED = 512
"""Largest number of program words that wait for dispatch, at least `prefetch_words` of any core."""


def _record(
    *names: str,
    floats: Iterable[str] = (),
    lists: Mapping[str, int] | None = None,
    float_lists: Mapping[str, int] | None = None,
) -> np.dtype[Any]:
    fields: list[Any] = [(name, np.int64) for name in names]
    fields += [(name, np.float64) for name in floats]
    fields += [(name, np.int64, (size,)) for name, size in (lists or {}).items()]
    return np.dtype(
        fields + [(name, np.float64, (size,)) for name, size in (float_lists or {}).items()]
    )


WHOLE = _record("most_events", "free_flow", "failed")
"""Numbers that all devices share: room for events of a device, the first of the flows that are not
in use, and the device that found an engine missing, or -1."""

DEVICE = _record(
    *("first_channel", "end_channel", "first_engine", "end_engine", "num_events", "number"),
    *("next", "end", "dispatching", "full", "room", "fetch_words", "bus_changes"),
    *("fetched_begin", "fetched_end", "word_parts", "header_parts"),
    floats=(
        *("begins", "latency", "rate", "width", "longest", "last", "bus_next", "written"),
        *("next_header", "recent", "gemm_cycles"),
    ),
    lists={"semaphores": NUM_SEMAPHORES},
    float_lists={"fetched": FETCHED},
)
"""A core and its bus, with the ranges of its channels, engines and instructions.

* `num_events` and `number` count the events that wait, and all that have been scheduled.
* `next` is the next instruction to be dispatched. `dispatching` says whether its words are all
  here, and `full` is the engine whose queue has no room for it, or -1. `next_header` is the time
  from which on its header can be looked at.
* `room` is the room for program words that are not yet requested; ``fetched[begin:end]``, modulo
  its size, has the arrival times of words that are not yet dispatched.
* `rate` is that of the memory, reads and writes together, and `width` that of each direction of
  the bus, in words per cycle; `longest` is the longest burst in words.
* Words have been moved until `last`; the first flow ends, or can begin, at `bus_next`; the last
  word was written at `written`. `bus_changes` says whether the bus has to be shared again.
* `recent` is the time of the last event, and `gemm_cycles` counts the cycles in which vectors have
  entered an array.
"""

ENGINE = _record(
    *("kind", "channel", "port", "depth", "words", "leaving", "head", "tail", "may_begin"),
    *("released", "until", "load", "latency"),
    floats=("ready", "wakes", "busy_until", "weights_until", "streams_until"),
)
"""An engine with its queue: instructions start, and end, in order.

* Its queue is ``queue[head:tail]``; the RECEIVEs that are held back are ``queue[released:head]``,
  and those of tasks up to number `until` are not.
* `depth` is the number of words that the queue holds in addition to the instruction at its head,
  `words` that of those which it has, and `leaving` that of the words of the last instruction.
* `may_begin` is the number of instructions that may still start before one ends.
* `ready` is the earliest time of the next offer, given the previous instruction, and `wakes` the
  time of the scheduled ISSUE event.
* `load` and `latency` are the cycles of loading an array, and of passing it.
* The engine, or the reader of its streamed operand, is busy until `busy_until`.
"""

CHANNEL = _record(
    *("head", "tail", "outstanding", "most_words", "opener", "opener_left", "places"),
    *("waiting", "ended", "ended_program", "grows"),
    floats=("hold", "fastest", "in_block", "rate", "free", "emptied", "want", "share", "on_link"),
)
"""One direction of the bus: words move in the order in which they were requested.

* Its flows are a linked list from `head` to `tail`; `waiting` counts those of bursts, and the last
  one of them ended at `emptied`.
* At most `outstanding` bursts are under way, each for `hold` cycles in addition to its data.
  `opener` is the flow whose first burst took the first place, `opener_left` says whether it has
  left the list, and `places` is the number of places that are left.
* `fastest` is the largest number of words per cycle, and `in_block` that of words which one of two
  memory ports has; `most_words` is the largest number of words that may be requested at a time, and
  `free` the earliest begin of the next burst. `on_link` is the largest number of words per cycle
  between a link and the scratchpad.
* `ended` is the instruction whose words have just ended, or -1, and `ended_program` says whether
  they were words of the program.
* `want`, `share` and `grows` are used while the rates are set.
"""

PORT = _record(
    *("device", "other", "sent_channel", "words_room", "words", "frames", "parts"),
    *("first_send", "wanted", "asked", "waiting", "entering", "entered", "told"),
    *("awaited", "taken", "written"),
    *("overhead_bytes", "cuts_through", "transmit", "arrive", "freed", "heard"),
    floats=("rate", "wire_latency", "enter_from", "wire_from", "busy", "take_from", "read_from"),
    lists={"room": NUM_CHANNELS, "arrived": NUM_CHANNELS},
)
"""One end of a link: frames that wait to be sent, and frames that came from the other end.

* Its fields from `first_send` to `written` are indices into the tables of `sends` and `receives`;
  each says how far a step of their processing has come.
* `room` has, for each channel, the number of frames or words that the link can still take, and
  `arrived` that of those which have arrived. `words_room` is the room for words that are read.
  Words of the scratchpad are read from `read_from` on.
* `words`, `frames` and `busy` count the traffic that this end has sent.
* `other` is the number of the other end, or -1.
* The fields from `cuts_through` to `heard` are those of `EndCycles`.
"""

FLOW = _record(
    *("index", "next", "follower"),
    floats=("words", "asked", "burst", "begins", "began", "hold"),
)
"""Words that are still to move over the bus, in one direction.

* `index` is the instruction that ends with these words; negative if none does.
* `words` are left of those that were `asked` for.
* `burst` is the number of words per burst; 0 for words of the program.
* The first word may move at `begins`, and moved at `began`, which is infinite before.
* The flow `follower` must not move until `hold` cycles after the beginning of this one.
"""

EVENT = _record("key", "event", "what", floats=("time",))
"""An event; those of the same time happen in the order of their keys."""

CODE = _record(
    *("engine", "program_words", "is_end", "waits", "signals", "words", "bursts", "product"),
    *("chunks", "task", "waiter", "on_chip"),
    floats=("takes", "lost", "offer", "since", "start", "end"),
)
"""An instruction; the semaphores that it waits for and signals are masks. `on_chip` says whether it
is a SEND or RECEIVE of words in the scratchpad."""

PRODUCT = _record(
    *("stream_cycles", "last_tile_cycles", "a_late", "b_late", "a_ahead", "b_words"),
    *("later_b_words", "stall_cycles", "latest"),
)
"""A `GemmTiming`, and the cycles from the array's last sums to the end of the product."""

SENT = _record("index", "channel", "words", "link_words", "is_last", floats=("trailer",))
"""The words of a frame of a SEND. On the link, the first frame has the packet's tag as well;
`trailer` is the time at which the frame has been sent."""

RECEIVED = _record("index", "channel", "words", "is_last", "frame", "frees")
"""Words of a burst of a RECEIVE, or those that it writes to the scratchpad together. ``frame`` is
the number, in its channel, of the frame that has the last of the words, and ``frees`` the number of
frames that are taken completely with them, or that of words where room is counted in these."""


class State(NamedTuple):
    """The tables of a simulation."""

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

    def plain(self) -> State:
        """Return lists in place of the arrays."""
        return State(*map(rows_of_table, self))


def rows_of_table(table: NDArray[Any] | list[Any]) -> list[Any]:
    """Return a table as a list of numbers, or of objects that have the fields of its records."""
    if isinstance(table, list):
        return table
    if table.dtype.names is None:
        return list(table.tolist())
    make = _row_class(table.dtype)
    columns = [table[name].tolist() for name in table.dtype.names]
    return [make(*row) for row in zip(*columns, strict=True)]


def column(table: NDArray[Any] | list[Any], name: str, begin: int, end: int) -> list[Any]:
    """Return a field of some rows of a table."""
    if isinstance(table, list):
        return [getattr(row, name) for row in table[begin:end]]
    return list(table[name][begin:end].tolist())


@cache
def _row_class(kind: np.dtype[Any]) -> type:
    return make_dataclass("Row", kind.names or (), slots=True)
