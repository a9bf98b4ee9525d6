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
    def _links(self) -> dict[tuple[int, int], int]:
        """Number of a node's link to another."""
        both = (pair for wire in self.wires for pair in (wire, wire[::-1]))
        return {(node, other): link for (node, link), (other, _) in both}

    def are_joined(self, node: int, other: int) -> bool:
        """Whether a wire joins two nodes."""
        return (node, other) in self._links

    def link(self, node: int, other: int) -> int:
        """Number of a node's link to another.

        Raises
        ------
        UserError
            If no wire joins them.
        """
        if (node, other) not in self._links:
            raise UserError(f"no wire joins node {node} with node {other}")
        return self._links[node, other]

    def num_links(self, node: int) -> int:
        """Links that a node has in use."""
        return sum(node == each for each, _ in self._links)

    def between(self, node: int) -> tuple[int, int]:
        """Numbers of a node's links to the node before it and to the next one.

        Without a next node, the second is one that no link of the node has.
        """
        before = self._links.get((node, node - 1), 0)
        return before, self._links.get((node, node + 1), self.num_links(node))
