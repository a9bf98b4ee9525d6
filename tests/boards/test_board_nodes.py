"""Nodes of boards: what each gets, how they are joined, and what is refused."""

import dataclasses
import json
from collections import Counter
from itertools import pairwise

import pytest

from fpgapipe.boards.address import MOST_NODES, Address
from fpgapipe.boards.cluster import chain_of, load_cluster
from fpgapipe.boards.library import board_names, load_board
from fpgapipe.boards.nodes import (
    AXI_WIRES,
    MOST_BOUNDARY_WIRES,
    ON_CHIP_WIRES,
    PORT_WIRES,
    crossing_cycles,
    nodes_of,
)
from fpgapipe.errors import FileError, UserError
from fpgapipe.host.package import targets
from fpgapipe.host.package.flow import FLOWS
from fpgapipe.host.package.targets import check_boards
from fpgapipe.host.transports.opening import open_device
from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP

WITH_NODES = ("u280", "u50", "u55c")
RESOURCES = ("lut", "ff", "bram36", "uram", "dsp")


def shared(name):
    """All ways in which a board can be shared, with the ports by which it is cabled."""
    board = load_board(name)
    ports = [f"{group.name}/{at}" for group in board.links for at in range(group.count)]
    ways = [{}, {"leaves": ports[0]}, {"enters": ports[0]}]
    ways += [{"enters": ports[0], "leaves": ports[1]}] if len(ports) > 1 else []
    for count in range(1, MOST_NODES + 1):
        for ends in ways:
            try:
                yield count, ends, nodes_of(board, count, **ends)
            except UserError as error:
                if "wires would cross" not in str(error):
                    raise


@pytest.mark.parametrize("name", WITH_NODES)
def test_nodes_share_a_board(name):
    board = load_board(name)
    memory = board.memory[0]
    whole = board.device_spec()
    counts = Counter()
    for count, ends, found in shared(name):
        counts[count] += 1
        nodes = found.nodes
        assert [node.number for node in nodes] == list(range(count))
        assert nodes[0].spec == whole if count == 1 else True
        for die in whole.dies:
            own = [node.spec for node in nodes if node.die == die.name]
            for resource in RESOURCES:
                assert sum(getattr(each, resource) for each in own) <= getattr(die, resource)
        channels = [each for node in nodes for each in node.channels]
        assert len(channels) == len(set(channels))
        assert not channels or max(channels) < memory.count
        sizes = [len(node.channels) for node in nodes]
        assert sizes == sorted(sizes)
        assert sizes[-1] - sizes[0] in (0, 4)
        for node in nodes if count > 1 else ():
            assert node.spec.memory_bytes == len(node.channels) * memory.size_bytes
            # Each port of the core drives one channel's worth of rate.
            num_ports = node.spec.memory_ports
            assert node.spec.memory_bytes_per_s == num_ports * memory.rate_bytes_per_s
            assert len(node.channels) % num_ports == 0  # half of them behind each
            assert len(node.channels) < 4 or node.channels[0] % 4 == 0
        if count > 1:
            assert nodes[0].ports[:1] == tuple(ends.get(key) for key in ("enters",) if key in ends)
            assert nodes[-1].ports[-1:] == tuple(ends[key] for key in ("leaves",) if key in ends)
            assert [node.die for node in nodes if node.ports].count(None) == 0
    assert min(counts) == 1
    assert max(counts) >= 6


@pytest.mark.parametrize(
    ("count", "channels"),
    [(2, [16, 16]), (3, [8, 12, 12]), (4, [8] * 4), (5, [4, 4, 8, 8, 8]), (8, [4] * 8)],
)
def test_channels_are_shared_by_whole_switches(count, channels):
    nodes = nodes_of(load_board("u280"), count).nodes
    assert [len(node.channels) for node in nodes] == channels
    each = load_board("u280").memory[0].size_bytes
    assert [node.spec.memory_bytes for node in nodes] == [number * each for number in channels]


@pytest.mark.parametrize("name", WITH_NODES)
def test_wires_of_boundaries_are_counted(name):
    board = load_board(name)
    names = [die.name for die in board.fabric.dies]
    memory = names.index(board.packaging.vitis.memory_die)
    home = names.index(board.links[0].die)
    for count, _, found in shared(name):
        if count == 1:
            continue
        places = [names.index(node.die) for node in found.nodes]
        num_ports = found.nodes[0].spec.memory_ports
        wires = Counter()
        for one, other, each in (
            *((place, memory, num_ports * AXI_WIRES) for place in places),
            *((*pair, ON_CHIP_WIRES) for pair in pairwise(places)),
            *((names.index(node.die), home, PORT_WIRES) for node in found.nodes if node.ports),
        ):
            for boundary in range(min(one, other), max(one, other)):
                wires[boundary] += each
        assert list(found.boundary_wires) == [wires[at] for at in range(len(names) - 1)]
        assert max(wires.values()) <= MOST_BOUNDARY_WIRES
        for node in found.nodes:
            # A register for each wire on either side of a boundary; nodes of a die share the rest.
            place, ff = names.index(node.die), board.device_spec().dies[names.index(node.die)].ff
            left = ff - wires[place - 1] - wires[place]
            assert node.spec.ff == left // places.count(place)
        clk_hz = board.clock.clk_target_hz
        latencies = [link.latency_s * clk_hz for link in found.links(5)]
        expected = [crossing_cycles(abs(one - other)) for one, other in pairwise(places)]
        assert latencies == pytest.approx(expected)
        assert [(link.source, link.destination) for link in found.links(5)] == [
            (5 + at, 6 + at) for at in range(count - 1)
        ]


@pytest.mark.parametrize("name", WITH_NODES)
def test_nodes_have_two_memory_ports_while_wires_allow(name):
    counts = {1: [], 2: []}
    for count, ends, found in shared(name):
        if count > 1 and not ends:
            (num_ports,) = {node.spec.memory_ports for node in found.nodes}
            counts[num_ports].append(count)
    assert min(counts[2]) == 2
    assert max(counts[2]) < min(counts[1])
    assert max(counts[2]) >= 3


def test_a_link_port_may_be_of_a_node_on_another_die():
    """Three nodes have a die each, though both ports lie at one: packets take longer, not less."""
    board = load_board("u280")
    cluster = chain_of(board, 3, 3)
    middle = [node.die for node in cluster.nodes[3:6]]
    assert sorted(middle) == ["SLR0", "SLR1", "SLR2"]
    # The die with fewest LUTs has no link to another board.
    assert middle[1] == min(cluster.nodes[3:6], key=lambda node: node.spec.lut).die == "SLR2"
    (group,) = board.links
    names = [die.name for die in board.fabric.dies]
    for link in (link for link in cluster.links if link.protocol != ON_CHIP):
        added = 0
        for place, port in (
            (link.source, link.source_port),
            (link.destination, link.destination_port),
        ):
            assert port in cluster.nodes[place].ports
            away = abs(names.index(cluster.nodes[place].die) - names.index(group.die))
            added += crossing_cycles(away) if away else 0
        assert added > 0
        assert link.latency_s == pytest.approx(
            group.latency_s + added / board.clock.clk_target_hz, rel=1e-12
        )
        assert link.payload_bytes_per_s == group.spec().payload_bytes_per_s


def test_a_chain_passes_through_boards_and_nodes():
    cluster = chain_of(load_board("u280"), 3, 4)
    assert cluster.name == "u280-x3-n4"
    assert cluster.device_names[:5] == (
        *(f"u280-0.{node}" for node in range(4)),
        "u280-1.0",
    )
    joined = {(link.source, link.destination): link for link in cluster.links}
    assert sorted(joined) == list(pairwise(range(12)))
    for pair, link in joined.items():
        assert (link.protocol == ON_CHIP) == (pair[0] // 4 == pair[1] // 4)
    assert len({id(spec) for spec in cluster.spec.devices}) == 12


def test_boards_of_one_node_are_as_before():
    cluster = chain_of(load_board("u280"), 2)
    assert cluster.name == "u280-x2"
    assert cluster.device_names == ("u280-0", "u280-1")
    assert cluster.spec.devices == (load_board("u280").device_spec(),) * 2


@pytest.mark.parametrize(
    ("name", "count", "ends", "words"),
    [
        ("zcu102", 2, {}, "only where a Vitis platform"),
        ("ulx3s", 3, {}, "leave out --nodes"),
        ("u280", 0, {}, "1..31 nodes (memory ports), not 0"),
        ("u280", 32, {}, "1..31 nodes"),
        ("u280", 16, {}, "wires would cross the boundary of two dies, 8,000 may"),
    ],
)
def test_refuses(name, count, ends, words):
    with pytest.raises(UserError) as caught:
        nodes_of(load_board(name), count, **ends)
    assert words in str(caught.value)


def test_every_board_has_one_node():
    for name in board_names():
        (node,) = nodes_of(load_board(name), 1).nodes
        assert node.spec == load_board(name).device_spec()


def cluster_file(path, devices, topology="chain", links=()):
    values = {"format": 1, "name": "mixed", "devices": devices, "topology": topology}
    path.write_text(json.dumps(values | ({"links": list(links)} if links else {})))
    return load_cluster(path)


def test_a_cluster_file_has_nodes(tmp_path):
    devices = [{"name": "a", "board": "u280", "nodes": 3}, {"name": "b", "board": "u50"}]
    cluster = cluster_file(tmp_path / "c.yaml", devices)
    assert cluster.device_names == ("a.0", "a.1", "a.2", "b")
    assert [board.name for board in cluster.boards] == ["u280"] * 3 + ["u50"]
    assert cluster.links[-1].source == 2
    assert cluster.links[-1].destination == 3


def test_a_board_with_nodes_has_two_neighbours_at_most(tmp_path):
    devices = [{"name": name, "board": "u280", "nodes": 1 + (name == "a")} for name in "abc"]
    links = [{"from": "a", "to": "b"}, {"from": "a", "to": "c"}]
    with pytest.raises(UserError, match="board a has 2 nodes, and data may come from one board"):
        cluster_file(tmp_path / "c.yaml", devices, "links", links)


def other_port(**changes):
    """A U280 with a port of another group, besides one of its own."""
    board = load_board("u280")
    group = board.links[0]
    other = group.model_copy(update={"name": "other", **changes})
    return board.model_copy(update={"links": [group, other]})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"die": None}, "its file says not at which die that lies; give the key 'die'"),
    ],
)
def test_ports_have_a_die(changes, words):
    with pytest.raises(UserError, match=words):
        nodes_of(other_port(**changes), 4, enters="qsfp/0", leaves="other/0")


def test_ports_may_lie_at_two_dies():
    """Data come and leave at dies that lie apart: nothing passes a boundary twice."""
    found = nodes_of(other_port(die="SLR0"), 5, enters="qsfp/0", leaves="other/0")
    assert [node.die for node in found.nodes] == ["SLR2", "SLR1", "SLR1", "SLR0", "SLR0"]
    assert found.boundary_wires == (3 * AXI_WIRES + ON_CHIP_WIRES, AXI_WIRES + ON_CHIP_WIRES)


def test_which_packages_take_boards_with_nodes(monkeypatch):
    cluster = chain_of(load_board("u280"), 2, 2)
    check_boards(cluster, "vitis")
    alone = dataclasses.replace(FLOWS["vitis"], has_nodes=False)
    monkeypatch.setattr(targets, "FLOWS", {"alone": alone})
    with pytest.raises(UserError, match=r"u280-0\.0 cannot .* one core a board; build with one"):
        check_boards(cluster, "alone")
    check_boards(chain_of(load_board("u280"), 2), "alone")


def test_nodes_of_a_cluster_file_have_addresses(tmp_path):
    """All of a board have its address, with their numbers; a board of one may be any of them."""
    (tmp_path / "lab.yaml").write_text("""\
format: 1
name: lab
devices:
  - {name: a, board: u280, nodes: 3, address: {device: "0", bitstream: x.xclbin}}
  - {name: b, board: u280, address: {device: "1", node: 2}}
topology: chain
""")
    found = load_cluster(tmp_path / "lab.yaml")
    assert found.device_names == ("a.0", "a.1", "a.2", "b")
    assert [(each.device, each.node) for each in found.addresses] == [
        ("0", 0), ("0", 1), ("0", 2), ("1", 2),
    ]  # fmt: skip
    text = (tmp_path / "lab.yaml").read_text().replace("bitstream", "node: 1, bitstream")
    (tmp_path / "lab.yaml").write_text(text)
    with pytest.raises(FileError, match="node: must be left out where 'nodes' is"):
        load_cluster(tmp_path / "lab.yaml")


def test_a_transport_to_one_core_a_board_refuses_others(tmp_path):
    with pytest.raises(UserError, match=r"a\.1 is core 1 of its board, and --backend xdma reaches"):
        open_device("xdma", "a.1", Address(node=1), load_board("u280"), tmp_path)
