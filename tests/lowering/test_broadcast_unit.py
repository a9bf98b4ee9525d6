"""Networks with functions of two shapes: a step on the model against PyTorch, and in hardware."""

import pytest
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.shards.rebatched import rebatched
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network


def squeezed(batch):
    """A squeeze-and-excitation block as in MobileNet-v3, and one before the first layer."""
    net = Network("squeezed", batch)
    x = net.image(3, 8, 8)
    x = net.add("scaled", ops.Binary("mul"), x, net.global_average_pool(x))
    x = net.activation(net.batch_norm(net.conv(x, 18, 3, padding=1, bias=False)), "hardswish")
    y = net.relu(net.conv(net.global_average_pool(x), 5, 1))
    y = net.activation(net.conv(y, 18, 1), "hardsigmoid")
    x = net.conv(net.add("gated", ops.Binary("mul"), y, x), 6, 1)
    net.linear(net.flatten(net.max_pool(x, 2)), 5)
    return net.build()


def moved(batch):
    """Sums and differences of images and their averages; signals as well."""
    net = Network("moved", batch)
    x = net.relu(net.conv(net.image(3, 6, 5), 4, 3, padding=1))
    x = net.conv(net.add("centred", ops.Binary("sub"), x, net.global_average_pool(x)), 4, 1)
    x = net.add("raised", ops.Binary("add"), net.global_average_pool(x), x)
    x = net.reshape(net.linear(net.flatten(x), 30), batch, 3, 10)
    y = net.reshape(net.linear(net.flatten(x), 3), batch, 3, 1)
    x = net.add("signal", ops.Binary("mul"), x, y)
    net.linear(net.flatten(x), 5)
    return net.build()


def attending(batch, *, positions=5, features=18):
    """Additive attention: sums, differences and products of rows and columns, and repetitions."""
    net = Network("attending", batch)
    x = net.linear(net.image(positions, 7), features)
    y = net.linear(x, features)
    x = net.reshape(x, batch, positions, 1, features)
    y = net.reshape(y, batch, 1, positions, features)
    for function in ("add", "sub", "mul"):
        z = net.add(function, ops.Binary(function), x, y)
        z = net.activation(z, "tanh")
        z = net.reshape(net.linear(z, 1, bias=False), batch, positions, positions)
        w = net.reshape(net.linear(net.flatten(z), positions), batch, positions, 1)
        w = net.add(f"wide.{function}", ops.Expand((batch, positions, features)), w)
        y = net.reshape(
            net.plus(net.matmul(net.softmax(z), net.reshape(y, batch, positions, features)), w),
            batch, 1, positions, features,
        )  # fmt: skip
    z = net.add("number", ops.Binary("mul"), y, net.add("n", ops.Constant((), trainable=True)))
    z = net.add("whole", ops.Expand((2, batch, 1, positions, features)), z)
    z = net.add("back", ops.Binary("sub"), z, y)
    net.linear(net.reshape(z, batch, 2 * positions * features), 5)
    return net.build()


def planes(batch):
    """Images whose rows, columns or planes are repeated, in both orders of memory."""
    net = Network("planes", batch)
    x = net.conv(net.image(3, 6, 5), 4, 3, padding=1)
    for number, shape in enumerate([(1, 5), (6, 1), (4, 1, 1), (1, 6, 5), (1, 4, 6, 5)]):
        w = net.add(f"w{number}", ops.Constant(shape, trainable=True))
        pair = (x, w) if number % 2 else (w, x)
        x = net.add(f"f{number}", ops.Binary(("mul", "sub", "add")[number % 3]), *pair)
    y = net.reshape(net.linear(net.flatten(x), 4 * 6), batch, 4, 6, 1)
    x = net.add("rows", ops.Binary("mul"), x, y)
    y = net.reshape(net.linear(net.flatten(x), 30), batch, 1, 6, 5)
    x = net.conv(net.add("all", ops.Binary("sub"), y, x), 2, 1)
    net.linear(net.flatten(x), 5)
    return net.build()


def repeated(batch, *whole):
    """Rows that are repeated along further positions, and along an axis of their own."""
    net = Network("repeated", batch)
    x = net.reshape(net.linear(net.image(7), 7), batch, 1, 7)
    x = net.add("rows", ops.Expand((batch, 3, 7)), x)
    if whole:
        x = net.add("whole", ops.Expand((*whole, batch, 3, 7)), x)
        x = net.add("back", ops.Transpose((1, 0, 2, 3)), x)
    net.linear(net.flatten(x), 3)
    return net.build()


NETWORKS = [squeezed, moved, attending, planes]


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_pytorch(network, activations):
    assert_step_is_that_of_pytorch(network(4), activations, near=2e-2, cancelled=2e-6)


def test_repetitions_name_the_samples_of_a_device():
    """Repetitions follow the samples that each device has, as reshapes do."""
    assert rebatched(repeated(4), 2).layers["rows"].output.shape == (2, 3, 7)
    for samples in (2, 4):
        with pytest.raises(NotImplementedError, match="layer 'whole' has no samples that could"):
            rebatched(repeated(samples, samples), 1)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", NETWORKS)
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
