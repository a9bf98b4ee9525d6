"""What a cluster consists of: its devices, and the wires between their link ports."""

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
        For messages.
    device : NativeDevice
        The cluster alone runs it from now on; its memory and its statistics can be used as ever.
    registers : RegisterMap, optional
        Of a core. Then its counters can be sampled, and show whether it gets on.
    awaited : bool
        Whether a run waits for its interrupt, if it has one.
    """

    name: str
    device: NativeDevice
    registers: RegisterMap | None = None
    awaited: bool = True


@dataclass(frozen=True)
class Connection:
    """A wire, from a link port to another: the numbers of their nodes and of the ports."""

    source: tuple[int, int]
    target: tuple[int, int]
    wire: WireSpec


def cable(
    one: tuple[int, int], other: tuple[int, int], there: WireSpec, back: WireSpec | None = None
) -> tuple[Connection, Connection]:
    """Both directions between two ports.

    Parameters
    ----------
    one, other : (int, int)
        Node and port.
    there : WireSpec
        From `one` to `other`.
    back : WireSpec, optional
        As `there`, but for the seed, if not given.
    """
    back = back or replace(there, seed=(there.seed + 1) % 2**64)
    return Connection(one, other, there), Connection(other, one, back)
