"""The transport to Alveo cards by XRT, through a library of C functions that a package has."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.driver.buffers import Buffers
from fpgapipe.host.driver.transport import BoardTransport, TransportError
from fpgapipe.host.driver.two_ports import Part, first_address, parts, share_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.boards.address import Address
    from fpgapipe.boards.schema import Board

SHIM_VERSION = 3
"""Version of the functions that this module calls."""

_TIMEOUT = 1

_HANDLE, _TEXT, _U32, _U64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint64

FUNCTIONS = {
    "version": (ctypes.c_int, ()),
    "last_error": (_TEXT, ()),
    "open": (_HANDLE, (_TEXT, _TEXT, _TEXT)),
    "close": (None, (_HANDLE,)),
    "read_register": (ctypes.c_int, (_HANDLE, _U32, ctypes.POINTER(_U32))),
    "write_register": (ctypes.c_int, (_HANDLE, _U32, _U32)),
    "memory_ports": (ctypes.c_int, (_HANDLE,)),
    "allocate": (_HANDLE, (_HANDLE, _U32, _U64, ctypes.POINTER(_U64))),
    "free": (ctypes.c_int, (_HANDLE, _HANDLE)),
    "write": (ctypes.c_int, (_HANDLE, _U64, _HANDLE, _U64)),
    "read": (ctypes.c_int, (_HANDLE, _U64, _HANDLE, _U64)),
    "wait": (ctypes.c_int, (_HANDLE, _U32)),
}
"""Results and arguments of the functions of ``xrt_shim.h``, which all begin with ``fpgapipe_``."""


class XrtTransport(BoardTransport):
    """Access to a card by XRT.

    Parameters
    ----------
    library : Path
        Compiled library of the C functions.
    device : str
        Number of the card, or its PCIe address.
    bitstream : Path
        The ``.xclbin``.
    instance : str
        Name of the kernel's instance.
    channel_bytes : int
        Size of a channel of the card's memory.

    Raises
    ------
    TransportError
        If the library cannot be loaded or is of another version, or XRT does not open the card.
    """

    name = "xrt"
    has_nodes = True

    def __init__(
        self, library: Path, device: str, bitstream: Path, instance: str, channel_bytes: int
    ) -> None:
        try:
            self._library = ctypes.CDLL(str(library))
            for name, (result, arguments) in FUNCTIONS.items():
                function = getattr(self._library, f"fpgapipe_{name}")
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise TransportError(
                f"{library} cannot be used: {error}; 'make' in the package's folder compiles it"
            ) from None
        version = self._library.fpgapipe_version()
        if version != SHIM_VERSION:
            raise TransportError(
                f"{library} has version {version} of its functions, not {SHIM_VERSION}; copy "
                "xrt_shim.cpp and xrt_shim.h of a package that this version of fpgapipe has made "
                f"to {library.parent}, and run 'make {library.name}' there"
            )
        self._buffers: Buffers[tuple[int, ...]] = Buffers()
        self._channel_bytes = channel_bytes
        self._half_bytes = 0  # what is behind the first port, once that is known
        names = (device, str(bitstream), instance)
        self._device = self._library.fpgapipe_open(*(name.encode() for name in names))
        if not self._device:
            raise TransportError(f"XRT does not open card {device}: {self._error()}")
        ports = self._library.fpgapipe_memory_ports(self._device)
        self._num_ports = self._checked(ports, "count the core's memory ports")

    def _error(self) -> str:
        text: bytes = self._library.fpgapipe_last_error() or b"no reason was given"
        return text.decode(errors="replace")

    def _checked(self, code: int, what: str) -> int:
        if code < 0:
            raise TransportError(f"XRT fails to {what}: {self._error()}")
        return code

    @classmethod
    def open(cls, address: Address, board: Board, folder: Path) -> XrtTransport:
        """See `BoardTransport`."""
        from fpgapipe.host.package.shim import SHIM_LIBRARY
        from fpgapipe.host.package.vitis import instance

        if address.bitstream is None:
            raise UserError("--backend xrt needs the key bitstream, the path of the .xclbin")
        bitstream = folder / address.bitstream
        library = bitstream.parent / SHIM_LIBRARY
        channel_bytes = board.packaged_memory.size_bytes
        return cls(library, address.device, bitstream, instance(address.node), channel_bytes)

    def close(self) -> None:
        """See `Transport`."""
        if self._device:
            self._buffers.clear()
            self._library.fpgapipe_close(self._device)
            self._device = None

    def read_register(self, offset: int) -> int:
        """See `Transport`."""
        value = _U32()
        code = self._library.fpgapipe_read_register(self._device, offset, ctypes.byref(value))
        self._checked(code, f"read the register at {offset:#x}")
        return value.value

    def write_register(self, offset: int, value: int) -> None:
        """See `Transport`."""
        code = self._library.fpgapipe_write_register(self._device, offset, value)
        self._checked(code, f"write the register at {offset:#x}")

    def allocate(self, size_bytes: int) -> int:
        """See `Transport`."""
        if self._num_ports == 1:
            address, buffer = self._allocated(0, size_bytes)
            self._buffers.add(address, size_bytes, (buffer,))
            return address
        half = share_bytes(size_bytes)
        places, buffers = zip(*(self._allocated(port, half) for port in range(2)), strict=True)
        try:
            address = first_address(places, half, self._channel_bytes, self._half_bytes)
        except ValueError as error:
            raise TransportError(
                f"XRT has put the two halves of {size_bytes:,} bytes where the core's memory ports "
                f"do not reach them as one memory: {error}"
            ) from None
        self._half_bytes = places[1] - places[0]
        self._buffers.add(address, size_bytes, buffers)
        return address

    def _allocated(self, port: int, size_bytes: int) -> tuple[int, int]:
        """Address and handle of a new buffer behind a port."""
        address = _U64()
        buffer = self._library.fpgapipe_allocate(
            self._device, port, size_bytes, ctypes.byref(address)
        )
        if not buffer:
            raise TransportError(f"XRT fails to allocate {size_bytes:,} bytes: {self._error()}")
        return address.value, buffer

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """See `Transport`."""
        data = np.ascontiguousarray(data)
        buffers, offset = self._buffers.at(address, data.size)
        for part in self._parts(address, offset, data.size):
            bytes_of_part = part.of(data)
            code = self._library.fpgapipe_write(
                buffers[part.port], part.first, bytes_of_part.ctypes.data, bytes_of_part.size
            )
            self._checked(code, f"write {data.size:,} bytes at {address:#x}")

    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """See `Transport`."""
        buffers, offset = self._buffers.at(address, size_bytes)
        found = np.empty(size_bytes, np.uint8)
        for part in self._parts(address, offset, size_bytes):
            bytes_of_part = part.of(found)
            code = self._library.fpgapipe_read(
                buffers[part.port], part.first, bytes_of_part.ctypes.data, part.size_bytes
            )
            self._checked(code, f"read {size_bytes:,} bytes at {address:#x}")
            part.put(found, bytes_of_part)
        return found

    def _parts(self, address: int, offset: int, size_bytes: int) -> Iterable[Part]:
        """Parts of a range of a buffer, which lie in one piece each."""
        if self._num_ports == 1:
            return [Part(0, offset, slice(0, size_bytes), size_bytes)]
        return parts(address - offset, offset, size_bytes)

    def pause(self, pause_s: float) -> None:
        """See `Transport`."""
        code = self._library.fpgapipe_wait(self._device, max(round(pause_s * 1e3), 1))
        if self._checked(code, "wait for the interrupt") != _TIMEOUT:
            super().pause(pause_s / 10)  # it stays high until the driver has seen the end
