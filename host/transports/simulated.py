"""The transport to simulated devices, which share one clock."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from fpgapipe.host.driver.allocation import Allocation
from fpgapipe.host.driver.transport import Transport
from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.core_nodes import cables, core_node
from fpgapipe.sim_tb.native.native import StallError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.sim_tb.native.phy import WireSpec

    End = tuple[int, int]


class _SliceIsOver(Exception):
    """The time of a wait is over; the devices stand between two rounds and can go on."""


class SimulatedTransport(Transport):
    """Access to one device of a simulated cluster, all of which ends when one is closed.

    Parameters
    ----------
    cluster : Cluster
        Cluster, all of whose devices run whenever one of them is accessed or waited for.
    number : int
        Number of the device.
    memory : uint8 array
        Memory of the device.
    base : int
        Address at which memory is given out, a multiple of 4096.
    """

    name = "sim"

    def __init__(
        self, cluster: Cluster, number: int, memory: NDArray[np.uint8], base: int = 0
    ) -> None:
        self._cluster, self._number, self._memory = cluster, number, memory
        self._free = Allocation(base, self._memory.size)

    def close(self) -> None:
        """End the simulation of the whole cluster."""
        self._cluster.close()

    def read_register(self, offset: int) -> int:
        """See `Transport`."""
        return self._cluster.read_register(self._number, offset)

    def write_register(self, offset: int, value: int) -> None:
        """See `Transport`."""
        self._cluster.write_register(self._number, offset, value)

    def allocate(self, size_bytes: int) -> int:
        """See `Transport`."""
        return self._free.take(size_bytes)

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """See `Transport`."""
        self._memory[address : address + data.size] = data

    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """See `Transport`."""
        return self._memory[address : address + size_bytes].copy()

    def wait(self, ended: Callable[[], bool], limit_s: float) -> bool:
        """Run all devices until their interrupts are high; see `Transport`."""
        self.pause(limit_s)
        return ended()

    def pause(self, pause_s: float) -> None:
        """Run all devices until their interrupts are high; see `Transport`."""
        last_s = time.monotonic() + pause_s

        def look(_: object) -> None:
            if time.monotonic() > last_s:
                raise _SliceIsOver

        # After a stall, the driver finds out from the counters that there is no progress.
        with contextlib.suppress(StallError, _SliceIsOver):
            self._cluster.run(progress=look)


def simulated_transports(
    cores: Sequence[CoreSpec],
    memory_bytes: Sequence[int],
    memories: Sequence[MemorySpec],
    wiring: Sequence[tuple[End, End]],
    wires: Sequence[WireSpec],
    bases: Sequence[int] | None = None,
) -> list[SimulatedTransport]:
    """Make a cluster of simulated devices; return the ways to them.

    Parameters
    ----------
    cores : sequence of CoreSpec
        Core of each device.
    memory_bytes : sequence of int
        Size of each device's memory, a multiple of 4096.
    memories : sequence of MemorySpec
        Speed of each device's memory.
    wiring : sequence of pairs of (device, link)
        Pairs of link ends that are connected.
    wires : sequence of WireSpec
        Cable of each pair.
    bases : sequence of int, optional
        Address at which each device gives out memory; 0 by default.
    """
    bases = bases or [0] * len(cores)
    nodes = [
        core_node(number, *each)[1]
        for number, each in enumerate(zip(cores, memory_bytes, memories, strict=True))
    ]
    cluster = Cluster(nodes, cables(wiring, wires))
    return [
        SimulatedTransport(cluster, number, node.device.memory, base)
        for number, (node, base) in enumerate(zip(nodes, bases, strict=True))
    ]
