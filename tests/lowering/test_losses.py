"""Steps with all losses: PyTorch's, with the same bits on one device and on several."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pipeline_cases import run_devices
from step_cases import every_operator
from test_data_parallel import WIRE, shared_batch
from test_data_parallel import on_one as on_one_device
from test_pipeline import CORE, COUNT, ORDERS, SAMPLES, cut, left_behind

from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.host.backends.torch_step import torch_step
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.step_options import StepOptions, counting_labels, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.losses import Loss
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

LOSSES = {
    "smoothed": Loss(smoothing=0.1),
    "ignoring": Loss(ignores=True),
    "both": Loss(smoothing=0.2, ignores=True),
    "weighted": Loss(class_weights=(0.5, 3.0, 0.0123)),
    "weighted, ignoring": Loss(class_weights=(0.5, 3.0, 0.0123), ignores=True, weight=0.7),
    "mse": Loss("mse"),
    "bce": Loss("bce"),
}


def images(batch):
    """A network that gives an image, whose layout in memory is another one than the host's."""
    net = Network("images", batch)
    x = net.relu(net.conv(net.image(2, 5, 7), 6, 3, padding=1))
    net.conv(x, 3, 3, padding=1)
    return net.build()


def loss_for(name, graph):
    """The loss, with a weight for each class if classes have weights."""
    loss = LOSSES[name]
    classes = graph.layers[graph.outputs[0]].output.shape[1]
    weights = np.resize(loss.class_weights, classes) if loss.class_weights else ()
    return replace(loss, class_weights=tuple(map(float, weights)))


def some_batch(graph, loss, count=COUNT):
    """A mini-batch whose micro-batches have unlike numbers of labels that count, the last none."""
    inputs, labels = random_batch(graph, 0, count, loss)
    if loss.ignores:
        labels[::3] = -100
        labels.reshape(count, -1)[-1] = -1
    return inputs, labels


def run(graph, loss, num_stages, kind="1f1b-as", order="any"):
    options = StepOptions(activations=FP32, loss=loss)
    schedule = make_schedule(kind, num_stages, COUNT)
    cores = [CORE] * num_stages
    pipeline = build_pipeline(graph, cores, cut(graph, num_stages), schedule, options=options)
    memories = pipeline.images(initial_parameters(graph, 0))
    inputs, labels = some_batch(graph, loss)
    pipeline.set_batch(memories, inputs, labels)
    programs = [part.instructions for part in pipeline.parts]
    scalars = pipeline.counting(scalar_bits(seed=7), labels)
    assert not any(run_devices(cores, memories, programs, scalars, ORDERS[order]))
    return left_behind(pipeline, memories, options)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("network", [every_operator, images])
def test_several_devices_have_the_bits_of_one(network, name):
    graph = network(SAMPLES)
    loss = loss_for(name, graph)
    expected = run(graph, loss, 1)
    for num_stages, kind, order in ((2, "1f1b-as", "any"), (2, "zb-h1", "transfers late")):
        found = run(graph, loss, num_stages, kind, order)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("network", [every_operator, images])
def test_gradients_are_pytorchs(network, name):
    """By the reference with the core's numbers, and by its own functions on the whole batch."""
    graph = network(SAMPLES)
    loss = loss_for(name, graph)
    options = StepOptions(activations=FP32, loss=loss)
    inputs, labels = some_batch(graph, loss)
    found = run(graph, loss, 1)
    backend = TorchBackend(
        graph, initial_parameters(graph, 0), num_microbatches=COUNT, options=options,
        precision="mxint8", device="cpu",
    )  # fmt: skip
    result = backend.step(inputs, labels, scalar_bits(seed=7))
    value, right = found["outcome"]
    assert value == pytest.approx(result.loss, rel=1e-6)
    assert right == result.correct
    for key, gradient in backend.parameters(".gradient").items():
        own = found[f"{key}.gradient"]
        assert np.linalg.norm(own - gradient) < 1e-4 * np.linalg.norm(gradient) + 1e-9, key


@pytest.mark.parametrize("name", LOSSES)
def test_the_reference_is_pytorch_on_the_whole_batch(name):
    """Without statistics of micro-batches, their gradients are those of one large batch."""
    small, large = images(SAMPLES), images(SAMPLES * COUNT)
    loss = loss_for(name, small)
    inputs, labels = some_batch(small, loss)
    parameters = initial_parameters(small, 0)
    backend = TorchBackend(
        small,
        parameters,
        num_microbatches=COUNT,
        options=StepOptions(loss=loss),
        device="cpu",
    )
    result = backend.step(inputs, labels, scalar_bits())
    whole = torch_step(large, parameters, inputs, labels, loss=loss)
    assert result.loss == pytest.approx(whole.loss, rel=1e-6)
    for key, gradient in backend.parameters(".gradient").items():
        np.testing.assert_allclose(gradient, whole.gradients[key], rtol=1e-4, atol=1e-7)
    logits, functions = torch.tensor(whole.logits), torch.nn.functional
    given = torch.as_tensor(labels)
    if loss.has_classes:
        given = torch.where(given < 0, -100, given)
        weight = torch.tensor(loss.class_weights) if loss.class_weights else None
        own = loss.weight * functions.cross_entropy(
            logits, given, weight, ignore_index=-100, label_smoothing=loss.smoothing
        )
    elif name == "mse":
        own = functions.mse_loss(logits, given)
    else:
        own = functions.binary_cross_entropy_with_logits(logits, given)
    assert result.loss == pytest.approx(float(own), rel=1e-6)


def test_labels_that_all_count_leave_the_bits_of_plain_cross_entropy():
    graph = images(SAMPLES)
    inputs, labels = random_batch(graph, 0, COUNT)
    found = []
    for loss in (Loss(), Loss(ignores=True)):
        options = StepOptions(loss=loss)
        schedule = make_schedule("1f1b-as", 1, COUNT)
        pipeline = build_pipeline(graph, [CORE], cut(graph, 1), schedule, options=options)
        with ModelBackend(pipeline, initial_parameters(graph, 0)) as backend:
            backend.step(inputs, labels, scalar_bits())
            found.append(backend.parameters(".gradient"))
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)


@pytest.mark.parametrize("name", ["ignoring", "weighted", "bce"])
def test_data_parallel_devices_have_the_mean_of_the_mini_batch(name):
    graph = images(SAMPLES)
    loss = loss_for(name, graph)
    options = StepOptions(activations=FP32, loss=loss)
    inputs, labels = some_batch(graph, loss, 2)
    pipeline = shared_batch(graph, 2, 2, options)
    with ModelBackend(pipeline, initial_parameters(graph, 0)) as backend:
        result = backend.step(inputs, labels, scalar_bits())
        gradients = backend.parameters(".gradient")
    reference = TorchBackend(
        graph, initial_parameters(graph, 0), num_microbatches=2, options=options,
        precision="mxint8", device="cpu",
    )  # fmt: skip
    assert result.loss == pytest.approx(
        reference.step(inputs, labels, scalar_bits()).loss, rel=1e-6
    )
    for key, expected in reference.parameters(".gradient").items():
        assert np.linalg.norm(gradients[key] - expected) < 1e-4 * np.linalg.norm(expected), key
    if not loss.is_counted:  # registers of the helper count one label
        expected = on_one_device(graph, inputs, labels, options)
        for key, gradient in gradients.items():
            np.testing.assert_array_equal(gradient, expected[f"{key}.gradient"], err_msg=key)


def test_what_has_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"^loss mse has targets, no labels to smooth or to "):
        Loss("mse", smoothing=0.1)
    with pytest.raises(
        ValueError, match=r"^classes with weights cannot be combined with label smo"
    ):
        Loss(smoothing=0.1, class_weights=(1.0, 2.0))
    with pytest.raises(
        ValueError, match=r"^classes with weights cannot be combined with loss mse$"
    ):
        Loss("mse", class_weights=(1.0, 2.0))
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(
            ValueError, match=rf"^the weight of a class must be in .*, not {wrong:g}"
        ):
            Loss(class_weights=(1.0, wrong))
    weighted = StepOptions(loss=Loss(class_weights=(1.0, 2.0)))
    with pytest.raises(
        UserError, match=r"there must be weights for 3 classes, those of .*, not fo"
    ):
        build_step(images(2), CORE, options=weighted)
    with pytest.raises(ValueError, match=r"^label smoothing must be at least 0 and below 1, not 1"):
        Loss(smoothing=1.0)
    with pytest.raises(ValueError, match=r"^loss must be cross-entropy, mse, bce, not 'l1'$"):
        Loss("l1")
    with pytest.raises(ValueError, match=r"^a mini-batch must have a label that is not ignored$"):
        counting_labels(scalar_bits(), np.full(4, -100))
    net = Network("positions", 2)
    net.flatten(net.linear(net.image(3, 4), 5))
    build_step(net.build(), CORE, options=StepOptions(loss=Loss("mse")))
    net = Network("three axes", 2)
    net.conv(net.image(3, 4, 4), 2, 1)
    graph = net.build()
    turned = replace(graph, batch=3)
    with pytest.raises(UserError, match="the loss needs an output of 3 samples by their values"):
        build_step(turned, CORE, options=StepOptions(loss=Loss("mse")))


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("name", ["both", "weighted, ignoring", "mse", "bce"])
def test_hardware_equals_the_model(name):
    graph = every_operator(SAMPLES)
    loss = loss_for(name, graph)
    options = StepOptions(loss=loss)
    schedule = make_schedule("1f1b-as", 2, COUNT)
    pipeline = build_pipeline(graph, [CORE] * 2, cut(graph, 2), schedule, options=options)
    parameters = initial_parameters(graph, 0)
    batch = some_batch(graph, loss)
    with (
        ModelBackend(pipeline, parameters) as model,
        SimulatorBackend(pipeline, parameters, MemorySpec(), [WIRE]) as hardware,
    ):
        expected = model.step(*batch, scalar_bits())
        found = hardware.step(*batch, scalar_bits())
        assert (found.loss, found.correct) == (expected.loss, expected.correct)
        for one, other in zip(hardware.memories, model.memories, strict=True):
            np.testing.assert_array_equal(one, other)
