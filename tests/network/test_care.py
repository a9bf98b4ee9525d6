"""Modules that ask for care are right or refused: those of ``bench/bench_care.py``."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the torch extra")

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
try:
    from bench_care import CASES, REFUSALS, judge
finally:
    sys.path.remove(str(BENCH))

RIGHT_OR_REFUSED = {
    "trained right",
    "import refused",
    "imported right, step refused",
    "imported unverified, step refused",
}
NAMES = sorted(CASES)
SAMPLE = set(NAMES[::10])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in NAMES],
)
def test_is_right_or_refused(name):
    verdict = judge(name, CASES[name])
    assert verdict["verdict"] in RIGHT_OR_REFUSED, verdict["reason"]
    if "refused" in verdict["verdict"]:
        assert verdict["reason"]


def test_a_wrong_result_is_seen(monkeypatch):
    """The comparison of a step sees gradients of another network."""
    import bench_care

    name = "layouts: flattened input"
    assert judge(name, CASES[name])["verdict"] == "trained right"
    ordinary = bench_care.held
    monkeypatch.setattr(
        bench_care, "held", lambda what, found, *rest: ordinary(what, 1.7 * found, *rest)
    )
    assert judge(name, CASES[name])["verdict"] == "WRONG"


def test_there_are_enough_of_them():
    assert len(CASES) >= 120
    assert REFUSALS
