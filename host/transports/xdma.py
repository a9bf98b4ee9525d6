"""The transport over PCI Express by the files of the XDMA driver.

The driver of AMD's DMA for PCI Express (`xdma`, of the repository dma_ip_drivers) makes four files
for a card: ``xdma0_user``, its registers, with accesses of 4 bytes at multiples of 4 alone;
``xdma0_h2c_0`` and ``xdma0_c2h_0``, which copy to and from the card's memory at the offset in the
file; and ``xdma0_events_0``, where a read of 4 bytes returns once an interrupt has come.
"""

from __future__ import annotations

import os
import select
import struct
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.driver.allocation import Allocation
from fpgapipe.host.driver.transport import BoardTransport, TransportError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.boards.address import Address
    from fpgapipe.boards.schema import Board

WORD = struct.Struct("<I")

FOLDER = "/dev"

FILES = {"user": os.O_RDWR, "h2c_0": os.O_WRONLY, "c2h_0": os.O_RDONLY, "events_0": os.O_RDONLY}
"""The files of a card, after ``xdma0_``, and how each is opened."""


class Files(Protocol):
    """Functions of an operating system that the transport needs."""

    def open(self, path: str, flags: int, /) -> int:
        """Open a file."""

    def close(self, file: int, /) -> None:
        """Close a file."""

    def pread(self, file: int, size: int, offset: int, /) -> bytes:
        """Read at most `size` bytes at an offset."""

    def pwrite(self, file: int, data: bytes, offset: int, /) -> int:
        """Write bytes at an offset; returns how many were written."""

    def is_readable(self, file: int, limit_s: float, /) -> bool:
        """Wait until a read would return at once; returns whether that is so."""


class SystemFiles:
    """The files of this machine."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)

    @staticmethod
    def is_readable(file: int, limit_s: float, /) -> bool:
        """See `Files`."""
        return bool(select.select([file], [], [], limit_s)[0])


class XdmaTransport(BoardTransport):
    """Access to a card by the files of the XDMA driver.

    Parameters
    ----------
    card : int
        Number of the card, as in ``/dev/xdma0_user``.
    registers : int
        Offset of the core's registers in the file ``user``.
    memory, memory_bytes : int
        Address of the memory on the core's bus and on that of the DMA, and its size.
    files : Files, optional
        The operating system; another one in tests.

    Raises
    ------
    TransportError
        If one of the files cannot be opened.
    """

    name = "xdma"

    def __init__(
        self,
        card: int,
        *,
        registers: int = 0,
        memory: int = 0,
        memory_bytes: int,
        files: Files | None = None,
    ) -> None:
        self._files = files or SystemFiles()
        self._registers = registers
        self._free = Allocation(memory, memory + memory_bytes)
        self._open: dict[str, int] = {}
        self._paths = {name: f"{FOLDER}/xdma{card}_{name}" for name in FILES}
        try:
            for name, flags in FILES.items():
                self._open[name] = self._files.open(self._paths[name], flags)
        except OSError as error:
            self.close()
            raise TransportError(
                f"{self._paths[name]} cannot be opened: {error.strerror}; load the XDMA driver and "
                "the card's bitstream, and see that you may use the file"
            ) from None

    @classmethod
    def open(cls, address: Address, board: Board, folder: Path) -> XdmaTransport:
        """See `BoardTransport`."""
        if not address.device.isdecimal():
            raise UserError(
                f"the card must be a number, as in /dev/xdma0_user, not {address.device}"
            )
        return cls(
            int(address.device),
            registers=address.registers,
            memory=address.memory,
            memory_bytes=address.memory_bytes or board.device_spec().memory_bytes,
        )

    def close(self) -> None:
        """See `Transport`."""
        while self._open:
            self._files.close(self._open.popitem()[1])

    def read_register(self, offset: int) -> int:
        """See `Transport`."""
        (value,) = WORD.unpack(self._read("user", self._registers + offset, WORD.size))
        return int(value)

    def write_register(self, offset: int, value: int) -> None:
        """See `Transport`."""
        self._write("user", self._registers + offset, WORD.pack(value))

    def allocate(self, size_bytes: int) -> int:
        """See `Transport`."""
        return self._free.take(size_bytes)

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """See `Transport`."""
        self._write("h2c_0", address, data.tobytes())

    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """See `Transport`."""
        return np.frombuffer(self._read("c2h_0", address, size_bytes), np.uint8).copy()

    def pause(self, pause_s: float) -> None:
        """See `Transport`."""
        if self._files.is_readable(self._open["events_0"], pause_s):
            self._read("events_0", 0, WORD.size)  # which takes the interrupt away

    def _read(self, name: str, offset: int, size: int) -> bytes:
        found = b""
        while len(found) < size:
            try:
                more = self._files.pread(self._open[name], size - len(found), offset + len(found))
            except OSError as error:
                raise self._failed("read", name, offset, len(found), size, error.strerror) from None
            if not more:
                raise self._failed("read", name, offset, len(found), size, "nothing more came")
            found += more
        return found

    def _write(self, name: str, offset: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            try:
                wrote = self._files.pwrite(self._open[name], data[done:], offset + done)
            except OSError as error:
                raise self._failed("write", name, offset, done, len(data), error.strerror) from None
            if wrote <= 0:
                raise self._failed("write", name, offset, done, len(data), "nothing more went out")
            done += wrote

    def _failed(
        self, what: str, name: str, offset: int, done: int, size: int, why: str | None
    ) -> TransportError:
        return TransportError(
            f"{self._paths[name]}: {what} of {size:,} bytes at {offset:#x} failed after {done:,} "
            f"bytes: {why}"
        )
