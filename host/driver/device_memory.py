"""The memory of a device as an array of bytes, of which only the parts in use are transferred."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.driver.transport import Transport
    from fpgapipe.hw.hls_models.isa.instructions import Instruction
from fpgapipe.hw.hls_models.isa.program import Program

CHUNK_BYTES = 1 << 24
"""Largest number of bytes that are transferred at once, so that Ctrl-C need not wait long."""

CHECKED_BYTES = 1 << 16
"""Most bytes of a program that are read to see whether memory is read as it is."""

TRIES = 4
"""How often bytes are written until they read as they were written, or read until they are what
they were when they were read before."""

logger = logging.getLogger(__name__)


class MemoryFault(UserError):
    """Memory of a device keeps something else than what was written, or reads differently."""


def relocated(program: Sequence[Instruction], distance: int) -> bytes:
    """Return the bytes of a program whose addresses in memory are moved by `distance` bytes."""
    return Program.of(program).moved(distance).encode()


class DeviceMemory:
    """Memory of a device from an address on; slices read and write it through the transport.

    All that is written is read back, and all that is read is read twice, since a way to a device
    may lose or repeat a transfer without an error. What went wrong is done again, and said in the
    log; it is an error if that does not help. A write may also land where something else is, which
    `settle` looks for before a program runs.

    A program is written with its addresses moved to where the memory begins. Read back unchanged,
    it looks as if the memory began at 0, so that memories of devices and of models can be compared.

    Parameters
    ----------
    transport : Transport
    base : int
        Address of the first byte on the core's bus.
    size : int
        Number of bytes.
    name : str
        Name of the device in messages.

    Attributes
    ----------
    base, size : int

    Raises
    ------
    MemoryFault
        On an access, if bytes do not read as they were written or read differently each time.
    """

    def __init__(self, transport: Transport, base: int, size: int, name: str) -> None:
        self._transport, self._name = transport, name
        self._repeated = 0
        self._image: NDArray[np.uint8] | None = None
        self._written: list[tuple[int, NDArray[np.uint8]]] = []
        self._was_wrong = False
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
        original = image[entry : entry + Program.of(program).num_bytes].copy()
        moved = original
        if self.base:
            moved = np.frombuffer(relocated(program, self.base), np.uint8)
        self._program = entry, original, moved
        self._write(0, image, anew=True)  # all of it is read again in `settle`
        self._write(entry, moved, anew=True)
        self._image, self._written = image.copy(), [(entry, moved)]

    def settle(self) -> bool:
        """Check what was written since programs last ran; return whether a write went wrong.

        The first time, the whole memory is read, which is known then. Later, the program and what
        was written are read again if a write went wrong.

        Raises
        ------
        MemoryFault
            If something reads no longer as it was written.
        """
        image, self._image = self._image, None
        written, self._written = self._written, []
        was_wrong, self._was_wrong = self._was_wrong, False
        if image is not None:
            for begin, data in written:
                image[begin : begin + data.size] = data
            written = [(0, image)]
        elif self._program and was_wrong:
            written.insert(0, (self._program[0], self._program[2]))
        for number, (begin, data) in enumerate(written if image is not None or was_wrong else ()):
            later = written[number + 1 :]
            if any(at < begin + data.size and begin < at + each.size for at, each in later):
                continue  # some of it was written again
            for at in range(0, data.size, CHUNK_BYTES):
                address, part = self.base + begin + at, data[at : at + CHUNK_BYTES]
                wrong = np.flatnonzero(self._read(address, part.size) != part)
                if wrong.size:
                    raise self.destroyed(f"{wrong.size:,} bytes from {address + int(wrong[0]):#x}")
        return was_wrong

    def destroyed(self, what: str) -> MemoryFault:
        """The error if something is no longer what it was before other writes."""
        return MemoryFault(
            f"{self._name}: {what} of its memory changed while other places were written; the way "
            "to its memory mixes up addresses, or its memory's controller is not calibrated: "
            "'fpgapipe bringup' tries both"
        )

    def check(self) -> None:
        """Check that the program reads as it was written, before what was read is relied on.

        A way that changes all that it reads alike does so here, too.
        """
        at, known = self.program
        expected = np.frombuffer(known[:CHECKED_BYTES], np.uint8)
        if expected.size:
            wrong = np.flatnonzero(self._read(at, expected.size) != expected)
            if wrong.size:
                raise self._fault(at, wrong, "than what was written")

    def __getitem__(self, where: slice) -> NDArray[np.uint8]:
        begin, end = self._range(where)
        found = np.empty(end - begin, np.uint8)
        for at in range(begin, end, CHUNK_BYTES):
            size = min(CHUNK_BYTES, end - at)
            found[at - begin : at - begin + size] = self._read(self.base + at, size)
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

    def _write(self, begin: int, data: NDArray[np.uint8], *, anew: bool = False) -> None:
        self._written.append((begin, data))
        for at in range(0, data.size, CHUNK_BYTES):
            address, part = self.base + begin + at, data[at : at + CHUNK_BYTES]
            if not anew and np.array_equal(self._read(address, part.size), part):
                continue  # if it landed elsewhere, nothing here would show it
            for _ in range(TRIES):
                self._transport.write(address, part)
                wrong = np.flatnonzero(self._transport.read(address, part.size) != part)
                if not wrong.size:
                    break
                self._was_wrong = True
                self._warn("written", address, wrong)
            else:
                raise self._fault(address, wrong, "than what was written")

    def _read(self, address: int, size: int) -> NDArray[np.uint8]:
        found = self._transport.read(address, size)
        for _ in range(TRIES):
            again = self._transport.read(address, size)
            wrong = np.flatnonzero(found != again)
            if not wrong.size:
                return again
            self._warn("read", address, wrong)
            found = again
        raise self._fault(address, wrong, "each time")

    def _warn(self, done: str, address: int, wrong: NDArray[np.intp]) -> None:
        self._repeated += 1
        if self._repeated & self._repeated - 1:
            return  # the first, second, fourth, eighth, ... is said
        logger.warning(
            "%s: %s bytes of its memory from %#x on were not as they were %s; done again "
            "(%s times until now)",
            self._name, f"{wrong.size:,}", address + int(wrong[0]), done, f"{self._repeated:,}",
        )  # fmt: skip

    def _fault(self, address: int, wrong: NDArray[np.intp], than: str) -> MemoryFault:
        return MemoryFault(
            f"{self._name}: {wrong.size:,} bytes of its memory from {address + int(wrong[0]):#x} "
            f"on read as something else {than}, {TRIES} times; the way to its memory loses or "
            "changes data, or its memory's controller is not calibrated: 'fpgapipe bringup' tries "
            "both"
        )

    def _range(self, where: slice) -> tuple[int, int]:
        begin, end, step = where.indices(self.size)
        if step != 1:
            raise ValueError("memory of a device is read and written in one piece")
        return begin, max(begin, end)
