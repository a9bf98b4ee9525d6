"""A cluster whose devices belong to several processes, which run in lock-step over MPI.

Each process, called a rank, has some of the islands of devices and makes the same calls in the same
order. After each window, of as many cycles as the shortest latency of a wire between islands, all
ranks exchange the beats on wires between them, and what decides whether the run goes on. So a run
gives the same results, bit for bit and cycle by cycle, as `Cluster` does in one process, for any
number of ranks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.cluster_library import Reason
from fpgapipe.sim_tb.cluster.cluster_nodes import LEAST_WINDOW_CYCLES, island_window_cycles
from fpgapipe.sim_tb.cluster.node_registers import NodeRegisters
from fpgapipe.sim_tb.native.native import (
    DeviceError,
    check_address,
    refusal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.sim_tb.cluster.cluster_nodes import Connection, Node

_TOLD_S = 1.0


class Communicator(Protocol):
    """Functions of others that a rank needs: ``mpi4py.MPI.Comm`` has them; `Ranks` waits better."""

    rank: int
    size: int

    def allgather(self, sendobj: Any) -> list[Any]:
        """Give an object to all ranks; returns those of all ranks, in their order."""

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Give an object of rank `root` to all ranks; returns it."""

    def send(self, obj: Any, dest: int) -> None:
        """Give an object to one rank."""

    def recv(self, source: int) -> Any:
        """Wait for an object of one rank."""


@dataclass(frozen=True)
class _Window:
    """Message of a rank to all others after a window."""

    beats: dict[int, bytes] = field(default_factory=dict)
    error: str = ""
    is_over: bool = False
    moved: int = 0
    stops: bool = False
    progress: dict[int, dict[str, int]] = field(default_factory=dict)


class RankedCluster(NodeRegisters):
    """Devices of several ranks in lock-step; offers what a run of programs needs of `Cluster`.

    All ranks create it, and call its methods, in the same order and with equal arguments. Only
    rank 0 has bytes for memories and gets those of memories, and only its clock says when a run has
    gone on for long enough.

    Parameters
    ----------
    comm : Communicator
    owners : sequence of int
        Rank that has each node.
    nodes : mapping of int to Node
        Nodes of this rank by number.
    connections : sequence of Connection
        All wires.
    threads : int, optional
        Number of threads of this rank.

    Raises
    ------
    ValueError
        If a rank has no node, a node of this rank is missing, or ranks share an island.
    """

    def __init__(
        self,
        comm: Communicator,
        owners: Sequence[int],
        nodes: Mapping[int, Node],
        connections: Sequence[Connection],
        *,
        threads: int | None = None,
    ) -> None:
        if set(owners) != set(range(comm.size)):
            raise ValueError(f"each of {comm.size} ranks must have a node of {len(owners)}")
        self._comm = comm
        self.owners = tuple(owners)
        own = [number for number, owner in enumerate(owners) if owner == comm.rank]
        if sorted(nodes) != own:
            raise ValueError(f"rank {comm.rank} must have the nodes {own}, not {sorted(nodes)}")
        self._places = {number: place for place, number in enumerate(own)}
        for each in connections:
            one, other = (owners[end[0]] for end in (each.source, each.target))
            if one != other and each.wire.delay_cycles < LEAST_WINDOW_CYCLES:
                raise ValueError(
                    f"wires between ranks need {LEAST_WINDOW_CYCLES} cycles or more, not "
                    f"{each.wire.delay_cycles}"
                )
        self.window_cycles = island_window_cycles(connections)
        within: list[Connection] = []
        self._leaving: dict[int, tuple[int, int]] = {}
        self._coming: dict[int, tuple[int, int]] = {}
        for index, each in enumerate(connections):
            for number, port in (each.source, each.target):
                if number in nodes and nodes[number].device.link_bytes.get(port) != (
                    each.wire.phy_bytes
                ):
                    raise ValueError(f"{nodes[number].name} has no link {port} for its wire")
            source, target = (self._places.get(end[0]) for end in (each.source, each.target))
            if source is not None and target is not None:
                within.append(
                    replace(each, source=(source, each.source[1]), target=(target, each.target[1]))
                )
            elif source is not None:
                self._leaving[index] = (source, each.source[1])
            elif target is not None:
                self._coming[index] = (target, each.target[1])
        outside = [(end, connections[index].wire) for index, end in self._leaving.items()]
        self._local = Cluster(
            [nodes[number] for number in own], within, threads=threads, outside=outside
        )
        self._awaits = [
            node.device for node in self._local.nodes if node.awaited and node.device.has_irq
        ]
        self._told: dict[int, dict[str, int]] = {}
        self._told_s = 0.0
        self._stall_cycles = self.moved = 0

    def close(self) -> None:
        """End the simulation of this rank's devices; their memories stay valid."""
        self._local.close()

    @property
    def cycle(self) -> int:
        """Cycles since the devices were created, the same on all ranks."""
        return self._local.cycle

    def _access(self, number: int, address: int, value: int, write: bool, max_cycles: int) -> int:
        check_address(address)
        place, owner = self._places.get(number), self.owners[number]
        response, left = -2, max_cycles
        while response == -2 and left > 0:
            before, error = self.cycle, ""
            if place is not None:
                most = min(self.window_cycles, left)
                try:
                    response, value = self._local.access_for(place, address, value, write, most)
                except DeviceError as found:
                    error = str(found)
            ran = self.cycle - before
            response, value, ran, error = self._comm.bcast(
                (response, value, ran, error), root=owner
            )
            if place is None and ran:
                error = error or self._advance(ran)
            self._exchange(_Window(self._take(), error))
            left -= ran
        if response == -2:
            raise DeviceError(
                f"node {number}: cycle {self.cycle}: the design did not answer a register access "
                f"within {max_cycles} cycles"
            )
        if response:
            raise DeviceError(f"node {number}: {refusal(address, write, response)}")
        return value

    def _advance(self, cycles: int) -> str:
        """Run this rank's devices; returns their error, or an empty text."""
        try:
            self._local.advance(cycles)
        except DeviceError as error:
            return str(error)
        return ""

    def _take(self) -> dict[int, bytes]:
        """Take the beats off the wires to other ranks."""
        found = {}
        for index, (place, port) in self._leaving.items():
            if beats := self._local.take_raw(place, port):
                found[index] = beats
        return found

    def _exchange(self, own: _Window) -> list[_Window]:
        """Tell all ranks about a window, and put the beats that come onto this rank's ports."""
        heard: list[_Window] = self._comm.allgather(own)
        error = next((each.error for each in heard if each.error), "")
        if error:
            raise DeviceError(error)
        for each in heard:
            for index, beats in each.beats.items():
                if end := self._coming.get(index):
                    self._local.give_raw(*end, beats)
            self._told |= each.progress
        return heard

    def begin(self, stall_cycles: int) -> None:
        """Begin a run that `go` goes through; see `Cluster`."""
        self._stall_cycles, self.moved = stall_cycles, self.cycle
        self._local.begin(stall_cycles)

    def go(self, seconds: float, stops: Callable[[], object] | None = None) -> Reason:
        """Go on with a run, as `Cluster` does, for some seconds of rank 0 at most.

        All ranks end after the same window. Rank 0 may give a function that is true when the run
        is to end before its time is over.

        Raises
        ------
        DeviceError
            On all ranks, if a design breaks a rule of its buses.
        """
        last_s = time.perf_counter() + seconds
        error = ""
        while True:
            now = time.perf_counter()
            tells = now - self._told_s >= _TOLD_S
            self._told_s = now if tells else self._told_s
            heard = self._exchange(
                _Window(
                    self._take(),
                    error,
                    all(each.statistics.irq_cycle is not None for each in self._awaits),
                    self._local.moved,
                    now >= last_s or bool(stops and stops()),
                    {
                        number: self._local.progress_of(place)
                        for number, place in (self._places.items() if tells else ())
                    },
                )
            )
            self.moved = max(self.moved, *(each.moved for each in heard))
            if all(each.is_over for each in heard):
                return Reason.INTERRUPTS
            if self._stall_cycles and self.cycle - self.moved >= self._stall_cycles:
                return Reason.STALLED
            if heard[0].stops:
                return Reason.TIME
            error = self._advance(self.window_cycles)

    def progress_of(self, number: int) -> dict[str, int]:
        """Progress counters of a node, as `Cluster.progress_of`; those of others are older."""
        place = self._places.get(number)
        return self._told.get(number, {}) if place is None else self._local.progress_of(place)

    def irq_cycles(self) -> list[int | None]:
        """First cycle since which each node's interrupt is high; None if it is low."""
        own = {
            number: self._local.nodes[place].device.statistics.irq_cycle
            for number, place in self._places.items()
        }
        found = {key: value for each in self._comm.allgather(own) for key, value in each.items()}
        return [found[number] for number in range(len(self.owners))]

    def read_memory(self, number: int, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """A copy of bytes of a node's memory on rank 0; none on other ranks."""
        place, owner = self._places.get(number), self.owners[number]
        found = np.zeros(0, np.uint8)
        if place is not None:
            found = self._local.read_memory(place, address, size_bytes)
        if owner and not self._comm.rank:
            found = self._comm.recv(owner)
        elif owner and place is not None:
            self._comm.send(found, 0)
        return found

    def write_memory(
        self, number: int, address: int, data: NDArray[np.uint8] | None = None
    ) -> None:
        """Write bytes, which rank 0 has, to a node's memory."""
        place, owner = self._places.get(number), self.owners[number]
        if owner and not self._comm.rank:
            self._comm.send(data, owner)
        elif place is not None:
            found = self._comm.recv(0) if owner else data
            assert found is not None, "rank 0 has the bytes"
            self._local.write_memory(place, address, found)

    def described(self, number: int) -> list[str]:
        """Description of a node of this rank; see `Cluster`."""
        place = self._places.get(number)
        return [] if place is None else self._local.described(place)
