"""Places of tensors in a device's memory."""

from dataclasses import dataclass

PAGE_BYTES = 4096
"""Tensors begin at multiples of this, so that bursts cross no more boundaries than necessary."""


def page(address: int) -> int:
    """Round an address up to a multiple of a page."""
    return -(-address // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True)
class Placed:
    """A tensor's place in memory: its first byte and the byte after its last."""

    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Size of the tensor in bytes."""
        return self.end - self.begin
