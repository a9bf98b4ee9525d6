"""Networks whose values lie in different orders: a step of the model against PyTorch."""

from dataclasses import replace

import numpy as np
import pytest
from step_cases import SMALL_CORE
from test_pipeline import CORE

from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.host.backends.torch_reference import forward
from fpgapipe.host.backends.torch_step import torch_step
from fpgapipe.host.bench.step_bench import relative_error
from fpgapipe.host.bench.step_check import product_errors
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.dropout import drop_factors
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.network_units import drop_factors_of, units_of
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network import operators as ops
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

torch = pytest.importorskip("torch", reason="needs the torch extra")

BATCH = 6


def conv(net, channels=6, size=4):
    """An image that a convolution made: 6 channels of 4 x 4, channels last."""
    return net.conv(net.image(3, size, size), channels, 3, padding=1)


def norm_behind_flatten(net):
    x = net.batch_norm(net.flatten(conv(net)))
    net.linear(net.relu(x), 5)


def norm_behind_flatten_and_residual(net):
    x = net.flatten(conv(net))
    net.linear(net.relu(net.plus(net.batch_norm(net.linear(x, 96)), x)), 5)


def flatten_plus_linear(net):
    x = net.flatten(conv(net))
    net.linear(net.plus(x, net.linear(x, 96)), 5)


def linear_plus_flatten(net):
    x = net.flatten(conv(net))
    net.linear(net.relu(net.plus(net.linear(x, 96), x)), 5)


def logits_of_a_flatten(net):
    net.flatten(conv(net, 4, 2))


def logits_of_a_relu_behind_flatten(net):
    net.relu(net.batch_norm(net.flatten(conv(net, 4, 2))))


def linear_on_images(net):
    net.linear(net.flatten(net.linear(conv(net), 7)), 5)


def linear_on_images_of_as_many_channels(net):
    net.linear(net.flatten(net.relu(net.linear(conv(net, 4), 4))), 5)


def linear_on_the_input(net):
    net.linear(net.flatten(net.linear(net.image(3, 4, 5), 7)), 5)


def linear_then_conv(net):
    x = net.linear(conv(net), 7)
    net.linear(net.flatten(net.conv(net.relu(x), 5, 3)), 5)


def norm_of_sequences(net):
    x = net.image(5, 8)
    net.linear(net.flatten(net.relu(net.batch_norm(net.linear(x, 6)))), 5)


def flatten_of_sequences(net):
    x = net.linear(net.image(5, 8), 6)
    net.linear(net.batch_norm(net.flatten(x)), 5)


def several_readers(net):
    x = net.flatten(conv(net))
    y = net.plus(net.linear(x, 7), net.linear(net.batch_norm(x), 7))
    net.plus(net.linear(y, 96, bias=False), x)


def dropouts(net):
    x = net.dropout(net.flatten(net.dropout(conv(net), 0.25)), 0.5)
    net.linear(net.dropout(net.linear(x, 9), 0.25), 5)


def pooled(net):
    image = conv(net)
    x = net.flatten(net.max_pool(image, 2))
    y = net.flatten(net.global_average_pool(net.conv(image, 5, 3)))
    net.linear(net.relu(net.plus(net.linear(x, 5), y)), 5)


def reshaped(net):
    x = net.add("apart", ops.Reshape((BATCH, 8, 3, 4)), net.flatten(conv(net)))
    net.linear(net.flatten(net.conv(x, 5, 3)), 5)


def rows_joined(net):
    x = net.add("rows", ops.Flatten(2, 3), conv(net))
    net.linear(net.flatten(net.relu(net.batch_norm(x))), 5)


def samples_mixed(net):
    x = net.add("mixed", ops.Reshape((2 * BATCH, 3, 4, 4)), conv(net))
    x = net.linear(net.flatten(x), 5)
    net.add("apart", ops.Reshape((BATCH, 10)), x)


def one_axis(net):
    x = net.add("conv", ops.Conv(6, (3,), (2,), ((1, 0),), (1,)), net.image(3, 12))
    x = net.relu(net.batch_norm(x))
    x = net.add("pool", ops.Pool("max", (2,), (1,), ((1, 0),), (1,)), x)
    x = net.add("mean", ops.Pool("average", (3,), (2,), ((1, 1),), (1,)), x)
    net.linear(net.flatten(x), 5)


def mean_of_all_positions(net):
    x = net.add("mean", ops.Reduce("mean", (2, 3)), net.relu(conv(net)))
    net.linear(x, 5)


def mean_that_keeps_axes(net):
    x = net.add("mean", ops.Reduce("mean", (-1, -2), keep_axes=True), net.relu(conv(net)))
    net.linear(net.flatten(net.conv(x, 7, 1)), 5)


NETWORKS = {
    each.__name__: each
    for each in (
        norm_behind_flatten,
        norm_behind_flatten_and_residual,
        flatten_plus_linear,
        linear_plus_flatten,
        logits_of_a_flatten,
        logits_of_a_relu_behind_flatten,
        linear_on_images,
        linear_on_images_of_as_many_channels,
        linear_on_the_input,
        linear_then_conv,
        norm_of_sequences,
        flatten_of_sequences,
        several_readers,
        dropouts,
        pooled,
        reshaped,
        rows_joined,
        samples_mixed,
        one_axis,
        mean_of_all_positions,
        mean_that_keeps_axes,
    )
}


def network(make, batch=BATCH):
    net = Network(make.__name__, batch)
    make(net)
    return net.build()


def errors_of(found, expected):
    """Relative errors of gradients; that of a bias before a normalisation is nothing."""
    assert found.keys() == expected.keys()
    return {
        name: relative_error(found[name], value)
        for name, value in expected.items()
        if np.linalg.norm(value) > 1e-4
    }


def check_step(graph, seed=0, *, products=True):
    """Run a step in the model and hold it to PyTorch's, in FP32 and with the core's numbers.

    MXINT8 leaves some percent; beside the core's own numbers in PyTorch little is left.
    """
    program = build_step(graph, SMALL_CORE, options=StepOptions(FP32, apart=True))
    parameters = initial_parameters(graph, seed)
    inputs, labels = random_batch(graph, seed)
    memory = program.image(parameters)
    program.set_batch(memory, inputs, labels)
    model = CoreModel(SMALL_CORE, memory)
    scalars = scalar_bits(seed=seed)
    model.scalars[:] = scalars
    model.run(program.instructions)
    loss, _ = program.outcome(memory)
    gradients = program.parameters(memory, ".gradient")
    exact = torch_step(graph, parameters, inputs, labels, drop_factors_of(graph, (seed, 0)))
    with TorchBackend(graph, parameters, options=StepOptions(FP32), precision="mxint8") as same:
        expected = same.step(inputs, labels, scalars)
        rounded = same.parameters(".gradient")
        updated = same.parameters()
    assert abs(loss - exact.loss) < 0.03 * exact.loss
    errors = errors_of(gradients, exact.gradients)
    assert max(errors.values()) < 0.25, errors
    assert abs(loss - expected.loss) < 1e-5 * expected.loss
    errors = errors_of(gradients, rounded)
    assert max(errors.values()) < 1e-5, errors
    errors = errors_of(program.parameters(memory), updated)
    assert max(errors.values()) < 1e-5, errors
    before = memory.copy()
    program.set_parameters(before, parameters)
    for each in product_errors(program, before) if products else ():
        assert each.of_bound <= 1, each
    return program, memory, parameters


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_that_of_pytorch(name):
    check_step(network(NETWORKS[name]))


def check_inference(graph, options):
    program = build_step(graph, SMALL_CORE, options=options)
    parameters = initial_parameters(graph, 0)
    inputs, _ = random_batch(graph, 0)
    memory = program.image(parameters)
    program.set_batch(memory, inputs)
    CoreModel(SMALL_CORE, memory).run(program.instructions)
    (output,) = graph.outputs
    found = program.results(memory)[output]
    weights = {key: torch.tensor(value) for key, value in parameters.items()}
    exact = forward(graph, weights, {key: torch.tensor(v) for key, v in inputs.items()})[output]
    assert found.shape == tuple(exact.shape)
    assert relative_error(found, exact.numpy()) < 0.03
    with TorchBackend(graph, parameters, options=options, precision="mxint8") as same:
        expected, _ = same.infer(inputs)
    assert relative_error(found, expected[output]) < 1e-5


@pytest.mark.parametrize("name", NETWORKS)
def test_inference_is_that_of_pytorch(name):
    check_inference(network(NETWORKS[name]), StepOptions(FP32, train=False))


def shared(graph, first, second, *roles):
    """The network with some of a layer's parameters in another layer's place."""
    names = {p.spec.role: p.name for p in graph.layers[first].parameters}
    layer = graph.layers[second]
    parameters = tuple(
        replace(p, name=names[p.spec.role] if p.spec.role in roles else p.name)
        for p in layer.parameters
    )
    layers = {**graph.layers, second: replace(layer, parameters=parameters)}
    return replace(graph, layers=layers)


def test_a_weight_behind_images_and_behind_features_is_one():
    """It can lie in one order only, so the images' features are moved."""
    net = Network("tied", BATCH)
    x = net.flatten(conv(net))
    x = net.relu(net.linear(x, 96, name="first"))
    net.linear(net.linear(x, 96, name="second"), 5)
    check_step(shared(net.build(), "first", "second", "weight"), products=False)


def test_a_normalisation_of_two_orders_is_one():
    net = Network("tied", BATCH)
    x = net.flatten(conv(net))
    x = net.linear(net.relu(net.batch_norm(x, name="first")), 96)
    net.linear(net.batch_norm(x, name="second"), 5)
    roles = ("weight", "bias", "running_mean", "running_var")
    check_step(shared(net.build(), "first", "second", *roles))


def test_a_parameter_of_two_shapes_is_refused():
    net = Network("tied", BATCH)
    x = net.conv(conv(net), 6, 1, name="first")
    net.linear(net.flatten(net.linear(net.global_average_pool(x), 36, name="second")), 5)
    graph = shared(net.build(), "first", "second", "bias")
    with pytest.raises(UserError, match=r"^layer 'second': parameter 'first.bias' must have one"):
        build_step(graph, SMALL_CORE)


def frozen(graph, *names):
    """The network with parameters that are not learned."""
    layers = {
        layer.name: replace(
            layer,
            parameters=tuple(
                replace(p, spec=replace(p.spec, trainable=False)) if p.name in names else p
                for p in layer.parameters
            ),
        )
        for layer in graph.layers.values()
    }
    return replace(graph, layers=layers)


@pytest.mark.parametrize(
    "names",
    [
        ("conv1.weight",),
        ("conv1.weight", "conv1.bias"),
        ("linear1.weight", "batch_norm1.bias"),
        ("linear1.bias", "batch_norm1.weight", "batch_norm1.bias"),
    ],
    ids=str,
)
def test_frozen_parameters_stay(names):
    net = Network("frozen", BATCH)
    x = net.batch_norm(net.flatten(net.relu(conv(net))))
    net.linear(net.relu(net.linear(x, 7)), 5)
    graph = frozen(net.build(), *names)
    program, memory, before = check_step(graph, products=False)
    after = program.parameters(memory)
    for name in names:
        np.testing.assert_array_equal(after[name], before[name])
    assert not names & program.parameters(memory, ".gradient").keys()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", ["norm_behind_flatten", "several_readers", "linear_then_conv"])
def test_a_cut_anywhere_leaves_the_bits_of_one_device(name, train):
    """Also between an image and its flatten, and behind that."""
    graph = network(NETWORKS[name], 2)
    options = StepOptions(train=train)
    names = list(graph.layers)
    schedule = make_schedule("1f1b-as", 2, 2)
    expected = None
    begins = {unit.layers[0].name for unit in units_of(graph)}
    for cut in [number for number, layer in enumerate(names) if layer in begins]:
        layers = [part for part in (names[:cut], names[cut:]) if part]
        kind = schedule if len(layers) == 2 else make_schedule("1f1b-as", 1, 2)
        pipeline = build_pipeline(graph, [CORE] * len(layers), layers, kind, options=options)
        with ModelBackend(pipeline, initial_parameters(graph, 0)) as backend:
            inputs, labels = random_batch(graph, 0, 2)
            scalars = scalar_bits(seed=3)
            if train:
                result = backend.step(inputs, labels, scalars)
                found = backend.parameters() | backend.parameters(".gradient")
                found["loss"] = np.float32(result.loss)
            else:
                found, _ = backend.infer(inputs, scalars)
        expected = expected or found
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=f"{key}, cut {cut}")


def test_results_that_are_views_of_each_other():
    """Each output of a network has its own place, for every micro-batch."""
    net = Network("views", 2)
    x = net.relu(conv(net))
    y = net.flatten(x)
    net.dropout(y, 0.5)
    net.linear(net.linear(x, 3), 7)
    graph = replace(net.build(), outputs=("relu1", "flatten1", "dropout1", "linear2"))
    layers = [list(graph.layers)]
    pipeline = build_pipeline(
        graph, [CORE], layers, make_schedule("gpipe", 1, 3), options=StepOptions(train=False)
    )
    parameters = initial_parameters(graph, 0)
    inputs, _ = random_batch(graph, 0, 3)
    with ModelBackend(pipeline, parameters) as backend:
        found, _ = backend.infer(inputs, scalar_bits())
    weights = {key: torch.tensor(value) for key, value in parameters.items()}
    for index in range(3):
        part = {
            key: torch.tensor(value[2 * index : 2 * index + 2]) for key, value in inputs.items()
        }
        expected = forward(graph, weights, part)
        for name in graph.outputs:
            values = found[name][2 * index : 2 * index + 2]
            assert relative_error(values, expected[name].numpy()) < 0.03, name


def test_rates_of_dropout_are_of_elements_not_of_places():
    """The factors of a dropout behind a flatten are told in the network's order."""
    graph = network(dropouts)
    factors = drop_factors_of(graph, (5, 0))
    image, features, last = (factors[f"dropout{number}"] for number in (1, 2, 3))
    assert (image.shape, features.shape, last.shape) == ((6, 6, 4, 4), (6, 96), (6, 9))
    drawn = drop_factors(6 * 96, 0.5, 2, (5, 0)).reshape(6, 4, 4, 6)
    np.testing.assert_array_equal(features.reshape(6, 6, 4, 4), drawn.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("activations", [BF16, FP32])
@pytest.mark.parametrize(
    ("shape", "axis", "log"), [((5,), -1, False), ((6, 3, 3), 1, True), ((6, 3, 4), -1, False)]
)
def test_softmax_in_inference(shape, axis, log, activations):
    net = Network("shares", BATCH)
    x = net.conv(net.image(3, 3, 4), 6, (1, 4 if shape == (5,) else 1))
    if len(shape) == 1:
        x = net.linear(net.flatten(x), 5)
    net.add("softmax", ops.Softmax(axis, log), x)
    graph = net.build()
    check_inference(graph, StepOptions(activations, train=False))
    with pytest.raises(UserError, match=r"layer 'softmax': a network that trains must not end"):
        build_step(graph, SMALL_CORE)


@pytest.mark.sim
def test_gateware_matches_model():
    """Values that are moved, images of one axis, a mean and a softmax, on a design of others."""
    from fpgapipe.hw.hls_models.model.registers import RegisterMap
    from fpgapipe.sim_tb.native.core_device import build_device, run_program
    from fpgapipe.sim_tb.native.native import NativeDevice

    net = Network("moved", 2)
    x = net.conv(net.image(3, 5, 4), 6, 3, padding=1)
    x = net.add("rows", ops.Flatten(2, 3), net.relu(net.linear(x, 7)))
    x = net.add("conv", ops.Conv(9, (3,), (2,), ((1, 1),), (1,)), x)
    y = net.linear(net.add("mean", ops.Reduce("mean", (2,)), x), 18 * 9)
    x = net.plus(net.flatten(x), y)
    net.add("softmax", ops.Softmax(1), net.add("apart", ops.Reshape((2, 9, 18)), x))
    graph = net.build()
    program = build_step(graph, SMALL_CORE, options=StepOptions(train=False))
    image = program.image(initial_parameters(graph, 0))
    program.set_batch(image, random_batch(graph, 0)[0])
    library, _, _ = build_device(SMALL_CORE)
    with NativeDevice(library, memory_bytes=program.memory_bytes) as device:
        device.memory[:] = image
        run_program(device, RegisterMap(SMALL_CORE), program.entry, program.memory_bytes)
        CoreModel(SMALL_CORE, image).run(program.instructions)
        np.testing.assert_array_equal(device.memory, image)
    np.testing.assert_allclose(program.results(image)["softmax"].sum(axis=1), 1, rtol=1e-6)
