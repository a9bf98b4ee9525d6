"""Parts of a cluster: its devices, the wires between their link ports, and its islands.

Nodes that quick wires join form an island, such as those of a board. The nodes of an island are
stepped together; islands run without each other for as long as a wire between them takes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.sim_tb.native.native import NativeDevice
from fpgapipe.sim_tb.native.phy import WireSpec

LEAST_WINDOW_CYCLES = 64
"""Wires with a shorter delay join nodes to an island.

In shorter windows no counter could be read while devices run.
"""

MAX_WINDOW_CYCLES = 1024


@dataclass(frozen=True)
class Node:
    """A device of a cluster.

    Parameters
    ----------
    name : str
        Name of the device in messages.
    device : NativeDevice
        Device, which only the cluster may run from now on. Its memory and its statistics can still
        be used.
    registers : RegisterMap, optional
        Register map, if the device is a core. Its counters can then be sampled and show whether the
        core makes progress.
    awaited : bool
        Whether a run waits for the interrupt of the device, if it has one.
    """

    name: str
    device: NativeDevice
    registers: RegisterMap | None = None
    awaited: bool = True


@dataclass(frozen=True)
class Connection:
    """A wire from one link port to another; each is given as the numbers of a node and a port."""

    source: tuple[int, int]
    target: tuple[int, int]
    wire: WireSpec


def cable(
    one: tuple[int, int], other: tuple[int, int], there: WireSpec, back: WireSpec | None = None
) -> tuple[Connection, Connection]:
    """Connect two ports in both directions.

    Parameters
    ----------
    one, other : (int, int)
        Number of the node and of its port.
    there : WireSpec
        Wire from `one` to `other`.
    back : WireSpec, optional
        Wire from `other` to `one`; by default a wire like `there` with another seed.
    """
    back = back or replace(there, seed=(there.seed + 1) % 2**64)
    return Connection(one, other, there), Connection(other, one, back)


def islands(num_nodes: int, connections: Iterable[Connection]) -> list[int]:
    """Number of the island that each node is in; islands are numbered in order of their nodes."""
    found = list(range(num_nodes))
    for each in connections:
        if each.wire.delay_cycles < LEAST_WINDOW_CYCLES:
            kept, joined = sorted((found[each.source[0]], found[each.target[0]]))
            found = [kept if island == joined else island for island in found]
    numbers = {first: number for number, first in enumerate(sorted(set(found)))}
    return [numbers[each] for each in found]


def island_window_cycles(connections: Iterable[Connection]) -> int:
    """Cycles for which islands run without each other."""
    delays = (each.wire.delay_cycles for each in connections)
    between = (each for each in delays if each >= LEAST_WINDOW_CYCLES)
    return min(MAX_WINDOW_CYCLES, min(between, default=LEAST_WINDOW_CYCLES))
