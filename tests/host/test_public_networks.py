"""The verdicts of bench/bench_architectures.py on a training step of a public network."""

import sys
from pathlib import Path

import pytest
from wrong_programs import pad_at_the_wrong_side

from fpgapipe.host.runtime import program_check

torch = pytest.importorskip("torch", reason="needs the torch extra")

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
try:
    import bench_architectures as bench
    from architectures import Example, leave_out_repeats
finally:
    sys.path.remove(str(BENCH))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "cache"))


def made():
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1, groups=4),
        torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 5),
    )  # fmt: skip
    return layers, (torch.randn(2, 3, 8, 8),)


EXAMPLE = Example("other", "grouped", made, made)


def amplify_rounding(monkeypatch, model=1.5, disturbed=1.5):
    """Multiply the model's gradients, and PyTorch's from disturbed weights."""
    real, calls = bench.stepped, []

    def stepped(*given):
        loss, gradients = real(*given)
        calls.append(loss)
        share = (model, 1, disturbed)[len(calls) - 1]
        return loss, {name: share * each for name, each in gradients.items()}

    monkeypatch.setattr(bench, "stepped", stepped)


def test_a_right_step_is_right():
    assert bench.judge_step(EXAMPLE)["verdict"] == "right"


@pytest.mark.parametrize(("model", "disturbed"), [(1.5, 1.5), (100, 2.5)])
def test_groups_of_layers_decide_on_a_sensitive_network(monkeypatch, model, disturbed):
    """The verdict was "sensitive", with which nothing was decided, or "WRONG"."""
    amplify_rounding(monkeypatch, model, disturbed)
    found = bench.judge_step(EXAMPLE)
    assert found["verdict"] == "right by units"
    assert found["units"] >= 4
    assert not found["unverified"]


@pytest.mark.parametrize(
    ("model", "disturbed"), [(1.5, 1), (1.5, 1.04), (float("nan"), 1), (float("nan"), 2.5)]
)
def test_a_wrong_step_is_wrong(monkeypatch, model, disturbed):
    amplify_rounding(monkeypatch, model, disturbed)
    found = bench.judge_step(EXAMPLE)
    assert found["verdict"] == "WRONG"
    assert "is off by" in found["reasons"][0]


def test_a_sensitive_network_with_a_wrong_program_is_wrong(monkeypatch):
    """The program of the grouped convolution pads at the wrong side."""
    amplify_rounding(monkeypatch)
    pad_at_the_wrong_side(monkeypatch)
    found = bench.judge_step(EXAMPLE)
    assert found["verdict"] == "WRONG"
    assert "its program computes something else than PyTorch" in found["reasons"][0]


def test_what_cannot_be_compared_leaves_a_network_sensitive(monkeypatch):
    amplify_rounding(monkeypatch)
    monkeypatch.setattr(bench, "LIMITS", program_check.Limits(elements=100))
    found = bench.judge_step(EXAMPLE)
    assert found["verdict"] == "sensitive"
    assert set(found["unverified"].values()) == {"too large to compare"}


def test_two_of_equal_layers_in_a_row_are_kept():
    """Rates of dropout do not make layers differ; sizes, strides and parameters do."""
    conv = torch.nn.Conv2d
    rows = torch.nn.Sequential(
        conv(4, 4, 1), conv(4, 4, 1), conv(4, 4, 1), conv(4, 4, 1, stride=2), conv(4, 4, 1),
        torch.nn.Dropout(0.1), torch.nn.Dropout(0.2), torch.nn.Dropout(0.3), conv(4, 4, 1),
    )  # fmt: skip
    module = torch.nn.Sequential(rows, torch.nn.ModuleList([conv(4, 4, 1) for _ in range(3)]))
    assert leave_out_repeats(module, lists=False) == 2
    assert [name for name, _ in rows.named_children()] == ["0", "1", "3", "4", "5", "6", "8"]
    assert len(module[1]) == 3
    assert leave_out_repeats(module, lists=True) == 1
    assert len(module[1]) == 2
