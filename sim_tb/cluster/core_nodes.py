"""A cluster of cores with their memories, and the cables between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.cluster_nodes import Node, cable
from fpgapipe.sim_tb.native.core_device import build_device
from fpgapipe.sim_tb.native.native import NativeDevice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.sim_tb.cluster.cluster_nodes import Connection
    from fpgapipe.sim_tb.native.phy import WireSpec
    from fpgapipe.sim_tb.native.waves import WaveWindow
    from fpgapipe.sim_tb.substitutes.simulation import Simulation

    End = tuple[int, int]


@dataclass(frozen=True)
class CoreCluster:
    """Cores with their memories and cables, and how they are simulated.

    Parameters
    ----------
    cores : sequence of CoreSpec
        Core of each device; equal cores share one compiled simulator.
    memory_bytes : sequence of int
        Size of each device's memory, a multiple of 4096.
    memories : sequence of MemorySpec
        Speed of each device's memory.
    wiring : sequence of pairs of (device, link)
        Pairs of link ends that are connected.
    wires : sequence of WireSpec
        Cable of each pair.
    threads : int, optional
        Number of threads, as for `Cluster`; of each process, if several share the devices.
    simulation : Simulation, optional
        Whether blocks are simulated in C++, as for `chosen_simulation`.
    """

    cores: Sequence[CoreSpec]
    memory_bytes: Sequence[int]
    memories: Sequence[MemorySpec]
    wiring: Sequence[tuple[End, End]] = ()
    wires: Sequence[WireSpec] = ()
    threads: int | None = None
    simulation: Simulation | None = None

    @property
    def connections(self) -> list[Connection]:
        """Both directions of all cables."""
        return [
            connection
            for (one, other), wire in zip(self.wiring, self.wires, strict=True)
            for connection in cable(one, other, wire)
        ]

    def node(self, number: int, waves: WaveWindow | None = None) -> tuple[str, Node]:
        """Make a device, with the waves that can be recorded if they are its own.

        The first result is the identity of its simulator, which says whether states can go from one
        to another.
        """
        core, behind = self.cores[number], self.memories[number]
        form = waves.format if waves and waves.device == number else None
        library, _, _ = build_device(core, self.simulation, form)
        device = NativeDevice(
            library,
            memory_bytes=self.memory_bytes[number],
            bytes_per_cycle=behind.bytes_per_cycle,  # type: ignore[arg-type]
            latency_cycles=behind.latency_cycles,
        )
        return library.parent.name, Node(f"device {number}", device, RegisterMap(core))

    def made(self, waves: WaveWindow | None = None) -> tuple[Cluster, tuple[str, ...]]:
        """Make all devices in this process; returns also the identities of their simulators."""
        made = [self.node(number, waves) for number in range(len(self.cores))]
        cluster = Cluster([node for _, node in made], self.connections, threads=self.threads)
        return cluster, tuple(design for design, _ in made)
