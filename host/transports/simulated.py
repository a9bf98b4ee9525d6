"""The transport to simulated devices, which share one clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.host.driver.allocation import Allocation
from fpgapipe.host.driver.transport import Limits, Transport
from fpgapipe.sim_tb.cluster.cluster_library import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.host.transports.shared_cluster import SharedCluster
    from fpgapipe.sim_tb.cluster.cluster import Cluster
    from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster

LIMITS = Limits(link=20_000, stall=200_000, unit="cycles", look_s=0.0)
"""How long a driver waits for simulated devices, in cycles; each look at a link takes some."""


class SimulatedTransport(Transport):
    """Access to one device of a simulated cluster, all of which ends when one is closed.

    Parameters
    ----------
    cluster : Cluster or SharedCluster
        Cluster, all of whose devices run whenever one of them is accessed or waited for.
    number : int
        Number of the device.
    memory_bytes : int
        Size of the device's memory.
    base : int
        Address at which memory is given out, a multiple of 4096.
    """

    name = "sim"
    limits = LIMITS

    def __init__(
        self, cluster: Cluster | SharedCluster, number: int, memory_bytes: int, base: int = 0
    ) -> None:
        self._cluster, self._number = cluster, number
        self._free = Allocation(base, memory_bytes)
        cluster.begin(round(LIMITS.stall))

    def close(self) -> None:
        """End the simulation of the whole cluster."""
        self._cluster.close()

    def read_register(self, offset: int) -> int:
        """See `Transport`."""
        return self.read_registers([offset])[0]

    def write_register(self, offset: int, value: int) -> None:
        """See `Transport`."""
        self.write_registers([(offset, value)])

    def read_registers(self, offsets: Sequence[int]) -> list[int]:
        """See `Transport`."""
        return self._cluster.read_registers(self._number, offsets)

    def write_registers(self, values: Sequence[tuple[int, int]]) -> None:
        """See `Transport`."""
        self._cluster.write_registers(self._number, values)

    def allocate(self, size_bytes: int) -> int:
        """See `Transport`."""
        return self._free.take(size_bytes)

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """See `Transport`."""
        self._cluster.write_memory(self._number, address, data)

    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """See `Transport`."""
        return self._cluster.read_memory(self._number, address, size_bytes)

    def wait(self, ended: Callable[[], bool], limit_s: float) -> bool:
        """Run all devices until their interrupts are high; see `Transport`.

        The devices are looked at only then, and when nothing moves any more: how fast this machine
        is decides in which cycle the seconds are over, and must not decide in which cycle a
        register is read.
        """
        return self._cluster.go(limit_s) is not Reason.TIME and ended()

    def pause(self, pause_s: float) -> None:
        """Run all devices until their interrupts are high; see `Transport`."""
        self._cluster.go(pause_s)

    def now(self) -> float:
        """The present cycle."""
        return self._cluster.cycle

    def progressed(self, counters: Sequence[int]) -> float:
        """Last cycle in which something moved in any device, of which the simulator keeps count."""
        return self._cluster.moved

    def state(self) -> list[str]:
        """Present cycle, interrupt and memory bus."""
        return [f"cycle {self._cluster.cycle:,}", *self._cluster.described(self._number)]


def simulated_transports(
    cluster: CoreCluster, bases: Sequence[int] | None = None
) -> list[SimulatedTransport]:
    """Make a cluster of simulated devices; return the ways to them.

    Parameters
    ----------
    cluster : CoreCluster
    bases : sequence of int, optional
        Address at which each device gives out memory; 0 by default.
    """
    made, _ = cluster.made()
    sizes = cluster.memory_bytes
    return [
        SimulatedTransport(made, number, size, base)
        for number, (size, base) in enumerate(zip(sizes, bases or [0] * len(sizes), strict=True))
    ]
