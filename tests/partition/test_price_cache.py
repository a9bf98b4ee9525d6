"""Prices that are kept in files."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from build_cases import plan_of
from run_cases import small_network

from fpgapipe import answers
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.pricing import best_plan as search
from fpgapipe.partition.pricing import machine, price_cache
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.pricing.layer_prices import LayerPrices
from fpgapipe.partition.pricing.machine import price_plan
from fpgapipe.partition.pricing.price_cache import remembered
from fpgapipe.partition.strategies import registered as strategies
from fpgapipe.partition.strategies.registered import STRATEGIES
from fpgapipe.partition.strategies.strategy import Strategy

QUESTION = {"what": "test", "numbers": [1, 2.5]}


@pytest.fixture
def prices(tmp_path, monkeypatch):
    """The folder of an empty cache."""
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path))
    monkeypatch.delenv("FPGAPIPE_ANSWERS")
    return tmp_path / "prices"


def fail(*given, **named):
    raise AssertionError("the answer is known")


def test_an_answer_is_found_once(prices):
    third = 1 / 3
    assert remembered(QUESTION, lambda: {"cycles": (third, 1)}) == {"cycles": [third, 1]}
    assert remembered(QUESTION, fail) == {"cycles": [third, 1]}
    assert remembered({**QUESTION, "numbers": []}, lambda: 7) == 7
    assert len(list(prices.iterdir())) == 2


def test_an_answer_holds_for_the_sources_that_gave_it(prices, monkeypatch):
    remembered(QUESTION, lambda: 1)
    monkeypatch.setattr(answers, "sources_digest", lambda packages: "others")
    assert remembered(QUESTION, lambda: 2) == 2


def test_all_sources_count():
    names = {path.name for package in price_cache.SOURCES for path in answers.source_files(package)}
    assert names >= {"task_times.py", "event_loop.py", "conv_weight.py", "graph.py", "step.py"}


@pytest.mark.parametrize("text", [b"", b"nonsense", b"0\n1"], ids=["empty", "no digest", "wrong"])
def test_a_damaged_answer_is_found_again(prices, text):
    remembered(QUESTION, lambda: 1)
    (path,) = prices.iterdir()
    path.write_bytes(text)
    assert remembered(QUESTION, lambda: 2) == 2
    assert remembered(QUESTION, fail) == 2


def test_old_answers_are_removed(prices, monkeypatch):
    for number in range(4):
        remembered({"number": number}, lambda: "x" * 100)
    for number, path in enumerate(sorted(prices.iterdir())):
        os.utime(path, (number, number))
    remembered({"number": 0}, fail)  # which makes it the youngest
    monkeypatch.setattr(answers, "MOST_BYTES", 410)
    remembered({"number": 4}, lambda: "y")
    assert len(list(prices.iterdir())) == 3
    remembered({"number": 0}, fail)


@pytest.mark.parametrize("how", ["switch", "folder"])
def test_nothing_is_kept_where_it_cannot_be(prices, how, monkeypatch, tmp_path):
    if how == "switch":
        monkeypatch.setenv("FPGAPIPE_ANSWERS", "0")
    else:
        file = tmp_path / "file"
        file.touch()
        monkeypatch.setenv("FPGAPIPE_CACHE", str(file))
    assert remembered(QUESTION, lambda: 1) == 1
    assert remembered(QUESTION, lambda: 2) == 2
    assert not prices.exists()


def test_several_may_write_the_same_answer(prices):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: remembered(QUESTION, lambda: [1] * 1000), range(64)))
    assert found == [[1] * 1000] * 64
    assert len(list(prices.iterdir())) == 1


def test_plans_have_the_same_prices_again(prices, monkeypatch):
    plan, graph, cluster = plan_of(2, load=small_network, batch=32, microbatches=8)
    first = price_plan(plan, graph, cluster)
    monkeypatch.setattr(machine, "lower_plan", fail)
    again = price_plan(plan, graph, cluster)
    assert again[0] == first[0]
    assert list(again[1].tasks()) == list(first[1].tasks())


def test_the_search_is_remembered(prices, monkeypatch):
    *_, cluster = plan_of(2, load=small_network, batch=16, microbatches=4)
    request = Request(small_network, 16, cluster, ("1f1b-as", "zb-h1"), 4, (8, 8))
    first = best_plan(request, "small")
    monkeypatch.setattr(search, "explore_by_models", fail)
    again = best_plan(request, "small")
    assert first.plan.predicted.level == "machine"
    assert again.plan == first.plan
    assert (again.tried, again.compared) == (first.tried, first.compared)
    assert list(again.timeline.tasks()) == list(first.timeline.tasks())
    with pytest.raises(AssertionError, match="the answer is known"):
        best_plan(replace(request, num_microbatches=2), "small")


@pytest.mark.parametrize("name", ["data", "layerwise"])
def test_a_strategy_is_remembered(name, prices, monkeypatch):
    *_, cluster = plan_of(2, load=small_network, batch=16, microbatches=4)
    request = Request(small_network, 16, cluster, array=(8, 8))
    plan, timeline, degrees = strategies.search(name, request, "small", print)
    monkeypatch.setitem(STRATEGIES.own, name, Strategy(fail))
    again = strategies.search(name, request, "small", fail)
    assert plan.predicted.level == "machine"
    assert (again[0], again[2]) == (plan, degrees)
    assert (degrees is None) == (name == "data")
    assert list(again[1].tasks()) == list(timeline.tasks())
    with pytest.raises(AssertionError, match="the answer is known"):
        strategies.search(name, replace(request, batch=8), "small", fail)


def test_estimates_are_remembered(prices, monkeypatch):
    """Where no programs are made, the timetable follows from the plan."""
    *_, cluster = plan_of(2, load=small_network, batch=16, microbatches=4)
    request = Request(small_network, 16, cluster, ("zb-auto",), 4, (8, 8))
    found = best_plan(request, "small")
    assert found.plan.predicted.level == "estimate"
    assert not found.built["possible"]
    assert found.timeline.makespan_s == pytest.approx(found.plan.predicted.minibatch_s, rel=1e-9)


def test_layers_have_the_same_prices_again(prices, monkeypatch):
    _, graph, cluster = plan_of(1, load=small_network, batch=4, microbatches=1)
    request = Request(lambda samples: graph, graph.batch, cluster, ("1f1b-as",), 1, (8, 8))
    stage = explore(request).best.stages[0]

    def costs():
        return LayerPrices(graph, True, 2).costs(stage.costs, stage.node)

    first = costs()
    monkeypatch.setattr(LayerPrices, "_prices", fail)
    assert costs() == first
