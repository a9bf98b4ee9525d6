"""Networks held to what they were imported from, and faults that this finds."""

import dataclasses
import json

import pytest

from fpgapipe.network import graph_json
from fpgapipe.network.frontends.source import TorchSource
from fpgapipe.network.graph import GraphBuilder, NetworkError
from fpgapipe.network.operators import Activation, BatchNorm, Conv, Linear, Reduce
from fpgapipe.network.operators.tensors import Tensor
from fpgapipe.network.parameter_groups import matching
from fpgapipe.network.zoo import built_in

torch = pytest.importorskip("torch", reason="needs the torch extra")
from torch import nn  # noqa: E402

from fpgapipe.host.backends.verification import verified, verify  # noqa: E402
from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(nn.functional.dropout(self.act(x), 0.25, self.training))

    def act(self, x):
        return torch.relu(self.bn(self.c(x))).mean((2, 3))


def graph_of(momentum=0.1, epsilon=1e-5, padding=((1, 1), (1, 1)), act="relu"):
    """The network `Small` without its dropout, or one that differs a little."""
    net = GraphBuilder("small", 2)
    x = net.input("x", Tensor((2, 3, 6, 6)))
    x = net.add("c", Conv(4, (3, 3), (1, 1), padding, (1, 1), bias=False), x)
    x = net.add("bn", BatchNorm(epsilon, momentum), x)
    x = net.add("relu", Activation(act), x)
    x = net.add("mean", Reduce("mean", (2, 3)), x)
    net.add("fc", Linear(5), x)
    return net.build()


def held(module, graph):
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    source = TorchSource(module, (torch.zeros(2, 3, 6, 6),), None, graph.outputs)
    return verify(dataclasses.replace(graph, values=state, source=source))


def without_dropout():
    module = Small()
    module.forward = lambda x: module.fc(module.act(x))
    return module


def test_a_module_is_verified_with_its_gradients_and_statistics():
    graph = from_torch((Small(), torch.zeros(2, 3, 6, 6)), name="small")
    before = torch.get_default_dtype(), torch.get_rng_state()
    found = verify(graph)
    assert found.verified
    assert found.parameters_equal
    assert found.max_error < 1e-12
    assert set(found.errors) == {"evaluation", "training", "gradients", "statistics"}
    assert set(found.errors["gradients"]) == {"c.weight", "bn.weight", "bn.bias"} | {
        "fc.weight",
        "fc.bias",
    }
    assert set(found.errors["statistics"]) == {"bn.running_mean", "bn.running_var"}
    assert str(found).startswith("verified against the PyTorch module in evaluation and training,")
    assert torch.get_default_dtype() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"momentum": 0.11}, "the statistics 'bn.running_mean' after a step is off by"),
        ({"epsilon": 2e-5}, "the result 'fc' in evaluation is off by"),
        ({"act": "relu6"}, "the result 'fc' in evaluation is off by"),
        ({"act": "leaky_relu"}, "the result 'fc' in evaluation is off by"),
        ({"padding": ((2, 0), (1, 1))}, "the result 'fc' in evaluation is off by"),
    ],
)
def test_small_differences_are_found(changes, reason):
    torch.manual_seed(0)
    found = held(without_dropout(), graph_of(**changes))
    assert found.verified == (not reason)
    assert reason in found.reason


def test_a_dropout_that_is_lost_is_found():
    torch.manual_seed(0)
    found = held(Small(), graph_of())
    assert not found.verified
    assert "in training is off" in found.reason
    assert "in evaluation" not in found.reason


def test_parameters_are_compared():
    module = without_dropout()
    module.fc.bias.requires_grad_(False)
    found = held(module, graph_of())
    assert not found.verified
    assert not found.parameters_equal
    assert found.reason.startswith("it learns 'fc.bias', which is frozen")
    values = {name: value.numpy() + 1 for name, value in without_dropout().state_dict().items()}
    graph = graph_of()
    source = TorchSource(without_dropout(), (torch.zeros(2, 3, 6, 6),), None, graph.outputs)
    found = verify(dataclasses.replace(graph, values=values, source=source))
    assert "'c.weight' does not begin with the module's values" in found.reason


def test_what_has_no_source_says_so():
    found = verify(built_in("digits-cnn"))
    assert found.verified is None
    assert found.to_dict()["max_error"] is None
    assert str(found).startswith("not verified: digits-cnn was not imported from a module")


def test_a_difference_is_refused_and_a_large_network_left_out():
    torch.manual_seed(0)
    source = TorchSource(Small(), (torch.zeros(2, 3, 6, 6),), None, ("fc",))
    values = {name: value.numpy() for name, value in source.module.state_dict().items()}
    graph = dataclasses.replace(graph_of(), source=source, values=values)
    with pytest.raises(NetworkError, match=r"^small is not what the PyTorch module computes: .*; "):
        verified(graph, train=True)
    assert verified(graph, train=False).verified
    large = dataclasses.replace(built_in("vgg16", 8), source=source)
    assert "take long, and it was left out" in str(verified(large, train=True))


USERS = """
import os, torch
print("imported")
class Net(torch.nn.Linear):
    def forward(self, x):
        print("forward")
        os.write(1, b"from C\\n")
        return super().forward(x)
def net(batch=2):
    print("called")
    return Net(3, 2), torch.zeros(batch, 3)
"""


def test_inspect_prints_one_json_object_whatever_the_module_prints(capfd, monkeypatch, tmp_path):
    from fpgapipe.host.cli.main import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "prints_a_lot.py").write_text(USERS)
    assert main(["inspect", "prints_a_lot:net", "--verify", "--json", "--batch", "4"]) == 0
    out, err = capfd.readouterr()
    value = json.loads(out)
    assert value["verified"] is True
    assert value["parameters_equal"] is True
    assert value["parameters"] == {"network": 8, "source": 8}
    assert value["samples"] == 4
    assert {"imported", "called", "forward", "from C"} <= set(err.split("\n"))


def test_inspect_says_with_its_exit_code_that_a_network_is_another(capsys, monkeypatch, tmp_path):
    from fpgapipe.host.cli.main import main

    graph = dataclasses.replace(
        graph_of(),
        values={name: value.numpy() for name, value in Small().state_dict().items()},
        source=TorchSource(Small(), (torch.zeros(2, 3, 6, 6),), None, ("fc",)),
    )
    place = "fpgapipe.host.make.verify.load_network"
    monkeypatch.setattr(place, lambda name, batch: graph)
    assert main(["inspect", "any", "--verify"]) == 1
    assert "small is not what the PyTorch module computes" in capsys.readouterr().out


LOSES = """
import torch
class Net(torch.nn.Linear):
    def forward(self, x):
        return torch.relu(super().forward(x))
def net(batch=2):
    return Net(3, 2), torch.zeros(batch, 3)
"""


def test_a_build_refuses_what_is_another_network(capsys, monkeypatch, tmp_path):
    from fpgapipe.host.cli.main import main
    from fpgapipe.network.frontends.torch import torch_pointwise
    from fpgapipe.network.frontends.torch.torch_registry import HANDLERS

    monkeypatch.chdir(tmp_path)
    (tmp_path / "loses_its_relu.py").write_text(LOSES)
    command = ["build", "--network", "loses_its_relu:net", "--board", "u280", "--batch", "4"]
    right = HANDLERS["aten.relu.default"]
    assert right is torch_pointwise._activation
    monkeypatch.setitem(
        HANDLERS, "aten.relu.default", lambda t, node: t.give(node, t.layer(node["self"]))
    )
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "error: net is not what the PyTorch module computes: the result 'linear'" in error
    assert error.endswith("--no-verify builds it even so\n")
    assert not (tmp_path / "out").exists()


def shared_modules():
    """A module under two names, with statistics, and a weight of two modules."""
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
    module = nn.Sequential(one, one, nn.Linear(8, 8, bias=False), nn.Linear(8, 8))
    module[3].weight = module[2].weight
    return module


def test_one_value_under_several_names_is_verified():
    module = shared_modules()
    graph = from_torch((module, torch.zeros(4, 8)), name="shared")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = verify(graph)
    assert found.verified, found.reason
    assert found.max_error < 1e-12
    assert found.parameters_equal
    assert set(found.errors["statistics"]) == {"0.1.running_mean", "0.1.running_var"}
    # The module keeps its values.
    assert all(isinstance(each, nn.Parameter) for each in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_wrong_gradient_of_a_shared_module_is_found():
    module = shared_modules()
    graph = from_torch((module, torch.zeros(4, 8)), name="shared")
    layers = dict(graph.layers)
    other = layers["2"]
    own = dataclasses.replace(other.parameters[0], name="0.0.weight")
    layers["2"] = dataclasses.replace(other, parameters=(own,))
    found = verify(dataclasses.replace(graph, layers=layers))
    assert not found.verified
    assert "the gradient of '0.0.weight' is off by" in found.reason


def test_further_names_of_parameters():
    graph = from_torch((shared_modules(), torch.zeros(4, 8)), name="shared")
    assert graph.aliases == {
        **{f"1.0.{role}": f"0.0.{role}" for role in ("weight", "bias")},
        **{
            f"1.1.{role}": f"0.1.{role}"
            for role in ("weight", "bias", "running_mean", "running_var")
        },
        "3.weight": "2.weight",
    }
    again = graph_json.from_json(graph_json.to_json(graph))
    assert again.aliases == graph.aliases
    assert matching(again, ("3.*",)) == {"2.weight", "3.bias"}
    assert matching(again, ("1.0.*",)) == {"0.0.weight", "0.0.bias"}


class Ends(nn.Module):
    """A linear layer, and something behind it."""

    def __init__(self, run):
        super().__init__()
        self.fc = nn.Linear(8, 6)
        self.norm = nn.RMSNorm(6)
        self.run = run

    def forward(self, x):
        return self.run(self, self.fc(x))


@pytest.mark.parametrize(
    "run",
    [
        lambda s, x: nn.functional.group_norm(x[..., None], 6),
        lambda s, x: nn.functional.layer_norm(x, (6,)).sum(-1),
        lambda s, x: nn.functional.layer_norm(3 * x, (6,)).mean(0).mean(0),
        lambda s, x: torch.softmax(x, -1).sum(-1) - 1,
        lambda s, x: torch.softmax(x[:, :1], -1),
        lambda s, x: torch.relu(x - 1000),
    ],
)
def test_results_and_gradients_may_be_zero_but_for_rounding(run):
    torch.manual_seed(0)
    found = verify(from_torch((Ends(run), torch.randn(4, 8)), name="zeros"))
    assert found.verified, found.reason


def test_small_gradients_are_compared():
    torch.manual_seed(0)
    module = Ends(lambda s, x: 1e-5 * x)
    graph = from_torch((module, torch.randn(4, 8)), name="small")
    layers = dict(graph.layers)
    (name,) = (name for name, each in layers.items() if each.op == "affine")
    assert verify(graph).verified
    layers[name] = dataclasses.replace(
        layers[name], operator=dataclasses.replace(layers[name].operator, scale=1.01e-5)
    )
    found = verify(dataclasses.replace(graph, layers=layers))
    assert "the gradient of 'fc.weight' is off by 0.01" in found.reason


@pytest.mark.parametrize(
    "run",
    [
        lambda s, x: s.norm(1e-3 * x),
        lambda s, x: nn.functional.rms_norm(1e-3 * x, (6,), s.norm.weight),
        lambda s, x: torch.rms_norm(1e-3 * x, (6,), eps=None),
    ],
)
@pytest.mark.parametrize("exported", [False, True])
def test_the_epsilon_of_an_rms_norm_is_that_of_the_modules_type(run, exported):
    """The comparison in FP64 takes the epsilon of FP32, which the network has."""
    torch.manual_seed(0)
    source = Ends(run), (torch.randn(4, 8),)
    found = verify(from_torch(torch.export.export(*source) if exported else source, name="rms"))
    assert found.verified, found.reason
    assert found.precision == "float64"
    assert found.max_error < 1e-9


class InFloat32(nn.Module):
    """Attention and a normalisation that compute in FP32, whatever the type of their inputs."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        x = scores.softmax(-1, dtype=torch.float32).to(x.dtype) @ self.v(x)
        wide = x.float()
        return wide * torch.rsqrt(wide.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-5)


def test_parts_in_fp32_are_compared_in_fp64():
    """The gradient of the keys' bias is zero, and differed by FP32's rounding."""
    graph = from_torch((InFloat32(), torch.randn(2, 5, 6)), name="fp32")
    found = verify(graph, batches=1)
    assert found.verified, found.reason
    assert found.precision == "float64"
    assert found.max_error < 1e-9


class Unread(nn.Module):
    """A layer whose result nobody reads, in front of the same layer, which is read."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.fc = layer, nn.Linear(4, 3)

    def forward(self, x):
        self.layer(x)
        return self.fc(self.layer(x))


class Frozen(nn.Module):
    """A normalisation whose values are buffers, named as those of PyTorch's."""

    def __init__(self, size):
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(size) + 0.5)

    def forward(self, x):
        scale = (self.weight * (self.running_var + 1e-5).rsqrt()).reshape(1, -1, 1, 1)
        shift = (self.bias - self.running_mean * scale.flatten()).reshape(1, -1, 1, 1)
        return x * scale + shift


def test_frozen_statistics_are_constants():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), Frozen(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    graph = from_torch((module, torch.zeros(2, 3, 6, 6)), name="frozen")
    found = verify(graph)
    assert found.verified, found.reason
    module[1].running_var += 0.1  # after the import
    assert not verify(graph).verified


def test_statistics_that_nobody_reads_are_refused():
    example = torch.zeros(8, 4)
    with pytest.raises(NetworkError, match="nobody reads the result of 'batch_norm', but in train"):
        from_torch((Unread(nn.BatchNorm1d(4)), example), name="net")


def test_a_dropout_that_nobody_reads_is_named():
    graph = from_torch((Unread(nn.Dropout(0.5)), torch.zeros(8, 4)), name="net")
    found = verify(graph, batches=1)
    assert found.verified is None
    assert "random numbers for 'dropout', whose results nobody reads" in found.reason
    assert verify(graph, batches=1, modes=("evaluation",)).verified


def test_a_program_that_drops_whole_channels_was_exported_for_training():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(16, 3))
    program = torch.export.export(module.train(), (torch.randn(2, 3, 4, 4),))
    graph = from_torch(program, name="net")
    assert graph.source.fixed_training
    assert verify(graph, batches=1).verified
