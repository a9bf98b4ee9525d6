"""Packets between memory or scratchpad and links: the bytes that SEND and RECEIVE move.

A SEND reads the words of memory that contain its rows, and sends them as one packet on a channel of
a link: first a word with the packet's tag in its first four bytes, then the words. A RECEIVE takes
such a packet and writes exactly the bytes of its rows; a byte keeps its place in its word. So a row
must begin at the same byte of a word at both ends, and must have the same number of words.

Both may also name whole words of the scratchpad that follow one another, if words pass the core's
links in one part.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, ErrorCode
from fpgapipe.hw.hls_models.model.dma import (
    MEMORY_BITS,
    burst_words,
    bursts,
    lies_within,
    row_starts,
    words_of_row,
)
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS

STREAM_BYTES = 4
"""Bytes of a packet's tag."""


SEND_WORDS, FEW_SEND_WORDS = 256, 32
"""Largest number of words that a send engine holds or has requested from memory, and that of one
whose words pass in parts. The former are four of the longest bursts, and more than a link takes in
a round trip to memory; the latter are one block RAM, and several bursts of a narrow bus."""


def most_send_words(port_bytes: int) -> int:
    """Words that a send engine holds or has requested, at most, by the link's `port_bytes`."""
    return SEND_WORDS if port_bytes == WORD_BYTES else FEW_SEND_WORDS


def send_words(core: CoreSpec) -> int:
    """Words that a send engine of a core holds or has requested, at most."""
    return most_send_words(core.link_port_bytes)


class Packet(NamedTuple):
    """A packet that a SEND sends.

    Attributes
    ----------
    stream : int
        The packet's tag.
    words : uint8 array, shape (words, 64)
        The packet's words, without the tag.
    """

    stream: int
    words: NDArray[np.uint8]

    @property
    def size(self) -> int:
        """Number of words on the link, including the tag's."""
        return len(self.words) + 1


def packet(
    memory: int,
    row_bytes: int,
    rows: int = 1,
    row_memory: int = 0,
    planes: int = 1,
    plane_memory: int = 0,
    *,
    channel: int = 0,
    stream: int = 0,
    in_scratchpad: bool = False,
) -> dict[str, int]:
    """Return the body of a SEND or RECEIVE.

    Parameters
    ----------
    memory : int
        Byte address of the first row.
    row_bytes : int
        Bytes of a row.
    rows, planes : int
        Rows of a plane and number of planes, 1 to 65,536 each.
    row_memory, plane_memory : int
        Distances in bytes from row to row and from plane to plane.
    channel : int
        Channel of the link, 0 to 2.
    stream : int
        The packet's tag, 32 bits.
    in_scratchpad : bool
        Whether `memory` is an address in the scratchpad.
    """
    return {
        "memory": memory,
        "row_bytes": row_bytes,
        "rows": rows - 1,
        "row_memory": row_memory,
        "planes": planes - 1,
        "plane_memory": plane_memory,
        "channel": channel,
        "stream": stream,
        "in_scratchpad": int(in_scratchpad),
    }


def rows_of(body: Mapping[str, Any]) -> list[int]:
    """Byte addresses of the rows of a SEND or RECEIVE, in order."""
    none = {"scratchpad": 0, "row_scratchpad": 0, "plane_scratchpad": 0}
    return [memory for memory, _ in row_starts({**body, **none})]


def words_of_packet(body: Mapping[str, Any]) -> int:
    """Number of words that a SEND or RECEIVE moves, without the packet's tag."""
    size = body["row_bytes"]
    return sum(words_of_row(start, size)[1] for start in rows_of(body)) // WORD_BYTES


def has_words_of(spec: CoreSpec, body: Mapping[str, Any]) -> bool:
    """Whether a core's scratchpad has the words that a SEND or RECEIVE names in it."""
    begin, size = body["memory"], body["row_bytes"]
    return (
        spec.links_reach_scratchpad
        and body["rows"] == body["planes"] == 0
        and size > 0
        and not begin % WORD_BYTES
        and not size % WORD_BYTES
        and begin + size <= spec.scratchpad.size_bytes
    )


def first_error(
    spec: CoreSpec, body: Mapping[str, Any], memory_base: int, memory_limit: int
) -> tuple[int, ErrorCode]:
    """Find the first error in the fields of a SEND or RECEIVE.

    Parameters
    ----------
    spec : CoreSpec
    body : mapping
        Body of the instruction.
    memory_base, memory_limit : int
        The same as for `fpgapipe.hw.hls_models.model.dma.first_error`.

    Returns
    -------
    rows : int
        Number of rows before the error; all rows if there is none.
    code : ErrorCode
        The error, or NONE.
    """
    if body["row_bytes"] < 1 or body["channel"] >= NUM_CHANNELS:
        return 0, ErrorCode.BAD_FIELD
    if body["in_scratchpad"]:
        fits = has_words_of(spec, body)
        return int(fits), ErrorCode.NONE if fits else ErrorCode.BAD_FIELD
    limit = min(memory_limit, 1 << MEMORY_BITS)
    starts = rows_of(body)
    for row, start in enumerate(starts):
        if not lies_within(start, body["row_bytes"], max(memory_base, 0), limit):
            return row, ErrorCode.MEMORY_RANGE
    return len(starts), ErrorCode.NONE


def send(
    spec: CoreSpec,
    body: Mapping[str, Any],
    memory: NDArray[np.uint8],
    scratchpad: NDArray[np.uint8],
    *,
    origin: int = 0,
    memory_base: int | None = None,
    memory_limit: int | None = None,
    bad: range = range(0),
) -> tuple[Packet, ErrorCode]:
    """Run a SEND, up to the first word that causes an error.

    Parameters
    ----------
    spec : CoreSpec
    body : mapping
        Body of the instruction.
    memory, scratchpad, origin, memory_base, memory_limit, bad
        The same as for `fpgapipe.hw.hls_models.model.dma.load`; nothing is changed.

    Returns
    -------
    packet : Packet
        The whole packet, or its words before the error; hardware may have sent fewer of these.
    code : ErrorCode
        The error, or NONE.
    """
    base = origin if memory_base is None else memory_base
    limit = origin + memory.size if memory_limit is None else memory_limit
    rows, code = first_error(spec, body, base, limit)
    parts = [np.zeros(0, np.uint8)]
    if rows and body["in_scratchpad"]:
        words = scratchpad[body["memory"] :][: body["row_bytes"]]
        return Packet(body["stream"], words.copy().reshape(-1, WORD_BYTES)), code
    for start in rows_of(body)[:rows]:
        first, size = words_of_row(start, body["row_bytes"])
        if first < bad.stop and bad.start < first + size:
            size = max(bad.start - first, 0) // WORD_BYTES * WORD_BYTES
            code = ErrorCode.AXI_READ
        parts.append(memory[first - origin : first - origin + size])
        if code is ErrorCode.AXI_READ:
            break
    return Packet(body["stream"], np.concatenate(parts).reshape(-1, WORD_BYTES)), code


def receive(
    spec: CoreSpec,
    body: Mapping[str, Any],
    got: Packet,
    memory: NDArray[np.uint8],
    scratchpad: NDArray[np.uint8],
    *,
    origin: int = 0,
    memory_base: int | None = None,
    memory_limit: int | None = None,
    bad: range = range(0),
) -> ErrorCode:
    """Run a RECEIVE, up to the first burst that causes an error.

    Parameters
    ----------
    spec : CoreSpec
    body : mapping
        Body of the instruction.
    got : Packet
        The packet that has arrived.
    memory, scratchpad, origin, memory_base, memory_limit, bad
        The same as for `fpgapipe.hw.hls_models.model.dma.store`; either may be changed.

    Returns
    -------
    ErrorCode
        LINK_STREAM in three cases: the packet has another tag, and nothing is written; it has not
        enough words for a burst, and the bursts before that one are written; it has more words than
        the rows, and all but the last burst is written. In the scratchpad, all words are written
        that have come and that there is room for. Otherwise an error of the fields or of the
        memory, or NONE.
    """
    base = origin if memory_base is None else memory_base
    limit = origin + memory.size if memory_limit is None else memory_limit
    rows, code = first_error(spec, body, base, limit)
    if rows and got.stream != body["stream"]:
        return ErrorCode.LINK_STREAM
    if rows and body["in_scratchpad"]:
        words = got.words.reshape(-1)[: body["row_bytes"]]
        scratchpad[body["memory"] :][: words.size] = words
        return code if got.words.size == body["row_bytes"] else ErrorCode.LINK_STREAM
    size = body["row_bytes"]
    starts = rows_of(body)
    left = got.words.reshape(-1)
    if code is ErrorCode.NONE and not bad and len(got.words) == words_of_packet(body):
        # Bursts matter only where one of them causes an error.
        for start in starts:
            first, length = words_of_row(start, size)
            memory[start - origin : start - origin + size] = left[start - first :][:size]
            left = left[length:]
        return code
    for row, start in enumerate(starts[:rows]):
        parts = bursts(start, size, burst_words(spec))
        for first, length in parts:
            is_last = row == len(starts) - 1 and first == parts[-1][0]
            if left.size < length or (is_last and left.size != length):
                return ErrorCode.LINK_STREAM
            if first < bad.stop and bad.start < first + length:
                return ErrorCode.AXI_WRITE
            low, high = max(start, first), min(start + size, first + length)
            memory[low - origin : high - origin] = left[low - first : high - first]
            left = left[length:]
    return code
