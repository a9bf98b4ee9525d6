"""Placements: links are looked up from either end, and what is not joined is refused."""

import pytest

from fpgapipe.errors import UserError
from fpgapipe.lowering.placement import Placement
from fpgapipe.lowering.sums.all_reduce import Member


def test_a_chain_has_the_links_of_its_neighbours():
    chain = Placement.chain(4)
    assert chain.wires == (((0, 0), (1, 0)), ((1, 1), (2, 0)), ((2, 1), (3, 0)))
    assert [chain.wires_of(node) for node in range(4)] == [[0], [0, 1], [1, 2], [2]]
    assert [chain.before(node) for node in range(4)] == [None, 0, 1, 2]
    assert [chain.after(node) for node in range(4)] == [1, 2, 3, None]
    assert [chain.link(*pair) for pair in ((0, 1), (1, 0), (1, 2), (3, 2))] == [0, 0, 1, 0]
    assert chain.wire(2, 3) == chain.wire(3, 2) == 2
    with pytest.raises(UserError, match="no wire joins node 0 with node 2"):
        chain.link(0, 2)


def test_a_missing_link_is_none_that_a_node_has():
    """A last node's sends and receives go by its link to the node before, never by another."""
    chain = Placement.chain(3)
    assert [chain.between(node) for node in range(3)] == [(0, 0), (0, 1), (0, 1)]
    assert Placement.chain(1).between(0) == (0, 0)
    assert Member.of(chain, 2) == Member(2, 3, before=0, after=1)


def test_wires_may_lie_in_another_order():
    """Two nodes whose first links lead to the next node, as data."""
    placement = Placement(3, (((1, 0), (0, 2)), ((1, 3), (2, 1))))
    assert placement.between(1) == (0, 3)
    assert (placement.link(0, 1), placement.link(2, 1)) == (2, 1)
    assert placement.pairs == ((0, 1), (1, 2))


def test_a_ring_is_a_placement():
    """The wire that closes it joins the last node with the first; data flow from 0 to 3."""
    ring = Placement(4, (*Placement.chain(4).wires, ((3, 1), (0, 1))))
    assert (ring.link(0, 3), ring.link(3, 0), ring.wire(0, 3)) == (1, 1, 3)
    assert (ring.wires_of(0), ring.wires_of(3)) == ([0, 3], [2, 3])
    assert (ring.before(3), ring.after(0)) == (2, 1)
