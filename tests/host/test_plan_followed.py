"""A plan is followed from the command line to the written folder."""

import sys
from collections import Counter
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

from fpgapipe.host.make import build as making
from fpgapipe.partition.explore.candidate import Candidate
from fpgapipe.partition.plan import Plan

ROOT = Path(__file__).parents[2]
FOLDERS = ("boards", "host", "lowering", "partition", "sim_tb")


@cache
def room_of(file: str) -> str | None:
    """The room of a file's functions; a plan's own methods, and other packages, are in none."""
    path = Path(file).resolve()
    room = path.relative_to(ROOT).parent.as_posix() if path.is_relative_to(ROOT) else ""
    return room if "/" in room and room.startswith(FOLDERS) else None


class Followed:
    """Functions that are handed a plan, from the end of the search on."""

    def __init__(self):
        self.rooms, self.plans, self.candidates = [], [], []

    def __call__(self, frame, event, argument):
        if event != "call" or not (room := room_of(frame.f_code.co_filename)):
            return
        code, values = frame.f_code, frame.f_locals
        given = [values.get(each) for each in code.co_varnames[: code.co_argcount]]
        self.candidates += [code.co_name for each in given if type(each) is Candidate]
        plans = [each for each in given if type(each) is Plan]
        if plans:
            self.rooms.append(room)
            self.plans += plans


@pytest.mark.parametrize(
    ("strategy", "devices", "micro_batches"),
    [("pipeline", 2, 2), ("data", 2, 2), ("layerwise", 2, 1), ("hybrid", 3, 2), ("replicas", 4, 2)],
)
def test_a_plan_stays_what_it_is(strategy, devices, micro_batches, cli, monkeypatch, tmp_path):
    """Its type changes once, from a candidate of the search, and no room is entered thrice."""
    followed, search, write = Followed(), making.fastest_of, making.write_build

    def found(*given, **options):
        chosen = search(*given, **options)
        sys.setprofile(followed)
        return chosen

    def written(*given, **options):
        try:
            return write(*given, **options)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(making, "fastest_of", found)
    monkeypatch.setattr(making, "write_build", written)
    given = ("--devices", devices, "--batch", 4, "--micro-batches", micro_batches)
    given += ("--strategy", strategy, "--array", "8x8")
    try:
        code, _, err = cli(
            "build", "--board", "u280", *given, "--no-hardware", "-o", tmp_path / "built"
        )
    finally:
        sys.setprofile(None)
    assert code == 0, err
    assert not followed.candidates
    kept = (tmp_path / "built" / "plan.json").read_text()
    assert {each.to_json() for each in followed.plans} == {kept}
    entered = Counter(room for room, _ in groupby(followed.rooms))
    assert {"host/make", "host/build", "host/runtime"} <= set(entered)
    assert max(entered.values()) <= 2, entered
