"""The oracle with prices of the machine: programs where soon timed, formulas otherwise."""

import json
from functools import cache

import pytest

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.network.load import load_network
from fpgapipe.partition.oracle import machine as oracle
from fpgapipe.partition.oracle.estimate import estimate, most_devices
from fpgapipe.partition.oracle.machine import STRATEGIES, ask, best_groups, plan_of
from fpgapipe.partition.oracle.question import Batch, Machine


def asked(network, batch, *, per_device=False, **kwargs):
    board = load_board("u280")
    return Machine(
        cache(lambda samples: load_network(network, samples)),
        network,
        cache(lambda count: chain_of(board, count).spec),
        Batch(batch, per_device),
        **kwargs,
    )


DIGITS = asked("digits-cnn", 8, array=(8, 8), num_microbatches=1)
VGG = asked("vgg16", 64, per_device=True)


def test_the_time_is_that_of_the_plan():
    found = ask(DIGITS, "filter", 2)
    plan = plan_of(DIGITS, "filter", 2, 1)
    assert found.level == "machine"
    assert found.minibatch_s == plan.predicted.minibatch_s
    assert found.compute_s + found.communication_s == pytest.approx(found.minibatch_s)
    assert 0 < found.communication_s < found.minibatch_s / 10
    assert found.memory_bytes == max(node.memory_bytes for node in plan.nodes)
    assert found.max_devices == 32  # filters of the first convolution
    one = ask(DIGITS, "filter", 1)
    assert one.efficiency == 1
    assert one.communication_s == 0
    assert found.efficiency == pytest.approx(one.minibatch_s / 2 / found.minibatch_s)


def test_without_programs_there_are_estimates(monkeypatch):
    monkeypatch.setattr(oracle, "TIMED_WORK", 0)
    found = ask(DIGITS, "data", 2)
    assert found.level == "estimate"
    assert found.batch == 8


def test_many_devices():
    found = ask(VGG, "data", 1024)
    one = ask(VGG, "data", 1)
    assert found.level == "estimate"
    assert found.batch == 1024 * 64
    assert found.compute_s == one.compute_s
    weights, rate = 138_357_544, VGG.cluster_of(2).links[0].payload_bytes_per_s
    latency_s = VGG.cluster_of(2).links[0].latency_s
    expected = 2 * 1023 * (4 * weights / 1024 / rate + latency_s)
    assert found.communication_s == pytest.approx(expected)
    assert found.max_devices is None
    halves = ask(VGG, "spatial", 2)
    assert one.compute_s / 2 < halves.compute_s < one.compute_s
    assert halves.memory_bytes < one.memory_bytes
    assert most_devices(VGG, "spatial") == 14  # rows of the last convolution
    assert most_devices(VGG, "channel") == 64


def test_a_single_device_moves_nothing():
    for name in STRATEGIES[:5]:
        assert estimate(DIGITS, name, 1, 1).communication_s == 0
        assert estimate(DIGITS, name, 2, 2 if name == "data" else 1).communication_s > 0


def test_groups_share_the_samples():
    assert best_groups(DIGITS, "data", 4) == 4
    assert best_groups(DIGITS, "channel", 4) == 1
    assert best_groups(DIGITS, "data+spatial", 4) == 2
    assert best_groups(asked("digits-cnn", 8, group_devices=2), "data+filter", 8) == 4
    with pytest.raises(UserError, match="needs an even number of devices that make two groups"):
        best_groups(DIGITS, "data+filter", 2)


@pytest.mark.parametrize(
    ("name", "devices", "message"),
    [
        ("data", 16, "data has at most 8 devices, one for each of its samples"),
        ("data", 3, "a batch of 8 samples cannot be shared equally by 3"),
        ("spatial", 64, "spatial has at most 4 devices: layer 'conv3' cannot be cut into more"),
        (
            "filter",
            64,
            "at most 32 devices: layer 'conv1' cannot be cut into more parts by filters",
        ),
        ("pipeline", 64, "pipeline has at most 8 devices, one for each of its groups of layers"),
    ],
)
def test_what_cannot_be(name, devices, message):
    with pytest.raises(UserError, match=message):
        ask(DIGITS, name, devices)


def test_command(cli, tmp_path):
    svg, page = tmp_path / "a.svg", tmp_path / "a.html"
    options = ("--board", "u280", "--batch", 64, "--samples", 6400, "--devices", "4,100,8")
    names = ("--strategies", "data,spatial,data+filter")
    code, out, _ = cli("oracle", "vgg16", *options, *names, "--json", "--plot", svg, "--plot", page)
    assert code == 0
    value = json.loads(out)
    assert value["per"] == "epoch"
    found = {(each["name"], each["devices"]): each for each in value["strategies"]}
    each = found["data", 4]
    assert each["level"] == "estimate"
    assert each["epoch_s"] == pytest.approx(100 * each["minibatch_s"])
    assert each["epoch_s"] == pytest.approx(each["compute_s"] + each["communication_s"])
    assert ("data", 100) not in found
    assert any("data on 100: data has at most 64 devices" in each for each in value["refused"])
    assert svg.read_text().startswith("<svg")
    assert "data+filter" in page.read_text()
    _, out, _ = cli("oracle", "vgg16", *options, *names)
    assert "spatial on 8 devices, at most 14" in out
    assert "left out: data on 100" in out
    assert set(names[1].split(",")) < set(STRATEGIES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategies", "spacial"], "there is no strategy 'spacial'; did you mean 'spatial'?"),
        (["--devices", "0"], "--devices must be in 1..65,536, not 0"),
        (["--batch", "4", "--devices", "8", "--strategies", "data"], "data has at most 4 devices"),
        (["--batch", "4", "--batch-per-device", "4"], "name one"),
        (["--platform", "x.yaml"], "take --model paradl"),
        (["--plot", "a.png"], "must name an .svg or .html file"),
    ],
)
def test_bad_questions(cli, arguments, message):
    code, _, fault = cli("oracle", "digits-cnn", "--board", "u280", *arguments)
    assert code == 2
    assert message in fault
