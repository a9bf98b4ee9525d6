"""Steps of networks with several outputs and losses, which devices in all places compute."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from pipeline_cases import run_devices
from test_data_parallel import WIRE, shared_batch
from test_hybrid import run as run_hybrid
from test_pipeline import CORE, ORDERS, SCALARS, left_behind
from test_sharded import close, degrees_of
from test_sharded import run as run_sharded

from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.host.backends.torch_reference import forward
from fpgapipe.host.backends.torch_step import torch_step
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.tasks import single_device
from fpgapipe.lowering.schedule.weight_versions import LateWeights
from fpgapipe.lowering.units.network_units import RefusedNetwork, check_network
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.losses import Loss
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

SAMPLES, COUNT = 2, 3

LOSS = Loss(
    smoothing=0.1,
    others=(
        ("aux", Loss(ignores=True, weight=0.3)),
        ("map", Loss("mse", weight=2.0)),
        ("gate", Loss("bce")),
        ("pixels", Loss(ignores=True)),
    ),
)
"""All kinds of losses; two outputs ignore labels, of which unlike numbers count."""

CUTS = {
    1: (),
    2: ("deep",),
    3: ("deep", "map.relu"),
    4: ("deep", "map", "gate"),
}
"""First layers of all stages but the first."""


def heads(batch):
    """A network with five outputs, of which other layers read two, one of them an image."""
    net = Network("heads", batch)
    trunk = net.relu(net.conv(net.image(2, 5, 6), 4, 3, padding=1, name="trunk"), name="trunk.relu")
    aux = net.linear(net.flatten(net.global_average_pool(trunk)), 5, name="aux")
    deep = net.relu(net.conv(trunk, 6, 3, padding=1, name="deep"), name="deep.relu")
    image = net.conv(deep, 3, 1, name="map")
    wide = net.relu(image, name="map.relu")
    pixels = net.conv(wide, 4, 1, name="pixels")
    flat = net.flatten(net.plus(wide, image))
    gate = net.linear(flat, 7, name="gate")
    both = net.concat([net.relu(gate), flat])
    main = net.linear(both, 9, name="main")
    return net.build([main, aux, image, gate, pixels])


def stages(graph, num_stages):
    names = list(graph.layers)
    begins = [0, *(names.index(name) for name in CUTS[num_stages]), len(names)]
    return [names[begin:end] for begin, end in pairwise(begins)]


def batch_of(graph, count=COUNT):
    """A mini-batch in which labels are ignored, all of a micro-batch in one output."""
    inputs, labels = random_batch(graph, 0, count, LOSS)
    labels["aux"][::3] = -100
    labels["pixels"][:, ::2] = -1
    labels["pixels"][: len(labels["pixels"]) // count] = -7
    return inputs, labels


def pipeline_of(graph, num_stages, kind="1f1b-as", activations=FP32):
    options = StepOptions(activations=activations, loss=LOSS)
    schedule = make_schedule(kind, num_stages, COUNT)
    cores = [CORE] * num_stages
    return build_pipeline(graph, cores, stages(graph, num_stages), schedule, options=options)


def run(graph, num_stages, kind="1f1b-as", order="any", activations=FP32):
    """All that a step leaves behind."""
    pipeline = pipeline_of(graph, num_stages, kind, activations)
    memories = pipeline.images(initial_parameters(graph, 0))
    inputs, labels = batch_of(graph)
    pipeline.set_batch(memories, inputs, labels)
    programs = [part.instructions for part in pipeline.parts]
    scalars = pipeline.counting(scalar_bits(), labels)
    assert not any(run_devices([CORE] * num_stages, memories, programs, scalars, ORDERS[order]))
    return {
        name + suffix: value
        for suffix in ("", ".gradient", ".momentum")
        for name, value in pipeline.parameters(memories, suffix).items()
    } | {"outcomes": pipeline.outcomes(memories), "outcome": pipeline.outcome(memories)}


@pytest.fixture(scope="module", params=[FP32, BF16], ids=lambda each: each.name)
def on_one(request):
    """All that a step leaves behind on one device, with the format of activations."""
    return run(heads(SAMPLES), 1, activations=request.param), request.param


@pytest.mark.parametrize(
    ("num_stages", "kind", "order"),
    [
        (2, "1f1b-as", "any"),
        (3, "zb-h1", "transfers late"),
        (4, "1f1b-as", "transfers late"),
        (4, "gpipe", "any"),
    ],
)
def test_several_devices_have_the_bits_of_one(on_one, num_stages, kind, order):
    """Losses are in the first stage, in the middle and at the end."""
    expected, activations = on_one
    graph = heads(SAMPLES)
    found = run(graph, num_stages, kind, order, activations)
    assert found.keys() == expected.keys()
    assert found.pop("outcomes") == expected["outcomes"]
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    where = [
        [each.output for each in part.losses]
        for part in pipeline_of(graph, num_stages, kind, activations).parts
    ]
    assert where[0] == ["aux"]
    assert where[-1][0] == "main"
    assert sorted(name for names in where for name in names) == sorted(graph.outputs)


def test_gradients_are_those_of_the_reference(on_one):
    """PyTorch computes with the core's number formats here."""
    found, activations = on_one
    graph = heads(SAMPLES)
    backend = TorchBackend(
        graph,
        initial_parameters(graph, 0),
        num_microbatches=COUNT,
        options=StepOptions(activations=activations, loss=LOSS),
        precision="mxint8",
        device="cpu",
    )
    inputs, labels = batch_of(graph)
    result = backend.step(inputs, labels, scalar_bits())
    assert list(found["outcomes"]) == list(graph.outputs) == list(result.outputs)
    for name, (loss, right) in result.outputs.items():
        assert found["outcomes"][name][0] == pytest.approx(loss, rel=1e-5), name
        assert found["outcomes"][name][1] == right, name
    assert found["outcome"] == (pytest.approx(result.loss, rel=1e-5), result.correct)
    bound = 1e-4 if activations is FP32 else 3e-2
    for key, gradient in backend.parameters(".gradient").items():
        own = found[f"{key}.gradient"]
        assert np.linalg.norm(own - gradient) < bound * np.linalg.norm(gradient), key


@pytest.mark.parametrize("kind", ["pipedream", "pipedream-newest"])
@pytest.mark.parametrize("num_stages", [2, 4])
def test_late_weights_have_several_losses(kind, num_stages):
    """PyTorch with the same late weights agrees over two steps, and with no late ones it does not.

    Losses are in all stages but one, also where micro-batches have none or few labels that count.
    """
    graph = heads(SAMPLES)
    pipeline = pipeline_of(graph, num_stages, kind)
    schedule = make_schedule(kind, num_stages, COUNT)
    values = initial_parameters(graph, 0)
    inputs, labels = batch_of(graph)
    scalars = scalar_bits(learning_rate=0.05)
    late = LateWeights.of(schedule, stages(graph, num_stages))
    model = ModelBackend(pipeline, values)
    assert model.num_updates == COUNT
    references = [
        TorchBackend(
            graph, values, num_microbatches=COUNT, precision="mxint8", device="cpu", late=each,
            options=StepOptions(activations=FP32, loss=LOSS),
        )
        for each in (late, None)
    ]  # fmt: skip
    for _ in range(2):
        found = model.step(inputs, labels, scalars)
        same, other = (each.step(inputs, labels, scalars) for each in references)
        assert list(found.outputs) == list(same.outputs) == list(graph.outputs)
        for name, (loss, right) in same.outputs.items():
            assert found.outputs[name] == (pytest.approx(loss, rel=1e-4), right), name
        assert found.loss == pytest.approx(same.loss, rel=1e-4)
    assert found.loss != pytest.approx(other.loss, rel=1e-3)
    weights = model.parameters()
    for name, value in references[0].parameters().items():
        change = np.linalg.norm(value - values[name])
        assert np.linalg.norm(weights[name] - value) < 0.01 * change, name


def test_the_reference_is_autograd_on_the_whole_batch():
    """The weighted sum of PyTorch's own losses of the whole mini-batch, differentiated by it."""
    small, large = heads(SAMPLES), heads(SAMPLES * COUNT)
    parameters = initial_parameters(small, 0)
    inputs, labels = batch_of(small)
    backend = TorchBackend(
        small, parameters, num_microbatches=COUNT, options=StepOptions(loss=LOSS), device="cpu"
    )
    result = backend.step(inputs, labels, scalar_bits())
    weights = {name: torch.tensor(each, requires_grad=True) for name, each in parameters.items()}
    given = {name: torch.tensor(each) for name, each in inputs.items()}
    values = forward(large, weights, given, training=True)
    classes = {
        name: torch.where(torch.tensor(each) < 0, -100, torch.tensor(each))
        for name, each in labels.items()
    }
    functions = torch.nn.functional
    losses = {
        "main": functions.cross_entropy(values["main"], classes["main"], label_smoothing=0.1),
        "aux": 0.3 * functions.cross_entropy(values["aux"], classes["aux"]),
        "map": 2 * functions.mse_loss(values["map"], torch.tensor(labels["map"])),
        "gate": functions.binary_cross_entropy_with_logits(
            values["gate"], torch.tensor(labels["gate"])
        ),
        "pixels": functions.cross_entropy(values["pixels"], classes["pixels"]),
    }
    total = sum(losses.values())
    total.backward()
    assert result.loss == pytest.approx(float(total.detach()), rel=1e-6)
    for name, each in losses.items():
        alone = float(each.detach()) / LOSS.of(name).weight
        assert result.outputs[name][0] == pytest.approx(alone, rel=1e-5), name
    for name, gradient in backend.parameters(".gradient").items():
        expected = weights[name].grad.numpy()
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-7, err_msg=name)


def test_weights_scale_gradients_and_not_the_values_of_losses():
    """This holds for a single output, too. A power of two changes no bit of anything else."""
    net = Network("one", 2)
    net.linear(net.flatten(net.image(1, 3, 3)), 4, name="logits")
    graph = net.build()
    found = []
    for loss in (
        Loss(), Loss(weight=4), Loss(ignores=True, weight=4), Loss("mse"), Loss("mse", weight=4)
    ):  # fmt: skip
        schedule = make_schedule("1f1b-as", 1, 2)
        options = StepOptions(loss=loss)
        pipeline = build_pipeline(graph, [CORE], [list(graph.layers)], schedule, options=options)
        with ModelBackend(pipeline, initial_parameters(graph, 0)) as backend:
            result = backend.step(*random_batch(graph, 0, 2, loss), scalar_bits())
            found.append((result.loss, backend.parameters(".gradient")["logits.weight"]))
            own = pipeline.outcomes(backend.memories)["logits"][0]
            assert result.loss == loss.weight * own
    for one, other in ((0, 1), (0, 2), (3, 4)):
        assert found[other][0] == pytest.approx(4 * found[one][0], rel=1e-6)
        np.testing.assert_array_equal(found[other][1], 4 * found[one][1])


def test_labels_may_be_shared():
    """Auxiliary classifiers take the labels of the main one."""
    net = Network("shared", 2)
    x = net.relu(net.linear(net.flatten(net.image(1, 3, 3)), 8))
    aux, main = net.linear(x, 4, name="aux"), net.linear(net.relu(net.linear(x, 6)), 4)
    graph = net.build([main, aux])
    loss = Loss(others=(("aux", Loss(weight=0.4)),))
    program = build_step(graph, CORE, options=StepOptions(loss=loss))
    inputs, labels = random_batch(graph, 0)
    memories = []
    for given in (labels[main], {main: labels[main], "aux": labels[main]}):
        memory = program.image(initial_parameters(graph, 0))
        program.set_batch(memory, inputs, given)
        memories.append(memory)
    np.testing.assert_array_equal(*memories)
    reference = torch_step(graph, initial_parameters(graph, 0), inputs, labels[main], loss=loss)
    again = torch_step(
        graph, initial_parameters(graph, 0), inputs, dict.fromkeys(labels, labels[main]), loss=loss
    )
    assert reference.loss == again.loss
    with pytest.raises(ValueError, match=r"^there must be labels or targets for output 'aux'$"):
        program.set_batch(memories[0], inputs, {main: labels[main]})


def test_data_parallel_devices_have_the_sum_of_all_losses():
    graph = heads(SAMPLES)
    options = StepOptions(activations=FP32, loss=LOSS)
    inputs, labels = batch_of(graph, 2)
    pipeline = shared_batch(graph, 2, 2, options)
    reference = TorchBackend(
        graph, initial_parameters(graph, 0), num_microbatches=2, options=options,
        precision="mxint8", device="cpu",
    )  # fmt: skip
    with ModelBackend(pipeline, initial_parameters(graph, 0)) as backend:
        result = backend.step(inputs, labels, scalar_bits())
        expected = reference.step(inputs, labels, scalar_bits())
        assert result.loss == pytest.approx(expected.loss, rel=1e-5)
        assert result.correct == expected.correct
        for key, gradient in reference.parameters(".gradient").items():
            own = backend.parameters(".gradient")[key]
            assert np.linalg.norm(own - gradient) < 1e-4 * np.linalg.norm(gradient), key


def small_heads(batch):
    """Three outputs, of which other layers read one."""
    net = Network("small", batch)
    x = net.relu(net.conv(net.image(3, 6, 6), 6, 3, padding=1))
    aux = net.linear(net.flatten(net.average_pool(x, 2)), 5, name="aux")
    y = net.relu(net.conv(x, 6, 3, padding=1))
    image = net.conv(y, 3, 1, name="map")
    main = net.linear(net.flatten(net.plus(net.relu(image), image)), 7, name="main")
    return net.build([main, aux, image])


def on_one_device(graph, count, options):
    program = build_step(graph, CORE, options=options, tasks=single_device(count, train=True))
    memory = program.image(initial_parameters(graph, 0))
    program.set_batch(memory, *random_batch(graph, 0, count, options.loss))
    model = CoreModel(CORE, memory)
    model.scalars[:] = SCALARS
    model.run(program.instructions)
    return left_behind(program, memory, options)


@pytest.mark.parametrize("letters", ["cwwwcwwwww", "rwwwcwrrww", "wwwwwwwwww", "ssssssssss"])
def test_layers_cut_over_devices(letters):
    """Outputs are whole on every device, or cut by samples as all layers are."""
    graph = small_heads(2)
    options = StepOptions(activations=FP32)
    expected = on_one_device(graph, 2, options)
    _, _, found = run_sharded(graph, 2, degrees_of(graph, 2, letters), 2, options)
    assert found["outcome"] == expected["outcome"]
    close(found, expected, 0.02)


@pytest.mark.parametrize(
    "cuts",
    [
        [(2, "cwww"), (1, "wwwwww")],
        [(2, "rwww"), (2, "rwrwww")],
        [(2, "ssss"), (2, "ssssss")],
        [(1, "ww"), (2, "wwcw"), (1, "wwww")],
    ],
)
def test_stages_of_several_devices(cuts):
    graph = small_heads(4)
    options = StepOptions(activations=FP32)
    expected = on_one_device(graph, 3, options)
    found = run_hybrid(graph, cuts, 3, options, "any")
    assert found["outcome"][0] == pytest.approx(expected["outcome"][0], rel=1e-5)
    assert found["outcome"][1] == expected["outcome"][1]
    close(found, expected, 0.02)


def test_what_has_no_sense_is_refused():
    graph = heads(SAMPLES)
    with pytest.raises(ValueError, match=r"^the weight of a loss must be in 1e-06..1e\+06, not 0$"):
        Loss(weight=0)
    with pytest.raises(ValueError, match=r"^output 'aux' must have one loss, not several$"):
        Loss(others=(("aux", Loss()), ("aux", Loss("mse"))))
    with pytest.raises(ValueError, match=r"^the loss of an output has no losses of other outputs$"):
        Loss(others=(("aux", LOSS),))
    with pytest.raises(UserError, match=r"^'axu' has a loss and is no output of heads; its outp"):
        check_network(graph, train=True, loss=Loss(others=(("axu", Loss()),)))
    with pytest.raises(
        UserError,
        match=r"^labels can be ignored, or classes have weights, for 3 outputs, not for 5: the ",
    ):
        check_network(graph, train=True, loss=Loss(ignores=True))
    net = Network("flat", SAMPLES)
    x = net.linear(net.flatten(net.image(1, 4, 4)), 6, name="fine")
    bad = net.reshape(x, SAMPLES * 6, name="bad")
    with pytest.raises(RefusedNetwork, match=r"^layer 'bad': the loss needs logits of samples x"):
        check_network(net.build([x, bad]), train=True)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("num_stages", [1, 2])
def test_hardware_equals_the_model(num_stages):
    """With two devices, the loss of `aux` is in another stage than the main one."""
    graph = heads(SAMPLES)
    pipeline = pipeline_of(graph, num_stages, activations=BF16)
    parameters = initial_parameters(graph, 0)
    batch = batch_of(graph)
    wires = [WIRE] * (num_stages - 1)
    with (
        ModelBackend(pipeline, parameters) as model,
        SimulatorBackend(pipeline, parameters, MemorySpec(), wires) as hardware,
    ):
        expected = model.step(*batch, scalar_bits())
        found = hardware.step(*batch, scalar_bits())
        assert found.outputs == expected.outputs
        assert (found.loss, found.correct) == (expected.loss, expected.correct)
        for one, other in zip(hardware.memories, model.memories, strict=True):
            np.testing.assert_array_equal(one, other)
