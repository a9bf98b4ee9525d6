"""Matrix products in PyTorch: the bits of the core's model."""

from dataclasses import replace

import numpy as np
import pytest
from core_cases import random_case
from test_pipeline import CORE, cut

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.bench.step_bench import relative_error
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.native.native_library import library
from fpgapipe.hw.hls_models.native.native_program import NativeProgram
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.products.conv_passes import operations
from fpgapipe.lowering.products.emit import rings_of
from fpgapipe.lowering.products.tiled_product import TiledProduct
from fpgapipe.lowering.program.array_rows import array_rows
from fpgapipe.lowering.program.layer_program import OPERANDS, place
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.losses import Loss
from fpgapipe.network.operators import Conv
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

torch = pytest.importorskip("torch", reason="needs the torch extra")

from fpgapipe.host.backends import torch_mx  # noqa: E402
from fpgapipe.host.backends.torch_backend import TorchBackend  # noqa: E402
from fpgapipe.host.backends.torch_convolutions import Depthwise  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


def of_all_sizes(rng, shape, spread):
    """Numbers whose exponents differ by up to so many, so that the order of sums matters."""
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)
    return values.astype(np.float32)


def in_model(program, core, operands):
    """Result of a program in the bit-exact model."""
    model = CoreModel(core, program.image(operands))
    if library() is None:
        model.run(program.instructions)
    else:
        NativeProgram(library(), core, program.instructions).run(model)
    return program.result.decode(model.memory)


def in_torch(conv, which, operands, rows, device):
    """The same result in PyTorch, with the channels last."""
    given = {
        name: torch.from_numpy(value).permute(0, 3, 1, 2).to(device)
        for name, value in operands.items()
    }
    run = {
        "forward": torch_mx.convolved,
        "input": torch_mx.input_gradient,
        "weight": torch_mx.weight_gradient,
    }[which]
    names = {"forward": ("x", "w"), "input": ("dy", "w"), "weight": ("x", "dy")}[which]
    found = run(*(given[name] for name in names), conv, rows)
    return found.permute(0, 2, 3, 1).cpu().numpy()


def product(seed):
    """A random layer and its program; None if it does not suit the core."""
    conv, which, core, tiling, formats = random_case(seed)
    try:
        ops = tuple(operations(conv, which, core, tiling, formats))
    except ValueError:
        return None
    rings = next(rings_of(ops, core.scratchpad), None)
    if rings is None:
        return None
    program = place(conv, which, formats, TiledProduct(tiling, ops, rings, core, MemorySpec()))
    return conv, which, core, program


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("first", "spread", "middle"), [(0, 12, 0), (100, 8, -68), (200, 40, 0), (300, 6, 56)]
)
def test_products_have_the_bits_of_the_model(device, first, spread, middle):
    """Linear layers, convolutions and gradients on several cores; ordinary, tiny and huge sums."""
    seen = set()
    for seed in range(first, first + 60):
        case = product(seed)
        if case is None:
            continue
        conv, which, core, program = case
        rng = np.random.default_rng(seed)
        operands = {}
        for name in OPERANDS[which]:
            tensor = program.tensors[name]
            values = of_all_sizes(rng, tensor.shape, spread) * np.float32(2.0**middle)
            if middle > 0 and (name, which) != ("w", "input"):  # blocks that are NaN
                values[rng.random(tensor.shape) < 0.003] = np.inf
            # As the tensor is in memory.
            operands[name] = tensor.format.decode(tensor.encode(values), tensor.shape)
        expected = in_model(program, core, operands)
        found = in_torch(conv, which, operands, core.rows, device)
        found = program.result.format.decode(program.result.encode(found), found.shape)
        np.testing.assert_array_equal(
            found.view(np.uint32), expected.view(np.uint32), err_msg=f"seed {seed}"
        )
        seen.add((which, core.rows))
    assert len(seen) >= 9, "some pass or core never came up"


DEPTHWISE = "depthwise"


def images(samples):
    """Convolutions of many channels, also in groups, of one channel each, and transposed."""
    net = Network("images", samples)
    x = net.image(3, 8, 8)
    x = net.relu(net.conv(x, 96, 3, padding=1, bias=False))
    x = net.relu(net.conv(x, 96, 3, stride=2, padding=1, groups=2, bias=False))
    x = net.conv_transpose(x, 48, 2, stride=2, bias=False)
    x = net.conv(x, 48, (3, 2), stride=(1, 2), padding=1, groups=48, bias=False, name=DEPTHWISE)
    x = net.conv(x, 64, (1, 3), padding=(0, 1), bias=False)
    x = net.linear(net.flatten(x), 32, bias=False)
    net.linear(x, 8, bias=False)
    return net.build()


def volumes(samples):
    """The same with three axes, and with one."""
    net = Network("volumes", samples)
    x = net.conv(net.image(2, 3, 5, 5), 40, 3, padding=1, bias=False)
    x = net.conv_transpose(x, 8, 2, stride=1, bias=False)
    x = net.conv(net.reshape(x, samples, 64, -1), 34, 3, stride=2, bias=False)
    net.linear(net.flatten(x), 8, bias=False)
    return net.build()


def sequences(samples):
    """Embeddings, and products of activations."""
    net = Network("sequences", samples)
    x = net.embedding(net.tokens("words", 6), 50, 40)
    y = net.linear(x, 72, bias=False)
    z = net.linear(x, 72, bias=False)
    x = net.matmul(net.matmul(y, net.transpose(z, 0, 2, 1)), z)
    net.linear(net.flatten(x), 8, bias=False)
    return net.build()


def uneven(weight):
    """A weight whose blocks of channels are of sizes that differ much."""
    rng = np.random.default_rng(weight.size)
    rows, columns = (
        np.repeat(2.0 ** rng.integers(-9, 10, count // 8 + 1), 8)[:count]
        for count in weight.shape[:2]
    )
    scales = np.outer(rows, columns).reshape(*weight.shape[:2], *(1,) * (weight.ndim - 2))
    return (weight * scales).astype(np.float32)


CORES = {
    "8 rows": CORE,
    "32 rows": replace(CORE, rows=32, scratchpad=ScratchpadSpec(8, 1 << 15)),
    "16 rows": replace(CORE, rows=16),
}


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
@pytest.mark.parametrize("network", [images, volumes, sequences])
def test_a_step_of_products_alone_has_the_bits_of_the_model(network, core):
    """With FP32 in memory, and a loss whose gradient is exact, nothing else rounds otherwise."""
    graph = network(4)
    options = StepOptions(activations=FP32, loss=Loss("mse"))
    pipeline = build_pipeline(
        graph, [core] * 2, cut(graph, 2), make_schedule("1f1b-as", 2, 2), options=options
    )
    rows = array_rows(pipeline.parts)
    assert {each for own in rows.values() for each in own} == {core.rows}
    values = {name: uneven(value) for name, value in initial_parameters(graph, 0).items()}
    inputs, labels = random_batch(graph, 0, 2, options.loss)
    found = {}
    for given in (rows, None):
        backend = TorchBackend(
            graph, values, num_microbatches=2, options=options, precision="mxint8",
            device="cpu", array_rows=given,
        )  # fmt: skip
        backend.step(inputs, labels, scalar_bits())
        found[given is None] = backend.parameters(".gradient")
    with ModelBackend(pipeline, values) as model:
        model.step(inputs, labels, scalar_bits())
        expected = model.parameters(".gradient")
    own = f"{DEPTHWISE}.weight"
    if own in expected:  # which the vector engine adds up in another order
        assert relative_error(found[False].pop(own), expected.pop(own)) < 1e-6
    for name, gradient in expected.items():
        np.testing.assert_array_equal(found[False][name], gradient, err_msg=name)
    if core.rows < 32 and network is images:  # without the programs, arrays have 32 rows
        assert any(not np.array_equal(found[True][name], each) for name, each in expected.items())


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        ((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
        ((3, 2), (3, 2), ((0, 4), (5, 0)), (2, 3)),
        ((2, 5), (4, 1), ((3, 3), (0, 0)), (1, 2)),
        ((3,), (2,), ((2, 0),), (2,)),
    ],
)
def test_depthwise_convolutions_are_pytorchs_in_another_order(kernel, stride, padding, dilation):
    operator = Conv(6, kernel, stride, padding, dilation, 6)
    rank = len(kernel)
    rng = np.random.default_rng(0)

    def leaf(*shape):
        return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()

    x, weight = leaf(2, 6, *(9, 11)[:rank]), leaf(6, 1, *kernel)
    padded = torch.nn.functional.pad(x, [each for pair in reversed(padding) for each in pair])
    conv = (torch.nn.functional.conv1d, torch.nn.functional.conv2d)[rank - 1]
    expected = conv(padded, weight, None, stride, 0, dilation, 6)
    found = Depthwise.apply(x, weight, operator, expected.shape)
    dy = torch.from_numpy(rng.standard_normal(expected.shape))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, (x, weight), dy), torch.autograd.grad(expected, (x, weight), dy)
    )
