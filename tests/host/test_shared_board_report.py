"""The report of a build whose cores share boards: each die's limits, and boards in the picture."""

import re

import pytest

import fpgapipe
from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.host.build.build import open_build


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A build of digits-cnn on a U280 with three nodes."""
    made = tmp_path_factory.mktemp("shared") / "build"
    cluster = chain_of(load_board("u280"), 1, 3)
    options = {"array": (4, 4), "batch": 16, "micro_batches": 4}
    fpgapipe.build("digits-cnn", cluster, made, hardware=False, verify=False, **options)
    return made


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
