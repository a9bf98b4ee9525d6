"""The memory of a device as an array of bytes, of which only the parts in use are transferred."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import Opcode, encode, program_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.driver.transport import Transport
    from fpgapipe.hw.hls_models.isa.instructions import Instruction

CHUNK_BYTES = 1 << 24
"""Largest number of bytes that are transferred at once, so that Ctrl-C need not wait long."""

ADDRESSED = frozenset({Opcode.LOAD, Opcode.STORE, Opcode.SEND, Opcode.RECEIVE})
"""Instructions with an address in memory."""


def relocated(program: Sequence[Instruction], distance: int) -> bytes:
    """Return the bytes of a program whose addresses in memory are moved by `distance` bytes."""
    return encode(item.moved(distance) if item.opcode in ADDRESSED else item for item in program)


class DeviceMemory:
    """Memory of a device from an address on; slices read and write it through the transport.

    A program is written with its addresses moved to where the memory begins. Read back unchanged,
    it looks as if the memory began at 0, so that memories of devices and of models can be compared.

    Parameters
    ----------
    transport : Transport
    base : int
        Address of the first byte on the core's bus.
    size : int
        Number of bytes.

    Attributes
    ----------
    base, size : int
    """

    def __init__(self, transport: Transport, base: int, size: int) -> None:
        self._transport = transport
        self.base, self.size = base, size
        self._program: tuple[int, NDArray[np.uint8], NDArray[np.uint8]] | None = None

    def __len__(self) -> int:
        return self.size

    @property
    def program(self) -> tuple[int, bytes]:
        """Address of the program on the core's bus, and its bytes; empty before `load`."""
        if self._program is None:
            return 0, b""
        entry, _, moved = self._program
        return self.base + entry, moved.tobytes()

    def load(self, image: NDArray[np.uint8], entry: int, program: Sequence[Instruction]) -> None:
        """Write a whole memory with its program.

        Parameters
        ----------
        image : uint8 array, shape (size,)
            Contents, made for a memory that begins at 0.
        entry : int
            Place of the program in the image.
        program : sequence of Instruction
        """
        original = image[entry : entry + program_bytes(program)].copy()
        moved = original
        if self.base:
            moved = np.frombuffer(relocated(program, self.base), np.uint8)
        self._program = entry, original, moved
        self._write(0, image)
        self._write(entry, moved)

    def __getitem__(self, where: slice) -> NDArray[np.uint8]:
        begin, end = self._range(where)
        found = np.empty(end - begin, np.uint8)
        for at in range(begin, end, CHUNK_BYTES):
            size = min(CHUNK_BYTES, end - at)
            found[at - begin : at - begin + size] = self._transport.read(self.base + at, size)
        if self._program and self.base:
            entry, original, moved = self._program
            first, last = max(begin, entry), min(end, entry + moved.size)
            if first < last:
                part, own = found[first - begin : last - begin], slice(first - entry, last - entry)
                same = part == moved[own]
                part[same] = original[own][same]
        return found

    def __setitem__(self, where: slice, data: NDArray[np.uint8]) -> None:
        begin, end = self._range(where)
        data = np.ascontiguousarray(data, np.uint8).reshape(-1)
        if data.size != end - begin:
            raise ValueError(f"{end - begin} bytes of memory cannot take {data.size}")
        self._write(begin, data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.uint8]:
        """The whole memory as an array, for comparisons."""
        return self[0 : self.size]

    def _write(self, begin: int, data: NDArray[np.uint8]) -> None:
        for at in range(0, data.size, CHUNK_BYTES):
            self._transport.write(self.base + begin + at, data[at : at + CHUNK_BYTES])

    def _range(self, where: slice) -> tuple[int, int]:
        begin, end, step = where.indices(self.size)
        if step != 1:
            raise ValueError("memory of a device is read and written in one piece")
        return begin, max(begin, end)
