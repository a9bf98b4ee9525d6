"""Loads and stores between memory and scratchpad: what they move, in which bursts, in what time.

A transfer is a body of a LOAD or STORE instruction,
:data:`~fpgapipe.hw.hls_models.isa.instructions.TRANSFER`: planes of rows. Words are aligned groups
of 64 bytes. A row must begin at the same byte of a word in the memory and in the scratchpad. Memory
is read in whole words, which a load writes to the scratchpad as they are; a store writes exactly
the bytes of its rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, ErrorCode
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

MEMORY_BITS = 48
"""Of a byte address in an instruction."""

PAGE_BYTES = 4096
"""No burst of AXI crosses a multiple of this."""

READ_LATENCY = 4
"""Cycles from the acceptance of a read of the scratchpad to its data."""

LOAD_FILL_CYCLES = 8
"""Of a load, besides the latency of the memory and a cycle a beat."""

STORE_FILL_CYCLES = 16
"""Of a store, besides the latency of the memory and a cycle a beat."""


def transfer(
    memory: int,
    scratchpad: int,
    row_bytes: int,
    rows: int = 1,
    row_memory: int = 0,
    row_scratchpad: int = 0,
    planes: int = 1,
    plane_memory: int = 0,
    plane_scratchpad: int = 0,
) -> dict[str, int]:
    """Body of a LOAD or STORE.

    Parameters
    ----------
    memory, scratchpad : int
        Byte addresses of the first row.
    row_bytes : int
    rows, planes : int
        1 to 65,536 each.
    row_memory, row_scratchpad, plane_memory, plane_scratchpad : int
        Bytes from row to row and from plane to plane.
    """
    return {
        "memory": memory,
        "scratchpad": scratchpad,
        "row_bytes": row_bytes,
        "rows": rows - 1,
        "row_memory": row_memory,
        "row_scratchpad": row_scratchpad,
        "planes": planes - 1,
        "plane_memory": plane_memory,
        "plane_scratchpad": plane_scratchpad,
    }


def row_starts(body: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Byte addresses in memory and in the scratchpad of each row of a transfer, in order."""
    for plane in range(body["planes"] + 1):
        for row in range(body["rows"] + 1):
            yield (
                body["memory"] + plane * body["plane_memory"] + row * body["row_memory"],
                body["scratchpad"]
                + plane * body["plane_scratchpad"]
                + row * body["row_scratchpad"],
            )


def words_of_row(start: int, size: int) -> tuple[int, int]:
    """Address and length in bytes of the words that some bytes touch."""
    first = start // WORD_BYTES * WORD_BYTES
    return first, -(-(start + size) // WORD_BYTES) * WORD_BYTES - first


def lies_within(start: int, size: int, base: int, limit: int) -> bool:
    """Whether the words that some bytes touch lie between two addresses."""
    first, length = words_of_row(start, size)
    return first >= base and first + length <= limit


def burst_words(spec: CoreSpec) -> int:
    """Words of the longest burst: a power of two, so that none crosses 4 KiB.

    Raises
    ------
    ValueError
        If `spec` allows no burst of a word.
    """
    words = spec.burst_beats * spec.bus_bytes // WORD_BYTES
    if not words:
        raise ValueError(
            f"core burst_beats must be at least {WORD_BYTES // spec.bus_bytes} (a word of "
            f"{WORD_BYTES} bytes on a bus of {spec.bus_bytes}), not {spec.burst_beats}"
        )
    return min(1 << (words.bit_length() - 1), PAGE_BYTES // WORD_BYTES)


def bursts(address: int, size: int, words: int) -> list[tuple[int, int]]:
    """Bursts of a row, each within an aligned block of memory.

    Parameters
    ----------
    address, size : int
        Start and length of the row in bytes.
    words : int
        Words of a block, `burst_words`.

    Returns
    -------
    list of (address, size)
        In bytes, both multiples of 64.
    """
    start, length = words_of_row(address, size)
    end, block = start + length, words * WORD_BYTES
    edges = [start, *range((start // block + 1) * block, end, block), end]
    return [(first, last - first) for first, last in pairwise(edges)]


def first_error(
    spec: CoreSpec, body: Mapping[str, Any], memory_base: int, memory_limit: int
) -> tuple[int, ErrorCode]:
    """Where a transfer goes wrong.

    Parameters
    ----------
    spec : CoreSpec
    body : mapping
        Of the instruction.
    memory_base, memory_limit : int
        The first byte of memory that may be touched, and the first after it that may not. Words
        must lie between them as a whole, for stores as well.

    Returns
    -------
    rows : int
        How many rows come before, all of them if nothing is wrong.
    code : ErrorCode
    """
    if (
        body["row_bytes"] < 1
        or (body["memory"] - body["scratchpad"]) % WORD_BYTES
        or (body["row_memory"] - body["row_scratchpad"]) % WORD_BYTES
        or (body["plane_memory"] - body["plane_scratchpad"]) % WORD_BYTES
    ):
        return 0, ErrorCode.BAD_FIELD
    limit = min(memory_limit, 1 << MEMORY_BITS)
    row = -1
    for row, (memory, scratchpad) in enumerate(row_starts(body)):
        if not lies_within(memory, body["row_bytes"], max(memory_base, 0), limit):
            return row, ErrorCode.MEMORY_RANGE
        if not lies_within(scratchpad, body["row_bytes"], 0, spec.scratchpad.size_bytes):
            return row, ErrorCode.SCRATCHPAD_RANGE
    return row + 1, ErrorCode.NONE


def load(
    spec: CoreSpec,
    body: Mapping[str, Any],
    memory: NDArray[np.uint8],
    scratchpad: NDArray[np.uint8],
    *,
    origin: int = 0,
    memory_base: int | None = None,
    memory_limit: int | None = None,
    bad: range = range(0),
) -> ErrorCode:
    """Run a LOAD, up to the first word that is wrong.

    Parameters
    ----------
    spec : CoreSpec
    body : mapping
    memory : uint8 array
    scratchpad : uint8 array
        Changed.
    origin : int
        Address of the memory's first byte.
    memory_base, memory_limit : int, optional
        The memory's ends if left out.
    bad : range
        Addresses which the memory answers with an error: the row's words before that are loaded.
    """
    base = origin if memory_base is None else memory_base
    limit = origin + memory.size if memory_limit is None else memory_limit
    rows, code = first_error(spec, body, base, limit)
    for _, (start, target) in zip(range(rows), row_starts(body), strict=False):
        first, size = words_of_row(start, body["row_bytes"])
        into = target - start + first
        for word in range(0, size, WORD_BYTES):
            address = first + word
            if address < bad.stop and bad.start < address + WORD_BYTES:
                return ErrorCode.AXI_READ
            at = address - origin
            scratchpad[into + word : into + word + WORD_BYTES] = memory[at : at + WORD_BYTES]
    return code


def store(
    spec: CoreSpec,
    body: Mapping[str, Any],
    memory: NDArray[np.uint8],
    scratchpad: NDArray[np.uint8],
    *,
    origin: int = 0,
    memory_base: int | None = None,
    memory_limit: int | None = None,
    bad: range = range(0),
) -> ErrorCode:
    """Run a STORE, up to the first burst that is wrong.

    Parameters
    ----------
    spec, body, origin, memory_base, memory_limit
        As for `load`.
    memory : uint8 array
        Changed.
    scratchpad : uint8 array
    bad : range
        Addresses which the memory answers with an error. The bursts before that one are written;
        later ones may have been under way, and may be written in hardware.
    """
    base = origin if memory_base is None else memory_base
    limit = origin + memory.size if memory_limit is None else memory_limit
    rows, code = first_error(spec, body, base, limit)
    for _, (start, source) in zip(range(rows), row_starts(body), strict=False):
        for first, size in bursts(start, body["row_bytes"], burst_words(spec)):
            if first < bad.stop and bad.start < first + size:
                return ErrorCode.AXI_WRITE
            low, high = max(start, first), min(start + body["row_bytes"], first + size)
            memory[low - origin : high - origin] = scratchpad[
                source + low - start : source + high - start
            ]
    return code


def _burst_slots(spec: CoreSpec, bodies: Sequence[Mapping[str, Any]]) -> list[list[list[int]]]:
    """Words of each burst of each row of each transfer."""
    return [
        [
            [size // WORD_BYTES for _, size in bursts(start, body["row_bytes"], burst_words(spec))]
            for start, _ in row_starts(body)
        ]
        for body in bodies
    ]


class _Generator:
    """When the bursts of a burst generator come, if its user takes each at a given time or later.

    Cycle 0 is the one in which the first transfer is taken; all others wait at the input.
    """

    _STAGES = 4

    def __init__(self) -> None:
        self._entered = [0] * (self._STAGES - 1)  # when rows came to the last stage
        self._left = 0  # when the last row left the first stage
        self._free = 0  # when the last stage is free
        self._taken: list[int] = []

    @property
    def last(self) -> int:
        """When the last burst was taken, -2 before the first."""
        return self._taken[-1] if self._taken else -2

    def begin(self) -> None:
        """Another transfer: the first stage is free one cycle after its last row has left."""
        if self._taken:
            self._left += 1

    def row(self) -> None:
        """Another row: it leaves the first stage when the row three before it is out of its way."""
        self._left = max(self._left + 1, self._entered[-3])
        self._entered.append(max(self._left + 3, self._free))
        self._free = self._entered[-1]

    def burst(self, earliest: int) -> int:
        """When a burst is taken."""
        # Two bursts are kept behind the last stage: the one before the last has gone by then.
        passed = self._free + 1
        if len(self._taken) > 1:
            passed = max(passed, self._taken[-2] + 1)
        self._free = passed
        taken = max(passed + 1, earliest, self._taken[-1] + 1 if self._taken else 0)
        self._taken.append(taken)
        return taken


def _room(spec: CoreSpec, ended: Sequence[int], generator: _Generator) -> int:
    """When there is room for another burst in the queue of those under way.

    Of two places one is at the queue's end, and takes a cycle to be reached from the other.
    """
    room = ended[-spec.outstanding] + 1 if len(ended) >= spec.outstanding else 0
    return max(room, generator.last + 2) if spec.outstanding == 2 else room


def load_cycles(spec: CoreSpec, bodies: Sequence[Mapping[str, Any]], latency_cycles: int) -> int:
    """Cycles from the acceptance of the first transfer to the done of the last.

    Without errors, where the next transfer is always waiting, the memory takes a request a cycle,
    gives a beat a cycle and the scratchpad takes a word a cycle. If `spec.outstanding` bursts last
    longer than a round trip this is ``LOAD_FILL_CYCLES + latency_cycles + beats``.

    Parameters
    ----------
    spec : CoreSpec
    bodies : sequence of mapping
    latency_cycles : int
        Of the memory, from the cycle of a request to that of its first beat, at least 1.
    """
    beats_per_word = WORD_BYTES // spec.bus_bytes
    generator = _Generator()
    gone: list[int] = []  # the last beats of bursts
    for rows in _burst_slots(spec, bodies):
        generator.begin()
        for row in rows:
            generator.row()
            for words in row:
                request = generator.burst(_room(spec, gone, generator)) + 1
                first = max(request + latency_cycles, gone[-1] + 1 if gone else 0)
                gone.append(first + words * beats_per_word - 1)
    return gone[-1] + 2


def store_cycles(spec: CoreSpec, bodies: Sequence[Mapping[str, Any]], latency_cycles: int) -> int:
    """Cycles from the acceptance of the first transfer to the done of the last.

    Without errors, where the next transfer is always waiting, the memory takes a request and a
    beat a cycle and the scratchpad gives a word a cycle. If `spec.outstanding` bursts last longer
    than a round trip this is ``STORE_FILL_CYCLES + latency_cycles + beats - 1``.

    Parameters
    ----------
    spec : CoreSpec
    bodies : sequence of mapping
    latency_cycles : int
        Of the memory, from the cycle of a burst's last beat to that of its response, at least 1.
    """
    beats_per_word = WORD_BYTES // spec.bus_bytes
    generator = _Generator()
    ended: list[int] = []  # when responses came
    free = 0  # when the reader of the scratchpad has asked for the last burst's words
    beat = 0
    for rows in _burst_slots(spec, bodies):
        generator.begin()
        for row in rows:
            generator.row()
            for words in row:
                taken = generator.burst(max(_room(spec, ended, generator), free))
                free = taken + words
                beat = max(taken + READ_LATENCY + 5, beat + 1) + words * beats_per_word - 1
                ended.append(max(beat + latency_cycles, ended[-1] + 1 if ended else 0))
    return ended[-1] + 1
