"""Places of a kernel's buffers in the banks of the scratchpad.

A bank reads one vector and writes one vector per cycle, and consists of a memory of even and one of
odd words, each of which reads one word per cycle. So the two sources of an instruction are in
different banks or, at the same pace, an odd number of words apart; else each vector takes two
cycles to be read (`fpgapipe.hw.hls_models.cycles.vector_cycles.meeting_cycles`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def apart(
    rooms: Mapping[str, int], pairs: Collection[tuple[str, str]], banks: int, bank_bytes: int
) -> dict[str, int]:
    """Beginnings of buffers in some banks that follow each other.

    Parameters
    ----------
    rooms : mapping of str to int
        Bytes of all copies of each buffer, whole words.
    pairs : collection of (str, str)
        Buffers that are read together, which are kept apart where there is room.
    banks, bank_bytes : int
        Number of banks, and bytes of each.

    Returns
    -------
    dict of str to int
        Byte of each buffer's first copy. Buffers take the banks by turns; if they do not fit so,
        they follow each other without gaps.
    """
    partners: dict[str, set[str]] = {name: set() for name in rooms}
    for one, other in pairs:
        partners[one].add(other)
        partners[other].add(one)
    used = [0] * banks
    begins: dict[str, int] = {}
    for number, (name, room) in enumerate(rooms.items()):
        others = [divmod(begins[each], bank_bytes) for each in partners[name] if each in begins]
        possible = []
        for turn in range(2 * banks):
            skipped_words, bank = turn // banks, (number + turn) % banks
            at = used[bank] + skipped_words * WORD_BYTES
            if at + room <= bank_bytes:
                beside = [there for there_bank, there in others if there_bank == bank]
                meets = any((at - there) // WORD_BYTES % 2 == 0 for there in beside)
                possible.append((meets, bool(beside), turn, bank, at))
        if not possible:
            return _in_a_row(rooms)
        *_, bank, at = min(possible)
        begins[name] = bank * bank_bytes + at
        used[bank] = at + room
    return begins


def _in_a_row(rooms: Mapping[str, int]) -> dict[str, int]:
    """Beginnings of buffers that follow each other without gaps."""
    begins, at = {}, 0
    for name, room in rooms.items():
        begins[name] = at
        at += room
    return begins
