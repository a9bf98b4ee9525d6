"""Coarse grains, memory fine-tuning, fractional split."""

from dataclasses import replace

import numpy as np
import pytest
from partition_cases import brute_force, chain, check_stages, random_problem, schedule_model

from fpgapipe.partition.search.chain import plan_chain
from fpgapipe.partition.search.problem import Objective, PlanError
from fpgapipe.partition.search.refine import (
    Piece,
    merge,
    mergeable,
    plan_coarse,
    plan_fractional,
    tune_memory,
)


def test_merges_where_transfers_are_too_long():
    problem = chain(
        [1, 2, 3, 4], 2, output_bytes=[5, 1, 9, 0], weight_bytes=[1, 2, 4, 8],
        link_bytes_per_s=np.ones(1),
    )  # fmt: skip
    groups = mergeable(problem, 5)
    assert groups == (range(0, 1), range(1, 2), range(2, 4))
    assert mergeable(problem, 4) == (range(0, 2), range(2, 4))
    coarse = merge(problem, groups)
    assert coarse.compute_s[:, 0].tolist() == [1, 2, 7]
    assert coarse.output_bytes.tolist() == [5, 1, 0]
    assert coarse.weight_bytes.tolist() == [1, 2, 12]
    assert coarse.names == ("layer0..layer0", "layer1..layer1", "layer2..layer3")


def test_a_link_is_slow_only_if_all_are():
    problem = chain([1, 1, 1], 3, output_bytes=[4, 4, 0], link_bytes_per_s=np.array([1.0, 4.0]))
    assert len(mergeable(problem, 1)) == 3
    assert len(mergeable(problem, 0.5)) == 1


def test_coarse_is_exact_for_the_bottleneck():
    checked = merged = 0
    for seed in range(400):
        problem = random_problem(np.random.default_rng(seed))
        expected = brute_force(problem)
        if expected is None:
            with pytest.raises(PlanError):
                plan_coarse(problem)
            continue
        answer, groups = plan_coarse(problem)
        check_stages(problem, answer)
        assert answer.period_s == pytest.approx(expected[0], rel=1e-9, abs=0), seed
        assert answer.optimal, seed
        merged += len(groups) < problem.num_layers
        checked += 1
        quick, _ = plan_coarse(problem, Objective.MINIBATCH)
        assert quick.minibatch_time_s >= expected[1] * (1 - 1e-9)
        assert quick.lower_bound_s <= expected[1] * (1 + 1e-9)
    assert checked > 250
    assert merged > 20


def test_layers_move_to_a_neighbour_with_room():
    problem = chain([2, 2, 2, 2], 2, schedule_model("gpipe", 1), activation_bytes=[10, 10, 30, 30])
    start = plan_chain(problem)
    assert [len(stage.layers) for stage in start.stages] == [2, 2]
    tight = replace(problem, memory_bytes=np.array([60.0, 40.0]))
    answer = tune_memory(tight, start)
    assert [len(stage.layers) for stage in answer.stages] == [3, 1]
    assert [stage.memory_bytes for stage in answer.stages] == [50, 30]
    assert answer.period_s == 6
    assert answer.lower_bound_s == 4
    assert not answer.optimal


def test_tuned_stages_fit_and_are_never_better_than_the_exact_ones():
    tuned = stuck = 0
    for seed in range(400):
        problem = random_problem(np.random.default_rng(seed))
        free = replace(problem, memory_bytes=np.full(problem.num_devices, np.inf))
        try:
            answer = tune_memory(problem, plan_chain(free))
        except PlanError as error:
            stuck += "have no room for its outer layers" in str(error)
            continue
        check_stages(problem, answer)
        assert answer.period_s >= plan_chain(problem).period_s * (1 - 1e-9)
        tuned += answer.period_s > plan_chain(free).period_s
    assert tuned > 5
    assert stuck > 20


def test_error_of_memory_tuning():
    problem = chain([2, 2], 1, weight_bytes=[50, 50])
    with pytest.raises(PlanError) as caught:
        tune_memory(replace(problem, memory_bytes=np.array([150.0])), plan_chain(problem))
    assert str(caught.value) == (
        "stage 0 on u280[0] needs 200 bytes of memory, 150 usable, and its neighbours have no "
        "room for its outer layers; try another schedule, a smaller micro-batch, or more devices"
    )


def test_fractional_split_reaches_the_ideal_period():
    """References: T* = 1 / sum(1 / T_n), here 1 / (1/12 + 1/24)."""
    problem = chain([[6, 12], [6, 12]], 2, device_kinds=np.array([0, 1]))
    assert plan_chain(problem).period_s == 12
    split = plan_fractional(problem, [12, 12], channel_tile=1)
    assert split.ideal_period_s == pytest.approx(8)
    assert split.partition.period_s == pytest.approx(8)
    assert split.partition.optimal
    assert split.pieces == (
        (Piece("layer0", 0, 12, 12), Piece("layer1", 0, 4, 12)),
        (Piece("layer1", 4, 12, 12),),
    )


def test_fractional_split_rounds_to_the_tile():
    problem = chain([[6, 12], [6, 12]], 2, device_kinds=np.array([0, 1]))
    split = plan_fractional(problem, [12, 12], channel_tile=5)
    # Tiles of 5, 5 and 2 channels: 12 * 7/12 = 7 on the slow device is 7 s, 6 + 2.5 on the other.
    assert split.pieces[0][-1] == Piece("layer1", 0, 5, 12)
    assert split.partition.period_s == pytest.approx(8.5)


def test_a_cut_through_a_layer_carries_its_input_and_what_is_ready():
    problem = chain(
        [1, 6, 1],
        2,
        schedule_model("fbp-as", 4),
        output_bytes=[3, 8, 0],
        link_bytes_per_s=np.ones(1),
    )
    split = plan_fractional(problem, [1, 4, 1])
    assert split.pieces[0][-1].layer == "layer1"
    assert split.partition.stages[0].transfer_s == 3 + 8 * 1 / 4
    assert split.partition.period_s == 5.5
    free = replace(problem, link_bytes_per_s=np.array([np.inf]))
    assert plan_fractional(free, [1, 4, 1]).partition.period_s == 4


def test_fractional_split_is_never_worse_than_whole_layers():
    for seed in range(150):
        problem = random_problem(np.random.default_rng(seed))
        problem = replace(problem, memory_bytes=np.full(problem.num_devices, np.inf))
        channels = [4] * problem.num_layers
        for objective in Objective:
            whole = plan_chain(problem, objective)
            split = plan_fractional(problem, channels, 1, objective)
            assert split.partition.value_s <= whole.value_s * (1 + 1e-9)
            sizes = {}
            for piece in (p for stage in split.pieces for p in stage):
                start = sizes.get(piece.layer, 0)
                assert piece.first_channel == start
                sizes[piece.layer] = piece.stop_channel
            assert sizes == dict.fromkeys(problem.names, 4)


def test_both_stages_keep_the_inputs_of_a_shared_layer():
    """Split in the middle, each half keeps all 10 bytes for every micro-batch in flight."""
    problem = chain([4, 4, 4], 2, schedule_model("gpipe", 1), activation_bytes=[10, 10, 10])
    assert len(plan_fractional(problem, [2, 2, 2]).pieces[0]) == 2
    tight = replace(problem, memory_bytes=np.array([45.0, 45.0]))
    assert plan_fractional(tight, [2, 2, 2]).partition.period_s == 6
    split = plan_fractional(replace(problem, memory_bytes=np.array([36.0, 36.0])), [2, 2, 2])
    assert split.partition.period_s == 6
    with pytest.raises(PlanError):
        plan_fractional(replace(problem, memory_bytes=np.array([15.0, 15.0])), [2, 2, 2])


def test_fractional_split_refuses_what_it_cannot_split():
    with pytest.raises(ValueError, match="a fractional partition needs a chain of layers"):
        plan_fractional(chain([1, 1, 1], 2, edges=((0, 1), (0, 2))), [1, 1, 1])
    with pytest.raises(ValueError, match="channels must be at least 1 for each layer"):
        plan_fractional(chain([1, 1], 2), [1, 0])
