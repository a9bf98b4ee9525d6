"""Formulas and plans of many models in a ring."""

import pytest
from build_cases import cluster_of, tiny

from fpgapipe.errors import UserError
from fpgapipe.partition.search.problem import PlanError
from fpgapipe.partition.strategies.plan_ring import (
    MOST_BYTES,
    plan_ring,
    ring_cost,
    sample_bytes,
    shift_s,
    state_bytes,
)
from fpgapipe.partition.strategies.ring import RingCost, RingModel


def cost_of(times, devices=4, **fields):
    given = {
        "epochs": 3,
        "batch": 10,
        "shard_samples": 105,
        "sample_bytes": 100,
        "hop_s": 0.5,
        "stream_s": 2.0,
    } | fields
    models = tuple(RingModel(f"m{n}", each, 1000 * (n + 1)) for n, each in enumerate(times))
    return RingCost(models, devices, **given)


def test_as_many_models_as_devices():
    cost = cost_of([0.1, 0.2, 0.3, 0.4])
    assert cost.visit_steps == 10
    assert cost.visits_s == (1.0, 2.0, 3.0, 4.0)
    assert cost.total_s == pytest.approx(3 * 4 * (4.0 + 0.5))
    assert cost.utilisation == 1
    assert cost.busy == pytest.approx((1 + 2 + 3 + 4) / 4 / 4.5)
    assert cost.streamed_s == pytest.approx(3 * 4 * 4.0)
    assert cost.streamed_first_s == pytest.approx(3 * 4 * 6.0)
    assert not cost.is_faster
    assert cost.state_bytes == 4000
    assert cost.shard_bytes == 10500
    assert cost.moves_less
    assert cost.pays_from_samples == 41
    assert cost.pays_below_bytes_per_s == pytest.approx((10500 - 4000) / 4)
    few = cost_of([0.1] * 4, shard_samples=40)
    assert not few.moves_less
    assert few.pays_below_bytes_per_s == 0
    assert cost_of([0.1] * 4, shard_samples=41).moves_less


def test_fewer_and_more_models_than_devices():
    few = cost_of([0.1])
    assert (few.groups, few.utilisation) == (1, 0.25)
    many = cost_of([0.1, 0.1, 0.1, 0.1, 0.3])
    assert (many.groups, many.utilisation) == (2, 5 / 8)
    assert many.total_s == pytest.approx(3 * 4 * (1.0 + 0.5 + 3.0 + 0.5))
    assert many.to_dict()["rounds"] == 24


def test_the_ring_is_faster_where_streams_are_slow():
    assert cost_of([0.1] * 4, stream_s=1.6).is_faster
    assert not cost_of([0.1] * 4, stream_s=1.4).is_faster


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_the_rate_below_which_it_pays(share):
    """Both times with wires of a rate near the limit, by bytes over rate."""
    limit = cost_of([0.4] * 4).pays_below_bytes_per_s
    rate = share * limit
    cost = cost_of([0.4] * 4, hop_s=4000 / rate, stream_s=10500 / rate)
    assert cost.is_faster == (share < 1)


def test_a_plan_has_one_core_and_the_bytes_of_the_state():
    models = [("tiny", tiny), ("tiny", tiny), ("tiny", tiny)]
    cluster = cluster_of(4)
    plan = plan_ring(models, 4, cluster, array=(4, 4))
    assert {node.device for node in plan.spread.nodes} == set(cluster.device_names)
    assert {each.nodes[0].core for each in plan.plans} == {plan.spread.nodes[0].core}
    assert len(plan.spread.nodes[0].core.links) == 2
    graph = tiny(1)
    trained = sum(
        each.spec.elements
        for layer in graph.layers.values()
        for each in layer.parameters
        if each.spec.trainable
    )
    assert state_bytes(graph) == 4 * (2 * trained + 2 * 6)  # 6 means and variances
    assert sample_bytes(graph) == 2 * 2 * 6 * 6 + 4
    cost = ring_cost(plan, models, cluster, 2, 100)
    assert cost.utilisation == 0.75
    assert cost.models[0].step_s == plan.plans[0].predicted.minibatch_s
    assert 0 < cost.hop_s < 1e-4


def test_a_hop_of_unlike_models_is_the_mean_of_all_hops():
    """The largest model hops from each device in turn."""
    cluster = cluster_of(3)
    models = [("tiny", tiny), ("tiny", tiny)]
    plan = plan_ring(models, 4, cluster, array=(4, 4))
    size = state_bytes(tiny(1))
    places = ([size, size, 0], [0, size, size], [size, 0, size])
    seconds = [shift_s(plan, cluster, each) for each in places]
    assert min(seconds) < max(seconds)
    cost = ring_cost(plan, models, cluster, 1, 100)
    assert cost.hop_s == pytest.approx(sum(seconds) / 3)


def test_a_large_hop_takes_longer_in_proportion():
    cluster = cluster_of(3)
    plan = plan_ring([("tiny", tiny)] * 2, 4, cluster, array=(4, 4))
    one, two = (shift_s(plan, cluster, [n * MOST_BYTES] * 3) for n in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.01)


def test_devices_that_cannot_be_a_ring():
    from dataclasses import replace

    def plan(cluster):
        return plan_ring([("tiny", tiny)] * 2, 4, cluster, array=(4, 4))

    with pytest.raises(PlanError, match="at least 2 devices"):
        plan(cluster_of(1))
    cluster = cluster_of(2)
    with pytest.raises(UserError, match="no link between u280-0 and u280-1"):
        plan(replace(cluster, links=()))
    other = cluster_of(2, "u250").devices[0]
    with pytest.raises(PlanError, match="boards of one kind"):
        plan(replace(cluster, devices=(cluster.devices[0], other)))
