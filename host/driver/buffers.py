"""Buffers that a device's allocator gave out, found by the addresses of their bytes."""

from __future__ import annotations

from bisect import bisect
from typing import Generic, TypeVar

from fpgapipe.host.driver.transport import TransportError

Buffer = TypeVar("Buffer")


class Buffers(Generic[Buffer]):
    """Buffers by address."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._buffers: list[tuple[int, Buffer]] = []

    def add(self, address: int, size_bytes: int, buffer: Buffer) -> None:
        """Add a buffer that begins at an address."""
        at = bisect(self._begins, address)
        self._begins.insert(at, address)
        self._buffers.insert(at, (size_bytes, buffer))

    def at(self, address: int, size_bytes: int) -> tuple[Buffer, int]:
        """Find the buffer that has some bytes, and their offset in it.

        Raises
        ------
        TransportError
            If no buffer has them all.
        """
        found = bisect(self._begins, address) - 1
        if found >= 0:
            offset = address - self._begins[found]
            size, buffer = self._buffers[found]
            if offset + size_bytes <= size:
                return buffer, offset
        raise TransportError(
            f"{size_bytes:,} bytes at {address:#x} are not in memory that was reserved"
        )

    def clear(self) -> list[Buffer]:
        """Forget all buffers, and return them."""
        found = [buffer for _, buffer in self._buffers]
        self._begins.clear()
        self._buffers.clear()
        return found
