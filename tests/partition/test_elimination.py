"""Node and edge elimination finds what trying all combinations finds."""

from itertools import product

import numpy as np
import pytest

from fpgapipe.partition.search import elimination
from fpgapipe.partition.search.elimination import choose, total_cost


def tried(nodes, edges):
    """Least cost of all combinations."""
    every = product(*(range(len(each)) for each in nodes))
    return min(total_cost(nodes, edges, each) for each in every)


def random_problem(seed):
    """A chain with some further edges, parallel ones among them."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 8))
    sizes = rng.integers(1, 5, count)
    nodes = [rng.random(size) for size in sizes]
    ends = [(n, n + 1) for n in range(count - 1)]
    for _ in range(int(rng.integers(0, 4)) if count > 1 else 0):
        one, other = sorted(rng.choice(count, 2, replace=False).tolist())
        ends.append((one, other))
    edges = [((one, other), rng.random((sizes[one], sizes[other]))) for one, other in ends]
    if seed % 3 == 0:  # some configurations are not allowed
        for table in nodes:
            table[rng.random(len(table)) < 0.2] = np.inf
    return nodes, edges


@pytest.mark.parametrize("seed", range(100))
def test_equal_to_all_combinations(seed):
    nodes, edges = random_problem(seed)
    least = tried(nodes, edges)
    if np.isinf(least):
        with pytest.raises(ValueError, match="no configurations of all nodes"):
            choose(nodes, edges)
        return
    found = choose(nodes, edges)
    assert found.cost == pytest.approx(least, rel=1e-12)
    assert total_cost(nodes, edges, found.configurations) == found.cost


def test_a_chain_and_a_branch_leave_two_nodes():
    rng = np.random.default_rng(0)
    nodes = [rng.random(3) for _ in range(6)]
    ends = [(0, 1), (1, 2), (2, 3), (1, 3), (3, 4), (4, 5)]
    found = choose(nodes, [(pair, rng.random((3, 3))) for pair in ends])
    assert found.num_left == 2


def test_what_cannot_be_tried_is_refused(monkeypatch):
    monkeypatch.setattr(elimination, "MOST_COMBINATIONS", 8)
    nodes = [np.zeros(3)] * 2
    with pytest.raises(ValueError, match="2 nodes with 9 combinations"):
        choose(nodes, [((0, 1), np.zeros((3, 3)))])
    with pytest.raises(ValueError, match="must lead to a later node, not from 1 to 0"):
        choose(nodes, [((1, 0), np.zeros((3, 3)))])
