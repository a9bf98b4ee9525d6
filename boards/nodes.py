"""The nodes of a board: the cores among which its dies, memory channels and link ports are shared.

A board has one node, which spans its dies, or several, each within a die. A node has neighbouring
channels of memory to itself, and drives one port of them. The nodes of a board are joined in a
chain by on-chip links. A link port lies on a die, and belongs to a node there.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from fpgapipe.boards.address import MOST_NODES
from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.device import DeviceSpec, DieResources, LinkPortSpec, LinkSpec
from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP, ON_CHIP_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.boards.schema import Board

MOST_BOUNDARY_WIRES = 8_000
"""Wires that nodes may have across the boundary of two dies.

There are 23,040 on U50, U280 and VU47P, of which FINN plans with 5,000 for one design and the
shell's own need some.
"""

AXI_WIRES = 1_250
"""Wires of an AXI4 master of 512 bits of data and 64 of address."""

ON_CHIP_WIRES = 2 * (8 * ON_CHIP_BYTES + 2)
"""Wires of an on-chip link: a stream each way, with ``tvalid`` and ``tready``."""

SWITCH_PORTS = 4
"""Memory ports that share a switch, within which no bandwidth is lost (PG276)."""


def crossing_cycles(dies: int) -> int:
    """Latency of an on-chip link whose ends are some dies apart, cycles.

    A register in a die, and with each boundary two more, as v++ inserts them (3 cycles for one
    boundary, 5 for two).
    """
    return 1 + 2 * dies


@dataclass(frozen=True)
class BoardNode:
    """A core's share of a board.

    Attributes
    ----------
    board : Board
    number : int
        Position among the board's nodes, in the order in which data flow.
    die : str or None
        Die on which the core lies; None if it has all dies.
    channels : range
        Channels of the board's memory that the node has; empty if there is one node.
    ports : tuple of str
        Link ports that it has, such as ``qsfp/0``.
    spec : DeviceSpec
        Resources for planner and generator.
    """

    board: Board
    number: int
    die: str | None
    channels: range
    ports: tuple[str, ...]
    spec: DeviceSpec

    @property
    def is_share(self) -> bool:
        """Whether the board has other nodes, too."""
        return self.spec.is_share


@dataclass(frozen=True)
class BoardNodes:
    """The nodes of a board in the order in which data flow, and the wires between dies.

    Attributes
    ----------
    nodes : tuple of BoardNode
    """

    nodes: tuple[BoardNode, ...]

    @property
    def board(self) -> Board:
        """The board."""
        return self.nodes[0].board

    @cached_property
    def _places(self) -> list[int]:
        """Index of each node's die."""
        names = [die.name for die in self.board.fabric.dies]
        return [names.index(node.die) if node.die else 0 for node in self.nodes]

    def links(self, first: int) -> list[LinkSpec]:
        """On-chip links between nodes that follow one another.

        Parameters
        ----------
        first : int
            Position of the board's first node in the cluster.
        """
        clk_hz = self.board.clock.clk_target_hz
        return [
            LinkSpec(
                source=first + number,
                destination=first + number + 1,
                source_port=f"{ON_CHIP}/1",
                destination_port=f"{ON_CHIP}/0",
                protocol=ON_CHIP,
                line_rate_bits_per_s=8 * WORD_BYTES * clk_hz,
                payload_efficiency=1.0,
                latency_s=crossing_cycles(abs(one - other)) / clk_hz,
            )
            for number, (one, other) in enumerate(pairwise(self._places))
        ]

    @cached_property
    def boundary_wires(self) -> tuple[int, ...]:
        """Wires across each boundary of two dies: of memory ports and of on-chip links."""
        dies = self.board.fabric.dies
        if len(self.nodes) == 1:
            return (0,) * (len(dies) - 1)
        memory = self._memory_die
        found = []
        for boundary in range(len(dies) - 1):

            def crosses(one: int, other: int, boundary: int = boundary) -> bool:
                return min(one, other) <= boundary < max(one, other)

            ports = sum(crosses(place, memory) for place in self._places)
            streams = sum(crosses(*pair) for pair in pairwise(self._places))
            found.append(ports * AXI_WIRES + streams * ON_CHIP_WIRES)
        return tuple(found)

    @property
    def _memory_die(self) -> int:
        packaging = self.board.packaging
        assert packaging is not None
        assert packaging.vitis is not None, "boards of several nodes have a memory die"
        return [die.name for die in self.board.fabric.dies].index(packaging.vitis.memory_die)


def nodes_of(
    board: Board, count: int, *, enters: str | None = None, leaves: str | None = None
) -> BoardNodes:
    """Share a board among nodes.

    Parameters
    ----------
    board : Board
    count : int
        Number of nodes.
    enters, leaves : str or None
        Link ports at which data come from another board, and go to another one: the first node has
        the former, the last one the latter.

    Raises
    ------
    UserError
        If the board cannot have so many nodes; the message names what binds.
    """
    if count == 1:
        ports = tuple(f"{group.name}/{at}" for group in board.links for at in range(group.count))
        return BoardNodes((BoardNode(board, 0, None, range(0), ports, board.device_spec()),))
    whole = f"{board.name} with {count} nodes"
    packaging = board.packaging
    if packaging is None or packaging.vitis is None:
        raise UserError(
            f"{whole} is not possible: several cores share a board only where a Vitis platform "
            "joins them to the memory; leave out --nodes"
        )
    memory = next(group for group in board.memory if group.name == packaging.memory)
    most = min(memory.count, MOST_NODES)
    if not 1 <= count <= most:
        raise UserError(f"{board.name} can have 1..{most} nodes (memory ports), not {count}")
    order = _order(board, count, [port for port in (enters, leaves) if port], leaves is not None)
    each = memory.count // count
    each -= each % SWITCH_PORTS if each > SWITCH_PORTS else 0
    shares = Counter(order)
    spec = board.device_spec()
    dies = {die.name: die for die in spec.dies}
    (reached,) = spec.memories
    nodes = []
    for number, die in enumerate(order):
        at_ends = ((enters, number == 0), (leaves, number == count - 1))
        ports = tuple(port for port, is_here in at_ends if port and is_here)
        groups = Counter(port.rpartition("/")[0] for port in ports)
        neighbours = (number > 0) + (number < count - 1)
        streams = LinkPortSpec(ON_CHIP, neighbours, ON_CHIP, 8 * WORD_BYTES * spec.clk_hz, 1.0, 0.0)
        own = dataclasses.replace(
            spec,
            dies=(_part(dies[die], shares[die]),),
            memories=(dataclasses.replace(reached, size_bytes=each * memory.size_bytes),),
            ports=(
                streams,
                *(
                    dataclasses.replace(group, count=groups[group.name])
                    for group in spec.ports
                    if groups[group.name]
                ),
            ),
            host_bytes_per_s=spec.host_bytes_per_s / count,
        )
        channels = range(number * each, (number + 1) * each)
        nodes.append(BoardNode(board, number, die, channels, ports, own))
    found = BoardNodes(tuple(nodes))
    widest = max(found.boundary_wires)
    if widest > MOST_BOUNDARY_WIRES:
        raise UserError(
            f"{whole} is not possible: {widest:,} wires would cross the boundary of two dies, "
            f"{MOST_BOUNDARY_WIRES:,} may; take fewer nodes"
        )
    return found


def _part(die: DieResources, shares: int) -> DieResources:
    """An equal share of a die."""
    amounts = {
        name: getattr(die, name) // shares for name in ("lut", "ff", "bram36", "uram", "dsp")
    }
    return DieResources(die.name, **amounts)


def _order(board: Board, count: int, ports: Sequence[str], leaves: bool) -> list[str]:
    """Die of each node, in the order in which data flow.

    Each further node goes to the die that leaves it the largest share of LUTs. Data that come from
    another board and go to a third pass from the link ports' die to the farthest and back; others
    pass from it, or to it, one way.
    """
    names = [die.name for die in board.fabric.dies]
    luts = {die.name: board.usable(die, "lut") for die in board.fabric.dies}
    homes = {group.name: group.die for group in board.links}
    taken = Counter[str]()
    for port in ports:
        home = homes[port.rpartition("/")[0]]
        if home is None:
            raise UserError(
                f"{board.name} with {count} nodes cannot be cabled by {port}: its file says not at "
                "which die that lies; give the key 'die' of 'links'"
            )
        taken[home] += 1
    if len(taken) > 1 or sum(taken.values()) > count:
        raise UserError(
            f"{board.name} with {count} nodes cannot be cabled by {' and '.join(ports)}: data come "
            "to a node and leave from another one at the same die"
        )
    port_die = next(iter(taken), names[0])  # without ports, the chain begins at the first die
    for _ in range(count - sum(taken.values())):
        taken[max(luts, key=lambda name: luts[name] / (taken[name] + 1))] += 1
    away = sorted(names, key=lambda name: abs(names.index(name) - names.index(port_die)))
    if len(ports) < 2:
        there = [name for name in away for _ in range(taken[name])]
        return there[::-1] if leaves else there
    out = {name: (taken[name] + 1) // 2 for name in away}
    farthest = next(name for name in reversed(away) if taken[name])
    if farthest != port_die:
        out[farthest] = taken[farthest]
    there = [name for name in away for _ in range(out[name])]
    return there + [name for name in reversed(away) for _ in range(taken[name] - out[name])]
