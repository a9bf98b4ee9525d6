"""Messages between ranks, of which those that wait leave their processors to others.

MPI itself waits in loops. A rank that does so takes the time of those it waits for where there are
more processes than processors. To sleep and wake up takes a good part of a short window, on the
other hand, so a rank that has a processor looks for messages all the time for a while.
"""

from __future__ import annotations

import os
import pickle
import platform
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOPS_S = 0.05
"""How long a rank with a processor of its own looks for a message all the time, seconds."""

SHARED_LOOPS_S = 50e-6
"""How long it does where ranks share processors, seconds."""

LONGEST_PAUSE_S = 0.002
"""Longest pause between two looks for a message behind that, seconds."""

PACKET_BYTES = 65536
"""Most of a message that goes in one packet; the rest of a longer one follows by itself."""

_HEAD_BYTES = 8
_MOST_BYTES = PACKET_BYTES - _HEAD_BYTES
# The largest tag that every MPI has.
_TAG = 32_767


class Ranks:
    """Gives objects to all ranks; a `Communicator` of `fpgapipe.sim_tb.cluster.ranks`.

    Each rank sends its packet to each other rank, so that none has to look for messages before
    those of others can go on.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        All ranks make the object together.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size
        self._others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._packets = {rank: bytearray(PACKET_BYTES) for rank in self._others}
        self._loops_s = SHARED_LOOPS_S
        own = platform.node(), os.sched_getaffinity(0)
        beside = [processors for host, processors in self.allgather(own) if host == own[0]]
        if len(beside) <= len(set().union(*beside)):
            self._loops_s = LOOPS_S

    def allgather(self, sendobj: Any) -> list[Any]:
        """Give an object to all ranks; returns those of all ranks, in their order."""
        data = memoryview(pickle.dumps(sendobj, pickle.HIGHEST_PROTOCOL))
        head, rest = data[:_MOST_BYTES], data[_MOST_BYTES:]
        packet = len(data).to_bytes(_HEAD_BYTES, "little") + head
        self._wait(
            [self._comm.Irecv(self._packets[rank], rank, _TAG) for rank in self._others]
            + [self._comm.Isend(packet, rank, _TAG) for rank in self._others]
        )
        heard, rests = {self.rank: data}, []
        for rank in self._others:
            size = int.from_bytes(self._packets[rank][:_HEAD_BYTES], "little")
            heard[rank] = memoryview(bytearray(size))
            heard[rank][:_MOST_BYTES] = self._packets[rank][_HEAD_BYTES : _HEAD_BYTES + size]
            if size > _MOST_BYTES:
                rests.append(self._comm.Irecv(heard[rank][_MOST_BYTES:], rank, _TAG))
            if rest:
                rests.append(self._comm.Isend(rest, rank, _TAG))
        self._wait(rests)
        return [pickle.loads(heard[rank]) for rank in range(self.size)]

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Give an object of rank `root` to all ranks; returns it."""
        return self.allgather(obj if self.rank == root else None)[root]

    def send(self, obj: Any, dest: int) -> None:
        """Give an object to one rank."""
        self._comm.send(obj, dest=dest, tag=_TAG)

    def recv(self, source: int) -> Any:
        """Wait for an object of one rank."""
        return self._comm.recv(source=source, tag=_TAG)

    def _wait(self, requests: Sequence[Any]) -> None:
        for each in requests:
            _wait(each, self._loops_s)


def tell(comm: Any, name: str, arguments: Any = ()) -> None:
    """Tell all other ranks what to do, from rank 0; they `hear` it."""
    _wait(comm.Ibarrier())
    comm.bcast((name, arguments))


def hear(comm: Any) -> tuple[str, Any]:
    """Wait for what rank 0 tells; a name and arguments."""
    _wait(comm.Ibarrier())
    name, arguments = comm.bcast(None)
    return name, arguments


def _wait(request: Any, loops_s: float = SHARED_LOOPS_S) -> None:
    """Wait for the end of a request of MPI, in pauses of a quarter of the time so far."""
    begin_s = time.perf_counter()
    while not request.Test():
        waited_s = time.perf_counter() - begin_s
        if waited_s < loops_s:
            os.sched_yield()
        else:
            time.sleep(min(waited_s / 4, LONGEST_PAUSE_S))
