"""Memory behind two ports of a core, as a host sees it: two buffers, each with half of the blocks.

The core sees one memory (:mod:`fpgapipe.hw.hls_models.spec.interleave`). Of every two blocks that
follow one another there, each port has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.spec.interleave import (
    BLOCK_BYTES,
    PORT_BITS,
    blocks,
    port_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_PAIR_BYTES = 2 * BLOCK_BYTES


@dataclass(frozen=True)
class Part:
    """Bytes of a range that lie in one piece behind a port.

    Attributes
    ----------
    port : int
    first : int
        Number of the first byte in the port's buffer.
    where : slice
        The bytes of the range among which these are.
    size_bytes : int
    chosen : bool array, shape (blocks in `where`,), optional
        The blocks among these bytes that lie behind the port; all bytes if there is none.
    """

    port: int
    first: int
    where: slice
    size_bytes: int
    chosen: NDArray[np.bool_] | None = None

    def of(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The bytes of the part, given those of the range: a copy, unless they are all."""
        if self.chosen is None:
            return data[self.where]
        return data[self.where].reshape(-1, BLOCK_BYTES)[self.chosen].reshape(-1)

    def put(self, data: NDArray[np.uint8], found: NDArray[np.uint8]) -> None:
        """Put what `of` gave, and what was changed since, into the bytes of the range."""
        if self.chosen is not None:
            rows = data[self.where].reshape(-1, BLOCK_BYTES)
            rows[self.chosen] = found.reshape(-1, BLOCK_BYTES)


def share_bytes(size_bytes: int) -> int:
    """Bytes that each port needs for a buffer: whole blocks."""
    return -(-size_bytes // _PAIR_BYTES) * BLOCK_BYTES


def first_address(
    places: Sequence[int], size_bytes: int, channel_bytes: int, half_bytes: int = 0
) -> int:
    """Address that a core has for a buffer, of which each port has as many bytes at its place.

    Parameters
    ----------
    places : sequence of int
        Address of each port's bytes.
    size_bytes : int
        Bytes behind each port.
    channel_bytes : int
        Size of a channel of the memory.
    half_bytes : int
        Bytes between the places of an earlier buffer of the same core; 0 for the first one.

    Raises
    ------
    ValueError
        If the places are not those of one buffer: they must differ by the size of the first port's
        channels.
    """
    first, second = places
    half = second - first
    if half_bytes not in (0, half):
        raise ValueError(
            f"they are {half:,} bytes apart, and those of an earlier buffer {half_bytes:,}"
        )
    if half < size_bytes or half % channel_bytes:
        raise ValueError(
            f"they are {half:,} bytes apart, and half of the memory is a multiple of "
            f"{channel_bytes:,} bytes, the size of a channel, with room for {size_bytes:,} bytes"
        )
    if first % BLOCK_BYTES:
        raise ValueError(f"the first one, {first:#x}, is no multiple of {BLOCK_BYTES:,} bytes")
    return 2 * first


def parts(begin: int, offset: int, size_bytes: int) -> Iterator[Part]:
    """Parts of a range of a buffer: its whole pairs of blocks, and what is before and behind them.

    Parameters
    ----------
    begin : int
        Address of the buffer, a multiple of two blocks.
    offset, size_bytes : int
        First byte and number of bytes of the range.
    """
    pairs = -(-offset // _PAIR_BYTES), (offset + size_bytes) // _PAIR_BYTES
    first, end = (pair * _PAIR_BYTES - offset for pair in pairs)
    if first >= end:
        yield from _edge(begin, offset, 0, size_bytes)
        return
    yield from _edge(begin, offset, 0, first)
    at_second = _ports(begin + offset + first, (end - first) // BLOCK_BYTES)
    for port in range(2):
        chosen = at_second == port
        yield Part(port, pairs[0] * BLOCK_BYTES, slice(first, end), (end - first) // 2, chosen)
    yield from _edge(begin, offset, end, size_bytes)


def _edge(begin: int, offset: int, first: int, end: int) -> Iterator[Part]:
    """Parts of the bytes of a range from `first` to `end`, block by block."""
    for address, where in blocks(begin + offset + first, end - first):
        pair, low = divmod(address - begin, _PAIR_BYTES)
        place = pair * BLOCK_BYTES + low % BLOCK_BYTES
        bytes_of_part = slice(first + where.start, first + where.stop)
        yield Part(port_of(address), place, bytes_of_part, where.stop - where.start)


def _ports(address: int, num_blocks: int) -> NDArray[np.int64]:
    """Ports of blocks that follow one another."""
    addresses = address + BLOCK_BYTES * np.arange(num_blocks, dtype=np.int64)
    found: NDArray[np.int64] = np.bitwise_xor.reduce([addresses >> bit & 1 for bit in PORT_BITS])
    return found
