"""Loads and stores between memory and scratchpad: the bytes they move, their bursts, their cycles.

A transfer is the body of a LOAD or STORE instruction,
:data:`~fpgapipe.hw.hls_models.isa.instructions.TRANSFER`: planes of rows. Words are aligned groups
of 64 bytes. A row must begin at the same byte of a word in the memory and in the scratchpad. A load
reads whole words from memory and writes them to the scratchpad unchanged; a store writes exactly
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
"""Width of a byte address in an instruction."""

PAGE_BYTES = 4096
"""Page size of AXI; no burst crosses a multiple of it."""

READ_LATENCY = 4
"""Cycles from the acceptance of a read of the scratchpad to its data."""

LOAD_FILL_CYCLES = 8
"""Cycles of a load in addition to the latency of the memory and one cycle per beat."""

STORE_FILL_CYCLES = 16
"""Cycles of a store in addition to the latency of the memory and one cycle per beat."""


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
    """Return the body of a LOAD or STORE.

    Parameters
    ----------
    memory, scratchpad : int
        Byte addresses of the first row.
    row_bytes : int
        Bytes of a row.
    rows, planes : int
        Rows of a plane and number of planes, 1 to 65,536 each.
    row_memory, row_scratchpad, plane_memory, plane_scratchpad : int
        Distances in bytes from row to row and from plane to plane.
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
    """Iterate over the byte addresses, in memory and scratchpad, of each row of a transfer."""
    for plane in range(body["planes"] + 1):
        for row in range(body["rows"] + 1):
            yield (
                body["memory"] + plane * body["plane_memory"] + row * body["row_memory"],
                body["scratchpad"]
                + plane * body["plane_scratchpad"]
                + row * body["row_scratchpad"],
            )


def words_of_row(start: int, size: int) -> tuple[int, int]:
    """Address and length in bytes of the words that contain a range of bytes."""
    first = start // WORD_BYTES * WORD_BYTES
    return first, -(-(start + size) // WORD_BYTES) * WORD_BYTES - first


def lies_within(start: int, size: int, base: int, limit: int) -> bool:
    """Whether the words that contain a range of bytes lie between two addresses."""
    first, length = words_of_row(start, size)
    return first >= base and first + length <= limit


def burst_words(spec: CoreSpec) -> int:
    """Words of the longest burst: a power of two, so that no burst crosses a multiple of 4 KiB.

    Raises
    ------
    ValueError
        If the longest burst that `spec` allows is shorter than a word.
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
        Words of a block, from `burst_words`.

    Returns
    -------
    list of (address, size)
        Start and length of each burst in bytes, both multiples of 64.
    """
    start, length = words_of_row(address, size)
    end, block = start + length, words * WORD_BYTES
    edges = [start, *range((start // block + 1) * block, end, block), end]
    return [(first, last - first) for first, last in pairwise(edges)]


def first_error(
    spec: CoreSpec, body: Mapping[str, Any], memory_base: int, memory_limit: int
) -> tuple[int, ErrorCode]:
    """Find the first error of a transfer.

    Parameters
    ----------
    spec : CoreSpec
    body : mapping
        Body of the instruction.
    memory_base, memory_limit : int
        The first byte of memory that may be used, and the first byte after it that may not. Whole
        words must lie between them, for stores as well.

    Returns
    -------
    rows : int
        Number of rows before the error; all rows if there is none.
    code : ErrorCode
        The error, or NONE.
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
    """Run a LOAD, up to the first word that causes an error.

    Parameters
    ----------
    spec : CoreSpec
    body : mapping
        Body of the instruction.
    memory : uint8 array
        Content of the memory.
    scratchpad : uint8 array
        Content of the scratchpad, which is changed.
    origin : int
        Address of the memory's first byte.
    memory_base, memory_limit : int, optional
        Limits of the memory that may be used; by default, the ends of the memory.
    bad : range
        Addresses to which the memory responds with an error; words before them are loaded.
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
    """Run a STORE, up to the first burst that causes an error.

    Parameters
    ----------
    spec, body, origin, memory_base, memory_limit
        The same as for `load`.
    memory : uint8 array
        Content of the memory, which is changed.
    scratchpad : uint8 array
        Content of the scratchpad.
    bad : range
        Addresses to which the memory responds with an error. The bursts before that one are
        written. In hardware, later bursts may already be under way, and may be written as well.
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
    """Times at which a burst generator gives its bursts, if each is taken at a given time or later.

    Cycle 0 is the one in which the first transfer is taken; all others wait at the input.
    """

    _STAGES = 4

    def __init__(self) -> None:
        self._entered = [0] * (self._STAGES - 1)  # times at which rows reached the last stage
        self._left = 0  # time at which the last row left the first stage
        self._free = 0  # time from which on the last stage is free
        self._taken: list[int] = []

    @property
    def last(self) -> int:
        """Time at which the last burst was taken; -2 before the first."""
        return self._taken[-1] if self._taken else -2

    def begin(self) -> None:
        """Begin another transfer; the first stage is free one cycle after the last row has left."""
        if self._taken:
            self._left += 1

    def row(self) -> None:
        """Begin another row; the row three before it must have reached the last stage."""
        self._left = max(self._left + 1, self._entered[-3])
        self._entered.append(max(self._left + 3, self._free))
        self._free = self._entered[-1]

    def burst(self, earliest: int) -> int:
        """Return the time at which a burst is taken."""
        # There is room for two bursts after the last stage, so a burst can only pass that stage
        # when the burst two before it has been taken.
        passed = self._free + 1
        if len(self._taken) > 1:
            passed = max(passed, self._taken[-2] + 1)
        self._free = passed
        taken = max(passed + 1, earliest, self._taken[-1] + 1 if self._taken else 0)
        self._taken.append(taken)
        return taken


def _room(spec: CoreSpec, ended: Sequence[int], generator: _Generator) -> int:
    """Time at which there is room for another burst in the queue of those under way.

    With only two places, a burst needs one more cycle to move from the first place to the second.
    """
    room = ended[-spec.outstanding] + 1 if len(ended) >= spec.outstanding else 0
    return max(room, generator.last + 2) if spec.outstanding == 2 else room


def load_cycles(spec: CoreSpec, bodies: Sequence[Mapping[str, Any]], latency_cycles: int) -> int:
    """Cycles from the acceptance of the first transfer to the done of the last.

    There are no errors, the next transfer is always waiting, the memory takes one request and gives
    one beat per cycle, and the scratchpad takes one word per cycle. If `spec.outstanding` bursts
    last longer than a round trip, the result is ``LOAD_FILL_CYCLES + latency_cycles + beats``.

    Parameters
    ----------
    spec : CoreSpec
    bodies : sequence of mapping
        Bodies of the LOADs.
    latency_cycles : int
        Latency of the memory, from the cycle of a request to that of its first beat, at least 1.
    """
    beats_per_word = WORD_BYTES // spec.bus_bytes
    generator = _Generator()
    gone: list[int] = []  # cycles of the bursts' last beats
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

    There are no errors, the next transfer is always waiting, the memory takes one request and one
    beat per cycle, and the scratchpad gives one word per cycle. If `spec.outstanding` bursts last
    longer than a round trip, the result is ``STORE_FILL_CYCLES + latency_cycles + beats - 1``.

    Parameters
    ----------
    spec : CoreSpec
    bodies : sequence of mapping
        Bodies of the STOREs.
    latency_cycles : int
        Latency of the memory, from the cycle of a burst's last beat to that of its response, at
        least 1.
    """
    beats_per_word = WORD_BYTES // spec.bus_bytes
    generator = _Generator()
    ended: list[int] = []  # cycles of the responses
    free = 0  # cycle in which the last burst's words have all been requested from the scratchpad
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
