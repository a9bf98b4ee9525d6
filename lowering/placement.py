"""Placements: which ends of links of a cluster's nodes are joined, as data that is looked up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fpgapipe.errors import UserError

End = tuple[int, int]
"""A node, and the number of one of its links."""


@dataclass(frozen=True)
class Placement:
    """Nodes in the order in which data flow, and the wires between them.

    Attributes
    ----------
    num_nodes : int
    wires : tuple of (End, End)
        The two ends of each wire.
    """

    num_nodes: int
    wires: tuple[tuple[End, End], ...]

    @classmethod
    def chain(cls, num_nodes: int) -> Placement:
        """Nodes in a row: the first link of each leads to the node before it, if there is one."""
        ends = [(node, int(node > 0)) for node in range(num_nodes - 1)]
        return cls(num_nodes, tuple((end, (end[0] + 1, 0)) for end in ends))

    @cached_property
    def _joined(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Number of a node's link to another, and that of the wire, by both nodes."""
        return {
            (node, other): (link, number)
            for number, wire in enumerate(self.wires)
            for (node, link), (other, _) in (wire, wire[::-1])
        }

    def _of(self, node: int, other: int) -> tuple[int, int]:
        if (node, other) not in self._joined:
            raise UserError(f"no wire joins node {node} with node {other}")
        return self._joined[node, other]

    def link(self, node: int, other: int) -> int:
        """Number of a node's link to another.

        Raises
        ------
        UserError
            If no wire joins them.
        """
        return self._of(node, other)[0]

    def wire(self, node: int, other: int) -> int:
        """Number of the wire between two nodes.

        Raises
        ------
        UserError
            If no wire joins them.
        """
        return self._of(node, other)[1]

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The two nodes that each wire joins, in the order in which data flow."""
        ends = (sorted(node for node, _ in wire) for wire in self.wires)
        return tuple((one, other) for one, other in ends)

    def links_of(self, node: int) -> list[int]:
        """Numbers of a node's links that wires are plugged into."""
        return sorted(link for (each, _), (link, _) in self._joined.items() if each == node)

    def wires_of(self, node: int) -> list[int]:
        """Numbers of a node's wires, in the order of its links."""
        own = sorted(found for (each, _), found in self._joined.items() if each == node)
        return [wire for _, wire in own]

    def before(self, node: int) -> int | None:
        """The node from which a node's data come, if there is one: of several, the nearest."""
        return max((one for one, other in self.pairs if other == node), default=None)

    def after(self, node: int) -> int | None:
        """The node to which a node's data go, if there is one: of several, the nearest."""
        return min((other for one, other in self.pairs if one == node), default=None)

    def between(self, node: int) -> tuple[int, int]:
        """Numbers of a node's links to the node before it and to the next one.

        Without a node before, the first is 0; without a next one, the second is one that no link
        of the node has.
        """
        before, after = self.before(node), self.after(node)
        return (
            0 if before is None else self.link(node, before),
            len(self.wires_of(node)) if after is None else self.link(node, after),
        )


ALONE = Placement.chain(1)
"""A node without wires."""
