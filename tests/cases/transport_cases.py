"""Transports that fail in a chosen way, and files that keep the rules of the XDMA driver."""

import errno
import os

import numpy as np

from fpgapipe.host.driver.transport import Transport
from fpgapipe.host.transports.xdma import FILES, FOLDER, WORD


class Faulty(Transport):
    """A transport whose answers go through functions, each of which may change or refuse them.

    Parameters
    ----------
    inner : Transport
    read, write : callable
        Given a register's offset and value, return the value to be returned or written; a `write`
        that returns None loses the access.
    load, store : callable
        Given an address and bytes, return the bytes to be returned or written.
    allocated : callable
        Given the address of memory, return another one.
    """

    def __init__(self, inner, read=None, write=None, load=None, store=None, allocated=None):
        self.inner, self.name = inner, inner.name
        self.on_read = read or (lambda offset, value: value)
        self.on_write = write or (lambda offset, value: value)
        self.on_load = load or (lambda address, data: data)
        self.on_store = store or (lambda address, data: data)
        self.on_allocated = allocated or (lambda address: address)
        self.closed = 0

    def close(self):
        self.closed += 1
        self.inner.close()

    def read_register(self, offset):
        return self.on_read(offset, self.inner.read_register(offset))

    def write_register(self, offset, value):
        if (value := self.on_write(offset, value)) is not None:
            self.inner.write_register(offset, value)

    def allocate(self, size_bytes):
        return self.on_allocated(self.inner.allocate(size_bytes))

    def write(self, address, data):
        self.inner.write(address, self.on_store(address, data))

    def read(self, address, size_bytes):
        return self.on_load(address, self.inner.read(address, size_bytes))

    def wait(self, ended, limit_s):
        return self.inner.wait(ended, limit_s)


class XdmaFiles:
    """The files of a card of the XDMA driver, in front of another transport.

    They refuse what the driver refuses: accesses of registers that have another size than 4 bytes
    or lie at no multiple of 4, reading where only writing is possible, and files that are not open.

    Parameters
    ----------
    inner : Transport
    registers : int
        Offset of the core's registers in the file ``user``.
    most_bytes : int
        Most bytes that one call moves, as a call may move fewer than were asked for.
    interrupts : bool
        Whether interrupts come.
    """

    def __init__(self, inner, registers=0, most_bytes=1 << 20, *, interrupts=True):
        self.inner, self.registers, self.most_bytes = inner, registers, most_bytes
        self.interrupts = interrupts
        self.opened = {}
        self.waits = 0

    def open(self, path, flags, /):
        names = {f"{FOLDER}/xdma0_{name}": name for name in FILES}
        if path not in names:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        file = len(self.opened) + 100
        self.opened[file] = names[path], flags
        return file

    def close(self, file, /):
        self.opened[file]
        self.opened[file] = "closed", 0

    def _named(self, file, *, writes):
        name, flags = self.opened[file]
        wrong = (os.O_RDONLY,) if writes else (os.O_WRONLY,)
        if name == "closed" or flags in wrong:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return name

    def _register(self, size, offset):
        if size != WORD.size or offset % WORD.size:
            raise OSError(errno.EPROTO, os.strerror(errno.EPROTO))
        return offset - self.registers

    def pread(self, file, size, offset, /):
        name = self._named(file, writes=False)
        if name == "user":
            return WORD.pack(self.inner.read_register(self._register(size, offset)))
        if name == "events_0":
            assert size == WORD.size
            return WORD.pack(1)
        assert name == "c2h_0"
        return self.inner.read(offset, min(size, self.most_bytes)).tobytes()

    def pwrite(self, file, data, offset, /):
        name = self._named(file, writes=True)
        if name == "user":
            (value,) = WORD.unpack(data)
            self.inner.write_register(self._register(len(data), offset), value)
            return len(data)
        assert name == "h2c_0"
        data = data[: self.most_bytes]
        self.inner.write(offset, np.frombuffer(data, np.uint8))
        return len(data)

    def is_readable(self, file, limit_s, /):
        assert self._named(file, writes=False) == "events_0"
        self.waits += 1
        self.inner.wait(lambda: True, 0)  # the device goes on meanwhile
        return self.interrupts
