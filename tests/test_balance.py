import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpgapipe.partition.balance import balanced_cuts, stages_by_macs
from fpgapipe.partition.graph import NetworkError
from fpgapipe.partition.networks import built_in


def best_bottleneck(costs, num_parts):
    """Smallest largest sum over all ways to cut."""
    return min(
        max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *cuts, len(costs))))
        for cuts in itertools.combinations(range(1, len(costs)), num_parts - 1)
    )


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.data())
def test_the_bottleneck_is_the_smallest_possible(costs, data):
    num_parts = data.draw(st.integers(1, len(costs)))
    parts = balanced_cuts(costs, num_parts)
    assert [i for part in parts for i in part] == list(range(len(costs)))
    assert len(parts) == num_parts
    assert all(parts)
    assert max(sum(costs[i] for i in part) for part in parts) == best_bottleneck(costs, num_parts)


@pytest.mark.parametrize(("costs", "num_parts"), [([1, 2], 3), ([1, 2], 0), ([], 1)])
def test_senseless_numbers_of_parts_are_refused(costs, num_parts):
    with pytest.raises(ValueError, match=r"num_parts must be in 1\.\."):
        balanced_cuts(costs, num_parts)


def test_negative_costs_are_refused():
    with pytest.raises(ValueError, match="costs must not be negative"):
        balanced_cuts([1, -1], 1)


def test_stages_of_a_network():
    graph = built_in("vgg16")
    stages = stages_by_macs(graph, 4)
    assert [name for stage in stages for name in stage] == list(graph.layers)
    macs = [sum(graph.layers[name].macs for name in stage) for stage in stages]
    assert max(macs) < 1.3 * sum(macs) / 4


def test_more_stages_than_layers():
    with pytest.raises(NetworkError, match=r"^lenet5 has 12 layers, too few for 13 devices"):
        stages_by_macs(built_in("lenet5"), 13)
