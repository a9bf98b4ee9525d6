"""A library with the functions of XRT's shim in front of other transports."""

import ctypes
import importlib.resources
import subprocess
from pathlib import Path

import numpy as np

from fpgapipe.host.driver.transport import TransportError
from fpgapipe.hw.hls_models.spec.interleave import BLOCK_BITS, BLOCK_BYTES, blocks, port_of

CHANNEL_BYTES = 1 << 28
HALF_BYTES = 3000 * CHANNEL_BYTES
"""Memory behind each port of a core: more than any device here has."""

SOURCE = Path(__file__).with_name("fake_xrt_shim.cpp")
U64 = ctypes.c_uint64
U32P, U64P = ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(U64)


def core_address(place, port):
    """Address that a core has for a place among the channels behind a port."""
    number, low = divmod(place, BLOCK_BYTES)
    found = 2 * number * BLOCK_BYTES + low
    return found ^ (port_of(found) ^ port) << BLOCK_BITS


def compiled(folder):
    """Compile the library against the header of the real one; each copy has state of its own."""
    library = folder / "libfpgapipe_xrt.so"
    include = importlib.resources.files("fpgapipe.host.package")
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", "-fPIC", "-shared"]
    subprocess.run([*command, f"-I{include}", SOURCE, "-o", library], check=True)
    return library


class Callbacks(ctypes.Structure):
    _fields_ = [
        ("open", ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_char_p,) * 3)),
        ("read_register", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32, U32P)),
        ("write_register", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32)),
        ("memory_ports", ctypes.CFUNCTYPE(ctypes.c_int)),
        ("allocate", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32, U64, U64P)),
        *(
            (
                name,
                ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64),
            )
            for name in ("write", "read")
        ),
        ("wait", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32)),
    ]


class Card:
    """A card, whose functions the library calls.

    Parameters
    ----------
    library : Path
        Compiled library, which is loaded once for each path.
    inner : Transport
        Device behind it.
    number : int
        Number at the end of its instance's name.
    interrupts : bool
        Whether interrupts come.
    memory_ports : int
        Ports of its core. Behind each of two lie `HALF_BYTES`, as a card has them.
    """

    def __init__(self, library, inner, number=0, *, interrupts=True, memory_ports=1):
        self.inner, self.interrupts, self.memory_ports = inner, interrupts, memory_ports
        self.halves = 0
        self.opened = []
        self.callbacks = Callbacks(
            *(kind(getattr(self, f"_{name}")) for name, kind in Callbacks._fields_)
        )
        self.library = ctypes.CDLL(str(library))
        self.library.fake_set(number, ctypes.byref(self.callbacks))

    def _open(self, *names):
        self.opened.append(tuple(name.decode() for name in names))
        return 0

    def _read_register(self, offset, value):
        value[0] = self.inner.read_register(offset)
        return 0

    def _write_register(self, offset, value):
        self.inner.write_register(offset, value)
        return 0

    def _memory_ports(self):
        return self.memory_ports

    def _allocate(self, port, size, address):
        try:
            if self.memory_ports == 1:
                address[0] = self.inner.allocate(size)
            elif port == 0:
                begin, rest = divmod(self.inner.allocate(2 * size), 2 * BLOCK_BYTES)
                assert not rest
                self.halves = address[0] = begin * BLOCK_BYTES
            else:
                address[0] = self.halves + HALF_BYTES
        except TransportError:
            return -1
        return 0

    def _pieces(self, address, size):
        """Addresses that the core has for bytes behind a port, and which of the bytes these are."""
        if self.memory_ports == 1:
            return [(address, slice(0, size))]
        port, place = divmod(address, HALF_BYTES)
        return [(core_address(at, port), where) for at, where in blocks(place, size)]

    def _write(self, address, data, size):
        given = np.frombuffer(ctypes.string_at(data, size), np.uint8)
        for at, where in self._pieces(address, size):
            self.inner.write(at, given[where])
        return 0

    def _read(self, address, data, size):
        for at, where in self._pieces(address, size):
            found = self.inner.read(at, where.stop - where.start).tobytes()
            ctypes.memmove(data + where.start, found, len(found))
        return 0

    def _wait(self, limit_ms):
        self.inner.wait(lambda: True, 0)  # the device goes on meanwhile
        return 0 if self.interrupts else 1
