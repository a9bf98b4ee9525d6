"""A sample of the fuzzer for networks; bench/bench_random_networks.py draws thousands."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the torch extra")

from fpgapipe.host.backends import verification  # noqa: E402

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
try:
    from bench_random_networks import judge, summary
    from random_networks import checks, levels, minimise, networks
    from random_networks.operators import OPERATORS
finally:
    sys.path.remove(str(BENCH))

SEEDS = (3, 7, 13, 16, 19, 23)
"""Networks of images, of tokens and of rows of features that take little time."""

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("seed", SEEDS)
def test_networks_are_right_or_refused(seed):
    row = judge(seed, ("model",))
    assert row["outcome"] == "right", row["reasons"]
    assert not summary([row])["faults"]


def test_rounding_that_normalisations_amplify_is_no_difference(monkeypatch):
    """The bias in front of several normalisations has a gradient of zero but for rounding."""
    assert judge(11018, ("import",))["outcome"] == "right"
    monkeypatch.setattr(verification, "SPREADS", 0)
    assert "the gradient of 'm4.bias' is off" in judge(11018, ("import",))["reasons"]["import"]


def test_what_nobody_reads_is_refused_by_name():
    assert "for 'dropout', whose results nobody reads" in judge(11468, ())["reasons"]["import"]
    assert judge(11980, ())["levels"] == {"import": "refused"}


def test_a_seed_draws_the_same_network():
    for seed in range(100, 110):
        one, two = networks.draw_network(seed), networks.draw_network(seed)
        assert one.source == two.source
        assert torch.equal(one.example, two.example)
        for value, again in zip(one.module.parameters(), two.module.parameters(), strict=True):
            assert torch.equal(value, again)


def test_all_operators_are_drawn():
    drawn = {
        layer.operator
        for seed in range(100)
        for layer in networks.draw_network(seed).description.layers
    }
    assert len(drawn) > 0.8 * len(OPERATORS)


def test_a_gradient_that_is_off_by_a_tenth_is_found(monkeypatch):
    ordinary = checks.ModelBackend.parameters

    def planted(self, suffix=""):
        found = ordinary(self, suffix)
        if suffix == ".gradient":
            name = next(iter(found))
            found[name] = found[name] * 1.1
        return found

    monkeypatch.setattr(checks.ModelBackend, "parameters", planted)
    row = judge(7, ("model",))
    assert row["levels"] == {"import": "right", "model": "wrong"}
    assert summary([row])["faults"] == [row]


def test_a_failing_network_is_made_smaller(monkeypatch):
    """A planted fault of all networks that have a convolution of more than four channels."""

    def planted(subject):
        for layer in subject.network.module.modules():
            if isinstance(layer, torch.nn.Conv2d) and layer.out_channels > 4:
                raise checks.Wrong("planted")

    monkeypatch.setitem(levels.CHECKS, "import", planted)
    seed = next(seed for seed in range(50) if judge(seed, ())["outcome"] == "wrong")
    network = networks.draw_network(seed)
    found = minimise.minimise(network, seed, (), lambda line: None)
    assert found is not None
    small, level, verdict = found
    (layer,) = small.description.layers
    assert (level, verdict.reason, layer.operator) == ("import", "planted", "conv")
    assert layer.options["out"] == 5
    assert "nn.Conv2d(" in small.source
    assert len(network.description.layers) > 1
