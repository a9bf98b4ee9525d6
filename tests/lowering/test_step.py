"""Training steps: programs of whole networks against PyTorch, and in hardware against the model."""

import random
from dataclasses import replace

import numpy as np
import pytest
from kernel_cases import reordered
from step_cases import SMALL_CORE, every_operator, vectors_only

from fpgapipe.errors import UserError
from fpgapipe.host.backends.torch_step import torch_step
from fpgapipe.host.bench.step_bench import bench_step, relative_error
from fpgapipe.host.bench.step_check import folded, product_errors, steps_of, unfolded
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.numerics import mx
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.lowering.memory.memory_map import LOSS
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.layers.step_units import AddUnit, NormUnit, ProductUnit
from fpgapipe.lowering.units.network_units import units_of
from fpgapipe.lowering.units.step_options import NORM, StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.load import load_network
from fpgapipe.network.operators import Flatten, Reshape
from fpgapipe.network.zoo.layers import Network


def run_in_model(graph, options, seed=0, core=SMALL_CORE):
    """Program, memory after a step, parameters and batch."""
    program = build_step(graph, core, options=options)
    parameters = initial_parameters(graph, seed)
    inputs, labels = random_batch(graph, seed)
    memory = program.image(parameters)
    program.set_batch(memory, inputs, labels if options.train else None)
    model = CoreModel(core, memory)
    model.scalars[:] = scalar_bits(learning_rate=0.1, weight_decay=0.01, max_norm=0.5, seed=seed)
    model.run(program.instructions)
    return program, memory, parameters, (inputs, labels)


def test_layers_that_go_together():
    units = {unit.name: unit for unit in units_of(every_operator(2))}
    sums = [unit for unit in units.values() if isinstance(unit, AddUnit)]
    norms = [unit for unit in units.values() if isinstance(unit, NormUnit)]
    assert [unit.residual is not None for unit in norms] == [False, True, False]
    assert [unit.relu for unit in norms] == [True, True, False]
    assert len(sums) == 1  # the convolution's result comes after its other summand
    slopes = [unit.slope for unit in units.values() if isinstance(unit, ProductUnit)]
    assert slopes == [0, None, None, 0.01, None, 0, None]


@pytest.mark.parametrize("activations", [BF16, FP32])
def test_products_keep_to_what_rounding_may_do(activations):
    program, memory, parameters, _ = run_in_model(
        every_operator(3), StepOptions(activations, apart=True)
    )
    program.set_parameters(memory, parameters)
    errors = product_errors(program, memory)
    assert {(each.layer, each.which) for each in errors} >= {
        ("conv1", "forward"), ("conv1", "weight"), ("linear2", "forward"), ("linear2", "input"),
    }  # fmt: skip
    assert not [each for each in errors if (each.layer, each.which) == ("conv1", "input")]
    for each in errors:
        assert 0 < each.of_bound <= 1, each
        assert each.relative <= 1.5 * each.expected, each


def test_a_wrong_weight_is_seen():
    program, memory, parameters, _ = run_in_model(every_operator(2), StepOptions(FP32, apart=True))
    parameters["conv2.weight"] = np.roll(parameters["conv2.weight"], 1, axis=1)
    program.set_parameters(memory, parameters)
    errors = {(each.layer, each.which): each for each in product_errors(program, memory)}
    assert errors["conv2", "forward"].of_bound > 1
    assert errors["conv2", "forward"].relative > 10 * errors["conv2", "forward"].expected
    assert errors["conv3", "forward"].of_bound <= 1


def test_vector_paths_are_those_of_pytorch():
    """All but the product, whose result is put in the place of the core's."""
    graph = vectors_only(6)
    program, memory, parameters, (inputs, labels) = run_in_model(
        graph, StepOptions(FP32, apart=True)
    )
    made = program.read(memory, "conv1")
    rest = Network("rest", 6)
    x = rest.image(20, 8, 8)
    x = rest.relu(rest.batch_norm(x))
    x = rest.max_pool(x, 2)
    x = rest.plus(rest.batch_norm(x), x)
    x = rest.average_pool(rest.activation(x, "leaky_relu"), 3, stride=1, padding=1)
    rest.flatten(rest.global_average_pool(x))
    del inputs
    reference = torch_step(
        rest.build(),
        {name: value for name, value in parameters.items() if not name.startswith("conv")},
        {"input": np.ascontiguousarray(made.transpose(0, 3, 1, 2))},
        labels,
    )
    assert (
        relative_error(
            program.read(memory, program.values[graph.outputs[0]].tensor.name).reshape(6, 20),
            reference.logits,
        )
        < 1e-6
    )
    assert abs(program.read(memory, LOSS)[0] - reference.loss) < 1e-6 * reference.loss
    gradients = program.parameters(memory, ".gradient")
    for name, value in reference.gradients.items():
        assert relative_error(gradients[name], value) < 2e-6, name


def test_the_update_is_sgd():
    program, memory, before, _ = run_in_model(every_operator(2), StepOptions(BF16))
    after, gradients = program.parameters(memory), program.parameters(memory, ".gradient")
    velocities = program.parameters(memory, ".momentum")
    for name, gradient in gradients.items():
        velocity = gradient + np.float32(0.01) * before[name]
        np.testing.assert_allclose(velocities[name], velocity, rtol=1e-6, atol=1e-9)
        expected = before[name] - np.float32(0.1) * velocity
        np.testing.assert_allclose(after[name], expected, rtol=1e-6, atol=1e-8)
    assert relative_error(after["batch_norm1.running_var"], before["batch_norm1.running_var"]) > 0


def test_adam_with_clipped_gradients_is_pytorchs():
    import torch

    options = StepOptions(BF16, optimiser="adam", clip_norm=1.0)
    program, memory, before, _ = run_in_model(every_operator(2), options)
    after, gradients = program.parameters(memory), program.parameters(memory, ".gradient")
    weights = {name: torch.tensor(before[name], requires_grad=True) for name in gradients}
    for name, weight in weights.items():
        weight.grad = torch.tensor(gradients[name])
    norm = torch.nn.utils.clip_grad_norm_(weights.values(), 0.5)
    assert norm > 0.5  # or nothing would be clipped
    torch.optim.Adam(weights.values(), 0.1, weight_decay=0.01).step()
    np.testing.assert_allclose(program.read(memory, NORM), float(norm), rtol=1e-6)
    for name, weight in weights.items():
        moved = weight.detach().numpy() - before[name]
        np.testing.assert_allclose(after[name] - before[name], moved, rtol=2e-4, atol=1e-6)


def test_no_bit_depends_on_which_engine_is_faster():
    graph = every_operator(2)
    program, expected, parameters, (inputs, labels) = run_in_model(graph, StepOptions(BF16))
    generator = random.Random(5)
    orders = [min, max, generator.choice, generator.choice]
    for choose in orders:
        memory = program.image(parameters)
        program.set_batch(memory, inputs, labels)
        model = CoreModel(SMALL_CORE, memory)
        model.scalars[:] = scalar_bits(learning_rate=0.1, weight_decay=0.01, seed=0)
        model.run(reordered(program.instructions, choose))
        np.testing.assert_array_equal(memory, expected)


def test_inference_is_pytorchs():
    graph = every_operator(2)
    program, memory, parameters, (inputs, labels) = run_in_model(
        graph, StepOptions(FP32, train=False)
    )
    del labels
    import torch

    from fpgapipe.host.backends.torch_reference import forward

    weights = {name: torch.tensor(value) for name, value in parameters.items()}
    given = {name: torch.tensor(value) for name, value in inputs.items()}
    expected = forward(graph, weights, given)[graph.outputs[0]].numpy()
    assert relative_error(program.read(memory, graph.outputs[0]), expected) < 0.1
    assert not [name for name in program.places if name.endswith(".gradient")]


def test_parameters_lie_as_layers_read_them():
    graph = load_network("digits-cnn", 2)
    program = build_step(graph, SMALL_CORE, options=StepOptions(train=False))
    parameters = initial_parameters(graph, 3)
    memory = program.image(parameters)
    for name, value in program.parameters(memory).items():
        np.testing.assert_array_equal(value, parameters[name])
    # Features that were images lie channels last: the linear layer's weights do, too.
    first = program.read(memory, "fc1.weight")[:64]
    np.testing.assert_array_equal(first, parameters["fc1.weight"].reshape(128, 64, 4)[0, :, 0])


def test_unfolding_is_undone():
    conv = ConvSpec(3, 5, (3, 2), (2, 1), (1, 0, 2, 1), 7, 6, 2, (1, 2))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 7, 6, 3))
    seen = unfolded(conv, x)
    other = rng.standard_normal(seen.shape)
    # <unfolded(x), other> = <x, folded(other)>, whatever the two are.
    assert np.isclose((seen * other).sum(), (x * folded(conv, other)).sum())


def test_steps_are_those_of_the_quantiser():
    values = np.random.default_rng(1).standard_normal((4, 80)).astype(np.float32)
    values[0, :40] = 0
    values[1] *= 1e-30
    step = steps_of(values.astype(np.float64), 40)
    for row in range(4):
        for part in (0, 40):
            for first, count in ((part, 32), (part + 32, 8)):
                block = np.zeros((1, 32), np.float32)
                block[0, :count] = values[row, first : first + count]
                elements, codes = mx.quantise(block)
                back = elements[0, :count] * 2.0 ** (int(codes[0]) - 127 - 6)
                error = np.abs(back - values[row, first : first + count])
                assert (error <= step[row, first : first + count]).all()
                if block.any():
                    assert np.isclose(step[row, first], 2.0 ** (int(codes[0]) - 133))


def test_what_the_core_lacks_is_refused_by_name():
    net = Network("refused", 2)
    net.local_response_norm(net.image(3, 8, 8), 3)
    with pytest.raises(UserError, match="the core has no local_response_norm"):
        build_step(net.build(), SMALL_CORE, options=StepOptions(train=False))


def test_a_reshape_may_flatten():
    """PyTorch's ONNX exporter writes a flatten so."""

    def flat(operator):
        net = Network("flat", 2)
        net.linear(net.add("flat", operator, net.image(3, 4, 4)), 5, name="logits")
        return run_in_model(net.build(), StepOptions())[1]

    np.testing.assert_array_equal(flat(Reshape((2, -1))), flat(Flatten()))


def test_training_needs_a_vector_engine():
    graph = every_operator(1)
    with pytest.raises(UserError, match="needs a core with a vector engine"):
        build_step(graph, CoreSpec(8, 8))


def test_options_are_checked():
    with pytest.raises(ValueError, match=r"^step activations must be BF16 or FP32, not 3$"):
        StepOptions(3)
    with pytest.raises(
        ValueError, match=r"^step optimiser must be sgd, adam or adamw, not 'sgdd'$"
    ):
        StepOptions(optimiser="sgdd")
    for changed, what in (
        ({"betas": (0.9, 1.0)}, r"betas must be at least 0 and below 1, not \(0.9, 1.0\)"),
        ({"epsilon": 0.0}, r"epsilon must be in \(0, 1\], not 0.0"),
        ({"clip_norm": 0.0}, r"clip_norm must be in \(0, 1e\+30\], not 0.0"),
    ):
        with pytest.raises(ValueError, match=f"^step {what}$"):
            StepOptions(optimiser="adamw", **changed)


@pytest.mark.sim
@pytest.mark.parametrize(
    "options",
    [StepOptions(BF16), StepOptions(FP32, optimiser="adam", clip_norm=1.0)],
    ids=["sgd bf16", "adam fp32 clipped"],
)
def test_a_step_with_every_operator_in_hardware(options):
    """Every byte of the memory, every bound, and the cycle model."""
    found = bench_step(every_operator(3), SMALL_CORE, seed=1, options=options)
    figures = found.to_dict()
    assert figures["differing_bytes"] == 0
    assert figures["product_error_of_bound"] <= 1
    assert abs(figures["error"]) <= 0.02
    # The first layers' errors come from ReLUs that open elsewhere; the last ones have none.
    assert figures["gradient_errors"]["linear2.weight"] < 0.1
    assert abs(figures["loss"] - figures["torch_loss"]) < 0.05


@pytest.mark.sim
def test_a_difference_is_seen(monkeypatch):
    """The comparison of memories: a model that rounds otherwise must not pass."""
    from fpgapipe.hw.hls_models.numerics import fp32

    right = fp32.to_bf16
    monkeypatch.setattr(fp32, "to_bf16", lambda x: right(x) & np.uint16(0xFFFE))
    found = bench_step(vectors_only(1), SMALL_CORE)
    assert found.differing_bytes > 0


def test_what_does_not_fit_is_refused_by_its_layer():
    """A product that no cut makes small enough, and a kernel of vectors that no piece does."""
    net = Network("wide", 1)
    x = net.image(2, 40, 40)
    net.linear(net.flatten(net.max_pool(x, 39, stride=1)), 3)
    with pytest.raises(UserError, match=r"^layer 'max_pool1': max pool window must"):
        build_step(net.build(), SMALL_CORE)
    tiny = replace(SMALL_CORE, scratchpad=ScratchpadSpec(8, 256))
    with pytest.raises(NotImplementedError, match=r"^layer 'conv1': the forward pass of ConvSpec"):
        build_step(every_operator(1), tiny)
