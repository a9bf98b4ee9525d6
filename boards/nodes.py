"""The nodes of a board: the cores among which its dies, memory channels and link ports are shared.

A board has one node, which spans its dies, or several, each within a die. A node has neighbouring
channels of memory to itself. It drives two ports of them, each with half of the channels behind it,
or one if there are not enough channels, or too many wires. The nodes of a board are joined in a
chain by on-chip links. A link port lies at a die; the node that has it may lie on another one, and
its packets pass through registers at each boundary of dies.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING

from fpgapipe.boards.address import MOST_NODES
from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.resources.core_counts import links as link_resources
from fpgapipe.hw.hls_models.spec.device import DeviceSpec, DieResources, LinkPortSpec, LinkSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP, ON_CHIP_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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

PORT_BYTES = 64
"""Width of the widest stream between a core's link and the logic of its transceiver."""

PORT_WIRES = 2 * (9 * PORT_BYTES + 3) + 10
"""Wires between a core's link and the logic of its transceiver: a stream each way, with ``tkeep``,
``tlast``, ``tvalid`` and ``tready``, and a stream of bytes that shows the transceiver's clock."""

SWITCH_PORTS = 4
"""Memory ports that share a switch, within which no bandwidth is lost (PG276).

A node has whole switches. Connections between these carry what its two ports alone ask for.
"""


def crossing_cycles(dies: int) -> int:
    """Latency of wires whose ends are some dies apart, cycles.

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
    boundary_wires : tuple of int
        Wires across each boundary of two dies: of memory ports, on-chip links, and link ports of
        other dies.
    """

    nodes: tuple[BoardNode, ...]
    boundary_wires: tuple[int, ...]

    @property
    def board(self) -> Board:
        """The board."""
        return self.nodes[0].board

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
            for number, (one, other) in enumerate(pairwise(map(self._index, self._dies)))
        ]

    def port_latency_s(self, node: BoardNode, port: str) -> float:
        """Time that packets take between a node and the die of a link port that it has, s."""
        home = _home(self.board, port)
        if node.die is None or home is None or node.die == home:
            return 0.0
        apart = abs(self._index(node.die) - self._index(home))
        return crossing_cycles(apart) / self.board.clock.clk_target_hz

    @property
    def _dies(self) -> list[str]:
        """Die of each node; none of a board's only node, which has all."""
        return [node.die for node in self.nodes if node.die]

    def _index(self, die: str) -> int:
        return [each.name for each in self.board.fabric.dies].index(die)


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
        alone = BoardNode(board, 0, None, range(0), ports, board.device_spec())
        return BoardNodes((alone,), (0,) * (len(board.fabric.dies) - 1))
    whole = f"{board.name} with {count} nodes"
    packaging = board.packaging
    if packaging is None or packaging.vitis is None:
        raise UserError(
            f"{whole} is not possible: several cores share a board only where a Vitis platform "
            "joins them to the memory; leave out --nodes"
        )
    memory = board.packaged_memory
    most = min(memory.count, MOST_NODES)
    if not 1 <= count <= most:
        raise UserError(f"{board.name} can have 1..{most} nodes (memory ports), not {count}")
    shares = _shares_of_channels(memory.count, count)
    homes = {}
    for port in filter(None, (enters, leaves)):
        home = _home(board, port)
        if home is None:
            raise UserError(
                f"{whole} cannot be cabled by {port}: its file says not at which die that lies; "
                "give the key 'die' of 'links'"
            )
        homes[port] = home
    names = [die.name for die in board.fabric.dies]
    for memory_ports in (1,) if any(each % 2 for each in shares) else (2, 1):
        order, boundary_wires = _order(
            board,
            count,
            memory_ports,
            names.index(packaging.vitis.memory_die),
            *(names.index(homes[port]) if port else None for port in (enters, leaves)),
        )
        widest = max(boundary_wires, default=0)
        if widest <= MOST_BOUNDARY_WIRES:
            break
    else:
        raise UserError(
            f"{whole} is not possible: {widest:,} wires would cross the boundary of two dies, "
            f"{MOST_BOUNDARY_WIRES:,} may; take fewer nodes"
        )
    of_die = Counter(order)
    spec = board.device_spec()
    registers = [sum(pair) for pair in pairwise((0, *boundary_wires, 0))]
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
            dies=(_part(spec.dies[die], of_die[die], registers[die]),),
            memories=(
                dataclasses.replace(
                    reached,
                    count=memory_ports,
                    size_bytes=shares[number] // memory_ports * memory.size_bytes,
                ),
            ),
            memory_ports=memory_ports,
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
        begin = sum(shares[:number])
        channels = range(begin, begin + shares[number])
        nodes.append(BoardNode(board, number, names[die], channels, ports, own))
    return BoardNodes(tuple(nodes), boundary_wires)


def _shares_of_channels(channels: int, nodes: int) -> list[int]:
    """Channels of memory of each node: whole switches, one more for the last nodes if any is left.

    The first stages of a pipeline keep the activations of more micro-batches than the last ones. At
    the last node of a U280 lies the die with fewest LUTs, which suits the first layers of a CNN.
    """
    if channels // nodes <= SWITCH_PORTS:
        return [channels // nodes] * nodes
    each, left = divmod(channels // SWITCH_PORTS, nodes)
    return [SWITCH_PORTS * (each + (number >= nodes - left)) for number in range(nodes)]


def _home(board: Board, port: str) -> str | None:
    """The die at which a link port lies, if the board's file says it."""
    return next(group.die for group in board.links if group.name == port.rpartition("/")[0])


def _part(die: DieResources, shares: int, registers: int) -> DieResources:
    """An equal share of what the registers of wires to other dies leave of a die."""
    left = dataclasses.replace(die, ff=max(die.ff - registers, 0))
    amounts = {
        name: getattr(left, name) // shares for name in ("lut", "ff", "bram36", "uram", "dsp")
    }
    return DieResources(die.name, **amounts)


def _order(
    board: Board,
    count: int,
    memory_ports: int,
    memory: int,
    enters: int | None,
    leaves: int | None,
) -> tuple[list[int], tuple[int, ...]]:
    """Die of each node, in the order in which data flow, and the wires across each boundary.

    Each further node goes to the die that leaves it the largest share of LUTs. Of the orders whose
    wires are not too many, the one is taken that leaves most LUTs to the core that has fewest
    besides a link to another board, and of several the one with fewest wires.

    Parameters
    ----------
    board : Board
    count, memory_ports : int
        Number of nodes, and of the memory ports of each.
    memory, enters, leaves : int
        Indices of the dies of the memory, and of the link ports at which data come from another
        board and go to another one; None if there is no such port.
    """
    luts = [board.usable(die, "lut") for die in board.fabric.dies]
    taken = [0] * len(luts)
    for _ in range(count):
        taken[max(range(len(luts)), key=lambda die: luts[die] / (taken[die] + 1))] += 1
    port_luts = link_resources([LinkEngineSpec(PORT_BYTES)], WORD_BYTES).lut

    def wires(order: Sequence[int]) -> tuple[int, ...]:
        spans = [(die, memory, memory_ports * AXI_WIRES) for die in order]
        spans += [(*pair, ON_CHIP_WIRES) for pair in pairwise(order)]
        spans += [(order[0], enters, PORT_WIRES)] if enters is not None else []
        spans += [(order[-1], leaves, PORT_WIRES)] if leaves is not None else []
        return tuple(
            sum(each for one, other, each in spans if min(one, other) <= at < max(one, other))
            for at in range(len(luts) - 1)
        )

    def room(order: Sequence[int]) -> float:
        left = [luts[die] / taken[die] for die in order]
        for end, port in ((0, enters), (-1, leaves)):
            left[end] -= port_luts if port is not None else 0
        return min(left)

    def badness(order: Sequence[int]) -> tuple[float, ...]:
        each = wires(order)
        most = max(each, default=0)
        return most > MOST_BOUNDARY_WIRES, -room(order), most, sum(each)

    best = min(_orders(taken), key=badness)
    return best, wires(best)


def _orders(taken: Sequence[int]) -> Iterator[list[int]]:
    """Orders of nodes: from any die to those on one side of it, on the other one, and to the last.

    Parameters
    ----------
    taken : sequence of int
        Number of nodes on each die.
    """
    used = [die for die, nodes in enumerate(taken) if nodes]
    for first, last in product(used, used):
        if first == last and taken[first] == 1 and len(used) > 1:
            continue
        kept = taken[first] // 2 if first == last else 0
        between = [die for die in used if die not in (first, last)]
        for goes_up in (True, False):
            near = sorted(
                between,
                key=lambda die: ((die > first) != goes_up, abs(die - first)),
            )
            ahead = [die for die in (first, *near) for _ in range(taken[die])]
            yield ahead[kept:] + [last] * (kept if first == last else taken[last])
