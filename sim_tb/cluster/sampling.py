"""Samples of counters and other registers of a cluster's devices, read while programs run."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.model.registers import DATA_BITS, RegisterMap


class Sample(NamedTuple):
    """Values of some of a node's counters.

    Attributes
    ----------
    cycle : int
        Cycle in which the first counter was read. The others were read one after another, some
        cycles apart.
    node : int
        Number of the node.
    counters : mapping of str to int
        Values of the counters by name.
    """

    cycle: int
    node: int
    counters: Mapping[str, int]


def low_halves(registers: RegisterMap, names: Sequence[str]) -> list[int]:
    """Addresses of the lower halves of counters."""
    return [registers.offset(f"{name}_LO") for name in names]


@dataclass
class Sampler:
    """Assembles samples of one node from readings of the counters' lower halves.

    A counter rises by less than 2^32 between two samples, so its upper half follows from the lower
    halves.

    Parameters
    ----------
    node : int
        Number of the node.
    names : tuple of str
        Names of the counters, in the order in which they are read.
    """

    node: int
    names: tuple[str, ...]
    samples: list[Sample] = field(default_factory=list)
    _open: list[tuple[int, int, int]] = field(default_factory=list)

    def clear(self) -> None:
        """Delete all samples."""
        self.samples.clear()
        self._open.clear()

    def collect(self, library: ctypes.CDLL, handle: int) -> None:
        """Take this node's readings out of a cluster."""
        self.add([tuple(row) for row in _taken(library, handle, self.node).tolist()])

    def add(self, readings: Sequence[tuple[int, int, int]]) -> None:
        """Add readings, each a counter's number, the cycle and the value."""
        for reading in readings:
            if reading[0] == 0:
                self._open.clear()
            self._open.append(reading)
            if len(self._open) == len(self.names):
                self._close()

    def _close(self) -> None:
        before = self.samples[-1].counters if self.samples else {}
        values = {}
        for name, (_, _, low) in zip(self.names, self._open, strict=True):
            last = before.get(name, 0)
            values[name] = last + (low - last) % (1 << DATA_BITS)
        self.samples.append(Sample(self._open[0][1], self.node, values))
        self._open.clear()


@dataclass
class Watcher:
    """Collects readings of one node's registers.

    Parameters
    ----------
    node : int
        Number of the node.
    """

    node: int
    _parts: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def readings(self) -> NDArray[np.int64]:
        """Readings; columns: index in the list of registers, cycle in which it began, value."""
        return np.concatenate([np.zeros((0, 3), np.int64), *self._parts])

    def clear(self) -> None:
        """Delete all readings."""
        self._parts.clear()

    def collect(self, library: ctypes.CDLL, handle: int) -> None:
        """Take this node's readings out of a cluster."""
        self._parts.append(_taken(library, handle, self.node))


def _taken(library: ctypes.CDLL, handle: int, node: int) -> NDArray[np.int64]:
    """Take a node's readings out of a cluster; columns: number of the register, cycle, value."""
    count = ctypes.c_uint64()
    raw = library.fpgapipe_cluster_readings(handle, node, ctypes.byref(count))
    found = np.zeros((count.value, 3), np.int64)
    if count.value:
        numbers = ctypes.cast(raw, ctypes.POINTER(ctypes.c_int64))
        found[:] = np.ctypeslib.as_array(numbers, (3 * count.value,)).reshape(-1, 3)
    library.fpgapipe_cluster_forget(handle, node)
    return found
