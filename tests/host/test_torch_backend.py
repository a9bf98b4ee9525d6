"""Steps in PyTorch: the devices' numbers, its own optimisers, and where it runs."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from step_cases import every_operator
from test_pipeline import CORE, COUNT, batch_of, cut

from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.bench.step_bench import relative_error
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.numerics import mx
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.tasks import single_device
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

torch = pytest.importorskip("torch", reason="needs the torch extra")

from fpgapipe.host.backends import torch_backend, torch_mx  # noqa: E402
from fpgapipe.host.backends.torch_backend import TorchBackend, choose_device  # noqa: E402

SAMPLES = 4


def blocks(kind):
    """FP32 blocks of all sizes of numbers, and of what is none."""
    rng = np.random.default_rng(0)
    if kind == "any bits":
        bits = rng.integers(0, 1 << 32, (4096, mx.MX_BLOCK), np.uint32)
        bits[:2048] &= np.uint32(0xBFFFFFFF)  # half of the blocks without infinities and NaNs
        return bits.view(np.float32)
    if kind == "near each other":
        values = rng.standard_normal((4096, mx.MX_BLOCK))
        return (values * 2.0 ** rng.integers(-126, 126, (4096, 1))).astype(np.float32)
    if kind == "ties":
        # Multiples of half a step, and what saturates.
        scale = 2.0 ** rng.integers(-120, 120, (1024, 1))
        return (rng.integers(-255, 256, (1024, mx.MX_BLOCK)) / 128 * scale).astype(np.float32)
    edges = [0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7F800001, 0x3F800000]
    edges += [0x3FFFFFFF, 0x3FFE0000, 0x3FFF0000]
    bits = np.array(edges + [each | 0x80000000 for each in edges], np.uint32)
    chosen = rng.choice(bits, (2048, mx.MX_BLOCK))
    alone = np.zeros((len(bits), mx.MX_BLOCK), np.uint32)
    alone[:, 5] = bits
    return np.concatenate([chosen, alone]).view(np.float32)


@pytest.mark.parametrize("kind", ["any bits", "near each other", "ties", "edges"])
def test_quantiser_equals_the_models(kind):
    x = blocks(kind)
    elements, codes = mx.quantise(x)
    own_elements, own_codes = torch_mx.quantise(torch.from_numpy(x.copy()))
    np.testing.assert_array_equal(own_codes.numpy(), codes)
    np.testing.assert_array_equal(own_elements.numpy(), elements)


def in_model(graph, options, steps, count=COUNT, **scalars):
    """Steps on one device of the bit-exact model."""
    schedule = make_schedule("1f1b-as", 1, count)
    pipeline = build_pipeline(graph, [CORE], cut(graph, 1), schedule, options=options)
    backend = ModelBackend(pipeline, initial_parameters(graph, 0))
    return run(backend, graph, steps, count, **scalars), backend


def run(backend, graph, steps, count=COUNT, **scalars):
    inputs, labels = batch_of(graph, count)
    return [
        backend.step(
            {name: np.roll(value, step, axis=0) for name, value in inputs.items()},
            np.roll(labels, step),
            scalar_bits(seed=7, step=step, **scalars),
        )
        for step in range(steps)
    ]


def in_torch(graph, precision, options, steps, count=COUNT, **scalars):
    backend = TorchBackend(
        graph,
        initial_parameters(graph, 0),
        num_microbatches=count,
        options=options,
        precision=precision,
        device="cpu",
    )
    return run(backend, graph, steps, count, **scalars), backend


def worst(found, expected):
    return max(relative_error(found[name], value) for name, value in expected.items())


OPTIONS = {
    "sgd": (StepOptions(), {"weight_decay": 0.01}),
    "adam": (StepOptions(optimiser="adam"), {"learning_rate": 0.002, "weight_decay": 0.01}),
    "adamw": (StepOptions(optimiser="adamw"), {"learning_rate": 0.002, "weight_decay": 0.1}),
    "fp32 features": (StepOptions(activations=FP32), {}),
    "clipped": (StepOptions(clip_norm=1.0), {"max_norm": 0.5}),
}


@pytest.mark.parametrize(
    "name",
    # Other features are another lowering of the whole network.
    ["sgd", "adam", "adamw", pytest.param("fp32 features", marks=pytest.mark.slow), "clipped"],
)
def test_emulation_is_the_model_but_for_last_bits_of_the_vector_engine(name):
    """Two micro-batches' gradients, batch statistics, dropout and update, of every operator."""
    options, scalars = OPTIONS[name]
    graph = every_operator(SAMPLES)
    expected, model = in_model(graph, options, 1, **scalars)
    found, backend = in_torch(graph, "mxint8", options, 1, **scalars)
    assert found[0].correct == expected[0].correct
    assert found[0].loss == pytest.approx(expected[0].loss, rel=1e-6)
    before = initial_parameters(graph, 0)
    for suffix in ("", ".gradient", ".momentum"):
        theirs = model.parameters(suffix)
        # A feature that is rounded the other way may change what follows by a BF16 step.
        assert worst(backend.parameters(suffix), theirs) < 1e-3, suffix
    moved = {name: value - before[name] for name, value in model.parameters().items()}
    own = {name: value - before[name] for name, value in backend.parameters().items()}
    assert worst(own, moved) < 0.01
    assert all(np.any(value) for value in moved.values())
    # FP32 is no such thing: the emulation is what is tested, not the tolerance.
    _, plain = in_torch(graph, "fp32", options, 1, **scalars)
    assert worst(plain.parameters(".gradient"), model.parameters(".gradient")) > 0.05


def test_features_that_were_images_lie_channels_last():
    """A linear layer's blocks are those of the memory's order, not of the network's."""
    net = Network("flat", SAMPLES)
    x = net.relu(net.conv(net.image(3, 6, 6), 12, 3))
    net.linear(net.flatten(x), 5)
    graph = net.build()
    expected, model = in_model(graph, None, 1)
    found, backend = in_torch(graph, "mxint8", None, 1)
    assert found[0].loss == pytest.approx(expected[0].loss, rel=1e-6)
    assert worst(backend.parameters(".gradient"), model.parameters(".gradient")) < 1e-5


def test_losses_of_some_steps_follow_the_model():
    net = Network("chain", SAMPLES)
    x = net.max_pool(net.relu(net.conv(net.image(1, 8, 8), 16, 3, padding=1)), 2)
    x = net.relu(net.conv(x, 24, 3))
    net.linear(net.relu(net.linear(net.flatten(x), 20)), 5)
    graph = net.build()
    expected, _ = in_model(graph, None, 4, 2)
    distance = {}
    for precision in torch_backend.PRECISIONS:
        found, _ = in_torch(graph, precision, None, 4, 2)
        distance[precision] = max(
            abs(own.loss - theirs.loss) for own, theirs in zip(found, expected, strict=True)
        )
    assert distance["mxint8"] < 1e-3
    assert distance["mxint8"] < 0.2 * min(distance["fp32"], distance["bf16"])
    assert distance["bf16"] != distance["fp32"]
    assert max(distance.values()) < 0.1


def test_inference_is_the_models():
    graph = every_operator(SAMPLES)
    options = StepOptions(train=False)
    program = build_step(graph, CORE, options=options, tasks=single_device(COUNT, train=False))
    _, trained = in_torch(graph, "mxint8", None, 1)
    memory = program.image(trained.parameters())
    inputs, labels = batch_of(graph)
    program.set_batch(memory, inputs, labels)
    CoreModel(CORE, memory).run(program.instructions)
    (name,) = graph.outputs
    expected = program.results(memory)[name]
    assert relative_error(trained.results(inputs)[name], expected) < 1e-5
    # Any number of samples, however they fall into batches.
    some = {key: value[:7] for key, value in inputs.items()}
    np.testing.assert_allclose(trained.results(some)[name], expected[:7], rtol=1e-4, atol=1e-5)
    outcome = trained.evaluate(some, labels[:7])
    assert outcome.correct == int((expected[:7].argmax(1) == labels[:7]).sum())
    assert trained.infer(some, scalar_bits())[0][name].shape == (7, 5)


def plain_torch(graph, count, steps, optimiser, scalars, max_norm=None):
    """The same training with PyTorch's own optimisers."""
    from fpgapipe.host.backends.torch_reference import forward

    weights = {name: torch.tensor(v) for name, v in initial_parameters(graph, 0).items()}
    learned = [
        weights[p.name].requires_grad_()
        for layer in graph.layers.values()
        for p in layer.parameters
        if p.spec.trainable
    ]
    own = optimiser(learned)
    inputs, labels = batch_of(graph, count)
    losses = []
    for step in range(steps):
        own.zero_grad()
        total = 0.0
        images = torch.from_numpy(np.roll(inputs["input"], step, axis=0)).chunk(count)
        classes = torch.from_numpy(np.roll(labels, step)).chunk(count)
        for x, y in zip(images, classes, strict=True):
            logits = forward(graph, weights, {"input": x}, training=True)[graph.outputs[0]]
            loss = torch.nn.functional.cross_entropy(logits, y) / count
            loss.backward()
            total += float(loss.detach())
        if max_norm:
            torch.nn.utils.clip_grad_norm_(learned, max_norm)
        own.step()
        losses.append(total)
    return losses, {name: value.detach().numpy() for name, value in weights.items()}


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "clipped"])
def test_fp32_is_pytorchs_own_training(name):
    net = Network("normalised", SAMPLES)
    x = net.relu(net.batch_norm(net.conv(net.image(3, 6, 6), 8, 3, bias=False)))
    net.linear(net.flatten(net.max_pool(x, 2)), 5)
    graph = net.build()
    if name == "adam":
        options = StepOptions(optimiser="adam")
        scalars = {"learning_rate": 0.01, "weight_decay": 0.05}

        def optimiser(parameters):
            return torch.optim.Adam(parameters, 0.01, weight_decay=0.05)
    elif name == "adamw":
        options = StepOptions(optimiser="adamw", betas=(0.8, 0.95), epsilon=1e-6)
        scalars = {"learning_rate": 0.01, "weight_decay": 0.5, "betas": (0.8, 0.95)}

        def optimiser(parameters):
            return torch.optim.AdamW(parameters, 0.01, (0.8, 0.95), 1e-6, weight_decay=0.5)
    else:
        options = StepOptions(clip_norm=0.7 if name == "clipped" else None)
        scalars = {"learning_rate": 0.05, "weight_decay": 0.05, "max_norm": 0.7}

        def optimiser(parameters):
            return torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=0.05)

    found, backend = in_torch(graph, "fp32", options, 3, **scalars)
    limit = 0.7 if name == "clipped" else None
    losses, weights = plain_torch(graph, COUNT, 3, optimiser, scalars, limit)
    np.testing.assert_allclose([each.loss for each in found], losses, rtol=1e-4)
    assert worst(backend.parameters(), weights) < 1e-4


def test_steps_repeat_and_go_on_from_a_memory():
    graph = every_operator(SAMPLES)
    first, one = in_torch(graph, "fp32", None, 3)
    again, other = in_torch(graph, "fp32", None, 3)
    assert first == again
    np.testing.assert_array_equal(one.memories[0], other.memories[0])
    _, resumed = in_torch(graph, "fp32", None, 0)
    resumed.set_state(one.state())
    inputs, labels = batch_of(graph)
    inputs["input"].setflags(write=False)
    scalars = scalar_bits(seed=7, step=3)
    assert resumed.step(inputs, labels, scalars) == one.step(inputs, labels, scalars)
    np.testing.assert_array_equal(one.memories[0], resumed.memories[0])
    other.memories[0][:] = one.memories[0]
    for name, value in one.parameters().items():
        np.testing.assert_array_equal(other.parameters()[name], value)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def settings():
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.allow_tf32,
    )


@pytest.mark.usefixtures("two_threads")
def test_a_step_leaves_pytorchs_settings_as_they_were():
    before = settings()
    assert before[:2] == (2, False)
    inside = []
    graph = every_operator(SAMPLES)
    _, backend = in_torch(graph, "fp32", None, 0)
    passes = backend._passes

    def watched(*args):
        inside.append(settings())
        return passes(*args)

    backend._passes = watched
    run(backend, graph, 1)
    # One thread of a processor adds in one order, so PyTorch is not told to be deterministic.
    assert inside == [(1, False, False)] * COUNT
    assert settings() == before


class FakeCuda:
    def __init__(self, count):
        self.count = count

    def is_available(self):
        return self.count > 0

    def device_count(self):
        return self.count


@pytest.mark.parametrize(
    ("count", "name", "expected"),
    [(0, "auto", "cpu"), (2, "auto", "cuda"), (2, "cuda:1", "cuda:1"), (2, "cpu", "cpu")],
)
def test_where_it_runs(count, name, expected, monkeypatch):
    monkeypatch.setattr(torch, "cuda", FakeCuda(count))
    assert str(choose_device(name)) == expected


@pytest.mark.parametrize(
    ("count", "name", "message"),
    [
        (0, "cuda", r"^torch device cuda needs a GPU, but torch .* does not see it; use cpu$"),
        (2, "cuda:2", r"^torch device cuda:2 must be one of 2, cuda:0 first$"),
        (2, "cpu:1", r"^torch device must be auto, cpu, cuda or cuda:NUMBER, not 'cpu:1'$"),
        (2, "tpu", r"^torch device must be auto, cpu, cuda or cuda:NUMBER, not 'tpu'$"),
    ],
)
def test_a_device_that_is_not_there(count, name, message, monkeypatch):
    monkeypatch.setattr(torch, "cuda", FakeCuda(count))
    with pytest.raises(UserError, match=message):
        choose_device(name)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", torch_backend.PRECISIONS)
def test_a_gpu_gives_what_a_processor_gives(precision):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    graph = every_operator(SAMPLES)
    expected, processor = in_torch(graph, precision, None, 2)
    backend = TorchBackend(
        graph, initial_parameters(graph, 0), num_microbatches=COUNT, precision=precision,
        device="cuda",
    )  # fmt: skip
    found = run(backend, graph, 2)
    for own, theirs in zip(found, expected, strict=True):
        assert own.loss == pytest.approx(theirs.loss, rel=1e-2)
    limit = {"fp32": 1e-3, "bf16": 0.3, "mxint8": 0.1}[precision]
    assert worst(backend.parameters(), processor.parameters()) < limit


def test_what_does_not_fit_is_refused():
    graph = every_operator(SAMPLES)
    parameters = initial_parameters(graph, 0)
    with pytest.raises(ValueError, match=r"^precision must be one of fp32, bf16, mxint8, not 'x'$"):
        TorchBackend(graph, parameters, precision="x")
    with pytest.raises(ValueError, match=r"^num_microbatches must be at least 1, not 0$"):
        TorchBackend(graph, parameters, num_microbatches=0)
    with pytest.raises(ValueError, match=r"^parameter conv1.weight must have shape .* not nothing"):
        TorchBackend(graph, {})
    inputs, labels = batch_of(graph)
    with contextlib.closing(TorchBackend(graph, parameters, num_microbatches=COUNT)) as backend:
        with pytest.raises(ValueError, match=r"^input input must have shape \(12, 3, 9, 9\), not "):
            backend.step({"input": inputs["input"][:-1]}, labels, scalar_bits())
        with pytest.raises(ValueError, match=r"^labels must have shape \(12,\), not \(11,\)$"):
            backend.step(inputs, labels[:-1], scalar_bits())
    two = replace(graph, outputs=(*graph.outputs, "relu1"))
    with (
        contextlib.closing(TorchBackend(two, parameters, num_microbatches=COUNT)) as backend,
        pytest.raises(ValueError, match=r"^there must be labels or targets for output 'relu1'$"),
    ):
        backend.step(inputs, {graph.outputs[0]: labels}, scalar_bits())
