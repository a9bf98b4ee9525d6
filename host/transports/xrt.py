"""The transport to Alveo cards by XRT, through a library of C functions that a package has."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.driver.buffers import Buffers
from fpgapipe.host.driver.transport import BoardTransport, TransportError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.boards.address import Address
    from fpgapipe.boards.schema import Board

SHIM_VERSION = 2
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
    "allocate": (_HANDLE, (_HANDLE, _U64, ctypes.POINTER(_U64))),
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

    Raises
    ------
    TransportError
        If the library cannot be loaded or is of another version, or XRT does not open the card.
    """

    name = "xrt"
    has_nodes = True

    def __init__(self, library: Path, device: str, bitstream: Path, instance: str) -> None:
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
        self._buffers: Buffers[int] = Buffers()
        names = (device, str(bitstream), instance)
        self._device = self._library.fpgapipe_open(*(name.encode() for name in names))
        if not self._device:
            raise TransportError(f"XRT does not open card {device}: {self._error()}")

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
        return cls(library, address.device, bitstream, instance(address.node))

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
        address = _U64()
        buffer = self._library.fpgapipe_allocate(self._device, size_bytes, ctypes.byref(address))
        if not buffer:
            raise TransportError(f"XRT fails to allocate {size_bytes:,} bytes: {self._error()}")
        self._buffers.add(address.value, size_bytes, buffer)
        return address.value

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """See `Transport`."""
        data = np.ascontiguousarray(data)
        buffer, offset = self._buffers.at(address, data.size)
        code = self._library.fpgapipe_write(buffer, offset, data.ctypes.data, data.size)
        self._checked(code, f"write {data.size:,} bytes at {address:#x}")

    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """See `Transport`."""
        buffer, offset = self._buffers.at(address, size_bytes)
        found = np.empty(size_bytes, np.uint8)
        code = self._library.fpgapipe_read(buffer, offset, found.ctypes.data, size_bytes)
        self._checked(code, f"read {size_bytes:,} bytes at {address:#x}")
        return found

    def pause(self, pause_s: float) -> None:
        """See `Transport`."""
        code = self._library.fpgapipe_wait(self._device, max(round(pause_s * 1e3), 1))
        if self._checked(code, "wait for the interrupt") != _TIMEOUT:
            super().pause(pause_s / 10)  # it stays high until the driver has seen the end
