"""From plans to cores: what is planned can be generated, is no larger than needed, and fits."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest
from build_cases import cluster_of, plan_of, request_for, tiny

from fpgapipe.boards.library import board_names, load_board
from fpgapipe.errors import UserError
from fpgapipe.host.build.build_hardware import core_name
from fpgapipe.host.build.wires import wire_specs
from fpgapipe.hw.hls_models.resources.core_resources import (
    Resources,
    block_resources,
    column_resources,
    core_resources,
    fixed_resources,
    scratchpad_resources,
)
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.network.zoo import built_in
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.cost.cores import (
    RESOURCES,
    candidate_cores,
    core_fits,
    core_of,
    on_part,
    over_dies,
    with_links,
)
from fpgapipe.partition.cost.cost import CostModel
from fpgapipe.partition.explore.candidate import device_chain
from fpgapipe.partition.explore.explorer import device_chains, explore
from fpgapipe.partition.explore.planned import as_plan, link_end, one_link_each
from fpgapipe.partition.explore.smallest import THROUGHPUT, explore_smallest
from fpgapipe.partition.explore.unit_problem import make_problem
from fpgapipe.partition.placed_nodes import PlacedNodes
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.best_plan import why_not_built
from fpgapipe.partition.pricing.machine import lower_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings
from fpgapipe.partition.schedule.schedule_kinds import model_of
from fpgapipe.partition.search.every_device import over_all_devices
from fpgapipe.partition.search.problem import PlanError

BOARDS = {name: load_board(name).device_spec() for name in board_names()}

TOO_SMALL = {"arty-a7-100t", "pynq-z2", "ulx3s"}
"""Boards without room for a core."""


@pytest.mark.parametrize("name", sorted(BOARDS.keys() - TOO_SMALL))
def test_every_planned_core_can_be_generated_and_fits(name):
    device = BOARDS[name]
    for node in candidate_cores(device, num_links=1):
        assert not core_fits(device, node.core)
        assert node.core.scratchpad.banks >= 2
        linked = with_links(node, [LinkEngineSpec(phy_bytes=64)])
        assert len(linked.core.links) == 1


def test_links_as_many_as_neighbours():
    for devices, expected in ((1, [0]), (2, [1, 1]), (4, [1, 2, 2, 1])):
        plan, _, cluster = plan_of(devices)
        cores = plan.cores
        assert [len(core.links) for core in cores] == expected
        assert len({id(core) for core in cores}) == len(set(cores))
        wires = wire_specs(plan, cluster)
        assert len(wires) == devices - 1
        for index, wire in enumerate(wires):
            ends = cores[index].links[-1], cores[index + 1].links[0]
            assert {end.phy_bytes for end in ends} == {wire.phy_bytes}
            assert ends[0].digest == ends[1].digest


def test_wires_and_memories_are_the_boards():
    plan, _, cluster = plan_of(2)
    (wire,) = wire_specs(plan, cluster)
    # 103.125 Gb/s, 64 of 66 bits, at 300 MHz; half a microsecond.
    assert wire.bytes_per_cycle == Fraction(125, 3)
    assert (wire.phy_bytes, wire.latency_cycles) == (64, 150)
    one, other = memory_specs(plan)
    assert one == other
    assert one.bytes_per_cycle == pytest.approx(13.28e9 / 300e6)  # one port; the bus has 64
    assert one.latency_cycles == 42  # 137.8 ns


def pair(batch):
    """Two convolutions whose best tilings depend on the memory's speed."""
    net = Network("pair", batch)
    x = net.relu(net.conv(net.image(32, 16, 16), 48, 3, padding=1))
    x = net.relu(net.conv(x, 48, 3, padding=1))
    net.linear(net.flatten(net.global_average_pool(x)), 3)
    return net.build()


def test_each_device_has_programs_for_its_own_memory():
    plan, graph, cluster = plan_of(2, pair)
    first, second = plan.nodes
    slow = dataclasses.replace(second.spec, memory_bytes_per_cycle=0.25, memory_latency_cycles=3000)
    other = plan.with_nodes([first, second.model_copy(update={"spec": slow})])
    one, two = (lower_plan(each, graph, cluster).parts for each in (plan, other))
    assert one[0].instructions == two[0].instructions
    assert one[1].instructions != two[1].instructions


def test_a_chain_of_unlike_boards_is_built_from_either_end():
    """`plan` says that `build` can make what the search finds in either order."""
    plan, graph, cluster = plan_of(2)
    first, second = cluster.devices
    unlike = dataclasses.replace(cluster, devices=(first, dataclasses.replace(second, name="b")))
    assert len(device_chains(unlike)) == 2
    names = unlike.device_names[::-1]
    pairs = zip(plan.nodes, names, strict=True)
    back = plan.with_nodes([each.model_copy(update={"device": name}) for each, name in pairs])
    for each in (plan, back):
        assert why_not_built(each, graph, unlike)["possible"]
        assert len(lower_plan(each, graph, unlike).parts) == 2
    few = back.model_copy(update={"stages": (back.stages[0], back.stages[0])})
    assert "has two stages" in why_not_built(few, graph, unlike)["reason"]


def test_a_plan_may_begin_within_a_cluster():
    """Nodes on the second and third of three devices, in either order."""
    plan, graph, _ = plan_of(2)
    cluster = cluster_of(3)
    one, two = plan.nodes
    for places in ((1, 2), (2, 1), (1, 0)):
        names = [cluster.device_names[place] for place in places]
        moved = plan.with_nodes(
            [
                node.model_copy(update={"device": name})
                for node, name in zip((one, two), names, strict=True)
            ]
        )
        placed = PlacedNodes.of(moved, cluster)
        assert placed.places == places
        (link,) = placed.links
        assert {link.source, link.destination} == set(places)
        ends = {placed.port(node, 0) for node in (0, 1)}
        assert ends == {link.source_port, link.destination_port}
        assert why_not_built(moved, graph, cluster)["possible"]
        assert len(wire_specs(moved, cluster)) == 1


def test_each_end_suits_its_own_link():
    cluster = cluster_of(3)
    fast, slow = cluster.links
    slow = dataclasses.replace(slow, line_rate_bits_per_s=slow.line_rate_bits_per_s / 8)
    cluster = dataclasses.replace(cluster, links=(fast, slow))
    plan = as_plan(explore(request_for(cluster)).best, tiny(2), "tiny", 4, cluster)
    cores = plan.cores
    assert [[link.phy_bytes for link in core.links] for core in cores] == [[64], [64, 8], [8]]
    assert [wire.phy_bytes for wire in wire_specs(plan, cluster)] == [64, 8]


def test_slots_hold_a_round_trip():
    assert link_end(16, 128).slots == (8, 8, 4)  # 7 frames, docs/links.md
    assert link_end(125 / 3, 150).slots == (16, 16, 4)
    slow = link_end(0.2, 1)
    assert (slow.slots, slow.frame_words, slow.port_bytes) == ((4, 4, 2), 4, 64)
    assert link_end(64, 10_000).slots == (32, 32, 4)
    assert [link_end(rate, 1).phy_bytes for rate in (0.2, 5, 16, 17, 200)] == [4, 8, 16, 32, 64]


def test_of_several_links_the_fastest_is_used():
    cluster = cluster_of(2)
    (link,) = cluster.links
    slow = dataclasses.replace(
        link, source=1, destination=0, source_port="b/1", destination_port="a/1",
        line_rate_bits_per_s=1e9,
    )  # fmt: skip
    both = dataclasses.replace(cluster, links=(slow, link))
    assert device_chain(both) == device_chain(cluster)
    assert wire_timings(plan_of(2)[0], both) == wire_timings(plan_of(2)[0], cluster)
    assert one_link_each(both).links == (link,)
    assert device_chain(one_link_each(both)).link_bytes_per_s == (link.payload_bytes_per_s,)


def test_cores_that_cannot_be_generated():
    plan, _, cluster = plan_of(1)
    text = plan.to_json().replace(f'"cols": {plan.nodes[0].core.cols}', '"cols": 33')
    with pytest.raises(ValueError, match=r"core cols must be in 1..32 or a multiple of 32, not 33"):
        Plan.model_validate_json(text)
    nothing = dataclasses.replace(plan.nodes[0].spec, memory_bytes_per_cycle=0.0)
    node = plan.nodes[0].model_copy(update={"spec": nothing})
    with pytest.raises(UserError, match=r"^u280-0 has no memory beside its fabric"):
        memory_specs(plan.with_nodes([node]))
    two = plan_of(2)[0]
    both = [node.model_copy(update={"device": "u280-0"}) for node in two.nodes]
    with pytest.raises(UserError, match=r"^device 'u280-0' has two stages; no programs are made"):
        wire_specs(two.with_nodes(both), cluster_of(2))
    lonely = dataclasses.replace(cluster_of(2), links=())
    with pytest.raises(UserError, match=r"^cluster u280-x2 has no link between u280-0 and u280-1$"):
        wire_specs(plan_of(2)[0], lonely)
    with pytest.raises(UserError, match=r"^cluster u280-x1 has no device 'u280-1'$"):
        wire_specs(plan_of(2)[0], cluster)


def test_different_cores_have_different_names():
    core = plan_of(1)[0].cores[0]
    names = {core_name(core), core_name(dataclasses.replace(core, outstanding=32))}
    assert len(names) == 2
    assert all(name.startswith("core_4x4_") for name in names)


# What cores take


@pytest.mark.parametrize("name", ["u280", "ulx3s", "arty-a7-100t", "vcu118"])
def test_blocks_add_up_to_the_core(name):
    device = BOARDS[name]
    shape = on_part(device, core_of(device, 8, 16, num_links=1).core)
    total = Resources()
    for each in block_resources(shape).values():
        total += each
    assert total.rounded() == core_resources(shape)


@pytest.mark.parametrize(
    ("name", "rows", "cols"), [("u280", 32, 160), ("u55c", 16, 320), ("u55c", 8, 352)]
)
def test_dies_hold_the_core_together(name, rows, cols):
    device = BOARDS[name]
    core = core_of(device, rows, cols, num_links=2).core
    assert core_fits(device, core) == []
    shape = on_part(device, core)
    columns = [column_resources(shape)] * cols
    dies = over_dies(device, fixed_resources(shape), columns, scratchpad_resources(shape))
    total = Resources()
    for each, die in zip(dies, device.dies, strict=True):
        total += each
        for resource in RESOURCES:
            assert getattr(each, resource) <= getattr(die, resource), (die.name, resource)
    for resource in RESOURCES:
        assert getattr(total, resource) == pytest.approx(
            getattr(core_resources(shape), resource), abs=1
        )


# All devices


def problem_of(devices, slower=1):
    graph = built_in("lenet5", 2)
    cluster = cluster_of(devices)
    device = cluster.devices[0]
    costs = CostModel(graph).costs(core_of(device, 4, 4))
    row = device_chain(cluster)
    rates = tuple(rate / slower for rate in row.link_bytes_per_s)
    row = dataclasses.replace(row, link_bytes_per_s=rates)
    model = model_of("1f1b-as", 4, 3)
    names = cluster.device_names
    problem = make_problem(
        graph, layers_together(graph), [costs], [0] * devices, names, [np.inf] * devices, row, model
    )
    return problem, (problem.device_compute_s.max(axis=1) > 0).tolist()


def bottleneck(problem, ends):
    seconds, per_period = problem.device_compute_s, problem.schedule.transfers_per_period
    worst = 0.0
    for device, (begin, end) in enumerate(itertools.pairwise((0, *ends))):
        worst = max(worst, float(seconds[begin:end, device].sum()))
        if device < len(ends) - 1:
            crossing = np.array([problem.cut_bytes(np.arange(problem.num_layers) < end)])
            worst = max(worst, per_period * float(problem.transfer_s(crossing, device)[0]))
    return worst


@pytest.mark.parametrize("slower", [1, 100_000])
@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_the_cut_over_all_devices_has_the_smallest_bottleneck(devices, slower):
    problem, may_begin = problem_of(devices, slower)
    stages = over_all_devices(problem, may_begin)
    assert [name for stage in stages for name in stage] == list(problem.names)
    ends = list(itertools.accumulate(map(len, stages)))
    assert all(may_begin[end] for end in ends[:-1])
    starts = [at for at in range(1, problem.num_layers) if may_begin[at]]
    best = min(
        bottleneck(problem, (*cut, problem.num_layers))
        for cut in itertools.combinations(starts, devices - 1)
    )
    assert bottleneck(problem, ends) == pytest.approx(best, rel=1e-12)


def test_stages_begin_where_they_may():
    problem, _ = problem_of(2)
    for at in range(1, problem.num_layers):
        first, second = over_all_devices(problem, [layer == at for layer in range(20)])
        assert (len(first), second[0]) == (at, problem.names[at])


def test_more_devices_than_can_be_used():
    problem, may_begin = problem_of(12)
    with pytest.raises(PlanError, match=r"^the network has 11 runs of layers that can stand alone"):
        over_all_devices(problem, may_begin)


def test_all_devices_are_used_even_if_fewer_are_faster():
    cluster = cluster_of(4)
    links = tuple(dataclasses.replace(link, latency_s=1.0) for link in cluster.links)
    cluster = dataclasses.replace(cluster, links=links)
    free = explore(request_for(cluster, batch=1, microbatches=1, all_devices=False)).best
    used = explore(request_for(cluster, batch=1, microbatches=1)).best
    assert len(free.stages) == 1
    assert len(used.stages) == 4
    assert used.minibatch_s > free.minibatch_s


# The smallest core


def arrays(candidate):
    return {(each.node.core.rows, each.node.core.cols) for each in candidate.stages}


def test_the_smallest_array_is_nearly_as_fast_and_the_next_is_not():
    cluster = cluster_of(2)
    asked = request_for(cluster, tiny, 2, None, None)
    best = explore(asked).best
    small = explore_smallest(asked).best
    (rows, cols), *others = arrays(small)
    assert not others
    assert rows * cols < best.stages[0].node.core.cells
    assert small.steady_s <= best.steady_s / THROUGHPUT
    for shape in ((rows, cols // 2), (rows // 2, cols)):
        fewer = dataclasses.replace(asked, array=shape, num_microbatches=small.num_microbatches)
        assert explore(fewer).best.steady_s > best.steady_s / THROUGHPUT
    # Two banks' worth of UltraRAM, 64 blocks of 32 KiB: less would leave them half empty.
    assert {each.node.core.scratchpad.size_bytes for each in small.stages} == {64 * 32768}


def test_a_given_array_is_kept():
    asked = request_for(cluster_of(2), tiny, 4, None, (8, 4))
    best = explore_smallest(asked).best
    assert arrays(best) == {(8, 4)}


def test_two_engines_where_the_schedule_has_two():
    plan, _, _ = plan_of(schedules=("fbp-as",), array=(4, 8))
    for core in plan.cores:
        assert (core.num_engines, core.rows, core.cols) == (2, 4, 8)


# Inference


def test_inference_is_forward_passes_only():
    cluster = cluster_of(2)
    train, infer = (explore(request_for(cluster, train=train)).best for train in (True, False))
    assert infer.minibatch_s < train.minibatch_s
    assert all(stage.pass_s[1:] == (0, 0, 0) for stage in infer.stages)
    assert [stage.returns_bytes for stage in infer.stages] == [0, 0]
    assert all((lane.kinds == 0).all() for lane in infer.timeline.schedule.lanes)
    assert sum(infer.memory_bytes) < sum(train.memory_bytes)
    plan = as_plan(infer, tiny(2), "tiny", 4, cluster, train=False)
    assert (plan.mode, plan.trains) == ("infer", False)
