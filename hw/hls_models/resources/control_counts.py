"""Resources of a core's sequencer and registers, and of each engine's queue and control.

The counts of their fixed parts are in `fpgapipe.hw.hls_models.resources.core_counts`.
"""

from fpgapipe.hw.hls_models.isa.instructions import (
    BODIES,
    HEADER,
    NUM_SEMAPHORES,
    WORD_BYTES,
    words_of,
)
from fpgapipe.hw.hls_models.model.sequencer import INDEX_BITS, SequencerSpec
from fpgapipe.hw.hls_models.resources.core_counts import COEFFICIENTS, WORD_BITS, Resources, memory


def sequencer_luts(num_queues: int, num_semaphores: int) -> float:
    """LUTs of a sequencer of whole words: counted, with a term for each queue and semaphore."""
    found = COEFFICIENTS["sequencer"].resources
    found += COEFFICIENTS["queue"].resources * num_queues
    return (found + COEFFICIENTS["queue semaphore"].resources * (num_queues * num_semaphores)).lut


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
    common = _common_registers(queues, num_units, num_semaphores)
    reader = WORD_BITS + 2 + (WORD_BYTES // bus_bytes - 1).bit_length()
    found = num_short * short + num_long * long + common + reader
    return found + 732  # words that are fetched (531), where from, and the program's state


def _common_registers(queues: int, num_units: int, num_semaphores: int) -> int:
    """Flip-flops of semaphores, of errors, and of dispatch."""
    # Counts and overflows; for each queue two stages of its signals and of an instruction's number.
    semaphores = 9 * num_semaphores + queues + 1 + INDEX_BITS + 1
    semaphores += 2 * queues * (num_semaphores + INDEX_BITS)
    failures = 41 * num_units + 29  # 32 bits of the number, 8 of the code, one that it came
    return semaphores + failures + 34 + num_semaphores + queues


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


def narrow_sequencer(spec: SequencerSpec) -> Resources:
    """Resources of a sequencer whose program passes in parts (derived, but for the fixed parts).

    The parts of an instruction are collected in flip-flops, and wait in memories for that.
    """
    bits, queues = 8 * spec.part_bytes, spec.num_queues
    header_bits = (spec.header_parts - 1) * bits
    left_bits = (spec.word_parts - 1).bit_length()
    found = Resources(
        lut=_NARROW_FETCH_LUTS,
        ff=_common_registers(queues, 2 + _units(spec), spec.num_semaphores)
        + (header_bits + spec.header_parts.bit_length() + left_bits)
        + bits + 2  # from the bus
        + 201 + 2 * left_bits,  # what is to be fetched, and the program's state
    )  # fmt: skip
    found += _part_fifo(spec.prefetch_words * spec.word_parts, bits + 2)
    # Wait and signal of semaphores that the core lacks only pass through; where a header has three
    # parts, some of their way is a shift register.
    lacks = NUM_SEMAPHORES - spec.num_semaphores
    passing = lacks * (3 if spec.header_parts > 2 else 1)
    for queue, (opcode, _) in enumerate(spec.queues):
        parts = words_of(opcode) * spec.word_parts
        used = -(-(HEADER.bits + BODIES[opcode].bits) // bits)
        collected = min(used, parts - 1) * bits - passing + parts.bit_length()
        found += Resources(
            lut=_NARROW_QUEUE_LUTS, ff=collected + 9 + (spec.num_semaphores + INDEX_BITS + 11)
        )
        found += _part_fifo(spec.words_of_queue(queue) * spec.word_parts, bits)
    return found


_NARROW_FETCH_LUTS, _NARROW_QUEUE_LUTS = -322, -320
"""LUTs of fetching and of a queue whose words pass in parts, beside their memories, less those of
whole words (counted by Yosys 0.70, synth_xilinx -family xc7: parts of 4, 8 and 16 bytes, three,
four and six queues; within 65)."""


def _part_fifo(rows: int, bits: int) -> Resources:
    """Memory of a FIFO, two addresses, how much there is, and whether there is something."""
    return memory(rows, bits) + Resources(ff=3 * (rows - 1).bit_length() + 2)


def _units(spec: SequencerSpec) -> int:
    return sum(spec.units_of_queue(queue) for queue in range(spec.num_queues))


def control(spec: SequencerSpec, *, counters: bool) -> Resources:
    """Resources of the sequencer, the registers, and each engine's queue and control.

    LUTs of links' own registers are counted with the links.
    """
    num_engines, num_links, has_vector = spec.num_engines, spec.num_links, spec.has_vector
    if spec.word_parts > 1:
        found = narrow_sequencer(spec)
    else:
        found = Resources(
            ff=sequencer_registers(
                2 + 2 * num_links,
                num_engines + has_vector,
                2 + _units(spec),
                spec.num_semaphores,
                spec.bus_bytes,
            )
            + 3 * num_engines  # their queues hold twice as many words
        )
    found += Resources(
        ff=register_registers(
            num_engines, num_links, spec.bus_bytes, has_vector=has_vector, counters=counters
        )
    )
    found += Resources(lut=sequencer_luts(spec.num_queues, spec.num_semaphores))
    found += COEFFICIENTS["registers"].resources
    found += COEFFICIENTS["engine control"].resources * num_engines
    if has_vector:
        found += COEFFICIENTS["vector control"].resources
    if not counters:
        fewer = 5 + 5 * num_engines + 5 * has_vector + 10 * num_links
        found += COEFFICIENTS["counter"].resources * -fewer
    return found
