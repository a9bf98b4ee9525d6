"""A trained network becomes one of INT8: its scales, its integers, what stays real."""

import numpy as np
import pytest
from step_cases import SMALL_CORE

from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.network_units import refusals_of
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.graph import NetworkError
from fpgapipe.network.graph_json import from_json, to_json
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.quantisation import quantised, scale_of
from fpgapipe.network.zoo.layers import Network

torch = pytest.importorskip("torch", reason="needs the torch extra")

from fpgapipe.errors import UserError  # noqa: E402
from fpgapipe.host.backends.calibration import calibrated, magnitudes  # noqa: E402
from fpgapipe.host.backends.torch_reference import forward  # noqa: E402
from fpgapipe.host.data.samples import Samples  # noqa: E402


def residual(batch):
    """Convolutions with and without normalisation, a residual sum, pooling, a sigmoid, logits."""
    net = Network("residual", batch)
    x = net.relu(net.conv(net.image(3, 8, 8), 8, 3, padding=1, name="conv1"), "relu1")
    y = net.batch_norm(net.conv(x, 8, 3, padding=1, bias=False, name="conv2"), name="norm")
    x = net.relu(net.plus(y, x, "sum"), "relu2")
    x = net.max_pool(x, 2, name="pool")
    x = net.activation(net.conv(x, 6, 1, name="conv3"), "sigmoid", name="gate")
    x = net.flatten(net.global_average_pool(x, "average"), "flat")
    net.linear(x, 5, name="logits")
    return net.build()


def samples(count=48):
    rng = np.random.default_rng(0)
    images = rng.standard_normal((count, 3, 8, 8), np.float32)
    return Samples(images, np.zeros(count, np.int64))


def values_of(graph):
    rng = np.random.default_rng(1)
    found = initial_parameters(graph, 0)
    for name in ("norm.weight", "norm.running_var"):
        found[name] = np.float32(rng.uniform(0.5, 2, found[name].shape))
    for name in ("norm.bias", "norm.running_mean"):
        found[name] = np.float32(rng.normal(0, 0.3, found[name].shape))
    return found


def test_residual_network():
    """The results are near those of FP32, and those of the reference with the same integers."""
    graph = residual(16)
    values = values_of(graph)
    integers = calibrated(residual, values, samples())(16)
    assert refusals_of(integers, train=False) == []
    assert from_json(to_json(integers)).layers == integers.layers
    kinds = [layer.op for layer in integers.layers.values()]
    assert kinds.count("rescale") == 5  # three convolutions, the average, the logits' sums
    assert kinds.count("integer_add") == 1
    assert "batch_norm" not in kinds
    assert kinds.count("quantise") == 2  # the input, and behind the sigmoid

    images = samples(16).images
    program = build_step(integers, SMALL_CORE, options=StepOptions(train=False))
    memory = program.image({name: np.float32(each) for name, each in integers.values.items()})
    program.set_batch(memory, {"input": images})
    CoreModel(SMALL_CORE, memory).run(program.instructions)
    found = program.results(memory)["logits"]
    given = {"input": torch.from_numpy(images)}
    weights = {name: torch.from_numpy(np.array(each)) for name, each in values.items()}
    exact = forward(graph, weights, given)["logits"].numpy()
    assert np.abs(found - exact).max() < 0.03 * np.abs(exact).max()
    own = {name: torch.from_numpy(np.array(each)) for name, each in integers.values.items()}
    reference = forward(integers, own, given)["logits"].numpy()
    # Only the sigmoid differs, by rounding to BF16.
    assert np.abs(found - reference).max() < 0.01 * np.abs(exact).max()


def test_weights_are_symmetric():
    graph = residual(4)
    values = values_of(graph)
    integers = calibrated(residual, values, samples())(4)
    for name in ("conv1.sums.weight", "logits.sums.weight"):
        weight = integers.values[name]
        assert np.abs(weight).reshape(len(weight), -1).max(axis=1).tolist() == [127] * len(weight)
        assert (weight == np.rint(weight)).all()


def test_magnitudes():
    graph = residual(16)
    values = values_of(graph)
    given = samples(16)
    batch = [given.inputs(graph)]
    largest = magnitudes(graph, values, batch, 100)
    assert largest["input"] == np.abs(given.images).max()
    most = magnitudes(graph, values, batch, 90)["input"]
    assert most == pytest.approx(np.quantile(np.abs(given.images), 0.9), rel=1e-6)
    assert most < largest["input"]
    rare = np.zeros_like(given.images)
    rare[0, 0, 0, 0] = 8
    assert magnitudes(graph, values, [{"input": rare}], 90)["input"] == 8
    with pytest.raises(UserError, match=r"^calibration needs at least one batch of samples$"):
        magnitudes(graph, values, [], 100)


def test_what_is_refused():
    with pytest.raises(NetworkError, match=r"^magnitudes to quantise must be finite, not inf$"):
        scale_of(float("inf"))
    assert scale_of(0.0) == 1
    net = Network("tokens", 2)
    net.embedding(net.tokens("tokens", 4), 10, 8)
    with pytest.raises(NetworkError, match=r"^input 'tokens' of an INT8 network must"):
        quantised(net.build(), {}, {})
