"""The report of a build whose cores share boards: each die's limits, and boards in the picture."""

import re

import pytest

import fpgapipe
from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.host.build.build import open_build


def shared(made, *boards_and_nodes):
    """A build of digits-cnn on U280s with several nodes."""
    cluster = chain_of(load_board("u280"), *boards_and_nodes)
    options = {"array": (4, 4), "batch": 16, "micro_batches": 4}
    fpgapipe.build("digits-cnn", cluster, made, hardware=False, verify=False, **options)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A build on one U280 with three nodes."""
    return shared(tmp_path_factory.mktemp("shared") / "build", 1, 3)


def test_each_node_has_the_limits_of_its_die(folder):
    build = open_build(folder)
    dies = [node.spec.dies[0] for node in chain_of(load_board("u280"), 1, 3).nodes]
    found = [each["dies"] for each in build.resources]
    assert [(each["die"], each["limits"]["lut"]) for (each,) in found] == [
        (die.name, die.lut) for die in dies
    ]
    assert len({die.lut for die in dies}) == 3


def test_boards_are_drawn_around_their_nodes(folder):
    fpgapipe.report(folder)
    page = (folder / "run" / "report.html").read_text()
    assert page.count('class="board"') == 1
    for number in range(3):
        assert re.search(rf"u280-0\.{number}: 4x4 array on u280, SLR\d", page)
        assert f">u280, SLR{number}, 300 MHz<" in page


def test_wires_say_which_dies_they_pass(tmp_path):
    """The dies between two nodes, and between a node and its link port, which lies at SLR2."""
    cluster = chain_of(load_board("u280"), 2, 2)
    fpgapipe.report(shared(tmp_path / "build", 2, 2))
    page = (tmp_path / "build" / "run" / "report.html").read_text()
    assert "registers from SLR1 to SLR0" in page
    for place, port in ((1, "qsfp/0"), (2, "qsfp/0")):
        node = cluster.nodes[place]
        assert node.ports == (port,)
        words = f"registers from {cluster.device_names[place]} on {node.die} to {port} at SLR2"
        assert words in page
