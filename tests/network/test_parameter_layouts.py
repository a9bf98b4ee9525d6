"""Parameters have the layout of the module wherever they go by the module's names."""

import dataclasses

import numpy as np
import pytest
from step_cases import SMALL_CORE

torch = pytest.importorskip("torch", reason="needs the torch extra")
from torch import nn  # noqa: E402

from fpgapipe.errors import UserError  # noqa: E402
from fpgapipe.host.backends.model import ModelBackend  # noqa: E402
from fpgapipe.host.backends.torch_backend import TorchBackend  # noqa: E402
from fpgapipe.host.backends.verification import verify  # noqa: E402
from fpgapipe.host.runtime.checkpoint import LAYERS_MAGIC, MAGIC, Checkpoint  # noqa: E402
from fpgapipe.host.weights.parameters_file import read_parameters  # noqa: E402
from fpgapipe.hw.hls_models.numerics.element_format import FP32  # noqa: E402
from fpgapipe.lowering.lower import build_pipeline  # noqa: E402
from fpgapipe.lowering.program.parameter_layout import stored_as  # noqa: E402
from fpgapipe.lowering.units.layouts import PLAIN, Layout  # noqa: E402
from fpgapipe.lowering.units.network_units import check_network  # noqa: E402
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits  # noqa: E402
from fpgapipe.lowering.units.weight_order import Order  # noqa: E402
from fpgapipe.network import graph_json  # noqa: E402
from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402
from fpgapipe.network.graph import Parameter  # noqa: E402
from fpgapipe.network.initial_values import initial_parameters  # noqa: E402
from fpgapipe.network.operators import ParameterSpec  # noqa: E402
from fpgapipe.partition.schedule.schedule_kinds import make_schedule  # noqa: E402


class Conv1D(nn.Module):
    """The linear layer of Hugging Face's GPT-2, whose weight has the inputs first."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / 3)
        self.bias = nn.Parameter(torch.randn(outputs) / 3)

    def forward(self, x):
        found = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return found.view(*x.size()[:-1], self.weight.size(1))


class Layouts(nn.Module):
    """Weights whose axes the layers need in another order, square ones among them."""

    def __init__(self):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(3, 3, 4, 4) / 4)  # height, width, inputs, outputs
        self.square, self.wide = Conv1D(64, 64), Conv1D(64, 12)
        self.right = nn.Parameter(torch.randn(12, 12) / 3)
        self.left = nn.Parameter(torch.randn(12, 12) / 3)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = torch.conv2d(x, self.taps.permute(3, 2, 0, 1), padding=1).flatten(1)
        x = self.wide(self.square(x).relu()).relu()
        return self.head(nn.functional.linear((x @ self.right).relu(), self.left))


REARRANGED = {
    "taps": (3, 2, 0, 1), "square.weight": (1, 0), "wide.weight": (1, 0), "right": (1, 0)
}  # fmt: skip


@pytest.fixture(scope="module")
def imported():
    torch.manual_seed(0)
    module = Layouts()
    return module, from_torch((module, torch.zeros(4, 4, 4, 4)), name="layouts")


def test_they_are_verified(imported):
    module, graph = imported
    found = {p.name: p.order for layer in graph.layers.values() for p in layer.parameters}
    assert {name: order for name, order in found.items() if order} == REARRANGED
    own = dict(module.named_parameters())
    assert graph.values.keys() == own.keys()
    for name, value in graph.values.items():
        np.testing.assert_array_equal(value, own[name].detach().numpy())
    assert verify(graph).verified
    assert graph_json.from_json(graph_json.to_json(graph)).layers == graph.layers


def test_a_step_leaves_the_modules_layout(imported, tmp_path):
    """The weights that a step leaves go back into the module, and are those of PyTorch's step."""
    module, graph = imported
    options = StepOptions(activations=FP32)
    pipeline = build_pipeline(
        graph, [SMALL_CORE], [list(graph.layers)], make_schedule("1f1b-as", 1, 1), options=options
    )
    generator = torch.Generator().manual_seed(1)
    x, labels = torch.randn(4, 4, 4, 4, generator=generator), torch.tensor([0, 3, 1, 4])
    loss = nn.functional.cross_entropy(module(x), labels)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    backends = (
        ModelBackend(pipeline, graph.values),
        TorchBackend(graph, graph.values, options=options, device="cpu"),
        TorchBackend(graph, graph.values, options=options, device="cpu", precision="mxint8"),
    )
    for limit, backend in zip((0.2, 1e-5, 0.2), backends, strict=True):
        with backend:
            backend.step({"x": x.numpy()}, labels.numpy(), scalar_bits(learning_rate=0.5))
            state = backend.state()
            kept = backend.parameters(".gradient")
        np.savez(tmp_path / "p.npz", **{name: state[name] for name in graph.values})
        after = read_parameters(tmp_path / "p.npz", graph)
        trained = Layouts()
        trained.load_state_dict({name: torch.tensor(value) for name, value in after.items()})
        for (name, before), gradient in zip(module.named_parameters(), gradients, strict=True):
            for found in (
                before.detach() - trained.get_parameter(name).detach(),
                0.5 * torch.tensor(kept[name]),
                torch.tensor(state[f"{name}.momentum"]) * 0.5,
            ):
                error = (found - 0.5 * gradient).norm() / (0.5 * gradient).norm()
                assert error < limit, (name, backend.name, error)


def test_random_values_do_not_depend_on_the_layout():
    plain = nn.Linear(64, 64), nn.Linear(64, 12)
    other = from_torch((nn.Sequential(*plain), torch.zeros(4, 64)), name="plain")
    network = nn.Sequential(Conv1D(64, 64), Conv1D(64, 12))
    turned = from_torch((network, torch.zeros(4, 64)), name="plain")
    one, two = initial_parameters(other, 3), initial_parameters(turned, 3)
    np.testing.assert_array_equal(one["0.weight"], two["0.weight"].T)
    np.testing.assert_array_equal(one["1.weight"], two["1.weight"].T)


@pytest.mark.parametrize("layout", [PLAIN, Layout(3, 4), Order.INPUTS_LAST, Order.CHANNELS_LAST])
@pytest.mark.parametrize("part", [None, (0, 5, 15), (1, 12, 24)])
def test_a_part_lies_where_it_would_without_an_order(layout, part):
    """A part of a parameter of 5 x 12 values, or of that with the axes the other way round."""
    spec = ParameterSpec("weight", (5, 12))
    plain = stored_as(Parameter("w", spec), layout, part)
    turned = stored_as(Parameter("w", spec, (1, 0)), layout, part)
    assert turned.whole_shape == plain.whole_shape[::-1]
    assert turned.tensor == plain.tensor
    whole = np.random.default_rng(0).standard_normal(plain.whole_shape, np.float32)
    memory = plain.to_memory(plain.taken(whole))
    np.testing.assert_array_equal(turned.to_memory(turned.taken(whole.T)), memory)
    found = np.zeros_like(whole.T)
    turned.put(found, turned.from_memory(memory))
    expected = np.zeros_like(whole)
    plain.put(expected, plain.taken(whole))
    np.testing.assert_array_equal(found, expected.T)


def test_one_weight_in_two_orders_is_refused(imported):
    _, graph = imported
    layers = dict(graph.layers)
    name = next(
        name
        for name, each in layers.items()
        if each.op == "linear" and each.parameters[0].name == "left"
    )
    (own,) = layers[name].parameters
    layers[name] = dataclasses.replace(
        layers[name], parameters=(dataclasses.replace(own, name="right"),)
    )
    with pytest.raises(
        UserError, match=r"must have one shape and order in all layers that share it"
    ):
        check_network(dataclasses.replace(graph, layers=layers), train=True)


def earlier_checkpoint(path, values):
    """A checkpoint of the version that did not say which layout parameters have."""
    Checkpoint(3, "", {}, values).write(path)
    path.write_bytes(path.read_bytes().replace(MAGIC, LAYERS_MAGIC))


class Wide(nn.Module):
    """A weight whose layout its shape tells."""

    def __init__(self):
        super().__init__()
        self.wide, self.head = Conv1D(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.wide(x))


def test_checkpoints_of_earlier_versions_are_read_by_their_shapes(tmp_path):
    graph = from_torch((Wide(), (torch.randn(2, 6),)), name="wide")
    values = initial_parameters(graph, 0)
    as_read = values | {"wide.weight": values["wide.weight"].T}
    for each in (values, as_read):
        earlier_checkpoint(tmp_path / "c", each)
        found = read_parameters(tmp_path / "c", graph)
        for name, value in values.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_square_weights_of_earlier_versions_are_refused_by_name(tmp_path):
    module = nn.Sequential(Conv1D(4, 4), nn.Linear(4, 3))
    graph = from_torch((module, (torch.randn(2, 4),)), name="square")
    values = initial_parameters(graph, 0)
    earlier_checkpoint(tmp_path / "c", values)
    with pytest.raises(UserError) as error:
        read_parameters(tmp_path / "c", graph)
    assert str(error.value) == (
        f"{tmp_path / 'c'}: parameter 0.weight of shape (4, 4) may be transposed, which "
        "checkpoints of earlier versions do not say; begin the training anew"
    )
    Checkpoint(3, "", {}, values).write(tmp_path / "c")
    np.testing.assert_array_equal(
        read_parameters(tmp_path / "c", graph)["0.weight"], values["0.weight"]
    )
