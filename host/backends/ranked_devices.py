"""Simulated devices that several MPI ranks share; rank 0 has copies of all memories."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.backends.simulated_devices import SimulatedDevices
from fpgapipe.host.backends.snapshot import Pages
from fpgapipe.host.terminal.interrupts import kept
from fpgapipe.sim_tb.cluster.core_nodes import cables, core_node
from fpgapipe.sim_tb.cluster.rank_messages import Ranks, tell
from fpgapipe.sim_tb.cluster.ranks import LEAST_WINDOW_CYCLES, RankedCluster
from fpgapipe.sim_tb.native.core_device import device_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.backends.simulated_devices import End
    from fpgapipe.host.backends.snapshot import Snapshot
    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.sim_tb.cluster.cluster import Cluster
    from fpgapipe.sim_tb.native.phy import WireSpec
    from fpgapipe.sim_tb.substitutes.simulation import Simulation

logger = logging.getLogger(__name__)


class RankedDevices(SimulatedDevices):
    """Devices in lock-step, of which each rank has some; all ranks make the same calls.

    Rank 0 calls for them: its calls reach the other ranks, which `serve` them
    (`fpgapipe.host.backends.ranks`). Memories travel to their ranks before a run and back after it.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    sizes : sequence of int
        Size of each device's memory, bytes.
    cores, memories, wiring, wires, threads, simulation
        As for `SimulatedDevices`; the threads are those of each rank.

    Raises
    ------
    UserError
        On all ranks, if there are more ranks than devices, a wire is shorter than
        `LEAST_WINDOW_CYCLES`, or a rank cannot make its devices.
    """

    def __init__(
        self,
        comm: Any,
        sizes: Sequence[int],
        cores: Sequence[CoreSpec],
        memories: Sequence[MemorySpec],
        wiring: Sequence[tuple[End, End]],
        wires: Sequence[WireSpec],
        *,
        threads: int | None = None,
        simulation: Simulation | None = None,
    ) -> None:
        if comm.size > len(cores):
            raise UserError(
                f"{comm.size} processes for {len(cores)} devices: each needs a device of its own"
            )
        shortest = min((wire.delay_cycles for wire in wires), default=LEAST_WINDOW_CYCLES)
        if shortest < LEAST_WINDOW_CYCLES:
            raise UserError(
                f"several processes need links with a latency of {LEAST_WINDOW_CYCLES} cycles or "
                f"more, not {shortest}; run without mpirun"
            )
        self._comm = comm
        self._owners = [number * comm.size // len(cores) for number in range(len(cores))]
        here: list[NDArray[np.uint8]] = []
        values = {
            "sizes": sizes,
            "cores": cores,
            "memories": memories,
            "wiring": wiring,
            "wires": wires,
            "threads": threads,
            "simulation": simulation,
        }
        with self._together():
            self._tell("create", values)
            nodes, fault = {}, ""
            try:
                self.blocks = device_blocks(cores[0], simulation)
                for number, (core, size, behind) in enumerate(
                    zip(cores, sizes, memories, strict=True)
                ):
                    if self._owners[number] == comm.rank:
                        _, nodes[number] = core_node(number, core, size, behind, simulation)
                        here.append(nodes[number].device.memory)
                    else:
                        # Only on rank 0 it becomes a copy of the device's memory.
                        here.append(np.zeros(size, np.uint8))
            except UserError as error:
                fault = f"process {comm.rank} on {platform.node()}: {error}"
            ranks = Ranks(comm)
            if faults := [each for each in ranks.allgather(fault) if each]:
                raise UserError(faults[0])
            places = ranks.allgather((platform.node(), os.getpid()))
            self._tell_owners(places)
            if threads is None:
                beside = [host for host, _ in places].count(platform.node())
                threads = max(1, len(os.sched_getaffinity(0)) // beside)
            ranked = RankedCluster(
                ranks, self._owners, nodes, cables(wiring, wires), threads=threads
            )
            self._ranked = ranked
            # It offers what this class uses of a cluster.
            self._come_up(cast("Cluster", ranked), cores, wiring, here, ())

    def _tell_owners(self, places: Sequence[tuple[str, int]]) -> None:
        """Say which process has which devices, since launchers name a dead one by host and PID."""
        if self._comm.rank:
            return
        for rank, (host, process) in enumerate(places):
            own = [str(number) for number, owner in enumerate(self._owners) if owner == rank]
            logger.info(
                "process %d (PID %d on %s) simulates %s %s",
                *(rank, process, host, "device" if len(own) == 1 else "devices", ", ".join(own)),
            )

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Keep Ctrl-C on rank 0 until the end of the context, so that no rank waits for ever.

        It begins before the other ranks are told of a call.
        """
        if self._comm.rank:
            self._interrupted: list[int] = []
            yield
            return
        with kept() as self._interrupted:
            yield

    def counters(self) -> list[dict[str, int]]:
        """See `SimulatedDevices`."""
        with self._together():
            self._tell("counters")
            return super().counters()

    def run(
        self,
        entries: Sequence[int],
        scalars: Sequence[Sequence[int]],
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """See `SimulatedDevices`."""
        with self._together():
            self._tell("run", (list(entries), [list(each) for each in scalars]))
            self._move_memories(back=False)
            cycles = super().run(entries, scalars, progress)
            self._move_memories(back=True)
        return cycles

    def _run_cluster(self, progress: Callable[[Any], object] | None) -> None:
        self._ranked.run(progress=progress, stops=lambda: self._interrupted)

    def _tell(self, name: str, arguments: Any = ()) -> None:
        if not self._comm.rank:
            tell(self._comm, name, arguments)

    def _move_memories(self, *, back: bool) -> None:
        """Send memories from rank 0 to the ranks that have the devices, or back."""
        for number, (owner, memory) in enumerate(zip(self._owners, self.memories, strict=True)):
            source, target = (owner, 0) if back else (0, owner)
            if source == target:
                continue
            if self._comm.rank == source:
                self._comm.send(Pages.of(memory), dest=target, tag=number)
            elif self._comm.rank == target:
                self._comm.recv(source=source, tag=number).put(memory)

    def snapshot(self) -> Snapshot | None:
        """None: a step of several ranks begins anew when it was stopped."""
        return None

    def fits(self, snapshot: Snapshot) -> bool:
        """False, for the same reason."""
        return False

    def close(self) -> None:
        """See `SimulatedDevices`."""
        with self._together():
            self._tell("close")
            self._ranked.close()
