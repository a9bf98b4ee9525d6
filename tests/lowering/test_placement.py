"""Placements: links are looked up from either end, and what is not joined is refused."""

import pytest

from fpgapipe.errors import UserError
from fpgapipe.lowering.placement import Placement
from fpgapipe.lowering.sums.all_reduce import Member


def test_a_chain_has_the_links_of_its_neighbours():
    chain = Placement.chain(4)
    assert chain.wires == (((0, 0), (1, 0)), ((1, 1), (2, 0)), ((2, 1), (3, 0)))
    assert [chain.num_links(node) for node in range(4)] == [1, 2, 2, 1]
    assert [chain.link(*pair) for pair in ((0, 1), (1, 0), (1, 2), (3, 2))] == [0, 0, 1, 0]
    assert chain.are_joined(2, 3)
    assert not chain.are_joined(0, 2)
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
