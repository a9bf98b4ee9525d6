"""Counters of a cluster's devices, read while programs run."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fpgapipe.hw.hls_models.registers import DATA_BITS, RegisterMap

_PROGRESS = ("INSTRUCTIONS", "_BYTES", "_VECTORS", "X_WORDS")


class Sample(NamedTuple):
    """Values of some of a node's counters.

    Attributes
    ----------
    cycle : int
        In which the first was read; each has been read some cycles after the one before.
    node : int
    counters : mapping of str to int
    """

    cycle: int
    node: int
    counters: Mapping[str, int]


def progress_counters(registers: RegisterMap) -> tuple[str, ...]:
    """Counters that rise only while a core gets on."""
    return tuple(name for name in registers.counters if name.endswith(_PROGRESS))


def low_halves(registers: RegisterMap, names: Sequence[str]) -> list[int]:
    """Addresses of the lower halves of counters."""
    return [registers.offset(f"{name}_LO") for name in names]


@dataclass
class Sampler:
    """Samples of one node, made of readings of the counters' lower halves.

    Between two samples no counter rises by 2^32 or more, so the upper halves are known.

    Parameters
    ----------
    node : int
    names : tuple of str
    """

    node: int
    names: tuple[str, ...]
    samples: list[Sample] = field(default_factory=list)
    _open: list[tuple[int, int, int]] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all samples."""
        self.samples.clear()
        self._open.clear()

    def collect(self, library: ctypes.CDLL, handle: int) -> None:
        """Take the readings that a cluster has."""
        count = ctypes.c_uint64()
        raw = library.fpgapipe_cluster_readings(handle, self.node, ctypes.byref(count))
        readings = [(one.index, one.cycle, one.value) for one in raw[: count.value]]
        library.fpgapipe_cluster_forget(handle, self.node)
        self.add(readings)

    def add(self, readings: Sequence[tuple[int, int, int]]) -> None:
        """Go on with readings: number of the counter, cycle, value."""
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
