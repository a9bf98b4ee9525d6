"""Gradients of each operator are those of PyTorch: the cases of ``bench/bench_gradients.py``."""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"

pytest.importorskip("torch")
sys.path.insert(0, str(BENCH))
try:
    from bench_gradients import CASES, measured
finally:
    sys.path.remove(str(BENCH))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_gradients_are_those_of_autograd(case):
    assert measured(case, 0)["of_limit"] <= 1


def test_a_wrong_gradient_is_seen(monkeypatch):
    import bench_gradients

    ordinary = bench_gradients.gradients_of

    def a_little_off(*given):
        return {name: value * (1 + 2e-6) for name, value in ordinary(*given).items()}

    monkeypatch.setattr(bench_gradients, "gradients_of", a_little_off)
    case = next(each for each in CASES if each.name == "gelu")
    assert measured(case, 0)["of_limit"] > 1
