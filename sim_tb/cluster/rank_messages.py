"""What ranks tell each other, while those that wait leave their processors to others.

MPI itself waits in loops. A rank that does so takes the time of those it waits for, where there are
more processes than processors, and on a busy machine it is at work when it should be rested.
"""

from __future__ import annotations

import os
import pickle
import time
from typing import Any

LOOPS_S = 50e-6
"""How long a rank looks for a message all the time, seconds."""

LONGEST_PAUSE_S = 0.002
"""Longest pause between two looks for a message behind that."""

PACKET_BYTES = 8192
"""Size of the message that each rank sends to all in one go; what is longer takes two."""

_HEAD_BYTES = 8


class Ranks:
    """Gives objects to all ranks; a `Communicator` of `fpgapipe.sim_tb.cluster.ranks`.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size
        self._own = bytearray(PACKET_BYTES)
        self._all = bytearray(PACKET_BYTES * comm.size)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Give an object to all ranks; returns those of all ranks, in their order."""
        data = pickle.dumps(sendobj, pickle.HIGHEST_PROTOCOL)
        begin = data[: PACKET_BYTES - _HEAD_BYTES]
        self._own[:_HEAD_BYTES] = len(data).to_bytes(_HEAD_BYTES, "little")
        self._own[_HEAD_BYTES : _HEAD_BYTES + len(begin)] = begin
        _wait(self._comm.Iallgather(self._own, self._all))
        packets = [
            memoryview(self._all)[first : first + PACKET_BYTES]
            for first in range(0, len(self._all), PACKET_BYTES)
        ]
        sizes = [int.from_bytes(packet[:_HEAD_BYTES], "little") for packet in packets]
        if max(sizes) <= PACKET_BYTES - _HEAD_BYTES:
            return [
                pickle.loads(packet[_HEAD_BYTES : _HEAD_BYTES + size])
                for packet, size in zip(packets, sizes, strict=True)
            ]
        whole = bytearray(sum(sizes))
        _wait(self._comm.Iallgatherv(data, (whole, sizes)))
        found, first = [], 0
        for size in sizes:
            found.append(pickle.loads(memoryview(whole)[first : first + size]))
            first += size
        return found

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Give an object of rank `root` to all ranks; returns it."""
        return self.allgather(obj if self.rank == root else None)[root]


def tell(comm: Any, name: str, arguments: Any = ()) -> None:
    """Tell all other ranks what to do, from rank 0; they `hear` it."""
    _wait(comm.Ibarrier())
    comm.bcast((name, arguments))


def hear(comm: Any) -> tuple[str, Any]:
    """Wait for what rank 0 tells; a name and arguments."""
    _wait(comm.Ibarrier())
    name, arguments = comm.bcast(None)
    return name, arguments


def _wait(request: Any) -> None:
    """Wait for the end of a request of MPI, in pauses of a quarter of the time so far."""
    begin_s = time.perf_counter()
    while not request.Test():
        waited_s = time.perf_counter() - begin_s
        if waited_s < LOOPS_S:
            os.sched_yield()
        else:
            time.sleep(min(waited_s / 4, LONGEST_PAUSE_S))
