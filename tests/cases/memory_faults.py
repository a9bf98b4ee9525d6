"""Ways to the memory of a device that lose, repeat or change some of what is moved."""

from collections.abc import Callable

import numpy as np

from fpgapipe.host.driver.transport import Transport

EVERY = {"the first": 0, "one of twenty": 20, "each": 1}
"""Which transfers go wrong."""


class WrongMemory(Transport):
    """A transport of whose transfers of one direction some go wrong.

    Parameters
    ----------
    inner : Transport
    wrong : callable
        Given this object, an address and the bytes of a write or the number of bytes of a read,
        does the transfer wrongly; one of `WRITES` or `READS`.
    every : int
        Each which transfer of that direction is wrong, counted over all transports that share
        `count`; 0 for the first one alone.
    count : list of int
        Number of transfers until now.

    Attributes
    ----------
    inner, held, seen
        The transport, a write that is held back, and what was read, by its place.
    """

    def __init__(self, inner, wrong, every, count):
        self.inner, self.name = inner, inner.name
        self.wrong, self.every, self.count = wrong, every, count
        self.held = None
        self.seen = {}
        self.first = 1 << 64

    def _is_wrong(self, kinds):
        if self.wrong not in kinds.values():
            return False
        self.count[0] += 1
        return self.count[0] % self.every == 0 if self.every else self.count[0] == 1

    def close(self):
        self.inner.close()

    def read_register(self, offset):
        return self.inner.read_register(offset)

    def write_register(self, offset, value):
        self.inner.write_register(offset, value)

    def allocate(self, size_bytes):
        return self.inner.allocate(size_bytes)

    def write(self, address, data):
        self.first = min(self.first, address)
        (self.wrong if self._is_wrong(WRITES) else right)(self, address, data)
        if self.held and self.held[1] is not data:
            self.inner.write(*self.held)
            self.held = None

    def read(self, address, size_bytes):
        found = self.inner.read(address, size_bytes)
        given = self.wrong(self, address, found) if self._is_wrong(READS) else found
        self.seen[address, size_bytes] = found.copy()
        return given

    def wait(self, ended, limit_s):
        return self.inner.wait(ended, limit_s)

    def pause(self, pause_s):
        self.inner.pause(pause_s)


def right(way, address, data):
    way.inner.write(address, data)


def lost(way, address, data):
    pass


def doubled(way, address, data):
    for _ in range(2):
        way.inner.write(address, data)


def held_back(way, address, data):
    """It comes after the next one."""
    way.held = address, data


def cut(way, address, data):
    way.inner.write(address, data[: data.size // 2])


def cut_in_front(way, address, data):
    half = data.size // 2
    way.inner.write(address + half, data[half:])


def elsewhere(way, address, data):
    """It lands where something else is."""
    at = way.first + (address - way.first) // 2 // 64 * 64
    if at == address:
        at, data = at + 64, data[:-64]
    way.inner.write(at, data)


def turned(way, address, data):
    changed = data.copy()
    changed[data.size // 3] ^= 4
    way.inner.write(address, changed)


def stale(way, address, found):
    """Bytes that the read before found at the place; zeros if there was none."""
    return way.seen.get((address, found.size), np.zeros_like(found))


def turned_read(way, address, found):
    changed = found.copy()
    changed[found.size // 3] ^= 4
    return changed


def cut_read(way, address, found):
    changed = found.copy()
    changed[found.size // 2 :] = 0
    return changed


def shifted_read(way, address, found):
    return np.roll(found, 64 % found.size or 1)


WRITES: dict[str, Callable] = {
    "write lost": lost,
    "write doubled": doubled,
    "writes swapped": held_back,
    "end of a write lost": cut,
    "beginning of a write lost": cut_in_front,
    "write elsewhere": elsewhere,
    "bit of a write turned": turned,
}

READS: dict[str, Callable] = {
    "stale read": stale,
    "bit of a read turned": turned_read,
    "end of a read lost": cut_read,
    "read shifted": shifted_read,
}


def with_faults(behind, wrong, every):
    """Maker of the devices that are reached, with faults in front of them; see `Rig.behind`."""

    def made(pipeline, bases, rig):
        count = [0]
        return [WrongMemory(way, wrong, every, count) for way in behind(pipeline, bases, rig)]

    return made
