"""Replicated stages against everything tried, and PipeDream's own answers on its own profiles."""

import csv
import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from partition_cases import chain, schedule_model

from fpgapipe.partition.search.cuts import Synchronisation
from fpgapipe.partition.search.dag import list_downsets, plan
from fpgapipe.partition.search.problem import Objective, PlanError, Transfer
from fpgapipe.partition.search.replicas import plan_replicated

DATA = Path(__file__).parents[1] / "data"

# Times and sizes measured by the authors of PipeDream, batch 128, in seconds and bytes:
# github.com/msr-fiddle/pipedream, profiler/image_classification/profiles/*/graph.txt. Layers keep
# the numbers of that graph's nodes; the input, node 1, is left out as that program leaves it out.
SKIPS = {
    "vgg16": {32: 34},
    "resnet50": {5: 14, 13: 16, 37: 46, 45: 48, 79: 88, 87: 90, 141: 150, 149: 152, 174: 176}
    | {i: i + 9 for i in (17, 27, 49, 59, 69, 91, 101, 111, 121, 131, 153, 163)},
}
ENDS_OF_BRANCHES = {"vgg16": (), "resnet50": (13, 45, 87, 149)}


def profile(name, num_devices, bytes_per_s=np.inf, straight=False):
    with (DATA / f"{name}_measured.csv").open() as lines:
        rows = list(csv.DictReader(lines))

    def column(key):
        return np.array([float(row[key]) for row in rows])

    last = len(rows) + 1
    edges = [(i, i + 1) for i in range(2, last) if i not in ENDS_OF_BRANCHES[name]]
    edges += SKIPS[name].items()
    schedule = schedule_model("pipedream", 64, straight=straight)
    return chain(
        np.ones(len(rows)),
        num_devices,
        # PipeDream counts features forward and gradients backward on the same link.
        replace(schedule, transfers_per_period=2),
        forward_s=column("forward_s")[:, None],
        backward_s=(column("backward_input_s") + column("backward_weight_s"))[:, None],
        output_bytes=column("output_bytes"),
        weight_bytes=column("weight_bytes"),
        activation_bytes=column("output_bytes"),
        edges=tuple(sorted((i - 2, j - 2) for i, j in edges)),
        link_bytes_per_s=np.full(num_devices - 1, bytes_per_s),
    )


@pytest.mark.parametrize(
    ("name", "num_devices", "period_s"),
    [
        ("vgg16", 2, 0.370931),
        ("vgg16", 4, 0.21645),
        ("resnet50", 2, 0.221933),
        ("resnet50", 4, 0.111497),
        ("resnet50", 8, 0.056684),
    ],
)
def test_pipedream_straight(name, num_devices, period_s):
    problem = profile(name, num_devices, straight=True)
    total_s = {"vgg16": 0.672535, "resnet50": 0.443419}[name]
    assert problem.compute_s.sum() == pytest.approx(total_s, abs=1e-9)
    answer = plan(problem)
    assert answer.period_s == pytest.approx(period_s, abs=1e-9)
    assert answer.optimal


def test_resnet50_is_no_chain():
    assert profile("vgg16", 2).is_chain
    assert not profile("resnet50", 2).is_chain
    assert len(list_downsets(profile("resnet50", 2), 3000)) == 241


@pytest.mark.parametrize(
    ("num_devices", "bytes_per_s", "replicas", "period_s"),
    [(4, 1e9, [3, 1], 0.205520896), (16, 1.25e9, [13, 2, 1], 0.0547948908)],
)
def test_pipedream_released_program(num_devices, bytes_per_s, replicas, period_s):
    answer = plan_replicated(
        profile("vgg16", num_devices, bytes_per_s), synchronisation=Synchronisation.PIPEDREAM_ADDED
    )
    assert [stage.replicas for stage in answer.stages] == replicas
    assert answer.period_s == pytest.approx(period_s, abs=1e-10)
    assert answer.optimal
    devices = [device for stage in answer.stages for device in stage.devices]
    assert devices == list(range(num_devices))


def random_case(rng):
    count, devices = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    kind = str(rng.choice(["1f1b-as", "fbp-as", "1f1b-sno", "1f1b-so", "pipedream"]))
    return chain(
        rng.integers(1, 12, count),
        devices,
        schedule_model(kind, int(rng.integers(1, 6)), straight=bool(rng.random() < 0.2)),
        output_bytes=rng.integers(0, 9, count).astype(float),
        weight_bytes=rng.integers(0, 6, count).astype(float),
        activation_bytes=rng.integers(0, 6, count).astype(float),
        memory_bytes=np.full(devices, float(rng.choice([20, 40, 80, np.inf]))),
        link_bytes_per_s=np.full(devices - 1, float(rng.choice([1, 2, 8]))),
    )


def compositions(total):
    for parts in range(1, total + 1):
        for cuts in itertools.combinations(range(1, total), parts - 1):
            bounds = [0, *cuts, total]
            yield [stop - start for start, stop in itertools.pairwise(bounds)]


def replicated_times(problem, sizes, replicas, synchronisation):
    """Period and mini-batch time from the definitions; None if memory is short."""
    schedule = problem.schedule
    rate = problem.link_bytes_per_s[0] if problem.num_devices > 1 else 1.0
    period = total = 0.0
    start = 0
    for s, (size, m) in enumerate(zip(sizes, replicas, strict=True)):
        layers = slice(start, start + size)
        start += size
        compute = problem.compute_s[layers, 0].sum()
        weights = problem.weight_bytes[layers].sum()
        after = math.ceil(sum(replicas[s + 1 :]) / m)
        kept = problem.state[layers].sum() + weights * (schedule.weight_versions(after) - 1)
        kept += problem.activation_bytes[layers].sum() * schedule.in_flight(after)
        if kept > problem.memory_bytes[0]:
            return None
        if synchronisation is Synchronisation.PIPEDREAM_MAX:
            time = max(compute, 2 * (m - 1) * weights / rate) / m
        elif synchronisation is Synchronisation.PIPEDREAM_ADDED:
            time = (compute + 4 * (m - 1) * weights / (rate * m)) / m
        else:
            all_reduce = 2 * (m - 1) / m * weights / rate
            time = compute / m + all_reduce / schedule.num_microbatches
        latency = compute
        if s + 1 < len(sizes) and schedule.transfer is not Transfer.NONE:
            transfer = problem.output_bytes[start - 1] / rate
            links = min(m, replicas[s + 1])
            if synchronisation is Synchronisation.PIPEDREAM_MAX:
                links = 1
            if synchronisation is Synchronisation.PIPEDREAM_ADDED and s == 0:
                links = replicas[1]
            if schedule.transfer is Transfer.OVERLAP:
                period = max(period, schedule.transfers_per_period * transfer / links)
            else:
                time += schedule.transfers_per_period * transfer / m
                latency += schedule.transfers_per_period * transfer
            total += schedule.fill_transfers * transfer
        period = max(period, time)
        total += schedule.fill_factor * latency
    return period, total + schedule.steady_periods * period


def replicated_brute_force(problem, synchronisation):
    found = [
        result
        for sizes in compositions(problem.num_layers)
        for used in range(len(sizes), problem.num_devices + 1)
        for replicas in compositions(used)
        if len(replicas) == len(sizes)
        and (result := replicated_times(problem, sizes, replicas, synchronisation)) is not None
    ]
    return (min(f[0] for f in found), min(f[1] for f in found)) if found else None


@pytest.mark.parametrize("synchronisation", Synchronisation)
def test_equals_brute_force(synchronisation):
    refused = 0
    for seed in range(250):
        problem = random_case(np.random.default_rng(seed))
        expected = replicated_brute_force(problem, synchronisation)
        for objective in Objective:
            if expected is None:
                with pytest.raises(PlanError, match="too few"):
                    plan_replicated(problem, objective, synchronisation=synchronisation)
                refused += 1
                continue
            answer = plan_replicated(problem, objective, synchronisation=synchronisation)
            best = expected[objective is Objective.MINIBATCH]
            assert answer.value_s == pytest.approx(best, rel=1e-9, abs=0), seed
            assert answer.optimal
            sizes = [len(stage.layers) for stage in answer.stages]
            replicas = [stage.replicas for stage in answer.stages]
            measured = replicated_times(problem, sizes, replicas, synchronisation)
            assert (answer.period_s, answer.minibatch_time_s) == pytest.approx(measured)
    assert refused > 10


def test_data_parallel_where_weights_are_few():
    """Four replicas of everything, since the weights cost next to nothing to keep equal."""
    problem = chain(
        [8, 8], 4, output_bytes=[1e6, 0], weight_bytes=[1, 1], link_bytes_per_s=np.ones(3)
    )
    answer = plan_replicated(problem)
    assert [stage.replicas for stage in answer.stages] == [4]
    assert answer.period_s == 16 / 4 + 2 * 3 / 4 * 2 / 8


def test_refuses_unequal_devices():
    problem = chain([[1, 2], [1, 2]], 2, device_kinds=np.array([0, 1]))
    with pytest.raises(ValueError, match="replicas need equal devices and equal links"):
        plan_replicated(problem)


def test_too_many_devices_are_refused_at_once():
    with pytest.raises(PlanError, match=r"on 4,096 devices are .* combinations, more than"):
        plan_replicated(chain([1, 1], 4096))


def test_graph_with_too_many_downsets_has_only_the_simple_bound():
    edges = tuple((0, i) for i in range(1, 14)) + tuple((i, 14) for i in range(1, 14))
    problem = chain(np.ones(15), 4, edges=edges)
    for objective in Objective:
        answer = plan_replicated(problem, objective, max_cuts=100)
        assert "other orders of the layers were not tried" in answer.reason
        assert answer.lower_bound_s <= answer.value_s
