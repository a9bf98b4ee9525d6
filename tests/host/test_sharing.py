"""How many nodes a board gets where the user leaves that open: what is planned, and what not."""

import copy
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

import fpgapipe
from fpgapipe.boards.cluster import chain_of, ways_to_share
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.make import build as build_module
from fpgapipe.host.make import plan as plan_module
from fpgapipe.host.make import planning
from fpgapipe.host.make.networks import loader
from fpgapipe.host.make.planning import LEFT_OUT
from fpgapipe.partition.explore import sharing
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.explore.sharing import fastest_sharing, ways_told


def searched(monkeypatch, ideals, rates, too_large=()):
    """Numbers of nodes of a U280 that are planned, in their order, and which is taken.

    Parameters
    ----------
    ideals, rates : list
        For each number, samples a second if no node waited, and those of its plan; a plan that is
        None does not fit.
    too_large : sequence of int
        Numbers of nodes with plans whose programs do not fit.
    """
    asked = []

    def planned_on(cluster):
        at = len(cluster.device_names) - 1
        asked.append(at + 1)
        if rates[at] is None:
            raise UserError(f"{at + 1} nodes do not fit")
        fits = at + 1 not in too_large
        return SimpleNamespace(sure_per_s=rates[at], nodes=at + 1, fits=fits)

    monkeypatch.setattr(
        sharing, "_ideal_per_s", lambda cluster, _: ideals[len(cluster.device_names) - 1]
    )
    found, ways = fastest_sharing(
        ways_to_share(load_board("u280"), 1), 3, lambda cluster: cluster, planned_on
    )
    assert [way.nodes for way in ways] == list(range(1, 9))
    assert {way.nodes: way.planned_per_s for way in ways if way.planned_per_s} == {
        nodes: rates[nodes - 1] for nodes in asked if rates[nodes - 1]
    }
    return asked, found.nodes, ways_told(ways)


IDEALS = [10, 20, 30, 40, 50, 60, 70, 80]


EVEN = [25, 28, 30, 29, 28, 27, 26, 25]


@pytest.mark.parametrize(
    ("ideals", "rates", "asked", "taken"),
    [
        (IDEALS, [9, 18, 27, 26, 99, 0, 0, 0], [3, 4], 3),
        (IDEALS, [9, 18, 19, 18, 99, 0, 0, 0], [3, 4, 2], 3),
        (IDEALS, [9, 18, 27, 30, 35, 34, 99, 0], [3, 4, 5, 6], 5),
        (EVEN, [24, 27, 26, 99, 0, 0, 0, 0], [3, 2], 2),
        ([29, *EVEN[1:]], [27.8, 27.5, 26, 99, 0, 0, 0, 0], [3, 2, 1], 1),
        (EVEN, [1, 2, 29, 99, 0, 0, 0, 0], [3], 3),
        (IDEALS, [9, 18, None, 26, 20, 0, 0, 0], [3, 4, 5], 4),
        (EVEN, [9, 18, *[None] * 6], [3, 4, 5, 6, 7, 8, 2, 1], 2),
    ],
)
def test_the_search_goes_on_until_it_is_slower(ideals, rates, asked, taken, monkeypatch):
    """From a node a die to more, then to fewer; what cannot be faster by formulas is left out."""
    found = searched(monkeypatch, ideals, rates)
    assert found[:2] == (asked, taken)
    assert f"nodes a board: {taken}, the fastest" in found[2]


@pytest.mark.parametrize(
    ("rates", "too_large", "asked", "taken"),
    [
        ([9, 18, 27, 99, 0, 0, 0, 0], [3], [3, 2], 2),
        ([9, 18, 27, 99, 0, 0, 0, 0], [3, 2], [3, 2, 1], 1),
        ([9, 18, 27, 99, 0, 0, 0, 0], [3, 2, 1], [3, 2, 1], 3),
        ([9, 18, 19, 99, 0, 0, 0, 0], [4], [3, 4, 2], 3),
    ],
)
def test_programs_that_do_not_fit(rates, too_large, asked, taken, monkeypatch):
    """A slower plan that can be built is better; more nodes have less memory each."""
    found = searched(monkeypatch, IDEALS, rates, too_large)
    assert found[:2] == (asked, taken)
    assert f"{too_large[0]}: {rates[too_large[0] - 1]:.1f}, too large" in found[2]


def test_no_number_of_nodes_fits(monkeypatch):
    with pytest.raises(UserError, match="3 nodes do not fit"):
        searched(monkeypatch, IDEALS, [None] * 8)


def test_ways_to_share_boards():
    """As many as the wires of die boundaries allow; a board without a platform has one node."""
    ways = ways_to_share(load_board("u280"), 1)
    assert [len(way.device_names) for way in ways] == list(range(1, 9))
    pairs = ways_to_share(load_board("u55c"), 2)
    assert [len(way.device_names) for way in pairs] == list(range(2, 2 * len(pairs) + 1, 2))
    assert len(ways_to_share(load_board("kv260"), 1)) == 1


@pytest.fixture
def small(monkeypatch):
    """Plans of boards, whose command has no option for it, with arrays of 8 x 8 cells."""
    plan = plan_module.plan
    monkeypatch.setattr(
        plan_module, "plan", lambda *given, **options: plan(*given, **options | {"array": (8, 8)})
    )


@pytest.mark.usefixtures("small")
def test_a_board_alone_is_shared(cli):
    """Where a board is all that is said of the machine; one node a die is among what is planned."""
    given = ("plan", "digits-cnn", "--board", "u50", "--batch", 4, "--micro-batches", 2)
    code, out, err = cli(*given, "--schedule", "gpipe", "--json")
    assert code == 0, err
    found = json.loads(out)
    ways = {each["nodes"]: each["planned_per_s"] for each in found["nodes_of_a_board"]}
    best = max(ways, key=lambda nodes: ways[nodes] or 0)
    assert ways[2] is not None  # one a die
    assert len({node["device"] for stage in found["stages"] for node in stage["nodes"]}) <= best


def test_formulas_are_not_taken_for_programs(monkeypatch):
    """An estimate of one number of nodes is no reason to leave programs of another one."""
    programs = {1: 20.0, 2: 30.0, 3: 32.0}
    plans = {}

    def planned(network, cluster, **options):
        nodes = len(cluster.device_names)
        found = plans[nodes] = copy.copy(known)
        seconds = 8 / programs.get(nodes, 40.0)
        predicted = known.plan.predicted.model_copy(
            update={"minibatch_s": seconds, "level": "machine" if nodes in programs else "estimate"}
        )
        object.__setattr__(found, "plan", known.plan.model_copy(update={"predicted": predicted}))
        return found

    one = chain_of(load_board("u280"), 1)
    known = fpgapipe.plan("digits-cnn", one, batch=8, micro_batches=1, schedule="gpipe")
    monkeypatch.setattr(sharing, "_ideal_per_s", lambda request, _: 100.0 + len(
        request.cluster.device_names
    ))  # fmt: skip
    monkeypatch.setattr(plan_module, "plan", planned)
    found = fpgapipe.plan_board("digits-cnn", load_board("u280"), batch=8)
    assert found.plan == plans[3].plan  # 40 samples/s of four nodes are by formulas
    assert 4 in plans
    found_per_s = [way.planned_per_s for way in found.ways if way.planned_per_s]
    assert found_per_s == pytest.approx([30.0, 32.0, 40.0 / LEFT_OUT])


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, ("pipeline", "data", "replicas")),
        ({"schedule": "zb-h1"}, ("pipeline",)),
        ({"free_order": True}, ("pipeline",)),
        ({"strategy": "data"}, ("data",)),
    ],
)
def test_the_nodes_of_a_board_may_share_the_samples(options, asked, monkeypatch):
    """The faster one of a pipeline and data parallelism, where nobody asks for either."""
    one = chain_of(load_board("u50"), 1)
    known = fpgapipe.plan("digits-cnn", one, batch=8, micro_batches=1, schedule="gpipe")
    names = set()

    def planned(network, cluster, *, strategy, **others):
        names.add(strategy)
        return known

    monkeypatch.setattr(plan_module, "plan", planned)
    fpgapipe.plan_board("digits-cnn", load_board("u50"), batch=8, **options)
    assert names == {asked}


def test_of_several_strategies_the_fastest_is_taken(monkeypatch):
    cluster = chain_of(load_board("u50"), 2)
    known = fpgapipe.plan("digits-cnn", cluster, batch=8, micro_batches=2, schedule="gpipe")
    seconds = {"pipeline": 2.0, "data": 1.0}

    def by(request, network, strategy, progress, *, smallest):
        if strategy not in seconds:
            raise UserError("not this one")
        predicted = known.plan.predicted.model_copy(update={"minibatch_s": seconds[strategy]})
        plan = known.plan.model_copy(update={"predicted": predicted})
        return planning.Chosen(
            strategy, plan, known.timeline, pipeline=replace(known.found, plan=plan)
        )

    monkeypatch.setattr(planning, "plan_by", by)
    asked = ("pipeline", "layerwise", "data", "hybrid")  # hybrid takes three devices
    found = fpgapipe.plan("digits-cnn", cluster, batch=8, strategy=asked)
    assert found.plan.predicted.minibatch_s == 1.0
    assert found.refused == ("layerwise: not this one",)
    alone = fpgapipe.plan("digits-cnn", chain_of(load_board("u50"), 1), batch=8, strategy="auto")
    assert alone.plan.predicted.minibatch_s == 2.0
    with pytest.raises(UserError, match="at least one strategy"):
        fpgapipe.plan("digits-cnn", cluster, strategy=())
    for name in ("auto", "merge"):
        with pytest.raises(UserError, match=f"{name} goes with no other"):
            fpgapipe.plan("digits-cnn", cluster, strategy=("pipeline", name))
    with pytest.raises(UserError, match="not this one"):
        fpgapipe.plan("digits-cnn", cluster, strategy=("layerwise", "hybrid"))


@pytest.mark.usefixtures("small")
def test_nodes_that_cannot_share_the_samples(cli):
    given = ("plan", "digits-cnn", "--board", "u50", "--batch", 4, "--micro-batches", 1)
    code, out, err = cli(*given)
    assert code == 0, err
    reason = "data: a batch of 4 samples cannot be shared equally by 3 devices"
    assert f"not possible, {reason}" in out


def test_what_a_node_does_alone_needs_no_room_for_the_rest():
    """A network that no node holds alone still has an ideal rate on several."""
    (_, two, *_) = ways_to_share(load_board("u280"), 1)
    request = Request(loader("digits-cnn"), 4, two.spec)
    rates = {}
    alone = sharing._ideal_per_s(request, rates)
    assert alone == pytest.approx(sum(rates[device] for device in two.spec.devices))
    assert alone > 0


BUILT = (
    *("build", "--board", "u50", "--nodes", "auto", "--array", "8x8", "--batch", 4),
    *("--no-hardware", "--no-verify"),
)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (("--strategy", "data"), "data-parallel"),
        (("--schedule", "gpipe"), "gpipe"),
    ],
)
def test_a_build_takes_the_fastest_number_of_nodes(options, kind, cli, tmp_path):
    """It is the one that `plan` finds, which is said at the end."""
    folder = tmp_path / "build"
    code, out, err = cli(*BUILT, *options, "--micro-batches", 2, "-o", folder)
    assert code == 0, err
    nodes = int(re.search(r"nodes a board: (\d+), the fastest", out)[1])
    build = fpgapipe.open_build(folder)
    assert build.plan.kind == kind
    assert len(build.plan.nodes) == nodes
    assert nodes > 1


def test_the_fastest_of_all_strategies_may_be_a_pipeline(monkeypatch, tmp_path):
    """Its schedule is not asked for then, since other strategies have none."""
    monkeypatch.setattr(
        build_module,
        "plan_board",
        lambda *given, **options: fpgapipe.plan_board(
            *given, **options | {"strategy": "pipeline", "schedule": "zb-h1"}
        ),
    )
    built = fpgapipe.build_board(
        *("digits-cnn", load_board("u50"), 1, tmp_path / "build"),
        **{"batch": 4, "micro_batches": 2, "strategy": "auto", "array": (8, 8)},
        **{"hardware": False, "verify": False},
    )
    assert len(built.build.plan.nodes) > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--board", "u50", "--nodes", "auto", "--mode", "infer"), "say how many --nodes"),
        (("--nodes", "auto"), "--nodes auto needs --board"),
        (("--cluster", "boards.yaml", "--nodes", "auto"), "--nodes auto needs --board"),
        (("--board", "kv260", "--nodes", "auto", "--package", "vitis"), "kv260"),
        (("--board", "u50", "--nodes", "many"), "Invalid value for '--nodes'"),
        (("--board", "u50", "--nodes", "0"), "Invalid value for '--nodes'"),
        (("--board", "u50", "--nodes", "9" * 500), "500 characters is too long"),
    ],
)
def test_builds_for_a_number_of_nodes_that_is_not_searched(words, message, cli):
    code, _, err = cli("build", *words)
    assert code != 0
    assert message in err
