"""Plans whose programs take more memory than formulas say."""

from dataclasses import replace

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.network.load import load_network
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.pricing.best_plan import best_plan

PAGE_BYTES = 4096


def digits(samples):
    return load_network("digits-cnn", samples)


def asked(memory_bytes=None, **more):
    """A question about two boards, each with so much memory."""
    cluster = chain_of(load_board("u280"), 2).spec
    if memory_bytes is not None:
        devices = tuple(
            replace(
                device,
                memories=(replace(device.memories[0], count=1, size_bytes=memory_bytes),),
            )
            for device in cluster.devices
        )
        cluster = replace(cluster, devices=devices)
    limits = {"array": (32, 32), "num_microbatches": 16, "all_devices": True, **more}
    return Request(digits, 64, cluster, ("1f1b-as",), **limits)


def test_the_network_is_cut_again_where_programs_do_not_fit():
    """What formulas leave out is taken off the memory; the next cut has room for it."""
    free = best_plan(asked(), "digits").plan
    needed = [node.memory_bytes for node in free.nodes]
    room = max(needed) - PAGE_BYTES
    found = best_plan(asked(room), "digits")
    assert found.fault is None
    assert found.built["possible"]
    assert found.plan.predicted.level == "machine"
    assert max(node.memory_bytes for node in found.plan.nodes) <= room
    assert found.plan.stages[0].layers != free.stages[0].layers
    assert found.plan.predicted.minibatch_s >= free.predicted.minibatch_s


def test_where_no_cut_has_room_the_plan_says_so():
    """An estimate is not called possible when no programs of its like fit."""
    free = best_plan(asked(), "digits").plan
    room = sum(node.memory_bytes for node in free.nodes) // 3
    found = best_plan(asked(room), "digits")
    assert found.plan.predicted.level == "estimate"
    assert not found.built["possible"]
    assert found.built["reason"] == found.fault
    assert "bytes of memory" in found.fault
