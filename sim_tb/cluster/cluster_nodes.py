"""Parts of a cluster: its devices, and the wires between their link ports."""

from dataclasses import dataclass, replace

from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.sim_tb.native.native import NativeDevice
from fpgapipe.sim_tb.native.phy import WireSpec


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
