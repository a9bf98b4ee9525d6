"""Networks of which several devices have parts: what they compute, and that none waits forever."""

import numpy as np
import pytest
from pipeline_cases import run_devices
from shard_cases import in_parts, one_stage
from step_cases import every_operator
from test_data_parallel import WIRE, on_one
from test_pipeline import CORE, ORDERS, SCALARS, left_behind

from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.lower import network_of_device
from fpgapipe.lowering.memory.memory_map import from_json, to_json
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.shards.degrees import SERIAL, Degrees
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.operators import Binary, Constant
from fpgapipe.network.operators.tensors import Tensor
from fpgapipe.network.zoo.layers import Network

SAMPLES = 2


def small_network(batch, channels=10):
    """Convolutions, normalisation, a residual sum, poolings, a flattened image, linear layers."""
    net = Network("small", batch)
    x = net.max_pool(net.relu(net.conv(net.image(3, 8, 8), channels, 3, padding=1)), 2)
    y = net.relu(net.batch_norm(net.conv(x, channels, 3, padding=1, bias=False)))
    x = net.relu(net.plus(net.batch_norm(net.conv(y, channels, 1, bias=False)), x))
    x = net.average_pool(x, 2)
    x = net.flatten(x)
    net.linear(net.relu(net.linear(x, 2 * channels)), 10)
    return net.build()


def images(batch, size=12):
    """Windows of many kinds, and a residual sum, without statistics of a whole image."""
    net = Network("images", batch)
    x = net.relu(net.conv(net.image(3, size, 7), 6, 3, padding=1))
    x = net.max_pool(x, 3, stride=1, padding=1)
    y = net.activation(net.conv(x, 6, 5, padding=2, bias=False), "leaky_relu")
    x = net.relu(net.plus(net.conv(y, 6, 1), x))
    x = net.average_pool(x, 2)
    x = net.conv(x, 8, 3, stride=2, padding=1)
    net.linear(net.flatten(x), 5)
    return net.build()


def degrees_of(graph, num_devices, letters, parts=1):
    """Degrees by a letter for layers that run together.

    s stands for samples, c for channels, i for input channels, r for rows, w for whole, in each of
    `parts` groups of devices.
    """
    size = num_devices // parts
    groups = layers_together(graph)
    letters = (letters * len(groups))[: len(groups)] if len(letters) == 1 else letters
    assert len(groups) == len(letters), [names[0] for names in groups]
    kinds = {
        "s": Degrees(num_devices),
        "c": Degrees(parts, channel=size),
        "i": Degrees(parts, input=size),
        "r": Degrees(parts, height=size),
        "w": Degrees(parts),
    }
    return {
        name: kinds[letter] for names, letter in zip(groups, letters, strict=True) for name in names
    }


def run(graph, num_devices, degrees, count, options=None, order="any"):
    """Run a step of `count` micro-batches; return the program and what it leaves behind."""
    options = options or StepOptions()
    pipeline = in_parts(graph, [CORE] * num_devices, degrees, count, options=options)
    memories = pipeline.images(initial_parameters(graph, 0))
    pipeline.set_batch(memories, *random_batch(graph, 0, count))
    programs = [part.instructions for part in pipeline.parts]
    left = run_devices([CORE] * num_devices, memories, programs, SCALARS, ORDERS[order])
    assert left == [0] * num_devices
    return pipeline, memories, left_behind(pipeline, memories, options)


def close(found, expected, tolerance):
    """Compare what two steps leave behind by the norm of each tensor's difference."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name == "outcome":
            assert found[name][0] == pytest.approx(value[0], rel=tolerance)
            continue
        error = np.linalg.norm(found[name] - value)
        assert error <= tolerance * max(np.linalg.norm(value), 1e-3), name


@pytest.mark.parametrize(
    ("num_devices", "letters", "order"),
    [
        (2, "cccccccccw", "any"),
        (3, "cccccccccw", "last"),
        (4, "cccccccccw", "first"),
        (2, "wcwcwwcwcw", "transfers early"),
        (3, "wwwwwwwwcw", "transfers late"),
        (2, "wwwwwwwwww", "any"),
    ],
)
@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
def test_all_devices_have_all_samples(num_devices, letters, order, activations):
    """The forward pass has the bits of one device; partial sums of gradients are rounded."""
    graph = small_network(SAMPLES)
    options = StepOptions(activations=activations)
    inputs, labels = random_batch(graph, 0, 2)
    expected = on_one(graph, inputs, labels, options)
    degrees = degrees_of(graph, num_devices, letters)
    _, _, found = run(graph, num_devices, degrees, 2, options, order)
    assert found["outcome"] == expected["outcome"]
    close(found, expected, 0.02)
    for name, value in expected.items():
        if ".running_" in name:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def blocks(batch, count=2):
    """Products whose sums have a summand for each of some blocks of channels."""
    net = Network("blocks", batch)
    x = net.relu(net.conv(net.image(3, 4, 4), 32 * count, 3, padding=1))
    x = net.relu(net.conv(x, 32 * count, 1))
    net.linear(net.flatten(net.conv(x, 2 * count, 1, bias=False)), 5)
    return net.build()


@pytest.mark.parametrize(
    ("graph", "letters"),
    [
        (small_network(SAMPLES, 32), "wwwwwwwwcw"),
        (blocks(SAMPLES), "wiiww"),
        (blocks(SAMPLES), "cciww"),
        (blocks(SAMPLES), "ciiww"),
    ],
)
def test_two_blocks_have_the_bits_of_one_device(graph, letters):
    """The sum over two devices is that of one device if each has one block of the reduction."""
    options = StepOptions(activations=FP32)
    inputs, labels = random_batch(graph, 0, 1)
    expected = on_one(graph, inputs, labels, options)
    _, _, found = run(graph, 2, degrees_of(graph, 2, letters), 1, options)
    assert found.pop("outcome") == expected.pop("outcome")
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("num_devices", "letters", "order"),
    [
        (2, "sssssssscs", "any"),
        (3, "sssssssscs", "first"),
        (4, "sssssssscs", "last"),
        (4, "ccssssssws", "transfers late"),
        (3, "wcssssswcs", "transfers early"),
    ],
)
@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
def test_devices_share_samples(num_devices, letters, order, activations):
    graph = small_network(SAMPLES)
    options = StepOptions(activations=activations)
    count = 2 * num_devices
    inputs, labels = random_batch(graph, 0, count)
    expected = on_one(graph, inputs, labels, options)
    degrees = degrees_of(graph, num_devices, letters)
    _, _, found = run(graph, num_devices, degrees, count, options, order)
    assert found["outcome"] == expected["outcome"]
    averages = [name for name in found if ".running_" in name]
    assert len(averages) == 4
    for name in averages:  # those of the first device's samples
        del found[name], expected[name]
    close(found, expected, 0.02)


@pytest.mark.parametrize(
    ("num_devices", "size", "letters", "order"),
    [
        (2, 12, "rrrrrrrww", "any"),
        (2, 8, "srrrrrrcs", "first"),
        (3, 12, "rrrrrrrww", "last"),
        (3, 13, "rwrrrwwww", "transfers late"),
        (3, 11, "rrrrrwwww", "transfers early"),
        (4, 16, "rrrrrrrww", "any"),
    ],
)
@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
def test_devices_have_rows_of_images(num_devices, size, letters, order, activations):
    graph = images(SAMPLES, size)
    options = StepOptions(activations=activations)
    count = 2 * num_devices if "s" in letters else 2
    inputs, labels = random_batch(graph, 0, count)
    expected = on_one(graph, inputs, labels, options)
    degrees = degrees_of(graph, num_devices, letters)
    _, _, found = run(graph, num_devices, degrees, count, options, order)
    assert found["outcome"] == expected["outcome"]
    close(found, expected, 0.02)


@pytest.mark.parametrize(
    ("num_devices", "parts", "letters", "order"),
    [
        (2, 1, "wciww", "any"),
        (3, 1, "wiiww", "first"),
        (4, 1, "wiiww", "last"),
        (4, 2, "ciiww", "transfers late"),
        (4, 2, "sisss", "transfers early"),
    ],
)
def test_devices_have_input_channels(num_devices, parts, letters, order):
    """Sums of whole blocks differ only in the order of the additions."""
    graph = blocks(SAMPLES, num_devices // parts)
    options = StepOptions(activations=FP32)
    count = num_devices if "s" in letters else parts
    inputs, labels = random_batch(graph, 0, count)
    expected = on_one(graph, inputs, labels, options)
    degrees = degrees_of(graph, num_devices, letters, parts)
    pipeline, memories, found = run(graph, num_devices, degrees, count, options, order)
    close(found, expected, 0.001)
    state = pipeline.state(memories)
    for part, memory in zip(pipeline.parts, memories, strict=True):
        for name, value in part.state(memory).items():
            stored = part.stored.get(name) or part.stored[name.rpartition(".")[0]]
            np.testing.assert_array_equal(value, stored.taken(state[name]), err_msg=name)


@pytest.mark.parametrize(
    ("num_devices", "parts", "letters", "order"),
    [
        (2, 1, "rrrrrrwwww", "any"),
        (4, 1, "rrrrrrwwww", "first"),
        (3, 1, "rrwrrwwwww", "transfers late"),
        (4, 2, "rrrrrrwwww", "last"),
        (2, 1, "srrrrrssss", "any"),
    ],
)
@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
def test_statistics_of_rows_are_those_of_whole_images(
    num_devices, parts, letters, order, activations
):
    graph = small_network(SAMPLES)
    options = StepOptions(activations=activations)
    together = num_devices // parts if "s" in letters else 1
    count = 2 * parts * together
    inputs, labels = random_batch(graph, 0, count)
    expected = on_one(small_network(SAMPLES * together), inputs, labels, options, together)
    degrees = degrees_of(graph, num_devices, letters, parts)
    _, _, found = run(graph, num_devices, degrees, count, options, order)
    assert found["outcome"][0] == pytest.approx(expected["outcome"][0], rel=0.01)
    if parts > 1:  # running averages are those of the first group's samples
        for name in [name for name in found if ".running_" in name]:
            del found[name], expected[name]
    close(found, expected, 0.02)


@pytest.mark.parametrize(
    ("num_devices", "parts", "letters", "order"),
    [
        (4, 2, "cccccccccw", "any"),
        (4, 2, "wcwcwwcwcw", "first"),
        (4, 2, "sscsssswcs", "last"),
        (4, 2, "rrrrrrrww", "transfers late"),
        (6, 2, "cccccwwwww", "transfers early"),
        (6, 3, "wcwcwwcwcw", "any"),
        (6, 2, "srrrrrrss", "any"),
        (8, 4, "cccccccccw", "last"),
    ],
)
@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
def test_groups_of_devices_share_samples(num_devices, parts, letters, order, activations):
    """Each group has samples of its own; devices with the same part add up its gradients."""
    graph = images(SAMPLES, 12) if "r" in letters else small_network(SAMPLES)
    options = StepOptions(activations=activations)
    count = 2 * (num_devices if "s" in letters else parts)
    inputs, labels = random_batch(graph, 0, count)
    expected = on_one(graph, inputs, labels, options)
    degrees = degrees_of(graph, num_devices, letters, parts)
    pipeline, memories, found = run(graph, num_devices, degrees, count, options, order)
    if letters != "cccccccccw":  # where a flattened image is cut, blocks have other elements
        assert found["outcome"] == expected["outcome"]
    for name in [name for name in found if ".running_" in name]:
        del found[name], expected[name]
    close(found, expected, 0.02)
    states = [part.state(memory) for part, memory in zip(pipeline.parts, memories, strict=True)]
    size = num_devices // parts
    for index, state in enumerate(states):
        for name, value in state.items():  # running averages, too
            np.testing.assert_array_equal(value, states[index % size][name], err_msg=name)


@pytest.mark.parametrize("letters", ["wwwwwwwwcw", "wwwwwwwwww"])
def test_groups_have_the_bits_of_one_device(letters):
    """With a micro-batch for each group, gradients are added up in the order of one device."""
    graph = small_network(SAMPLES, channels=32)
    options = StepOptions(activations=FP32)
    inputs, labels = random_batch(graph, 0, 2)
    expected = on_one(graph, inputs, labels, options)
    _, _, found = run(graph, 4, degrees_of(graph, 4, letters, 2), 2, options)
    assert found["outcome"] == expected["outcome"]
    for name, value in expected.items():
        if ".running_" not in name:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_memory_map_is_data():
    graph = small_network(SAMPLES)
    part = in_parts(graph, [CORE] * 3, degrees_of(graph, 3, "cccccccccw"), 1).parts[1]
    again = from_json(to_json(part))
    assert again.stored["conv1.weight"].part == (0, 3, 10)
    assert again.stored["conv1.weight"].whole_shape == (10, 3, 3, 3)
    assert again.stored == part.stored


def test_state_goes_into_other_devices():
    """A state that one strategy has trained goes on with another one."""
    graph = small_network(SAMPLES)
    one, memories, _ = run(graph, 3, degrees_of(graph, 3, "cccccccccw"), 1)
    state = one.state(memories)
    assert {name: each.shape for name, each in state.items()} == {
        name: each.shape for name, each in state_of_one(graph).items()
    }
    other = in_parts(graph, [CORE] * 2, degrees_of(graph, 2, "wcwcwwcwcw"), 1)
    there = other.images(initial_parameters(graph, 1))
    other.set_state(there, state)
    for name, value in other.state(there).items():
        np.testing.assert_array_equal(value, state[name], err_msg=name)


def state_of_one(graph):
    program = build_step(graph, CORE)
    return program.state(program.image(initial_parameters(graph, 0)))


@pytest.mark.parametrize(
    ("num_devices", "letters", "message"),
    [
        (2, "ccccccccccccccccc", "random numbers belong to samples: it must be whole"),
        (2, "sssssssssssssssss"[:-1] + "c", "gives the network's result, so it must be cut by sam"),
        (2, "wwwwwwwwwwwwwwwws", "dropout.*must be cut by samples"),
        (2, "wwwwwwwwwwwwwwwwc", "gives the network's result, so it must be whole"),
    ],
)
def test_refused(num_devices, letters, message):
    graph = every_operator(SAMPLES)
    letters = letters[: len(layers_together(graph)) - 1] + letters[-1]
    with pytest.raises(NotImplementedError, match=message):
        in_parts(graph, [CORE] * num_devices, degrees_of(graph, num_devices, letters), 2)


def test_refused_degrees():
    graph = small_network(SAMPLES)
    degrees = degrees_of(graph, 4, "s")
    with pytest.raises(
        NotImplementedError, match=r"^layer 'conv2' has degrees width=4: on 4 devic"
    ):
        network_of_device(one_stage(graph, degrees | {"conv2": Degrees(width=4)}, 4), graph, 0, 0)
    odd = {"conv1": Degrees(2), "conv2": SERIAL}
    with pytest.raises(NotImplementedError, match=r"^layer 'conv1' has sample=2 and layer 'conv2'"):
        network_of_device(one_stage(graph, degrees | odd, 4), graph, 0, 0)
    with pytest.raises(NotImplementedError, match="but 4 devices are not 3 equal groups"):
        network_of_device(one_stage(graph, degrees | {"conv2": Degrees(3)}, 4), graph, 0, 0)
    with pytest.raises(UserError, match=r"^the strategy says nothing about layer 'conv2'$"):
        network_of_device(
            one_stage(graph, {n: d for n, d in degrees.items() if n != "conv2"}, 4), graph, 0, 0
        )
    few = degrees_of(graph, 11, "c") | {"linear2": SERIAL}
    with pytest.raises(
        NotImplementedError, match=r"^layer 'conv1' has 10 channels, which cannot be cut"
    ):
        network_of_device(one_stage(graph, few, 11), graph, 0, 0)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize(
    ("num_devices", "letters", "parts"),
    [
        (2, "wcwcwwcwcw", 1),
        (2, "srrrrrrcs", 1),
        (3, "sssssssscs", 1),
        (4, "cccccccccw", 1),
        (4, "wcwcwwcwcw", 2),
        (4, "rrrrrrrww", 1),
        (4, "rrrrrrrww", 2),
        (2, "rrrrrrwwww", 1),
        (2, "wciiwcicw", 1),
        (4, "cciiwcicw", 2),
        (8, "ssssssssss", 1),
    ],
)
def test_hardware_equals_the_model(num_devices, letters, parts):
    graph = images(SAMPLES, 16) if len(letters) == 9 else small_network(SAMPLES)
    degrees = degrees_of(graph, num_devices, letters, parts)
    pipeline = in_parts(graph, [CORE] * num_devices, degrees, num_devices)
    parameters = initial_parameters(graph, 0)
    inputs, labels = random_batch(graph, 0, num_devices)
    wires = [WIRE] * (num_devices - 1)
    with (
        ModelBackend(pipeline, parameters) as model,
        SimulatorBackend(pipeline, parameters, MemorySpec(), wires) as hardware,
    ):
        for _ in range(2):
            expected = model.step(inputs, labels, SCALARS)
            found = hardware.step(inputs, labels, SCALARS)
            assert (found.loss, found.correct) == (expected.loss, expected.correct)
            for one, other in zip(hardware.memories, model.memories, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shape", [(6,), (8, 6), (SAMPLES, 8, 6)])
def test_what_has_no_samples_is_not_cut_by_channels(shape):
    """A value computed from a learned tensor alone has no axis of samples in front of channels."""
    net = Network("scaled", SAMPLES)
    x = net.input("input", Tensor((SAMPLES, 8, 6)))
    scale = net.unary(net.add("scale", Constant(shape, trainable=True)), "exp")
    net.linear(net.add("scaled", Binary("mul"), x, scale), 3)
    graph = net.build()
    degrees = dict.fromkeys(graph.layers, SERIAL) | {scale: Degrees(channel=2)}
    with pytest.raises(NotImplementedError, match=rf"^layer '{scale}' \(exp\) cannot be cut by ch"):
        in_parts(graph, [CORE] * 2, degrees, 1)


def strided(batch):
    net = Network("strided", batch)
    net.linear(net.flatten(net.conv(net.image(3, 8, 8), 4, 1, stride=2)), 3)
    return net.build()


@pytest.mark.parametrize(
    ("graph", "letters", "num_devices", "message"),
    [
        (
            small_network,
            "iwwwwwwwww",
            4,
            "'conv1' has 3 input channels, which cannot be cut into 4",
        ),
        (
            small_network,
            "wiwwwwwwww",
            2,
            r"'max_pool1' \(max_pool\) cannot be cut by input channels",
        ),
        (small_network, "rwwwwwwwrw", 2, r"'linear1' \(linear\) cannot be cut by rows"),
        (images, "rrrrrrrww", 7, "'conv2' needs rows of devices that are no neighbours"),
        (images, "wwwwwwrww", 7, "'conv4' has 3 rows, which cannot be cut into 7 parts"),
        (strided, "rww", 2, "'conv1' leaves out rows that part 0 of 2 has"),
    ],
)
def test_rows_that_cannot_be_cut(graph, letters, num_devices, message):
    network = graph(SAMPLES)
    stages = one_stage(network, degrees_of(network, num_devices, letters), num_devices)
    with pytest.raises(NotImplementedError, match=message):
        network_of_device(stages, network, 0, 0)
