"""Chains: worked examples, everything tried on small random cases, limits and bounds."""

from dataclasses import replace

import numpy as np
import pytest
from partition_cases import brute_force, chain, check_stages, random_problem, schedule_model, times

from fpgapipe.lowering.schedule.schedule import ScheduleError
from fpgapipe.partition.search import search as search_module
from fpgapipe.partition.search.chain import plan_chain
from fpgapipe.partition.search.cuts import Row
from fpgapipe.partition.search.problem import Objective, PlanError
from fpgapipe.partition.search.search import Search

NUM_RANDOM = 2500


def layers_of(answer):
    return [list(stage.layers) for stage in answer.stages]


@pytest.mark.parametrize("part", range(4))
def test_equals_brute_force(part):
    fitting = refused = 0
    for seed in range(part, NUM_RANDOM, 4):
        problem = random_problem(np.random.default_rng(seed))
        expected = brute_force(problem)
        for objective in Objective:
            if expected is None:
                with pytest.raises(PlanError, match=r"^stage \d on u280\[\d\] needs .* too few; "):
                    plan_chain(problem, objective)
                refused += 1
                continue
            answer = plan_chain(problem, objective)
            check_stages(problem, answer)
            best = expected[objective is Objective.MINIBATCH]
            assert answer.value_s == pytest.approx(best, rel=1e-9, abs=0), seed
            assert answer.optimal, seed
            assert answer.lower_bound_s <= answer.value_s
            fitting += 1
    assert fitting > 900
    assert refused > 50


@pytest.mark.parametrize("kind", ["1f1b-as", "fbp-as", "1f1b-so", "pipedream", "gpipe"])
def test_quick_ways_equal_the_search(kind):
    """The greedy ways for equal devices and for free order, against the search over all cuts."""
    for seed in range(25):
        rng = np.random.default_rng(seed)
        count, devices, kinds = 40, 6, int(rng.integers(1, 3))
        problem = chain(
            rng.integers(1, 50, (count, kinds)),
            devices,
            schedule_model(kind, 16),
            output_bytes=rng.integers(0, 30, count),
            weight_bytes=rng.integers(0, 30, count),
            activation_bytes=rng.integers(0, 30, count),
            device_kinds=np.arange(devices) % kinds,
            memory_bytes=np.full(devices, 2500.0 if kinds == 1 and seed % 2 else np.inf),
            link_bytes_per_s=np.full(devices - 1, 2.0),
            free_order=True,
        )
        search = Search(Row(problem))
        slow = search_module.least_period(search, lambda cap, s=search: s.best(cap, False))
        if slow is None:
            with pytest.raises(PlanError):
                plan_chain(problem)
            continue
        answer = plan_chain(problem)
        check_stages(problem, answer)
        assert answer.period_s == pytest.approx(slow.value_s, rel=1e-11)


def test_bottleneck_by_hand():
    answer = plan_chain(chain([2, 3, 4, 5, 6], 3))
    assert layers_of(answer) == [["layer0", "layer1", "layer2"], ["layer3"], ["layer4"]]
    assert [stage.time_s for stage in answer.stages] == [9, 5, 6]
    assert answer.period_s == answer.value_s == 9
    assert answer.optimal


def test_free_order_puts_each_device_where_it_is_best():
    """Kind 1 is slow, except for the last layer."""
    times_s = [[4, 9], [4, 9], [8, 2]]
    given = chain(times_s, 2, device_kinds=np.array([1, 0]))
    assert plan_chain(given).period_s == 12
    free = replace(given, free_order=True)
    answer = plan_chain(free)
    assert answer.period_s == 8
    assert [stage.devices for stage in answer.stages] == [(1,), (0,)]


def test_minibatch_objective_beats_the_bottleneck_one():
    """A slightly longer period is worth it where a cut is slow to fill and micro-batches few.

    The even cut (10 + 10) sends 8 s of transfers, each way once in the fill; the cut behind the
    first layer (9 + 11) sends none to speak of.
    """
    problem = chain(
        [9, 1, 10],
        2,
        schedule_model("1f1b-so", 3),
        output_bytes=[0, 4, 0],
        link_bytes_per_s=np.ones(1),
    )
    shortest = plan_chain(problem, Objective.BOTTLENECK)
    quickest = plan_chain(problem, Objective.MINIBATCH)
    assert (shortest.period_s, shortest.minibatch_time_s) == (10, 20 + 2 * 4 + 2 * 10)
    assert (quickest.period_s, quickest.minibatch_time_s) == (11, 20 + 2 * 11)
    assert shortest.optimal
    assert quickest.optimal


def test_minibatch_is_never_worse_than_bottleneck():
    for seed in range(300):
        problem = random_problem(np.random.default_rng(10_000 + seed), max_layers=12, max_devices=5)
        try:
            shortest = plan_chain(problem)
        except PlanError:
            continue
        for max_work in (1e9, 1):
            quickest = plan_chain(problem, Objective.MINIBATCH, max_work=max_work)
            assert quickest.minibatch_time_s <= shortest.minibatch_time_s
            assert quickest.lower_bound_s <= quickest.minibatch_time_s


def test_a_spent_budget_leaves_a_bound():
    rng = np.random.default_rng(1)
    problem = chain(rng.random(60), 7, schedule_model("1f1b-sno", 8), output_bytes=rng.random(60))
    problem = replace(problem, link_bytes_per_s=np.full(6, 3.0))
    exact = plan_chain(problem, Objective.MINIBATCH)
    rough = plan_chain(problem, Objective.MINIBATCH, max_work=500)
    assert exact.optimal
    assert not rough.optimal
    assert rough.reason.startswith("stopped ")
    assert rough.lower_bound_s <= exact.minibatch_time_s <= rough.minibatch_time_s


def test_evaluation_ranks_the_best_few_again():
    problem = chain(
        [9, 1, 10],
        2,
        schedule_model("1f1b-so", 3),
        output_bytes=[0, 4, 0],
        link_bytes_per_s=np.ones(1),
    )
    answer = plan_chain(
        problem,
        Objective.MINIBATCH,
        evaluate=lambda stages: 50.0 - 2 * (len(stages[0].layers) == 2),
    )
    assert len(answer.stages[0].layers) == 2
    assert answer.minibatch_time_s == 48
    assert not answer.optimal
    assert "by evaluation" in answer.reason


def test_evaluation_always_sees_the_smallest_bottleneck():
    rng = np.random.default_rng(5)
    problem = chain(
        rng.random(40),
        6,
        schedule_model("1f1b-sno", 4),
        output_bytes=rng.random(40),
        link_bytes_per_s=np.full(5, 4.0),
    )
    shortest = plan_chain(problem)
    seen = []

    def simulated(stages):
        seen.append(tuple(stage.layers for stage in stages))
        return 1.0

    plan_chain(problem, Objective.MINIBATCH, evaluate=simulated)
    assert tuple(stage.layers for stage in shortest.stages) in seen
    assert len(set(seen)) > 1


def test_free_order_leaves_slow_devices_out_where_they_only_take_time_to_fill():
    """Too many sets of devices for the search over all cuts; the start must still be good."""
    count, num_devices = 600, 600
    problem = chain(
        np.tile([1.0, 3.0], (count, 1)),
        num_devices,
        schedule_model("1f1b-as", 2),
        device_kinds=np.arange(num_devices) % 2,
        free_order=True,
    )
    shortest = plan_chain(problem)
    quickest = plan_chain(problem, Objective.MINIBATCH)
    assert shortest.period_s == 2
    assert quickest.minibatch_time_s == 600 + 2
    assert quickest.lower_bound_s <= 602


def test_closed_forms_for_equal_stages():
    """References: the mini-batch time of each schedule with N equal stages."""
    n, m, f, b, sr = 4, 8, 1.0, 2.0, 0.5
    expected = {
        "1f1b-as": (m + n - 1) * (f + b),
        "fbp-as": (m + 2 * n - 1) * (f + b),
        "1f1b-sno": (m + n - 1) * (f + b) + (m + n - 2) * 2 * sr,
        "1f1b-so": (m + n - 1) * (f + b) + (n - 1) * 2 * sr,
        "pipedream": m * (f + b),
    }
    for kind, minibatch_s in expected.items():
        problem = chain(
            np.full(n, f + b),
            n,
            schedule_model(kind, m, backward_ratio=b / f),
            output_bytes=np.ones(n),
            link_bytes_per_s=np.full(n - 1, 1 / sr),
            # One device cannot hold two layers, so that there are n stages.
            weight_bytes=np.full(n, 10.0),
            memory_bytes=np.full(n, 60.0),
        )
        answer = plan_chain(problem, Objective.MINIBATCH)
        assert len(answer.stages) == n
        assert answer.minibatch_time_s == pytest.approx(minibatch_s), kind


def test_peak_of_features_decides_the_cut():
    """The first of two stages keeps two micro-batches under 1F1B and three under FBP."""
    fields = {"activation_bytes": [10, 10, 10], "memory_bytes": [40, 40]}
    short = chain([1, 1, 1], 2, schedule_model("1f1b-as", 8), **fields)
    assert plan_chain(short).period_s == 2
    assert plan_chain(short).stages[0].memory_bytes in (20, 40)
    long = chain([1, 1, 1], 2, schedule_model("fbp-as", 8), **fields)
    assert [stage.memory_bytes for stage in plan_chain(long).stages] == [30, 20]


def test_error_names_stage_device_bytes_and_remedy():
    fields = {"activation_bytes": [100, 100], "weight_bytes": [10, 10]}
    problem = chain([1, 1], 2, schedule_model("1f1b-as", 8), memory_bytes=[190, 400], **fields)
    with pytest.raises(PlanError) as caught:
        plan_chain(problem)
    assert str(caught.value) == (
        "stage 0 on u280[0] needs 220 bytes of memory (layer layer0), 190 usable, 30 too few; "
        "1 fewer micro-batch in flight would make it fit"
    )


def test_error_says_when_weights_alone_are_too_much():
    problem = chain([1, 1], 1, weight_bytes=[1000, 1000], memory_bytes=[1500.0])
    with pytest.raises(PlanError) as caught:
        plan_chain(problem)
    assert str(caught.value) == (
        "stage 0 on u280[0] needs 4,000 bytes of memory (layers layer0..layer1), 1,500 usable, "
        "2,500 too few; weights with gradients and optimiser state alone take 4,000 bytes there; "
        "devices with 2,500 bytes more, or an optimiser with less state, would help"
    )


def test_error_points_at_a_missing_link():
    problem = chain(
        [1, 1],
        2,
        output_bytes=[1, 1],
        weight_bytes=[10, 10],
        memory_bytes=[30, 30],
        link_bytes_per_s=np.zeros(1),
    )
    with pytest.raises(PlanError, match=r"; a link between u280\[0\] and u280\[1\] would help$"):
        plan_chain(problem)


def test_bounds():
    """Kinds of which one is twice as fast, and kinds that favour different layers."""
    proportional = chain([[1, 2], [1, 2], [1, 2]], 2, device_kinds=np.array([0, 1]))
    assert proportional.bound_s == pytest.approx(2)
    opposed = chain([[1, 10], [10, 1]], 2, device_kinds=np.array([0, 1]))
    assert opposed.bound_s == pytest.approx(1)
    assert plan_chain(opposed).period_s == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_bytes": np.ones(2)}, "weight_bytes must have shape (3,), not (2,)"),
        ({"output_bytes": [1, 1, -1]}, "output_bytes must be at least 0 everywhere"),
        ({"edges": ((1, 0),)}, "edges must lead from a layer to a later one"),
        ({"device_kinds": np.array([0, 1, 0])}, "device_kinds must be in 0..0"),
        (
            {"free_order": True, "link_bytes_per_s": [1, 2]},
            "devices in free order must have equal links",
        ),
    ],
)
def test_refuses_what_makes_no_sense(fields, message):
    with pytest.raises(ValueError, match="must") as caught:
        chain([1, 1, 1], 3, **fields)
    assert str(caught.value) == message


def test_refuses_schedules_that_keep_less_with_more_stages_behind():
    schedule = replace(schedule_model("gpipe", 4), in_flight=lambda after: 4 - after)
    with pytest.raises(ValueError, match="in_flight must not fall with the number of stages"):
        chain([1, 1], 2, schedule)
    with pytest.raises(ScheduleError, match=r"no schedule named 'nope'; the schedules are gpipe, "):
        schedule_model("nope", 4)


def test_json_has_every_stage():
    answer = plan_chain(chain([1, 2, 3], 2))
    data = answer.to_dict()
    assert [stage["layers"] for stage in data["stages"]] == layers_of(answer)
    assert data["optimal"] is True
    assert data["period_s"] == 3
    assert data["objective"] == "bottleneck"


def test_cases_are_told_apart():
    """The reference that all of this rests on, by hand."""
    problem = chain(
        [2, 4],
        2,
        schedule_model("1f1b-sno", 4),
        output_bytes=[3, 0],
        link_bytes_per_s=np.ones(1),
        link_latency_s=np.array([0.5]),
    )
    period_s, minibatch_s = times(problem, [[0], [1]], [0, 1])
    assert period_s == 2 + 2 * 3.5
    assert minibatch_s == (2 + 7) + 4 + 3 * 9
