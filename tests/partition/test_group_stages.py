"""Stages on groups of devices: against all ways to cut small networks, and odd clusters."""

from itertools import combinations, product

import pytest
from build_cases import cluster_of, tiny

from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.cost.cores import core_of
from fpgapipe.partition.explore.candidate import device_chain
from fpgapipe.partition.search.problem import PlanError
from fpgapipe.partition.strategies import group_stages
from fpgapipe.partition.strategies.group_stages import GroupProblem


def small(batch):
    """A chain of few layers, some with many weights and some with large images."""
    net = Network("small", batch)
    x = net.relu(net.conv(net.image(3, 16, 16), 8, 3, padding=1))
    x = net.max_pool(net.relu(net.conv(x, 16, 3, padding=1)), 4)
    net.linear(net.relu(net.linear(net.flatten(x), 300)), 10)
    return net.build()


def problem_of(network, devices, count, batch=8):
    cluster = cluster_of(devices)
    kind = cluster.devices[0]
    cores = {kind: core_of(kind, 8, 8, 1, num_links=2)}
    return GroupProblem(network(batch), cluster, device_chain(cluster), cores, count)


def everything(problem, devices):
    """Seconds of every cut of the network into two stages or more, not all on one device."""
    places = problem._cuts[1:-1]
    for number in range(1, min(devices, len(places) + 1)):
        for cuts in combinations(places, number):
            ends = [0, *cuts, len(problem.groups)]
            for sizes in product(range(1, devices), repeat=number + 1):
                if sum(sizes) != devices or len(sizes) == devices:
                    continue
                used, stages = 0, []
                for begin, end, size in zip(ends, ends[1:], sizes, strict=False):
                    stages.append(problem._stage(begin, end, used, size))
                    used += size
                if None not in stages:
                    yield problem._seconds(stages)


@pytest.mark.parametrize("network", [small, tiny])
@pytest.mark.parametrize(("devices", "count"), [(3, 4), (4, 1), (4, 16), (5, 2)])
def test_no_other_cut_is_faster(monkeypatch, network, devices, count):
    monkeypatch.setattr(group_stages, "MOST_KEPT", 1000)
    problem = problem_of(network, devices, count)
    assert len(problem._cuts) == len(problem.groups) + 1
    found = problem.solve(3)
    assert [each.seconds for each in found] == sorted(each.seconds for each in found)
    assert found[0].seconds == pytest.approx(min(everything(problem, devices)), rel=1e-9)


@pytest.mark.parametrize("network", [small, tiny])
def test_what_is_kept_is_near_the_best(network):
    problem = problem_of(network, 4, 8)
    assert problem.solve(1)[0].seconds <= 1.02 * min(everything(problem, 4))


def test_all_layers_have_a_stage_and_degrees():
    problem = problem_of(tiny, 4, 4)
    for plan in problem.solve(5):
        assert [name for layers in plan.layers for name in layers] == list(tiny(8).layers)
        assert set(plan.degrees) == set(tiny(8).layers)
        assert sum(plan.sizes) == 4
        assert 1 < len(plan.sizes) < 4
        for layers, size in zip(plan.layers, plan.sizes, strict=True):
            assert all(plan.degrees[name].num_devices in (1, size) for name in layers)
            # a batch normalisation has the statistics of a micro-batch
            assert all(plan.degrees[name].sample == 1 for name in layers if "batch_norm" in name)


def test_odd_batches_are_not_shared():
    problem = problem_of(small, 3, 1, batch=1)
    for plan in problem.solve(3):
        assert all(each.sample == 1 for each in plan.degrees.values())


def test_two_devices_are_too_few():
    with pytest.raises(PlanError, match="needs 3 devices or more"):
        problem_of(small, 2, 4).solve(1)


def test_a_single_layer_has_no_cut():
    def single(batch):
        net = Network("single", batch)
        net.linear(net.flatten(net.image(1, 2, 2)), 3)
        return net.build()

    found = problem_of(single, 3, 2).solve(1)[0]  # the flattening is a stage
    assert len(found.layers) == 2
