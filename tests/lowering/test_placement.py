"""Placements: links are looked up from either end, and what is not joined is refused."""

from dataclasses import replace

import numpy as np
import pytest
from step_cases import SMALL_CORE, every_operator

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.model.cluster import run_cluster
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.placement import Placement
from fpgapipe.lowering.shards.degrees import Degrees
from fpgapipe.lowering.shards.stages import Stages
from fpgapipe.lowering.sums.all_reduce import Member
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.partition.schedule.schedule_kinds import make_schedule


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


SWAPPED = Placement(3, (((0, 2), (1, 1)), ((1, 0), (2, 3))))
"""Three nodes whose links have other numbers than those of a chain."""


@pytest.mark.parametrize("degrees", [None, "sample"])
def test_programs_follow_the_wires(degrees):
    """A step leaves the same bits, whatever links the wires of a placement are plugged into."""
    core = replace(SMALL_CORE, links=(LinkEngineSpec(),) * 4)
    graph = every_operator(3)
    names = tuple(graph.layers)
    layers = [names[:9], names[9:20], names[20:]]
    if degrees:
        cut = {name: Degrees(sample=3) for name in names}
        layers = Stages((names,), (3,), cut)
    schedule = make_schedule("1f1b-as", 1 if degrees else 3, 2)
    left, programs = [], []
    for placement in (Placement.chain(3), SWAPPED):
        made = build_pipeline(graph, [core] * 3, layers, schedule, placement=placement)
        assert made.wiring == placement.wires
        memories = made.images(initial_parameters(graph, 0))
        made.set_batch(memories, *random_batch(graph, 0, made.num_microbatches))
        models = [CoreModel(core, memory) for memory in memories]
        for model in models:
            model.scalars[:] = scalar_bits(seed=7)
        programs.append([part.instructions for part in made.parts])
        run_cluster(models, programs[-1], placement.wires)
        left.append(
            [part.parameters(each) for part, each in zip(made.parts, memories, strict=True)]
        )
    assert programs[0] != programs[1]
    for one, other in zip(*left, strict=True):
        assert list(one) == list(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement.chain(2), "3 devices cannot be those of 2 nodes"),
        (SWAPPED, "the core of device 0 needs 3 links, not 2"),
        (Placement(3, (((0, 0), (1, 0)),)), "data pass from node 1 to node 2, which no wire joins"),
    ],
)
def test_placements_that_do_not_fit(placement, message):
    core = replace(SMALL_CORE, links=(LinkEngineSpec(),) * 2)
    graph = every_operator(3)
    names = tuple(graph.layers)
    schedule = make_schedule("1f1b-as", 3, 2)
    with pytest.raises(UserError, match=message):
        build_pipeline(
            graph, [core] * 3, [names[:9], names[9:20], names[20:]], schedule, placement=placement
        )
