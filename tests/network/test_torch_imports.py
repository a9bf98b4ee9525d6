"""Modules that ask for care: the import is held to the module, or refused with its reason."""

import numpy as np
import pytest

from fpgapipe.network import graph_json
from fpgapipe.network.graph import NetworkError

torch = pytest.importorskip("torch", reason="needs the torch extra")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from fpgapipe.host.backends.verification import verify  # noqa: E402
from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402


class Net(nn.Module):
    """A function of itself and its input, with a linear layer and whatever else is given."""

    def __init__(self, run, **parts):
        super().__init__()
        torch.manual_seed(0)
        self.run = run
        self.fc = nn.Linear(6, 6)
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x):
        return self.run(self, x)


def imported(run, **parts):
    module = Net(run, **parts)
    return module, from_torch((module, torch.randn(4, 6)), name="net")


def weight(*shape):
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(1)))


def in_place_behind_a_view(s, x):
    y = s.fc(x)
    v = y.view(2, 12)
    y.relu_()
    return v * 2


def in_place_twice(s, x):
    y = s.fc(x)
    z = y.add_(1)
    z.mul_(3)
    return F.relu(y) * 2 + z


def in_place_behind_a_copy(s, x):
    y = s.fc(x)
    copy = y.t().reshape(-1)  # this one has to copy, and so keeps what was there
    y.relu_()
    return copy.reshape(6, 4).t() + y


def token(s, x):
    y = torch.cat([s.token.expand(4, 1, 6), s.fc(x).unsqueeze(1)], 1)
    return y.flatten(1) + s.place[:, :12]


@pytest.mark.parametrize(
    ("run", "parts", "names"),
    [
        (in_place_behind_a_view, {}, {"fc.weight", "fc.bias"}),
        (in_place_twice, {}, {"fc.weight", "fc.bias"}),
        (in_place_behind_a_copy, {}, {"fc.weight", "fc.bias"}),
        (
            token,
            {"token": weight(1, 1, 6), "place": weight(1, 20)},
            {"fc.weight", "fc.bias", "token", "place"},
        ),
        (lambda s, x: s.fc(x) * s.t.exp(), {"t": weight(1)}, {"fc.weight", "fc.bias", "t"}),
        (lambda s, x: x @ s.w, {"w": weight(6, 3)}, {"w"}),
        (lambda s, x: torch.addmm(s.b, x, s.w), {"w": weight(6, 3), "b": weight(3)}, {"w", "b"}),
        (lambda s, x: F.linear(x, s.w), {"w": weight(3, 6)}, {"w"}),
        (lambda s, x: F.linear(x, s.w[:3] * 2), {"w": weight(5, 6)}, {"w"}),
        (lambda s, x: s.fc(x) @ s.fc.weight, {}, {"fc.weight", "fc.bias"}),
        (lambda s, x: s.fc(F.relu(x @ s.fc.weight.t())), {}, {"fc.weight", "fc.bias"}),
        (lambda s, x: F.linear(x, s.w) + s.v.sum(), {"w": weight(3, 6), "v": weight(2)},
         {"w", "v"}),
        (lambda s, x: F.linear(x, s.w + s.b @ s.a), {"w": weight(3, 6)}, {"w", "a", "b"}),
        (lambda s, x: s.w * 2, {"w": weight(4, 6)}, {"w"}),
        (lambda s, x: s.fc(s.fc(x).detach()), {}, {"fc.weight", "fc.bias"}),
        (lambda s, x: F.prelu(x, s.w), {"w": weight(1)}, {"w"}),
        (lambda s, x: F.linear(x, s.w) + s.linear, {"w": weight(6, 6), "linear": weight(4, 6)},
         {"w", "linear"}),
    ],
)  # fmt: skip
def test_what_is_learned_is_learned_under_its_own_name(run, parts, names):
    if "a" in names:
        parts = parts | {"a": weight(2, 6), "b": weight(3, 2)}
    module, graph = imported(run, **parts)
    found = verify(graph, batches=1)
    assert found.verified, found
    learned = {
        p.name for layer in graph.layers.values() for p in layer.parameters if p.spec.trainable
    }
    assert learned == names
    own = dict(module.named_parameters())
    assert graph.totals.parameters == sum(own[name].numel() for name in names)


def depth_of_samples(s, x):
    y = s.fc(x)
    return y * torch.empty(4, 1, dtype=y.dtype).bernoulli_(0.75).div_(0.75) if s.training else y


def depth_of_the_batch(s, x):
    y = s.fc(x)
    if s.training:
        noise = torch.empty(1, 1, dtype=y.dtype)
        noise = noise.bernoulli_(0.5)
        noise.div_(0.5)
        y = y * noise
    return y


def channels(s, x):
    y = F.dropout2d(s.fc(x).reshape(4, 3, 2, 1), 0.4, s.training)
    return F.dropout(y, 0.25, s.training).flatten(1)


@pytest.mark.parametrize(
    ("run", "together"),
    [(depth_of_samples, [(1,)]), (depth_of_the_batch, [(0, 1)]), (channels, [(2, 3), ()])],
)
def test_elements_may_be_dropped_together(run, together):
    _, graph = imported(run)
    found = verify(graph)
    assert found.verified, found
    drops = [layer.operator for layer in graph.layers.values() if layer.op == "dropout"]
    assert [each.together for each in drops] == together
    assert (verify(graph, modes=("training",)).errors["training"]) != {}


def test_the_padding_of_an_embedding_is_not_learned():
    module = nn.Embedding(5, 3, padding_idx=1)
    graph = from_torch((module, torch.zeros(2, 8, dtype=torch.long)), name="net")
    assert verify(graph).verified
    (layer,) = graph.layers.values()
    assert layer.operator.padding == 1
    module.scale_grad_by_freq = True
    with pytest.raises(NetworkError, match="only gradients that are not scaled by how often"):
        from_torch((module, torch.zeros(2, 8, dtype=torch.long)), name="net")


def test_a_product_with_a_matrix_is_a_linear_layer():
    _, graph = imported(lambda s, x: x @ s.w, w=weight(6, 3))
    assert [layer.op for layer in graph.layers.values()] == ["linear"]
    (parameter,) = graph.layers["matmul"].parameters
    assert (parameter.name, parameter.order, parameter.spec.shape) == ("w", (1, 0), (3, 6))
    assert parameter.shape == graph.values["w"].shape == (6, 3)


def test_frozen_parameters_stay_frozen_also_in_a_file():
    def frozen():
        layer = nn.Linear(6, 6)
        layer.weight.requires_grad_(False)
        return layer

    _, graph = imported(lambda s, x: s.fc(F.relu(s.g(x))), g=frozen())
    assert verify(graph, batches=1).verified
    again = graph_json.from_json(graph_json.to_json(graph))
    for each in (graph, again):
        specs = {p.name: p.spec.trainable for p in each.layers["g"].parameters}
        assert specs == {"g.weight": False, "g.bias": True}
        assert each.layers["g"].frozen == ("weight",)
        assert each.totals.parameters == 6 + 36 + 6


def test_constants_of_buffers_are_not_learned():
    _, graph = imported(lambda s, x: s.fc(F.linear(x, s.m * 2)), m=torch.eye(6))
    assert verify(graph, batches=1).verified
    assert graph.layers["linear"].frozen == ("weight",)
    np.testing.assert_array_equal(graph.values["linear.weight"], 2 * np.eye(6))


def counts(s, x):
    s.count += 1
    return s.fc(x) * s.count


def halves(s, x):
    keep = torch.empty(4, 1).bernoulli_(0.5)
    return s.fc(x) * keep if s.training else s.fc(x)


def nan_weight():
    layer = nn.Linear(6, 6)
    with torch.no_grad():
        layer.weight[1, 2] = float("nan")
    return layer


@pytest.mark.parametrize(
    ("run", "parts", "reason"),
    [
        (
            lambda s, x: s.fc(F.conv1d(x.unsqueeze(0), s.w * 2)[0]),
            {"w": weight(4, 4, 1)},
            "net: node 'conv1d' (aten.conv1d.default): its weight is computed from 'w', which could"
            " not be learned",
        ),
        (
            lambda s, x: s.fc(x) + s.w.cumsum(0),
            {"w": weight(6)},
            "net: node 'add' (aten.add.Tensor): 'w' could not be learned: it is used through "
            "'cumsum' (aten.cumsum.default), which is not supported",
        ),
        (
            counts,
            {"count": torch.zeros(1)},
            "net: the module changes 'count' as it runs (node 'add_'); only the statistics of batch"
            " normalisation may change",
        ),
        (
            halves,
            {},
            "net: node 'mul' (aten.mul.Tensor): only random numbers that drop a share below 1 and "
            "divide the rest by what is kept",
        ),
        (
            lambda s, x: s.fc(x) + torch.empty(4, 1).bernoulli_(0.5),
            {},
            "net: node 'add' (aten.add.Tensor): reads random numbers, which only dropout may",
        ),
        (
            lambda s, x: s.fc(x) + torch.rand(6),
            {},
            "net: operator aten.rand.default is not supported (nodes rand)\n"
            "net: random numbers are drawn anew in each run; only dropout may",
        ),
        (
            lambda s, x: F.dropout(s.fc(x), 0.5),
            {},
            "net: node 'dropout' (aten.dropout.default): drops in evaluation, too; give it the "
            "module's mode (self.training)",
        ),
        (
            lambda s, x: s.fc(x) * 2 if s.training else s.fc(x),
            {},
            "net: computes something else in training than in evaluation, from layer 'mul' (affine,"
            " in training) on; only batch normalisation and dropout may",
        ),
        (
            lambda s, x: (s.fc(x), x * 2)[: 2 - s.training],
            {},
            "net: computes something else in training than in evaluation, from layer 'mul' (affine,"
            " in evaluation) on",
        ),
        (
            lambda s, x: s.bn(s.fc(x)),
            {"bn": nn.BatchNorm1d(6).eval()},
            "net: node 'batch_norm' (aten.batch_norm.default): it computes as in evaluation while "
            "the module is in training",
        ),
        (
            lambda s, x: s.bad(x),
            {"bad": nan_weight()},
            "net: node 'linear' (aten.linear.default): weight 'bad.weight' holds nan at [1, 2]",
        ),
        (
            lambda s, x: (s.fc(x), x),
            {},
            "net: result 1 of the module is the input 'x' itself; leave it out",
        ),
        (lambda s, x: (s.fc(x), s.b), {"b": torch.ones(2)}, "net: result 1 of the module is a con"),
    ],
)
def test_what_one_network_cannot_compute_is_refused(run, parts, reason):
    with pytest.raises(NetworkError) as error:
        imported(run, **parts)
    assert str(error.value).startswith(reason)


def test_a_module_keeps_its_modes():
    module = Net(lambda s, x: s.bn(s.fc(x)), bn=nn.BatchNorm1d(6)).eval()
    module.bn.train()
    graph = from_torch((module, torch.randn(4, 6)), name="net")
    assert verify(graph, batches=1).verified
    assert not module.training
    assert module.bn.training
    assert int(module.bn.num_batches_tracked) == 0
