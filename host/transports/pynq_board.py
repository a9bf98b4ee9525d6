"""The transport on a Zynq or Kria board itself, by PYNQ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.driver.buffers import Buffers
from fpgapipe.host.driver.transport import BoardTransport, TransportError
from fpgapipe.hw.hls_models.model.registers import ADDRESS_BITS

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.boards.address import Address
    from fpgapipe.boards.schema import Board


class PynqTransport(BoardTransport):
    """Access to the core on the board that this program runs on.

    Memory is allocated by PYNQ, contiguous, and flushed or invalidated around each transfer, since
    the core reads memory past the processor's caches.

    Parameters
    ----------
    registers : int
        Address of the core's registers.
    bitstream : Path or None
        Bitstream to load, with a ``.hwh`` or ``.xsa`` of the same name in its folder; None if it is
        loaded already.
    device : pynq.Device, optional
        Device of PYNQ; by default the active one.

    Raises
    ------
    UserError
        If PYNQ is not installed; from `allocate`, if its buffers do not go with NumPy.
    TransportError
        If the bitstream cannot be loaded.
    """

    name = "pynq"

    def __init__(self, registers: int, bitstream: Path | None = None, device: Any = None) -> None:
        try:
            import pynq
        except ImportError as error:
            raise UserError(
                f"--backend pynq runs on a board with PYNQ, which is not installed here ({error})"
            ) from None
        self._allocate, self._device = pynq.allocate, device
        self._buffers: Buffers[Any] = Buffers()
        try:
            if bitstream is not None:
                self._overlay = pynq.Overlay(str(bitstream), device=device)
            self._registers = pynq.MMIO(registers, 1 << ADDRESS_BITS, device=device)
        except (OSError, RuntimeError, ValueError) as error:
            raise TransportError(f"PYNQ does not reach the core: {error}") from None

    @classmethod
    def open(cls, address: Address, board: Board, folder: Path) -> PynqTransport:
        """See `BoardTransport`."""
        bitstream = folder / address.bitstream if address.bitstream else None
        registers = address.registers
        if not registers and board.packaging and board.packaging.pynq:
            registers = int(board.packaging.pynq.registers, 16)  # as in the package's design
        return cls(registers, bitstream)

    def close(self) -> None:
        """See `Transport`."""
        for buffer in self._buffers.clear():
            buffer.freebuffer()

    def read_register(self, offset: int) -> int:
        """See `Transport`."""
        return int(self._registers.read(offset))

    def write_register(self, offset: int, value: int) -> None:
        """See `Transport`."""
        self._registers.write(offset, value)

    def allocate(self, size_bytes: int) -> int:
        """See `Transport`."""
        try:
            buffer = self._allocate(shape=(size_bytes,), dtype="u1", target=self._device)
        except AttributeError as error:  # as PYNQ 4.0.0 and NumPy 2 do
            raise UserError(
                f"PYNQ's buffers do not go with NumPy {np.__version__} ({error}): "
                "pip install 'numpy<2'"
            ) from None
        except (MemoryError, RuntimeError) as error:
            raise TransportError(
                f"PYNQ has no {size_bytes:,} bytes of contiguous memory ({error}); give Linux more "
                "of it with the kernel's option cma="
            ) from None
        address = int(buffer.device_address)
        self._buffers.add(address, size_bytes, buffer)
        return address

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """See `Transport`."""
        buffer, offset = self._buffers.at(address, data.size)
        part = buffer[offset : offset + data.size]
        part[:] = data
        part.flush()

    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """See `Transport`."""
        buffer, offset = self._buffers.at(address, size_bytes)
        part = buffer[offset : offset + size_bytes]
        part.invalidate()
        return np.array(part, np.uint8)
