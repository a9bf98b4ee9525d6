"""Simulated devices that several MPI ranks share, as rank 0 reaches them."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError, counted
from fpgapipe.host.terminal.interrupts import kept
from fpgapipe.sim_tb.cluster.cluster_nodes import LEAST_WINDOW_CYCLES, islands
from fpgapipe.sim_tb.cluster.rank_messages import Ranks, tell
from fpgapipe.sim_tb.cluster.ranks import RankedCluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.sim_tb.cluster.cluster_library import Reason
    from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster

logger = logging.getLogger(__name__)


def ranked_cluster(comm: Any, cluster: CoreCluster) -> RankedCluster:
    """Make this rank's devices of a cluster; all ranks call this together.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    cluster : CoreCluster

    Raises
    ------
    UserError
        On all ranks, if one cannot make its devices.
    """
    owners = owners_of(comm.size, cluster)
    nodes, fault = {}, ""
    try:
        for number, owner in enumerate(owners):
            if owner == comm.rank:
                _, nodes[number] = cluster.node(number)
    except UserError as error:
        fault = f"process {comm.rank} on {platform.node()}: {error}"
    ranks = Ranks(comm)
    if faults := [each for each in ranks.allgather(fault) if each]:
        raise UserError(faults[0])
    places = ranks.allgather((platform.node(), os.getpid()))
    if not comm.rank:
        _tell_owners(owners, places)
    threads = cluster.threads
    if threads is None:
        beside = [host for host, _ in places].count(platform.node())
        threads = max(1, len(os.sched_getaffinity(0)) // beside)
    return RankedCluster(ranks, owners, nodes, cluster.connections, threads=threads)


def owners_of(ranks: int, cluster: CoreCluster) -> list[int]:
    """Rank that has each device: each rank has a row of islands.

    Raises
    ------
    UserError
        If there are more ranks than islands.
    """
    devices = len(cluster.cores)
    found = islands(devices, cluster.connections)
    most = max(found) + 1
    if ranks > most:
        raise UserError(
            f"{ranks} processes for {counted(devices, 'device')}: at most {most} can share them, "
            f"since links that take fewer than {LEAST_WINDOW_CYCLES} cycles, as those within a "
            "board, cannot lead from one process to another"
        )
    return [island * ranks // most for island in found]


def _tell_owners(owners: Sequence[int], places: Sequence[tuple[str, int]]) -> None:
    """Say which process has which devices, since launchers name a dead one by host and PID."""
    for rank, (host, process) in enumerate(places):
        own = [str(number) for number, owner in enumerate(owners) if owner == rank]
        logger.info(
            "process %d (PID %d on %s) simulates %s %s",
            *(rank, process, host, "device" if len(own) == 1 else "devices", ", ".join(own)),
        )


class SharedCluster:
    """A cluster of which each rank has some devices; rank 0 calls for all.

    Each call reaches the other ranks, which `serve` it (`fpgapipe.host.backends.ranks`).

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    cluster : CoreCluster

    Raises
    ------
    UserError
        If there are more ranks than islands of devices, or a rank cannot make its devices.
    """

    def __init__(self, comm: Any, cluster: CoreCluster) -> None:
        owners_of(comm.size, cluster)
        self._comm = comm
        with self._together("create", cluster):
            self._own = ranked_cluster(comm, cluster)

    @contextlib.contextmanager
    def _together(self, name: str, *arguments: Any) -> Iterator[list[int]]:
        """Tell the other ranks of a call, and make it in the context.

        Ctrl-C is kept to the end of the context, so that no rank waits for ever; the list that is
        given is no longer empty if it has come.
        """
        with kept() as interrupted:
            tell(self._comm, name, arguments)
            yield interrupted

    @property
    def cycle(self) -> int:
        """See `Cluster`."""
        return self._own.cycle

    @property
    def moved(self) -> int:
        """See `Cluster`."""
        return self._own.moved

    def close(self) -> None:
        """See `Cluster`."""
        with self._together("close"):
            self._own.close()

    def read_registers(self, number: int, addresses: Sequence[int]) -> list[int]:
        """See `Cluster`."""
        with self._together("read_registers", number, addresses):
            return self._own.read_registers(number, addresses)

    def write_registers(self, number: int, values: Sequence[tuple[int, int]]) -> None:
        """See `Cluster`."""
        with self._together("write_registers", number, values):
            self._own.write_registers(number, values)

    def read_memory(self, number: int, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """See `Cluster`; the other ranks need not know of memory of this rank."""
        if not self._own.owners[number]:
            return self._own.read_memory(number, address, size_bytes)
        with self._together("read_memory", number, address, size_bytes):
            return self._own.read_memory(number, address, size_bytes)

    def write_memory(self, number: int, address: int, data: NDArray[np.uint8]) -> None:
        """See `Cluster`; the other ranks need not know of memory of this rank."""
        if not self._own.owners[number]:
            return self._own.write_memory(number, address, data)
        with self._together("write_memory", number, address):
            return self._own.write_memory(number, address, data)

    def begin(self, stall_cycles: int) -> None:
        """See `Cluster`."""
        with self._together("begin", stall_cycles):
            self._own.begin(stall_cycles)

    def go(self, seconds: float) -> Reason:
        """See `Cluster`; Ctrl-C ends it."""
        with self._together("go", seconds) as interrupted:
            return self._own.go(seconds, lambda: interrupted)

    def irq_cycles(self) -> list[int | None]:
        """See `Cluster`."""
        with self._together("irq_cycles"):
            return self._own.irq_cycles()

    def progress_of(self, number: int) -> dict[str, int]:
        """See `RankedCluster`."""
        return self._own.progress_of(number)

    def described(self, number: int) -> list[str]:
        """See `RankedCluster`."""
        return self._own.described(number)
