"""PyTorch programs: translated, then run by the reference and compared with the module itself."""

import re

import numpy as np
import pytest

from fpgapipe.errors import FileError
from fpgapipe.network.graph import NetworkError
from fpgapipe.network.load import load_network

torch = pytest.importorskip("torch", reason="needs the torch extra")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from fpgapipe.host.backends.torch_reference import forward, initial_weights  # noqa: E402
from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402


def agrees(module, *inputs, training=False):
    """The graph of a module, run by the reference, gives what the module gives."""
    module.train(training)
    torch.manual_seed(0)
    graph = from_torch((module, inputs), name="net")
    weights = initial_weights(graph)  # copied before the module's own run can update its statistics
    tensors = dict(zip(graph.inputs, inputs, strict=True))
    results = forward(graph, weights, tensors, training=training)
    with torch.no_grad():
        expected = module(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for name, want in zip(graph.outputs, expected, strict=True):
        torch.testing.assert_close(results[name], want, rtol=1e-4, atol=1e-5)
        assert graph.layers[name].output.shape == tuple(want.shape)
    assert graph.totals.parameters == sum(p.numel() for p in module.parameters())
    return graph


class Function(nn.Module):
    """A module without parameters, from a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *xs):
        return self.function(*xs)


@pytest.mark.parametrize("name", ["alexnet", "resnet18", "inception_v3"])
def test_whole_networks(name):
    from torch_models import IMAGE_NETWORKS

    from fpgapipe.network.zoo import built_in

    build, size = IMAGE_NETWORKS[name]
    graph = from_torch((build(), torch.zeros(2, 3, size, size)), name=name)
    ours = built_in(name, 2)
    assert graph.totals.macs == ours.totals.macs
    assert graph.totals.parameters == ours.totals.parameters
    assert graph.batch == 2


def test_a_residual_network_computes_the_same():
    from torch_models import resnet

    torch.manual_seed(0)
    graph = agrees(resnet((1, 1, 1, 1), True), torch.randn(2, 3, 32, 32), training=True)
    assert "9" not in graph.layers  # layers carry their module's name
    assert "0" in graph.layers


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(4, 6, 3, padding="same", dilation=2, groups=2),
        nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), bias=False),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.MaxPool2d((2, 3), dilation=(2, 1)),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        nn.AdaptiveAvgPool2d((3, 1)),
        nn.AdaptiveAvgPool2d(1),
        nn.AdaptiveMaxPool2d(2),
        nn.BatchNorm2d(4, affine=False),
        nn.PReLU(4),
        nn.PReLU(1),
        nn.Sequential(*[nn.ReLU6(), nn.LeakyReLU(0.2), nn.ELU(0.5), nn.GELU(), nn.SiLU()]),
        nn.Sequential(*[nn.Hardswish(), nn.Hardsigmoid(), nn.GELU("tanh"), nn.Tanh()]),
        nn.ConvTranspose2d(4, 6, 2, stride=2),
        nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2, bias=False, dilation=2),
        nn.ConvTranspose2d(4, 3, (1, 4), (3, 2), (0, 3), (2, 1)),
        nn.GroupNorm(2, 4),
        nn.GroupNorm(4, 4, eps=0.1, affine=False),
        nn.InstanceNorm2d(4),
        nn.InstanceNorm2d(4, affine=True),
        nn.Upsample(scale_factor=2),
        nn.Upsample((36, 24)),
        nn.Upsample(scale_factor=(1.0, 3.0), mode="nearest-exact"),
        nn.Upsample((17, 5)),
        nn.Upsample((17, 5), mode="nearest-exact"),
        nn.Upsample(scale_factor=1.7, mode="bilinear"),
        nn.Upsample((7, 30), mode="bilinear", align_corners=True),
        nn.Upsample((24, 12), mode="bilinear"),
        nn.Upsample((1, 5), mode="bilinear", align_corners=True),
        nn.Upsample((9, 20), mode="bicubic"),
        nn.AdaptiveAvgPool2d((5, 7)),
        nn.AdaptiveAvgPool2d((5, 3)),
        nn.AdaptiveMaxPool2d((5, 4)),
        nn.AdaptiveMaxPool2d((7, 12)),
        nn.ReflectionPad2d((1, 2, 3, 0)),
        nn.ReplicationPad2d((4, 0, 1, 13)),
        nn.CircularPad2d((1, 2, 3, 0)),
        nn.ConstantPad2d((-1, 2, 0, -3), 2.5),
        nn.LayerNorm([12, 12], elementwise_affine=False),
        nn.Softmax(1),
    ],
    ids=str,
)
def test_single_modules(module):
    agrees(module, torch.randn(2, 4, 12, 12))


@pytest.mark.parametrize("kind", [nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d])
@pytest.mark.parametrize(
    ("size", "wanted"), [((1, 1), (7, 7)), ((1, 5), (4, 1)), ((3, 2), (6, 4)), ((2, 1), (2, 3))]
)
def test_adaptive_pooling_to_more_than_there_is(kind, size, wanted):
    """Windows of one element each do not mean that there is nothing to do."""
    agrees(kind(wanted), torch.randn(2, 4, *size))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x: x.transpose(1, -1).flatten(0, 1) * 2 - 1, [(2, 3, 4)]),
        (
            lambda x: torch.cat(x.split([1, 2], 1)[::-1], 1).unsqueeze(-1).expand(-1, -1, -1, 2),
            [(2, 3, 4)],
        ),
        (lambda x: x[:, -1:, ::2].squeeze(1).reshape(-1, 1), [(2, 3, 4)]),
        (lambda x: 3 - x.mean((0, 2), keepdim=True) / 7, [(2, 3, 4)]),
        (lambda x: (x**2 + 1).rsqrt().exp().sum(-1).abs().log(), [(2, 3, 4)]),
        (lambda x: functional.pad(x, (1, 2, 0, 1), value=3.0).permute(2, 0, 1), [(2, 3, 4)]),
        (lambda x: x.unflatten(2, (2, -1)).amax(-1), [(2, 3, 4)]),
        (lambda x, y: torch.sub(x, y, alpha=0.5) @ y.transpose(1, 2), [(2, 3, 4), (2, 3, 4)]),
        (lambda x, y: x.addcmul(y, y) if False else x * y / (y + 10), [(2, 3, 4), (1, 4)]),
        (
            lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True),
            [(2, 3, 5, 4)],
        ),
        (lambda x: torch.relu_(x + 1) + torch.arange(4), [(2, 3, 4)]),
        (lambda x: torch.stack(x.unbind(1)[::-1], -1), [(2, 3, 4)]),
        (lambda x: x.flip(0, 2)[:, ::2] * 2 - x[:, 1::2], [(2, 4, 5)]),
        (lambda x: functional.interpolate(x, 7, mode="linear"), [(2, 3, 4)]),
        (
            lambda x: functional.interpolate(x, scale_factor=2, mode="trilinear"),
            [(2, 3, 4, 5, 6)],
        ),
        (lambda x: x.clamp(min=0) + (9 * x).clamp(0, 6) + x.clamp_min(0), [(2, 3, 4)]),
        (lambda x: x.clamp(-1, 0.5) + x.clamp_max(0.25) + x.clamp(2, 1), [(2, 3, 4)]),
        (lambda x: functional.hardtanh(x) * functional.hardtanh(x, -0.5, 2), [(2, 3, 4)]),
        (lambda x: functional.softplus(x, 2, 30) + functional.mish(x).square(), [(2, 3, 4)]),
        (lambda x: functional.selu(x) + functional.celu(x, 0.7), [(2, 3, 4)]),
        (lambda x: functional.logsigmoid(x) - functional.softsign(x), [(2, 3, 4)]),
        (lambda x: functional.glu(x, 1) + functional.tanhshrink(x)[:, :2], [(2, 4, 5)]),
        (lambda x: x**3 + (x.abs() + 1) ** -0.5 + (x * x + 1) ** 1.75, [(2, 3, 4)]),
        (lambda x: (x.exp2() + 1).log2() + x.abs().log1p() + x.exp().log10(), [(2, 3, 4)]),
        (lambda x, y: torch.maximum(x, y) / torch.minimum(x, y - 9), [(2, 3, 4), (2, 3, 4)]),
        (lambda x: (x * 2).flatten(1).relu_(), [(2, 3, 4)]),
        (lambda x: torch.cat([each.relu_() for each in (x * 2).chunk(2, 1)]), [(2, 4)]),
        (lambda x: functional.log_softmax(x.chunk(2, -1)[1], -1), [(2, 3, 5)]),
        (lambda x: torch.roll(x * 1, (1, -2), (1, -1)) + torch.roll(x, 9, 1), [(2, 3, 5)]),
        (lambda x: torch.roll(x * 1, 3) + torch.roll(x, (3, -2), (1, 2)), [(2, 3, 5)]),
        (lambda x: x.swapaxes(1, -1).swapdims(0, 1) * 2, [(2, 3, 4)]),
        (
            lambda x, y: (x * 2).expand_as(y) + (y * 2).reshape_as(y.flatten(1)).view_as(y),
            [(2, 1, 4), (2, 3, 4)],
        ),
        (lambda x, y: torch.einsum("bghid,bghjd->bghij", x, y), [(2, 3, 2, 4, 5), (2, 3, 2, 6, 5)]),
        (lambda x, y: torch.einsum("ij b, b j k -> k b i", x, y), [(2, 3, 4), (4, 3, 5)]),
        (
            lambda x, y: torch.einsum("bi,bj", x, y) + torch.einsum("bi,bi->b", x, x).sum(),
            [(2, 3), (2, 4)],
        ),
        (lambda x, y: torch.einsum("bij,bjk->bik", x, y), [(2, 3, 4), (2, 4, 5)]),
        (lambda x, y: torch.einsum("bij,bk->kb", x, y), [(2, 3, 4), (2, 5)]),
        (lambda x: torch.einsum("bij->jb", x) * torch.einsum("bij->", x), [(2, 3, 4)]),
        (
            lambda x, y, z: torch.einsum("bi,bj,bk->bkij", x, y, z),
            [(2, 3), (2, 4), (2, 5)],
        ),
        (
            lambda x, y, z: torch.einsum("aij,jkc,kal->cil", x, y, z),
            [(2, 3, 4), (4, 5, 3), (5, 2, 6)],
        ),
        (lambda x, y: (x.mT @ y).mT * y.T.mT.T, [(4, 4, 4), (4, 4, 4)]),
        (
            lambda x: x.var() + x.std((0, -1), keepdim=True) * x.var(1, correction=2)[:, None],
            [(3, 4, 5)],
        ),
        (
            lambda x: (
                torch.var_mean(x, (1, 2))[0] + torch.std_mean(x, 2, keepdim=True)[1][..., 0, 0]
            ),
            [(3, 4, 5)],
        ),
        (lambda x: x.logsumexp((0, 2)) + x.logsumexp(1, keepdim=True).amin(), [(3, 4, 4)]),
        (lambda x: x.triu(-1).unfold(1, 2, 2) + x.tril(2).unfold(1, 2, 2), [(3, 4, 5)]),
        (lambda x: functional.unfold(x, (2, 3), (2, 1), (1, 2), (1, 2)), [(2, 3, 5, 7)]),
        (lambda x, y: (x.abs() + 1).type_as(y) * y.type_as(x), [(3, 4), (3, 4)]),
    ],
)
def test_functions(function, shapes):
    agrees(Function(function), *(torch.randn(shape) for shape in shapes))


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("bii->bi", [(2, 3, 3)], "only each axis once in a tensor"),
        ("b...,b...->b", [(2, 3), (2, 3)], "only axes with names"),
    ],
)
def test_other_sums_of_products_are_refused(equation, shapes, message):
    tensors = tuple(torch.randn(shape) for shape in shapes)
    module = Function(lambda *xs: torch.einsum(equation, *xs))
    with pytest.raises(NetworkError, match=message):
        from_torch((module, tensors), name="net")


def test_tensors_that_ask_for_a_shape_alone():
    """Zeros and ones of a tensor's shape or type are constants, whatever the tensor is."""

    def function(x):
        mask = (x.new_zeros((4, 4)) + torch.arange(4.0)).masked_fill(x.new_ones(4) != 1, 5.0)
        mask = mask.masked_fill(mask == 2, -100.0)
        return x + mask + torch.ones_like(x[0]) * torch.full_like(x, 2.0)

    agrees(Function(function), torch.randn(3, 4, 4))


def test_an_overwritten_tensor_is_seen_overwritten():
    def function(x):
        y = x * 2
        y.add_(1)
        return y * 3

    agrees(Function(function), torch.randn(2, 3))


@pytest.mark.parametrize(
    "part",
    [
        lambda x: x[:, :1],
        lambda x: x.flatten(),
        lambda x: x.chunk(3, 1)[0],
        lambda x: x.unbind(1)[0].unsqueeze(0),
    ],
)
def test_overwriting_a_view_of_what_is_read_again_is_refused(part):
    def function(x):
        y = x * 2
        part(y).relu_()
        return y

    with pytest.raises(NetworkError, match="overwrites a view of another tensor"):
        from_torch((Function(function), torch.randn(2, 3)), name="net")


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_lstm(batch_first, bias):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 3, 2, bias, batch_first, bidirectional=True)

        def forward(self, x):
            return self.lstm(x)[0]

    graph = agrees(Net(), torch.randn(2, 5, 4))
    assert [name for name in graph.layers if "lstm" in name][:1]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_lstm_that_gives_its_last_state(layers, bidirectional):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 3, layers, bidirectional=bidirectional)

        def forward(self, x):
            outputs, (state, _) = self.lstm(x)
            return outputs, state, state[-1]

    agrees(Net(), torch.randn(5, 2, 4))


def test_a_transformer_block_in_training():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
            self.tokens = nn.Embedding(11, 8)
            self.head = nn.Linear(8, 11, bias=False)
            self.head.weight = self.tokens.weight
            self.shift = nn.Parameter(torch.randn(8))

        def forward(self, x):
            x = self.norm(self.tokens(x)) + self.shift
            x = x + self.attend(x, x, x, need_weights=False)[0]
            return self.head(x)

    graph = agrees(Block(), torch.randint(0, 11, (2, 5)))
    assert graph.layers["head"].parameters[0].name == "tokens.weight"
    assert graph.layers["shift"].op == "constant"
    assert graph.layers["shift"].num_parameters == 8


def test_values_are_the_modules_own():
    module = nn.Linear(3, 2)
    graph = from_torch((nn.Sequential(module), torch.zeros(1, 3)), name="net")
    np.testing.assert_array_equal(graph.values["0.weight"], module.weight.detach().numpy())


def test_a_program_that_is_exported_already():
    program = torch.export.export(nn.Linear(3, 2), (torch.zeros(4, 3),))
    assert from_torch(program, name="net").totals.macs == 24


def test_all_unsupported_operators_are_named_at_once():
    def function(x):
        return torch.fft.fft(x).abs().cumsum(0) + x.sort()[0]

    with pytest.raises(NetworkError) as error:
        from_torch((Function(function), torch.zeros(2, 3)), name="net")
    lines = str(error.value).splitlines()
    assert [line.split(" (nodes")[0] for line in lines[:-1]] == [
        "net: operator aten.cumsum.default is not supported",
        "net: operator aten.fft_fft.default is not supported",
        "net: operator aten.sort.default is not supported",
    ]
    assert re.fullmatch(
        r"net: of \d+ that are, the nearest are ((aten[.][\w.]+)(, )?){10}; all are in "
        r"docs/networks.md, 'Operators'",
        lines[-1],
    )
    assert "aten.sqrt.default" in lines[-1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (nn.ReLU(), "net: a module alone has no shapes; return (module, example_inputs)"),
        (3, "net: gives int; a Graph, a torch.export.ExportedProgram or (torch.nn.Module,"),
        ((nn.Linear(3, 2), torch.zeros(1, 4)), "net: torch.export failed: "),
        (
            (nn.Linear(3, 2), {"input": 3}),
            "net: example inputs must be a tensor or a tuple of them, not dict",
        ),
        (
            (nn.Linear(3, 2, device="meta"), torch.zeros(1, 3, device="meta")),
            "net: node 'linear' (aten.linear.default): a weight of it has no values that can be ",
        ),
        (
            (Function(lambda x: functional.softplus(x, threshold=3)), torch.zeros(1)),
            "net: node 'softplus' (aten.softplus.default): only a threshold of at least 20, not 3",
        ),
    ],
    ids=["module", "int", "shapes", "inputs", "meta", "threshold"],
)
def test_refusals(source, message):
    with pytest.raises(NetworkError) as error:
        from_torch(source, name="net")
    assert str(error.value).startswith(message)


def test_a_dynamic_batch_is_refused():
    program = torch.export.export(
        nn.Linear(3, 2),
        (torch.zeros(4, 3),),
        dynamic_shapes={"input": {0: torch.export.Dim("n")}},
    )
    with pytest.raises(NetworkError, match=r"^net: the batch is dynamic; export with"):
        from_torch(program, name="net")


def test_saved_programs_are_not_unpickled(tmp_path):
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(nn.Linear(3, 2), (torch.zeros(4, 3),)), path)
    with pytest.raises(FileError, match="a file must not run code"):
        load_network(str(path))


# module:function -------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module into the working directory; gives its name."""
    monkeypatch.chdir(tmp_path)
    count = iter(range(100))

    def write(text: str) -> str:
        name = f"user_network_{tmp_path.name}_{next(count)}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def test_functions_that_give_modules_and_graphs(module):
    name = module(
        "import torch\n"
        "from fpgapipe.network.zoo import built_in\n"
        "def net(batch=3):\n"
        "    return torch.nn.Linear(4, 2), torch.zeros(batch, 4)\n"
        "def graph(batch):\n"
        "    return built_in('lenet5', batch)\n"
        "def fixed():\n"
        "    return torch.nn.Linear(4, 2), (torch.zeros(7, 4),)\n"
    )
    assert load_network(f"{name}:net").totals.macs == 8
    assert load_network(f"{name}:net", 5).totals.macs == 40
    assert load_network(f"{name}:graph", 2).name == "lenet5"
    assert load_network(f"{name}:fixed").batch == 7
    assert load_network(f"{name}:fixed", 7).batch == 7
    with pytest.raises(NetworkError, match="takes no batch size; --batch does not apply to it"):
        load_network(f"{name}:fixed", 2)


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        ("net = 3", "net", "{n}:net: 'net' is no function but int"),
        (
            "def network(): ...",
            "netwrk",
            "{n}:netwrk: '{n}' has no 'netwrk'; did you mean 'network'?",
        ),
        ("def net(): return 1 / 0", "net", "{n}:net: the function failed: ZeroDivisionError: "),
        ("1 / 0", "net", "{n}:net: importing '{n}' failed: ZeroDivisionError: division by zero"),
        ("raise SystemExit(1)", "net", "{n}:net: importing '{n}' failed: SystemExit: 1"),
        ("def net(): raise SystemExit", "net", "{n}:net: the function failed: SystemExit: "),
        ("import no_such_thing", "net", "{n}:net: importing '{n}' failed: No module named "),
        ("def (", "net", "{n}:net: importing '{n}' failed: SyntaxError: "),
        ("def net(): ...", "net", "net: gives NoneType; a Graph, "),
    ],
)
def test_functions_that_fail(module, text, function, message):
    name = module(text)
    with pytest.raises(NetworkError) as error:
        load_network(f"{name}:{function}")
    assert str(error.value).startswith(message.format(n=name))


def test_modules_that_are_not_there(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        NetworkError,
        match=r"^nowhere:net: no module 'nowhere' on Python's path or in the working directory$",
    ):
        load_network("nowhere:net")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(NetworkError, match=r"^nowhere:net: no module 'nowhere' on"):
        load_network("nowhere:net")
    with pytest.raises(NetworkError, match=r"^'no where:x' is no module:function$"):
        load_network("no where:x")
