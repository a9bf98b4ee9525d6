"""Nodes of a cluster that are cores with their memories, and the cables between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.sim_tb.cluster.cluster_nodes import Node, cable
from fpgapipe.sim_tb.native.core_device import build_device
from fpgapipe.sim_tb.native.native import NativeDevice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.sim_tb.cluster.cluster_nodes import Connection
    from fpgapipe.sim_tb.native.phy import WireSpec
    from fpgapipe.sim_tb.native.waves import WaveFormat
    from fpgapipe.sim_tb.substitutes.simulation import Simulation

    End = tuple[int, int]


def core_node(
    number: int,
    core: CoreSpec,
    memory_bytes: int,
    behind: MemorySpec,
    simulation: Simulation | None = None,
    waves: WaveFormat | None = None,
) -> tuple[str, Node]:
    """Make a simulated device; equal cores share one compiled simulator.

    Parameters
    ----------
    number : int
        Number of the device, for its name.
    core : CoreSpec
    memory_bytes : int
        Size of its memory, a multiple of 4096.
    behind : MemorySpec
        Speed of the memory.
    simulation : Simulation, optional
        Whether blocks are simulated in C++, as for `chosen_simulation`.
    waves : WaveFormat, optional
        Format of waves that can be recorded.

    Returns
    -------
    str
        Identity of the simulator, which says whether states can go from one to another.
    Node
    """
    library, _, _ = build_device(core, simulation, waves)
    device = NativeDevice(
        library,
        memory_bytes=memory_bytes,
        bytes_per_cycle=behind.bytes_per_cycle,  # type: ignore[arg-type]
        latency_cycles=behind.latency_cycles,
    )
    return library.parent.name, Node(f"device {number}", device, RegisterMap(core))


def cables(wiring: Sequence[tuple[End, End]], wires: Sequence[WireSpec]) -> list[Connection]:
    """Both directions of the cables that join pairs of link ends (device, link)."""
    return [
        connection
        for (one, other), wire in zip(wiring, wires, strict=True)
        for connection in cable(one, other, wire)
    ]
