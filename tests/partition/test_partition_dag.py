"""Graphs: every downset is a cut."""

import networkx as nx
import numpy as np
import pytest
from partition_cases import brute_force, chain, check_stages, random_problem, schedule_model

from fpgapipe.partition.search.dag import list_downsets, plan
from fpgapipe.partition.search.problem import Objective, PlanError


@pytest.mark.parametrize("part", range(4))
def test_equals_brute_force(part):
    fitting = refused = 0
    for seed in range(part, 1400, 4):
        rng = np.random.default_rng(50_000 + seed)
        problem = random_problem(rng, is_chain=False, max_layers=6 if seed % 10 == 0 else 5)
        expected = brute_force(problem)
        for objective in Objective:
            if expected is None:
                with pytest.raises(PlanError, match="too few"):
                    plan(problem, objective)
                refused += 1
                continue
            answer = plan(problem, objective)
            check_stages(problem, answer)
            best = expected[objective is Objective.MINIBATCH]
            assert answer.value_s == pytest.approx(best, rel=1e-9, abs=0), seed
            assert answer.optimal, seed
            fitting += 1
    assert fitting > 400
    assert refused > 20


def test_downsets_are_those_of_networkx():
    """A downset is given by its maximal layers, an antichain."""
    rng = np.random.default_rng(3)
    for _ in range(40):
        problem = random_problem(rng, is_chain=False, max_layers=7)
        graph = problem.to_networkx()
        expected = set()
        for antichain in nx.antichains(graph):
            below = set(antichain).union(*(nx.ancestors(graph, each) for each in antichain))
            expected.add(sum(1 << each for each in below))
        masks = list_downsets(problem, 10_000)
        assert len(masks) == len(expected)
        assert set(masks) == expected
        assert (masks[0], masks[-1]) == (0, (1 << problem.num_layers) - 1)


def branches(num_branches, length, num_devices, **fields):
    """One layer, branches side by side, one layer."""
    rng = np.random.default_rng(0)
    count = num_branches * length + 2
    edges = []
    for b in range(num_branches):
        first = 1 + b * length
        edges += [(0, first), (first + length - 1, count - 1)]
        edges += [(i, i + 1) for i in range(first, first + length - 1)]
    return chain(rng.integers(1, 9, count), num_devices, edges=tuple(edges), **fields)


def test_cuts_across_branches_beat_any_order():
    """Two heavy layers side by side: in one order, a light branch lies between them."""
    problem = chain(
        [0, 3, 1, 3, 1, 0],
        2,
        edges=((0, 1), (1, 2), (0, 3), (3, 4), (2, 5), (4, 5)),
        output_bytes=[5, 1, 9, 1, 9, 0],
        link_bytes_per_s=np.array([1.0]),
        schedule=schedule_model("fbp-as", 4),
    )
    answer = plan(problem)
    assert answer.period_s == brute_force(problem)[0]


def test_too_many_downsets_leave_a_bound():
    problem = branches(6, 5, 4, output_bytes=np.ones(32), link_bytes_per_s=np.ones(3))
    assert list_downsets(problem, 3000) is None
    for objective in Objective:
        answer = plan(problem, objective)
        check_stages(problem, answer)
        assert answer.lower_bound_s <= answer.value_s
        assert answer.optimal == (answer.value_s <= answer.lower_bound_s * (1 + 1e-9))
        assert "of more than 3,000 downsets" in answer.reason


def test_few_downsets_of_many_give_the_answer_where_they_can():
    """A partial list of cuts cannot be better than the whole list, nor worse than its bound."""
    problem = branches(3, 5, 4)
    whole = plan(problem)
    part = plan(problem, max_cuts=40)
    assert whole.optimal
    assert part.lower_bound_s <= whole.period_s <= part.period_s
    one_order = plan(problem, max_cuts=10)
    assert one_order.lower_bound_s <= whole.period_s <= one_order.period_s
    check_stages(problem, one_order)


def test_an_output_read_twice_crosses_once():
    problem = chain(
        [1, 1, 1],
        2,
        edges=((0, 1), (0, 2)),
        output_bytes=[7, 0, 0],
        link_bytes_per_s=np.array([1.0]),
        schedule=schedule_model("fbp-as", 1),
    )
    assert problem.cut_bytes([True, False, False]) == 7
    assert problem.cut_bytes([True, True, False]) == 7
    assert plan(problem).period_s == 3
