"""``fpgapipe explore``: what choices of cores give and take, and which of them no other beats."""

import itertools
import json
import xml.etree.ElementTree as ET

import pytest

import fpgapipe
from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.build.build_hardware import on_board
from fpgapipe.host.make import explore as module
from fpgapipe.host.make.explore import AREAS, explore_board
from fpgapipe.host.make.networks import loader
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.request import Request


@pytest.fixture(scope="module")
def found():
    return explore_board("digits-cnn", load_board("u50"), batch=8)


def test_the_front_is_what_nothing_beats(found):
    """By comparing all pairs: as fast or faster, with as little of everything or less."""
    keys = [
        (-each.samples_per_s, *(getattr(each, name) for name in AREAS)) for each in found.choices
    ]
    assert keys == sorted(keys)

    def beaten(key):
        return any(
            other != key and all(a <= b for a, b in zip(other, key, strict=True)) for other in keys
        )

    front = {key for key in keys if not beaten(key)}
    marked = [key for key, each in zip(keys, found.choices, strict=True) if each.on_front]
    assert set(marked) == front
    assert len(marked) == len(front)  # one of equal ones
    assert {each.nodes for each in found.choices} == {1, 2}


def test_the_fastest_is_that_of_the_planner(found):
    load = loader("digits-cnn")
    clusters = [chain_of(load_board("u50"), 1, nodes).spec for nodes in (1, 2)]
    bests = [explore(Request(load, 8, cluster)).best for cluster in clusters]
    best = min(bests, key=lambda each: each.steady_s)
    first = found.choices[0]
    assert first.samples_per_s == 8 / best.steady_s
    assert first.micro_batches == best.num_microbatches
    assert first.schedule == best.kind
    assert f"{first.samples_per_s:,.1f} samples/s" in found.sentence


def test_what_a_core_takes_is_what_a_build_says(cli, tmp_path):
    """A plan of one core, with the cells and the scratchpad that a choice has."""
    found = explore_board("digits-cnn", load_board("u50"), batch=8, nodes=[1])
    first = found.choices[0]
    assert "," not in first.cores
    arguments = ("--array", first.cores, "--batch", 8, "--devices", 1, "--json")
    code, out, err = cli("plan", "digits-cnn", "--board", "u50", *arguments)
    assert code == 0, err
    plan = fpgapipe.Plan.model_validate_json(_plan_of(out))
    core = plan.nodes[0].core
    device = chain_of(load_board("u50"), 1).spec.devices[0]
    same = [each for each in found.choices if each.scratchpad_bytes == core.scratchpad.size_bytes]
    used = on_board(core, device)["used"]
    assert any(used == {name: getattr(each, name) for name in used} for each in same)
    assert core.vector.lanes == first.lanes


def _plan_of(text):
    """The plan of what ``plan --json`` prints."""
    value = json.loads(text)
    known = fpgapipe.Plan.model_fields
    return json.dumps({key: each for key, each in value.items() if key in known})


def test_the_command(cli, tmp_path, found):
    given = ("explore", "digits-cnn", "--board", "u50", "--batch", 8)
    picture, page = tmp_path / "front.svg", tmp_path / "front.html"
    code, out, err = cli(*given, "--plot", picture, "--plot", page)
    assert code == 0, err
    assert "what no other choice of" in out
    assert found.sentence in out
    root = ET.fromstring(picture.read_text())
    circles = [each for each in root.iter() if each.tag.endswith("circle")]
    assert len(circles) == len(found.choices) + 2  # and a key of the numbers of nodes
    filled = [each for each in circles if each.get("fill") != "none"]
    assert len(filled) == len(found.front) + 2
    assert "<svg" in page.read_text()
    code, out, err = cli(*given, "--nodes", "2", "--json")
    assert code == 0, err
    value = json.loads(out)
    assert {each["nodes"] for each in value["choices"]} == {2}
    assert value["is_whole"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nodes", "two"), "--nodes must be numbers such as 2,4,8, not 'two'"),
        (("--nodes", "0"), "--nodes must be in 1..31, not 0"),
        (("--nodes", "31"), "u50 with 31 nodes is not possible: "),
        (("--plot", "front.png"), "--plot must name an .svg or .html file, not front.png"),
    ],
)
def test_what_is_refused(arguments, message, cli):
    code, out, err = cli("explore", "digits-cnn", "--board", "u50", "--batch", 8, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")


def test_boards_of_one_node(cli):
    code, _, err = cli("explore", "digits-cnn", "--board", "kv260", "--nodes", "1,2", "--batch", 8)
    assert code == 2
    assert "kv260 with 2 nodes is not possible" in err


def test_what_was_found_is_kept_when_the_user_ends_it(monkeypatch):
    calls = itertools.count()
    choices = module._choices

    def ended(*arguments):
        if next(calls):
            raise KeyboardInterrupt
        return choices(*arguments)

    monkeypatch.setattr(module, "_choices", ended)
    found = explore_board("digits-cnn", load_board("u50"), batch=8)
    assert not found.is_whole
    assert {each.nodes for each in found.choices} == {1}
    assert "ended before all was tried" in str(found)


def test_nothing_fits():
    with pytest.raises(UserError, match="1 node of each board: "):
        explore_board("vgg16", load_board("pynq-z2"), batch=2)
