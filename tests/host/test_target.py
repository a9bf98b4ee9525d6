"""``fpgapipe explore --target``: how many boards reach a rate, and what binds."""

import dataclasses
import itertools
import json

import pytest

import fpgapipe
from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.make import target as module
from fpgapipe.host.make.target import explore_target


@pytest.fixture(scope="module")
def known():
    """A plan of one board."""
    board = load_board("u50")
    return fpgapipe.plan_board("digits-cnn", board, batch=8, micro_batches=1, nodes=1)


@pytest.fixture
def rated(monkeypatch, known):
    """Gives numbers of boards the rates that a test names, and notes what was asked for."""

    def give(rate_of):
        asked = []

        def planned(network, board, boards, *, batch, nodes, progress):
            asked.append((boards, nodes))
            per_s = rate_of(boards)
            if isinstance(per_s, BaseException):
                raise per_s
            update = {"minibatch_s": known.plan.batch / per_s, "samples_per_s": per_s}
            predicted = known.plan.predicted.model_copy(update=update)
            plan = known.plan.model_copy(update={"predicted": predicted})
            cluster = chain_of(board, boards, nodes or 2).spec
            return dataclasses.replace(known, plan=plan, cluster=cluster)

        monkeypatch.setattr(module, "plan_board", planned)
        monkeypatch.setattr(module, "_binds", lambda found: "what binds: nothing")
        return asked

    return give


@pytest.mark.parametrize("target", [1, 10, 11, 30, 31, 57, 70, 130])
def test_the_fewest_boards_are_found(target, rated):
    """Ten samples a second a board: each number, and none that was planned twice."""
    asked = rated(lambda boards: 10.0 * boards)
    found = explore_target("digits-cnn", load_board("u280"), target, batch=8)
    assert found.is_reached
    assert found.best.boards == -(-target // 10)
    boards = [each for each, _ in asked]
    assert len(boards) == len(set(boards))
    # The first number of boards says how many nodes each has.
    assert [nodes for _, nodes in asked] == [None] + [2] * (len(asked) - 1)
    assert f"{target} samples/s take " in found.sentence
    if found.best.boards > 1:
        assert f"do {10 * found.best.boards - 10:.1f}" in found.sentence
    assert found.to_dict()["boards"] == found.best.boards


def test_more_boards_that_are_no_faster_end_the_search(rated):
    asked = rated(lambda boards: min(10.0 * boards, 25.0))
    found = explore_target("digits-cnn", load_board("u280"), 100, batch=8)
    assert not found.is_reached
    assert [boards for boards, _ in asked] == [1, 2, 4, 8]
    assert found.best.boards == 4
    assert found.to_dict()["boards"] is None
    assert "100 samples/s are not reached: 4 boards with 2 nodes each do 25.0" in found.sentence
    assert "8 boards do 25.0" in found.sentence


def test_boards_that_cannot_be_cabled_end_it_and_small_ones_are_passed(rated):
    rates = {1: UserError("too small"), 2: 20.0, 4: UserError("no more ports")}
    found_for = rated(rates.__getitem__)
    found = explore_target("digits-cnn", load_board("u280"), 100, batch=8)
    assert [boards for boards, _ in found_for] == [1, 2, 4]
    assert found.refused == ((1, "too small"), (4, "no more ports"))
    assert "there is no plan for more" in found.sentence
    assert "left out: 4 boards: no more ports" in str(found)


def test_large_rates_are_written_in_full(rated):
    rated(lambda boards: 10.0)
    found = explore_target("digits-cnn", load_board("u280"), 90e6, batch=8)
    assert "90,000,000 samples/s are not reached" in str(found)


def test_nothing_fits(rated):
    rated(lambda boards: UserError("too small"))
    with pytest.raises(UserError, match=r"^too small$"):
        explore_target("digits-cnn", load_board("u280"), 100, batch=8, nodes=31)


@pytest.mark.parametrize(
    ("ended_at", "words"),
    [(2, "30 samples/s were not reached so far: 2 boards"), (3, "fewer may do, too")],
)
def test_what_was_found_is_kept_when_the_user_ends_it(ended_at, words, rated):
    calls = itertools.count()
    rated(lambda at: KeyboardInterrupt() if next(calls) == ended_at else 10.0 * at)
    found = explore_target("digits-cnn", load_board("u280"), 30, batch=8)
    assert len(found.tried) == ended_at
    assert not found.is_whole
    assert words in found.sentence
    assert "ended before all was tried" in str(found)


def test_ended_before_anything_was_found(rated):
    rated(lambda at: KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        explore_target("digits-cnn", load_board("u280"), 30, batch=8)


def test_by_programs(cli, known):
    """The rate is that of the plan that 'plan' gives, and the cycles say what binds."""
    target = round(known.samples_per_s / 2)
    given = ("explore", "digits-cnn", "--board", "u50", "--batch", 8, "--target", target)
    code, out, err = cli(*given, "--nodes", 1, "--json")
    assert code == 0, err
    value = json.loads(out)
    code, out, err = cli(
        "plan", "digits-cnn", "--board", "u50", "--nodes", 1, "--batch", 8, "--json"
    )
    assert code == 0, err
    (one,) = value["tried"]
    assert one["level"] == "machine"
    assert one["samples_per_s"] == json.loads(out)["predicted"]["samples_per_s"]
    assert value["boards"] == 1
    assert value["binds"].startswith("what binds: u50-0, the busiest node, whose array: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "0"), "0"),
        (("--target", "nan"), "'nan' is no number"),
        (("--target", "inf"), "inf"),
        (("--target", "many"), "'many' is not a valid float"),
        (("--target", "5", "--devices", "2"), "--target finds the number of boards: leave out --d"),
        (
            ("--target", "5", "--plot", "a.svg"),
            "--target finds the number of boards: leave out --p",
        ),
        (("--target", "5", "--nodes", "1,2"), "--target takes one number of --nodes, not 2"),
        (("--target", "5", "--nodes", "31"), "u50 with 31 nodes is not possible"),
    ],
)
def test_what_is_refused(arguments, message, cli):
    code, out, err = cli("explore", "digits-cnn", "--board", "u50", "--batch", 8, *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("target", [0, -1.0, float("nan"), float("inf"), 1e10])
def test_rates_out_of_range(target):
    with pytest.raises(UserError, match="the rate must be above 0 and at most 1,000,000,000"):
        explore_target("digits-cnn", load_board("u50"), target)
