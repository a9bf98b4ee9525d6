"""Modules with several results, and with results that only training has."""

from typing import NamedTuple

import pytest

from fpgapipe.network.graph import NetworkError

torch = pytest.importorskip("torch", reason="needs the torch extra")
from torch import nn  # noqa: E402

from fpgapipe.host.backends.verification import verified  # noqa: E402
from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402


class Results(NamedTuple):
    main: torch.Tensor
    aux: torch.Tensor | None


class Auxiliary(nn.Module):
    """A classifier with an auxiliary one behind its first convolution.

    Parameters
    ----------
    give : callable
        Arranges both results, of which the second is None in evaluation.
    always : bool
        Whether the auxiliary classifier runs in evaluation, too.
    """

    def __init__(self, give, *, always=False):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3)
        self.aux = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 5))
        self.head = nn.Linear(4, 5)
        self._give, self._always = give, always

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        aux = self.aux(x.mean((2, 3))) if self.training or self._always else None
        x = torch.relu(self.second(x))
        return self._give(self.head(x.mean((2, 3))), aux)


def imported(module):
    torch.manual_seed(0)
    return from_torch((module, torch.randn(3, 3, 8, 8)), name="net")


@pytest.mark.parametrize(
    ("give", "outputs"),
    [
        (lambda main, aux: (main, aux) if aux is not None else main, ("head", "aux.3")),
        (lambda main, aux: (aux, main) if aux is not None else main, ("aux.3", "head")),
        (Results, ("head", "aux.3")),
        (lambda main, aux: {"main": main} | ({"aux": aux} if aux is not None else {}), None),
    ],
)
def test_results_of_training_alone(give, outputs):
    """The evaluation is the network without the layers that only they need."""
    graph = imported(Auxiliary(give))
    assert set(graph.outputs) == {"head", "aux.3"}
    assert outputs in (None, graph.outputs)
    assert graph.auxiliary == ("aux.3",)
    assert graph.evaluated.outputs == ("head",)
    assert {"aux.0", "aux.3"}.isdisjoint(graph.evaluated.layers)
    assert "aux.0.weight" not in graph.evaluated.values
    found = verified(graph, train=True)
    assert "in evaluation and training" in str(found)


@pytest.mark.parametrize(
    "give",
    [
        lambda main, aux: (main, aux),
        lambda main, aux: {"main": main, "aux": aux},
        lambda main, aux: [main, (aux,)],
        Results,
    ],
)
def test_several_results_in_both_modes(give):
    graph = imported(Auxiliary(give, always=True))
    assert graph.outputs == ("head", "aux.3")
    assert not graph.auxiliary
    assert graph.evaluated is graph
    assert "in evaluation and training" in str(verified(graph, train=True))


class Other(Auxiliary):
    """A module that computes the main result in another way in evaluation."""

    def forward(self, x):
        found = super().forward(x)
        return found if self.training else torch.sigmoid(found)


class More(nn.Module):
    """A module with more results in evaluation than in training."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        return self.first(x) if self.training else (self.first(x), self.second(x))


def test_other_differences_are_refused():
    with pytest.raises(NetworkError, match="computes something else in training than in evaluat"):
        imported(Other(lambda main, aux: main if aux is None else (main, aux)))
    with pytest.raises(NetworkError, match="computes something else in training than in evaluat"):
        imported(More())
