"""Resources of a scratchpad: what is between its ports and its memories, and these."""

from __future__ import annotations

import math

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.resources.core_counts import (
    COEFFICIENTS,
    MOST_LUT_ROWS,
    WORD_BITS,
    Resources,
    half_blocks,
    memory,
)

_GRANULE_BITS = 16
"""Bits of the scratchpad that a bit of its write mask stands for."""


def _groups(banks: int) -> int:
    """Words that a read port of a scratchpad keeps before it chooses: one of each two banks."""
    return max(1, banks // 2)


def _scratchpad_read(banks: int, port_bytes: int) -> tuple[float, float]:
    """LUTs of a read port for any even address, and of one for whole words.

    Per bit, one LUT chooses among the even and odd words of two banks. A LUT for each two stages
    rotates; where there are more than two banks, the first LUT has one stage, and chooses among
    what is kept of each two banks. Yosys takes 3.6 LUTs to do so for eight banks. Then, each
    granule's number takes five LUTs.
    """
    bits, granules, groups = 8 * port_bytes, port_bytes // 2, _groups(banks)
    stages = (granules - 1).bit_length()
    if groups == 1:
        return bits * (1 + math.ceil(stages / 2)), bits
    choice = 1 if groups == 2 else 0.9 * groups
    turned = groups + choice + math.ceil((stages - 1) / 2)
    return bits * turned + 5 * granules, bits * (groups + math.ceil(groups / 4))


def scratchpad_registers(
    banks: int, bank_bytes: int, num_engines: int, port_bytes: int, turned_reads: int = 0
) -> int:
    """Flip-flops between the ports of a scratchpad and its memories (derived).

    Each port keeps a word on its way, and for every memory whether it uses it and which row. A
    read port keeps a word of each two banks and the rotated word, and for each granule the memory
    from which it comes, where there are more than two banks in two steps; a write port keeps a mask
    for the even words and one for the odd. Ports for whole words, which loads and stores have, keep
    these once for all granules. Where words are narrow, whoever writes and stores count parts, and
    stores join them to 64 bytes. Some read ports keep by how much their data are rotated.
    """
    bits, granules, parts = 8 * port_bytes, port_bytes // 2, WORD_BYTES // port_bytes
    rows, bank_bits = bank_bytes // (2 * port_bytes), (banks - 1).bit_length()
    place = 2 * (banks + (rows - 1).bit_length())
    offset_bits, part_bits = (granules - 1).bit_length(), (parts - 1).bit_length()
    source = 1 + bank_bits + max(0, bank_bits - 1)
    read = place + 5 + (1 + _groups(banks)) * bits
    found = (read + 3 * offset_bits + granules * source) * 2 * num_engines
    found += read + source + 2 * part_bits + bits * (parts - 1)
    write = place + bits + part_bits
    found += (write + 2 * granules) * num_engines + write + granules
    return found + turned_reads * offset_bits + 1  # an access waits


def narrow_scratchpad(banks: int, num_engines: int, port_bytes: int) -> Resources:
    """LUTs between the ports of a scratchpad and memories of narrow words.

    Engines read a word at a time, stores join words to 64 bytes, and all who write split 64 bytes
    into words. A stage of a write's rotation shares LUTs with the choice of a word.
    """
    reads, writers, bits = 2 * num_engines, num_engines + 1, 8 * port_bytes
    parts = WORD_BYTES // port_bytes
    stages = (port_bytes // 2).bit_length() - 1
    per_read, aligned = _scratchpad_read(banks, port_bytes)
    per_write = bits * (math.ceil((stages - 1) / 2) + math.ceil(parts / 4))
    per_memory = bits * (1 if writers <= 2 else math.ceil((2 * writers - 2) / 5))
    luts = per_read * reads + aligned + per_write * writers + per_memory * 2 * banks
    ports = COEFFICIENTS["narrow scratchpad port"].resources * (reads + 1 + writers)
    return ports + Resources(lut=luts)


def scratchpad_logic(
    banks: int,
    bank_bytes: int,
    num_engines: int,
    port_bytes: int = WORD_BYTES,
    *,
    turned_reads: int = 0,
) -> Resources:
    """Resources of the logic between the ports of the scratchpad and its memories.

    Every GEMM or vector engine has two read ports and one write port for any even address; loads
    and stores have one port each, for whole words. A read port chooses among words and rotates (see
    `_scratchpad_read`). A write port rotates 64 bytes, but for the step that its client does, and
    each memory selects among the writers, with an input for each and a signal for each but one.

    With words of fewer than 64 bytes, see `narrow_scratchpad`.
    """
    kept = scratchpad_registers(banks, bank_bytes, num_engines, port_bytes, turned_reads)
    registers = Resources(ff=kept)
    if port_bytes < WORD_BYTES:
        return narrow_scratchpad(banks, num_engines, port_bytes) + registers
    reads, writers = 2 * num_engines + 1, num_engines + 1
    turned, aligned = _scratchpad_read(banks, port_bytes)
    choices = 2 * banks * math.ceil((2 * writers - 2) / 5)
    return (
        Resources(lut=turned * 2 * num_engines + aligned)
        + COEFFICIENTS["scratchpad turned write"].resources * num_engines
        + COEFFICIENTS["scratchpad port"].resources * (reads + writers)
        + Resources(lut=choices * WORD_BITS)
        + registers
    )


def scratchpad_memory(banks: int, bank_bytes: int, port_bytes: int = WORD_BYTES) -> Resources:
    """Resources of the scratchpad's memories, with a write mask for each two bytes of a row.

    Because of the write mask for every 16 bits, the parity bits of block RAMs are not used.
    """
    depth, bits = bank_bytes // (2 * port_bytes), 8 * port_bytes
    if depth <= MOST_LUT_ROWS:
        # A bit of the mask writes all bits of the eight LUTs of a small memory.
        granule = memory(depth, _GRANULE_BITS)
        return granule * (bits // _GRANULE_BITS * 2 * banks)
    return Resources(bram36=half_blocks(depth, bits, 32) / 2) * (2 * banks)
