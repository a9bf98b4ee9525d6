"""A small network, planned for a chain of boards, for tests of builds."""

from functools import cache

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
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
