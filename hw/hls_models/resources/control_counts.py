"""Resources of a core's sequencer and registers, and of each engine's queue and control.

The counts of their fixed parts are in `fpgapipe.hw.hls_models.resources.core_counts`.
"""

from fpgapipe.hw.hls_models.isa.instructions import (
    NUM_SEMAPHORES,
    WORD_BYTES,
    semaphores_of_core,
)
from fpgapipe.hw.hls_models.model.sequencer import INDEX_BITS
from fpgapipe.hw.hls_models.resources.core_counts import COEFFICIENTS, WORD_BITS, Resources


def sequencer_registers(
    num_short: int, num_long: int, num_units: int, num_semaphores: int, bus_bytes: int
) -> int:
    """Flip-flops of a sequencer (derived, but for the counts of its fixed parts).

    Parameters
    ----------
    num_short, num_long : int
        Queues of instructions of one program word, and of five.
    num_units : int
        Parts of engines that report errors, and two of the sequencer.
    num_semaphores, bus_bytes : int
    """
    queues = num_short + num_long
    # A FIFO's word and its addresses; signals and number of instructions under way; what was taken
    # and given. Four of five words are collected, without the semaphores that the core lacks.
    short = WORD_BITS + 14 + (num_semaphores + INDEX_BITS + 11) + 10
    long = short + 2 + 4 * WORD_BITS - 2 * (NUM_SEMAPHORES - num_semaphores)
    # Counts and overflows; for each queue two stages of its signals and of an instruction's number.
    semaphores = 9 * num_semaphores + queues + 1 + INDEX_BITS + 1
    semaphores += 2 * queues * (num_semaphores + INDEX_BITS)
    failures = 41 * num_units + 29  # 32 bits of the number, 8 of the code, one that it came
    dispatch = 34 + num_semaphores + queues
    reader = WORD_BITS + 2 + (WORD_BYTES // bus_bytes - 1).bit_length()
    found = num_short * short + num_long * long + semaphores + failures + dispatch + reader
    return found + 732  # words that are fetched (531), where from, and the program's state


def register_registers(
    num_engines: int, num_links: int, bus_bytes: int, *, has_vector: bool, counters: bool
) -> int:
    """Flip-flops of the registers (derived, but for the count of the fixed part).

    Counters have 64 bits, and beside them the number by which they rise; the vector engine's 16
    registers have 32, a link's enable, seed and commands 21.
    """
    if counters:
        number = 9 + 6 * num_engines + 6 * has_vector + 14 * num_links
    else:
        number = 4 + num_engines + has_vector + 4 * num_links
    amounts = number + 2 * (bus_bytes.bit_length() - 1) + 2 * num_links
    return 369 + 512 * has_vector + 64 * number + amounts + 21 * num_links


def control(
    num_engines: int, num_links: int, bus_bytes: int, *, has_vector: bool, counters: bool
) -> Resources:
    """Resources of the sequencer, the registers, and each engine's queue and control.

    LUTs of links' own queues and registers are counted with the links.
    """
    found = Resources(
        ff=sequencer_registers(
            2 + 2 * num_links,
            num_engines + has_vector,
            4 + 4 * num_engines + 2 * has_vector + 2 * num_links,
            semaphores_of_core(num_links, num_engines),
            bus_bytes,
        )
        + 3 * num_engines  # their queues hold twice as many words
        + register_registers(
            num_engines, num_links, bus_bytes, has_vector=has_vector, counters=counters
        )
    )
    for block in ("sequencer", "registers"):
        found += COEFFICIENTS[block].resources
    found += COEFFICIENTS["engine control"].resources * num_engines
    if has_vector:
        found += COEFFICIENTS["vector control"].resources
    if num_engines == 1 and num_links > 1:
        found += COEFFICIENTS["link semaphores"].resources
    if not counters:
        fewer = 5 + 5 * num_engines + 5 * has_vector + 10 * num_links
        found += COEFFICIENTS["counter"].resources * -fewer
    return found + COEFFICIENTS["engine semaphores"].resources * (num_engines - 1)
