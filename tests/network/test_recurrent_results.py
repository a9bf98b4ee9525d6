"""Recurrent layers of which any results are read are trained as PyTorch trains them."""

import itertools
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the torch extra")
from torch import nn  # noqa: E402

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
try:
    from bench_care import judge
    from care.case import Case
finally:
    sys.path.remove(str(BENCH))


def some_of(*results):
    """All choices of at least one result."""
    return [
        chosen
        for count in range(1, len(results) + 1)
        for chosen in itertools.combinations(results, count)
    ]


class Reads(nn.Module):
    """The sum of linear layers, one for each result of a recurrent layer that is read."""

    def __init__(self, kind, reads, layers, bidirectional):
        super().__init__()
        self.e = kind(6, 5, layers, bidirectional=bidirectional, batch_first=True)
        directions = 2 if bidirectional else 1
        wide = {"y": 5 * directions, "h": 5 * directions * layers, "c": 5 * directions * layers}
        self.heads = nn.ModuleDict({each: nn.Linear(wide[each], 4) for each in reads})

    def forward(self, x):
        y, states = self.e(x)
        hidden, cell = states if isinstance(states, tuple) else (states, None)
        found = {"y": lambda: y[:, 1], "h": lambda: rows(hidden), "c": lambda: rows(cell)}
        return sum(head(found[each]()) for each, head in self.heads.items())


def rows(states):
    return states.transpose(0, 1).flatten(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "reads"),
    [
        *((nn.LSTM, each) for each in some_of("y", "h", "c")),
        *((nn.GRU, each) for each in some_of("y", "h")),
    ],
    ids=str,
)
@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_any_results_may_be_read(kind, reads, layers, bidirectional):
    case = Case(lambda: Reads(kind, reads, layers, bidirectional), ((3, 4, 6),))
    verdict = judge("reads", case)
    assert verdict["verdict"] == "trained right", verdict
