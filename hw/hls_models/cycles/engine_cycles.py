"""How the engines of a core begin and end instructions, for its cycle model.

`event_loop` has their queues and the semaphores; `instruction_cycles` and `vector_cycles` have the
times that an instruction takes on its own.
"""

from enum import IntEnum

from fpgapipe.hw.hls_models.cycles.cycle_tables import State
from fpgapipe.hw.hls_models.cycles.event_queue import SIGNAL, at, larger
from fpgapipe.two_speeds import compilable

OFFER_CYCLES = 3
"""Cycles from the dispatch of an instruction's last word to its start."""

TAKE_CYCLES = 2
"""Cycles that taking semaphores adds to `OFFER_CYCLES`."""

SIGNAL_CYCLES = 5
"""Cycles from the end of an instruction to the start of another one that waits for its signal."""

LOAD_CYCLES = 8
"""Cycles from a load's start to its first request on the bus."""

LOADED_CYCLES = 2
"""Cycles from the end of a load's last beat on the bus to the end of the load."""

STORE_CYCLES = 15
"""Cycles from a store's start to its first beat on the bus."""

SEND_CYCLES = 5
"""Cycles from the end of a packet's last beat on the bus to the end of the SEND, if the link takes
the word at once."""

RECEIVE_CYCLES = 16
"""Cycles from the start of a RECEIVE to its first beat on the bus, in addition to the time in which
the link gives the words of the first burst."""

READER_CYCLES = 19
"""Cycles from the start of a product to its first vector at the array, through the address
generator, the scratchpad and the quantiser."""

KEPT_CYCLES = 1
"""Cycles for which a queue keeps a product after the parts of its engine have taken it."""

READ_AHEAD_CYCLES = 26
"""Cycles by which the streamed operand's reader is ahead of the array."""

SUMMED_CYCLES = 10
"""Cycles from the array's last sums to the end of a product whose sums stay in the accumulators."""

WRITTEN_CYCLES = 13
"""Cycles from the array's last sums to the end of a product whose results are written."""


class Kind(IntEnum):
    """Kinds of engines."""

    LOAD = 0  # reads from memory into the scratchpad; data begins after the memory's latency
    STORE = 1  # writes from the scratchpad to memory; ends with its last response
    GEMM = 2  # an array, through which the vectors of products follow each other
    VECTOR = 3  # runs one instruction at a time
    SEND = 4  # reads from memory for a link, which takes words as fast as it sends them
    RECEIVE = 5  # writes the words of a link, which have arrived when the instruction starts
    LINK_SEND = 6  # reads a frame's words when there is room for them, and gives them to a link
    LINK_RECEIVE = 7  # writes a burst when the frames that contain its words have arrived
    HELD = 8  # a link's RECEIVEs, which end only when nothing else is left to do


LOAD, STORE, GEMM, VECTOR, SEND, RECEIVE, LINK_SEND, LINK_RECEIVE, HELD = map(int, Kind)


@compilable
def end_instruction(s: State, device: int, index: int, now: float) -> None:
    """Note the end of an instruction, and schedule its signals."""
    s.code[index].end = now
    at(s, device, now + SIGNAL_CYCLES, SIGNAL, index)


@compilable
def start_product(s: State, device: int, number: int, index: int, now: float) -> float:
    """Begin a product, and return the time at which its engine takes it."""
    engine = s.engines[number]
    timing = s.products[s.code[index].product]
    # Weights of the first tile follow those of the previous tile as fast as they are read.
    # Without a previous tile, they come when the product starts, and the array needs one more
    # cycle.
    first_b = larger(
        now + READER_CYCLES + timing.b_late + engine.load,
        engine.weights_until + timing.b_words,
    )
    # The streamed operand's reader may still be busy with the previous product.
    taken = larger(now, engine.busy_until)
    first_a = taken + READER_CYCLES + timing.a_late
    begins = larger(larger(first_b, first_a), engine.streams_until)
    ends = begins + timing.stream_cycles
    last_tile_from = ends - timing.last_tile_cycles
    engine.weights_until = larger(
        last_tile_from + timing.stall_cycles, first_b + timing.later_b_words
    )
    engine.streams_until = ends
    engine.busy_until = ends - READ_AHEAD_CYCLES - timing.a_ahead
    s.devices[device].gemm_cycles += ends - begins
    end_instruction(s, device, index, ends + engine.latency + timing.latest)
    return taken
