"""A small network, planned for a chain of boards, for tests of builds."""

from functools import cache

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.host.runtime.runtime import RunOptions, open_backend, open_check
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import random_batch
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.explore.request import Request


@cache
def tiny(batch):
    """Two convolutions, a normalisation, a pooling and two linear layers."""
    net = Network("tiny", batch)
    x = net.relu(net.conv(net.image(2, 6, 6), 4, 3, padding=1))
    x = net.max_pool(net.relu(net.batch_norm(net.conv(x, 6, 3))), 2)
    net.linear(net.relu(net.linear(net.flatten(x), 8)), 3)
    return net.build()


def unbuilt(batch):
    """The same with a normalisation that no core has."""
    net = Network("unbuilt", batch)
    x = net.relu(net.conv(net.image(2, 6, 6), 4, 3, padding=1))
    x = net.local_response_norm(x, 3, name="sizes")
    net.linear(net.relu(net.linear(net.flatten(x), 8)), 3)
    return net.build()


def cluster_of(devices=2, board="u280"):
    return chain_of(load_board(board), devices).spec


def request_for(cluster, load=tiny, batch=4, microbatches=2, array=(4, 4), **fields):
    fields = {"schedules": ("1f1b-as",), "all_devices": True} | fields
    return Request(load, batch, cluster, num_microbatches=microbatches, array=array, **fields)


def plan_of(devices=2, load=tiny, board="u280", **fields):
    """A plan, the network of a micro-batch, and the cluster."""
    cluster = cluster_of(devices, board)
    asked = request_for(cluster, load, **fields)
    best = explore(asked).best
    graph = load(best.microbatch)
    plan = as_plan(best, graph, graph.name, asked.batch, cluster, train=asked.train)
    return plan, graph, cluster


def assert_trains_as_pytorch(build):
    """Compare two steps of a build in the bit-exact model with those of PyTorch."""
    options = RunOptions(backend="model", check="torch")
    check = open_check(build, options)
    samples = random_batch(build.graph, 0, build.plan.num_microbatches)
    scalars = scalar_bits(learning_rate=0.05)
    with open_backend(build, "model", options) as backend, check.backend:
        for step in range(2):
            before = backend.state()
            result = backend.step(*samples, scalars)
            assert check.after(step, backend, result, before, *samples, scalars) is None
    assert check.worst["loss"] < 1
