"""Layer-wise parallelism: shards, what moves between them, and the choice of degrees."""

import json
from itertools import product

import numpy as np
import pytest

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.lowering.shards.degrees import SERIAL, Degrees, degrees_of, part
from fpgapipe.lowering.shards.windows import needed_rows
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.network.load import load_network
from fpgapipe.network.zoo.gnmt import Sizes, gnmt
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.cost.cost import CostModel
from fpgapipe.partition.explore.candidate import DeviceChain, device_chain
from fpgapipe.partition.explore.core_choices import core_choices
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.search.problem import PlanError
from fpgapipe.partition.strategies.layerwise import LayerwiseProblem
from fpgapipe.partition.strategies.movement import (
    busiest_elements,
    needed_boxes,
    written_boxes,
)
from fpgapipe.partition.strategies.plan_layerwise import plan_any_degrees, plan_layerwise
from fpgapipe.partition.strategies.shards import shard


def small(batch=4):
    """A residual block between a convolution and linear layers."""
    net = Network("small", batch)
    x = net.relu(net.conv(net.image(3, 9, 7), 6, 3, padding=1))
    y = net.relu(net.batch_norm(net.conv(x, 6, 3, padding=1)))
    x = net.plus(x, net.conv(y, 6, 3, padding=1))
    x = net.max_pool(x, 2)
    net.linear(net.relu(net.linear(net.flatten(x), 10)), 5)
    return net.build()


def problem_of(graph, devices, chain=None, choices=None):
    cluster = chain_of(load_board("u280"), devices).spec
    choice = next(iter(core_choices(Request(lambda _: graph, 4, cluster), CostModel(graph), 1)))
    cores = {device: core for device, (core, _) in choice.items()}
    chain = chain or device_chain(cluster)
    return LayerwiseProblem(graph, cluster, chain, cores, choices=choices)


def test_degrees():
    graph = small()
    names = list(graph.layers)
    assert str(SERIAL) == "1"
    assert str(Degrees(2, 1, 3)) == "sample=2 height=3"
    found = degrees_of(graph, ["conv1"], 4)
    assert found[0] == SERIAL
    assert len(set(found)) == len(found) == 1 + 4 + 4 + 10  # 1, 2, 3 and 4 devices
    assert {each.num_devices for each in found} == {1, 2, 3, 4}
    (linear,) = (name for name in names if graph.layers[name].output.shape == (4, 5))
    assert {each.height for each in degrees_of(graph, [linear], 8)} == {1}
    assert max(each.channel for each in degrees_of(graph, [linear], 8)) == 5
    assert max(each.sample for each in degrees_of(graph, [linear], 8)) == 4


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_parts_cover_an_axis(count):
    parts = [part(9, count, number) for number in range(count)]
    assert [index for first, last in parts for index in range(first, last)] == list(range(9))


def test_rows_that_a_convolution_needs():
    conv = small().layers["conv1"].operator  # 3x3, padded
    assert needed_rows(conv, 0, 9, (0, 9)) == (0, 9)
    assert needed_rows(conv, 0, 9, (0, 5)) == (0, 6)
    assert needed_rows(conv, 0, 9, (5, 9)) == (4, 9)
    pool = load_network("vgg16", 1).layers["pool1"].operator
    assert needed_rows(pool, 1, 224, (3, 5)) == (6, 10)


def test_shards_have_the_shapes_of_their_parts():
    graph = small()
    found = shard(graph, ["conv1"], Degrees(2, 3, 2, 1)).layers["conv1"]
    assert found.output.shape == (2, 2, 5, 7)
    assert found.parameters[0].spec.shape == (2, 3, 3, 3)
    for names in layers_together(graph):
        for degrees in degrees_of(graph, names, 6):
            part_of = shard(graph, names, degrees)
            whole = graph.layers[names[-1]].output.shape
            own = part_of.layers[names[-1]].output.shape
            counts = (degrees.sample, degrees.channel, degrees.height, degrees.width)
            for size, count, axis in zip(whole, counts, own, strict=False):
                assert -(-size // count) <= axis <= -(-size // count) + 1


def by_elements(graph, reader, source, one, other, devices):
    """Elements over the busiest link, counted one by one."""
    layer, tensor = graph.layers[reader], graph.layers[source].output
    batch = graph.batch
    written = written_boxes(tensor.shape, batch, [one], devices)[0]
    needed = needed_boxes(
        tensor.shape, layer.output.shape, batch, layer.operator, [other], devices
    )[0]
    owner = {}
    for device, box in enumerate(written):
        for index in product(*(range(*axis) for axis in box)):
            assert index not in owner  # no element is computed twice
            owner[index] = device
    assert len(owner) == tensor.elements  # and none is left out
    loads = {}
    for device, box in enumerate(needed):
        for index in product(*(range(*axis) for axis in box)):
            step = 1 if owner[index] < device else -1
            for at in range(owner[index], device, step):
                loads[at, at + step] = loads.get((at, at + step), 0) + 1
    return max(loads.values(), default=0)


@pytest.mark.parametrize(("source", "reader"), [("relu1", "conv2"), ("add1", "max_pool1")])
def test_what_moves_is_what_is_counted(source, reader):
    graph = small(2)
    ones = degrees_of(graph, [source], 4)
    others = degrees_of(graph, [reader], 4)
    layer, tensor = graph.layers[reader], graph.layers[source].output
    table = busiest_elements(
        written_boxes(tensor.shape, 2, ones, 4),
        needed_boxes(tensor.shape, layer.output.shape, 2, layer.operator, others, 4),
    )
    rng = np.random.default_rng(0)
    for _ in range(40):
        i, j = int(rng.integers(len(ones))), int(rng.integers(len(others)))
        assert table[i, j] == by_elements(graph, reader, source, ones[i], others[j], 4)
    assert table[0, 0] == 0
    same = [(i, others.index(each)) for i, each in enumerate(ones) if each in others]
    if reader == "max_pool1":  # windows of even rows need no neighbour's
        assert any(table[pair] == 0 for pair in same if ones[pair[0]].num_devices == 2)


def test_equal_to_all_combinations():
    graph = small(2)
    problem = problem_of(graph, 2)
    found = problem.solve()
    sizes = [range(len(choices)) for choices in problem.choices]
    rng = np.random.default_rng(1)
    tried = [[int(rng.integers(len(size))) for size in sizes] for _ in range(3000)]
    tried.append([0] * len(sizes))
    assert found.is_optimal
    assert found.step_s <= min(problem.step_s(each)[0] for each in tried) * (1 + 1e-12)
    assert found.step_s <= min(found.data_parallel_s, found.serial_s)


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "inception-v3", "resnet18", "resnet50"])
def test_two_nodes_are_left(name):
    """As in the paper, which reduces AlexNet, VGG-16, Inception-v3 and ResNets to two."""
    cluster = chain_of(load_board("u280"), 4).spec
    found = plan_any_degrees(Request(lambda batch: load_network(name, batch), 128, cluster))
    assert found.num_left == 2
    assert found.step_s <= min(found.data_parallel_s, found.serial_s)
    if name in ("alexnet", "vgg16"):
        degrees = {layer: group.degrees for group in found.groups for layer in group.layers}
        first = next(iter(degrees))
        assert degrees[first] == Degrees(sample=4)
        assert degrees["fc6"] == degrees["fc7"] == Degrees(channel=4)


def test_slow_links_make_one_device_best():
    graph = small()
    chain = DeviceChain((0, 1), (1e3,), (1e-3,))
    found = problem_of(graph, 2, chain).solve()
    assert all(group.degrees == SERIAL for group in found.groups)
    assert found.moves_s == 0
    with pytest.raises(PlanError, match="no link for shards"):
        problem_of(graph, 2, DeviceChain((0, 1), (0.0,), (0.0,)))


def test_a_layer_that_no_degrees_fit_is_named():
    with pytest.raises(PlanError, match=r"^layer '\w+' can neither be cut over 2 devices that "):
        problem_of(small(), 2, choices=lambda names: [])


def test_memory_is_a_limit(monkeypatch):
    problem = problem_of(small(), 4)
    free = problem.solve()
    least = sum(float(each.min()) for each in problem.memory)
    room = int(least + 0.5 * (free.memory_bytes - least)) if free.memory_bytes > least else 0
    if room:
        devices = [type("Device", (), {"memory_bytes": room})()] * 4
        monkeypatch.setattr(problem, "_devices", devices)
        found = problem.solve()
        assert found.memory_bytes <= room
        assert not found.is_optimal
        assert found.step_s >= free.step_s
    devices = [type("Device", (), {"memory_bytes": 1000})()] * 4
    monkeypatch.setattr(problem, "_devices", devices)
    with pytest.raises(PlanError, match="the smallest device has 1,000"):
        problem.solve()


def test_a_recurrent_network():
    """Reshapes that name the samples are those of the devices' samples."""

    def translator(batch):
        return gnmt("translator", batch, Sizes(4, 500, 500, 64, 4, 4))

    cluster = chain_of(load_board("u280"), 2).spec
    request = Request(translator, 4, cluster, all_devices=True, array=(8, 8))
    plan, _, search = plan_layerwise(request, "translator")
    assert plan.predicted.level == "machine"
    assert search.num_left == 13
    assert 0 < search.step_s <= search.data_parallel_s


LOCAL = """
from fpgapipe.network.zoo.layers import Network
def net(batch=4):
    net = Network("local", batch)
    x = net.relu(net.conv(net.image(3, 16, 16), 16, 3, padding=1))
    x = net.local_response_norm(x, 3)
    net.linear(net.flatten(x), 5)
    return net.build()
"""
"""A network that no core runs."""


def test_command_line(cli, monkeypatch, tmp_path):
    """A network that is not built is planned by formulas."""
    (tmp_path / "local_norm.py").write_text(LOCAL)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plan.json"
    options = ("--board", "u280", "--devices", 2, "--batch", 4, "--strategy", "layerwise")
    code, out, _ = cli("plan", "local_norm:net", *options, "--json", "-o", path)
    assert code == 0
    value = json.loads(out)
    assert json.loads(path.read_text()) == value
    assert value["num_left"] == 2
    assert [name for group in value["groups"] for name in group["layers"]] == list(
        load_network("local_norm:net", 4).layers
    )
    code, out, _ = cli("plan", "local_norm:net", *options)
    assert "2 nodes left" in out
    assert "cannot make this plan: layer" in out
    code, _, fault = cli("plan", "local_norm:net", *options, "--micro-batches", 2)
    assert code == 2
    assert "leave out --micro-batches" in fault
    code, _, fault = cli("plan", "local_norm:net", *options, "--svg", tmp_path / "x.svg")
    assert code == 2
    assert "--svg needs programs" in fault
