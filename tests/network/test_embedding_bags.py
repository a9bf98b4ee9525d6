"""Embedding bags of PyTorch modules, and steps with them on the core."""

import pytest
from unit_steps import assert_gradients_are_near_those_in_fp32, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.network.graph import NetworkError

torch = pytest.importorskip("torch", reason="needs the torch extra")
from torch import nn  # noqa: E402

from fpgapipe.host.backends.verification import verified  # noqa: E402
from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402

ROWS, FEATURES, PLACES = 11, 6, 7


class Bags(nn.Module):
    """A classifier of bags of tokens, which may be in parts of a sample."""

    def __init__(self, mode, begins=(), samples=3, **options):
        super().__init__()
        self.bags = nn.EmbeddingBag(ROWS, FEATURES, mode=mode, **options)
        self.head = nn.Linear(max(len(begins), 1) * FEATURES, 5)
        self.begins = begins
        if begins:
            offsets = [PLACES * sample + begin for sample in range(samples) for begin in begins]
            if options.get("include_last_offset"):
                offsets.append(PLACES * samples)
            self.register_buffer("offsets", torch.tensor(offsets))

    def forward(self, x):
        if not self.begins:
            return self.head(torch.relu(self.bags(x)))
        found = self.bags(x.reshape(-1), self.offsets)
        return self.head(torch.relu(found.reshape(len(x), -1)))


def imported(*args, samples=3, **options):
    torch.manual_seed(0)
    module = Bags(*args, samples=samples, **options)
    return from_torch((module, torch.randint(0, ROWS, (samples, PLACES))), name="bags")


CASES = {
    "sum": ("sum",),
    "mean": ("mean",),
    "parts": ("mean", (0, 3, 4)),
    "sums of parts": ("sum", (0, 6)),
}


@pytest.mark.parametrize("name", CASES)
def test_bags_are_those_of_the_module(name):
    """Results, and gradients by autograd, in FP64."""
    graph = imported(*CASES[name])
    found = verified(graph, train=True)
    assert "in evaluation and training" in str(found)
    assert [layer.op for layer in graph.layers.values()].count("embedding") == 1
    (given,) = graph.inputs.values()
    assert given.shape == (3, PLACES)


def test_offsets_may_have_their_end():
    graph = imported("mean", (0, 2), include_last_offset=True)
    assert "in evaluation and training" in str(verified(graph, train=True))


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_step_is_that_of_pytorch(name, activations):
    graph = imported(*CASES[name])
    assert_step_is_that_of_pytorch(graph, activations, near=4e-2, loss=1e-4, cancelled=2e-6)


@pytest.mark.parametrize("name", ["sum", "parts"])
def test_gradients_are_near_those_in_fp32(name):
    assert_gradients_are_near_those_in_fp32(imported(*CASES[name], samples=4))


class Given(nn.Module):
    """Bags that begin where an input says."""

    def __init__(self):
        super().__init__()
        self.bags = nn.EmbeddingBag(ROWS, FEATURES)

    def forward(self, x, begins):
        return self.bags(x.reshape(-1), begins)


@pytest.mark.parametrize(
    ("args", "options", "reason"),
    [
        (("max",), {}, "only sums and means of bags"),
        (("sum",), {"padding_idx": 2}, "only without padding_idx, whose rows would not count"),
        (("sum", (1, 3)), {}, "only bags with at least one index"),
        (("sum", (0, 3, 3)), {}, "only bags with at least one index"),
        (("sum",), {"scale_grad_by_freq": True}, "only sums and means of bags, without weights"),
    ],
)
def test_other_bags_are_refused(args, options, reason):
    with pytest.raises(NetworkError, match=reason):
        imported(*args, **options)


def test_bags_over_several_samples_are_refused():
    with pytest.raises(NetworkError, match="only bags that begin at fixed places, not at those"):
        from_torch((Given(), (torch.zeros(2, 4).long(), torch.tensor([0, 4]))), name="bags")
    module = Bags("sum", (0, 3))
    module.offsets = torch.tensor([0, 3, 7, 9, 14, 17])
    with pytest.raises(NetworkError, match="only bags within samples, which are the same in all"):
        from_torch((module, torch.zeros(3, PLACES).long()), name="bags")
