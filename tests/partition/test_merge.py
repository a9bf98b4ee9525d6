"""Merging of layers: chains that were worked by hand, and limits."""

import json

import numpy as np
import pytest
from partition_cases import chain, schedule_model

from fpgapipe.partition.search.merge import merge_layers
from fpgapipe.partition.search.problem import PlanError


def merged(problem, **options):
    found = merge_layers(problem, [True] * problem.num_layers, **options)
    assert [name for group in found.groups for name in group] == list(problem.names)
    sizes = [len(group) for group in found.groups]
    return sizes, found


def given(times, devices, output_bytes, **fields):
    fields.setdefault("link_bytes_per_s", np.full(devices - 1, 1.0))
    return chain(times, devices, output_bytes=[*output_bytes, 1.0], **fields)


def test_the_cut_that_saves_most_is_merged_first():
    """T* is 4. Cut 2 of 9 bytes goes, then cut 0; cut 1 would make a group of 8 and stays."""
    sizes, found = merged(given([2, 2, 2, 2], 2, [5, 3, 9]))
    assert (sizes, found.epsilon) == ([2, 2], 0.1)
    assert found.reason == (
        "layers merged where that saves the most communication, into groups of at most 1.1 times "
        "the balanced time"
    )
    # Cut 1 saves most here, and 1 + 2 layers are not below 1.1 T* any more, so merging is stuck at
    # three groups (1, 2, 1) until a group of three layers, 6 = 1.5 T*, is allowed.
    sizes, found = merged(given([2, 2, 2, 2], 2, [5, 9, 3]))
    assert sizes == [3, 1]
    assert found.epsilon == pytest.approx(0.5)
    assert found.reason.endswith(
        "of at most 1.5 times the balanced time (1.1 times left too many groups)"
    )


def test_of_equal_cuts_the_smallest_groups_are_merged():
    """T* is 5: the layers of 1 are merged first, then a layer of 2 with them, then the other."""
    sizes, found = merged(given([4, 1, 1, 2, 2], 2, [1, 1, 1, 1]))
    assert sizes == [1, 4]
    assert found.epsilon == pytest.approx(0.2)
    assert merged(given([4, 1, 1, 2, 2], 3, [1, 1, 1, 1]), epsilon=0.2)[0] == [1, 3, 1]


def test_no_more_groups_than_layers():
    assert merged(given([3], 4, []))[0] == [1]
    assert merged(given([3, 1], 2, [1]))[0] == [1, 1]
    assert merged(given([3, 1], 1, [1]))[0] == [2]
    with pytest.raises(PlanError) as error:
        merged(given([3], 4, []), all_devices=True)
    assert str(error.value) == (
        "the network has 1 runs of layers that can stand alone, too few for 4 devices; use at "
        "most 1"
    )


def test_devices_without_a_link_get_no_group():
    """Behind a link of no bandwidth nothing arrives, so only the devices before it are used."""
    times, sizes = [1, 1, 1, 1], [1, 1, 1]
    assert merged(given(times, 3, sizes, link_bytes_per_s=[1.0, 0.0]))[0] == [2, 2]
    assert merged(given(times, 3, sizes, link_bytes_per_s=[0.0, 0.0]))[0] == [4]
    with pytest.raises(PlanError) as error:
        merged(given(times, 3, sizes, link_bytes_per_s=[1.0, 0.0]), all_devices=True)
    assert str(error.value) == "the network cannot be cut where all devices are joined by links"


def test_memory_stops_a_merge():
    """Groups of 10 bytes of weights fit, each needing twice as much; one of 15 does not."""
    fields = {
        "weight_bytes": [5.0, 5.0, 5.0, 5.0],
        "schedule": schedule_model("1f1b-as", 8),
    }
    problem = given([1, 1, 1, 5], 2, [5, 9, 3], memory_bytes=np.full(2, 20.0), **fields)
    with pytest.raises(PlanError) as error:
        merged(problem)
    assert str(error.value) == (
        "merging leaves 3 groups of layers for 2 devices: a device has no memory for more in one "
        "group; use smaller micro-batches or more devices"
    )
    roomy = given([1, 1, 1, 5], 2, [5, 9, 3], memory_bytes=np.full(2, 30.0), **fields)
    assert merged(roomy)[0] == [3, 1]


def test_a_group_begins_where_it_may():
    problem = given([2, 0, 2, 2], 2, [9, 1, 5])
    found = merge_layers(problem, [True, False, True, True], epsilon=0.5)
    assert [len(group) for group in found.groups] == [2, 2]


def test_unlike_devices_count_with_their_shares():
    """The last layer is half of the work of the second kind, and a fifth of that of the first."""
    times = [[2, 1], [2, 1], [4, 1], [2, 3]]
    problem = given(times, 2, [1, 1, 1], device_kinds=np.array([0, 1]))
    assert merged(problem)[0] == [2, 2]
    assert merged(problem, epsilon=0.0)[1].epsilon > 0.15  # 0.35 + 0.225 = 0.575 = 1.15 / 2


@pytest.mark.parametrize("seed", range(20))
def test_groups_keep_the_limit_or_one_layer_exceeds_it(seed):
    rng = np.random.default_rng(seed)
    count, devices = 60, 5
    times = rng.integers(1, 50, count)
    problem = given(times, devices, rng.integers(0, 30, count - 1))
    sizes, found = merged(problem)
    ends = np.cumsum(sizes)
    spans = [times[end - size : end].sum() for end, size in zip(ends, sizes, strict=True)]
    assert len(sizes) == devices
    assert max(spans) <= times.sum() / devices * (1 + found.epsilon) * (1 + 1e-9)


def test_a_plan_of_merged_layers(cli):
    """The plan is an ordinary pipeline with prices of its programs, over all devices."""
    boards = ("--board", "u280", "--devices", 2, "--array", "8x8", "--batch", 8)
    given = (*boards, "--micro-batches", 2, "--schedule", "1f1b-as")
    _, text, _ = cli("plan", "digits-cnn", *given, "--strategy", "merge", "--json")
    plan = json.loads(text)
    assert plan["schedule"] == "1f1b-as"
    assert plan["predicted"]["level"] == "machine"
    assert plan["build"]["possible"]
    assert [stage["layers"][0] for stage in plan["stages"]] == ["conv1", "conv3"]
    assert not plan["optimal"]
    assert plan["lower_bound_s"] < plan["predicted"]["minibatch_s"]
    assert plan["reason"].startswith("layers merged where that saves the most communication")
    _, _, refused = cli("plan", "digits-cnn", *boards, "--strategy", "merge", "--free-order")
    assert "--free-order is for pipelines" in refused
