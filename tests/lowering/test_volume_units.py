"""Networks of volumes, and windows with dilation: a step against PyTorch, and hardware."""

import numpy as np
import pytest
from kernel_cases import REGION, drawn, error, execute, same_bits
from unit_steps import assert_hardware_equals_the_model, assert_step_is_that_of_pytorch

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.images.depth import Depth, fold_depth, unfold_depth
from fpgapipe.lowering.tiling.kernel import Region, Tensor
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network

PAIR = ((1, 1), (1, 1))


def volumes(batch):
    """Convolutions of volumes with stride, dilation, one-sided padding and groups; pooling."""
    net = Network("volumes", batch)
    x = net.relu(net.conv(net.image(3, 5, 6, 4), 8, 2, padding=((0, 1),) * 3))
    wide = ops.Conv(8, (3, 2, 3), (2, 1, 1), ((2, 1), (0, 1), (1, 1)), (2, 1, 1), 2, False)
    x = net.relu(net.batch_norm(net.add("wide", wide, x)))
    y = net.conv(x, 6, 1, bias=False)
    x = net.plus(net.max_pool(y, (2, 3, 2), stride=1, padding=(0, 1, 0)),
                 net.average_pool(y, (2, 3, 2), stride=1, padding=(0, 1, 0)))  # fmt: skip
    x = net.conv_transpose(
        net.upsample(x, 1, 1, 2), 5, (2, 1, 3), stride=(2, 1, 1), padding=(0, 0, 1)
    )
    net.linear(net.flatten(net.global_average_pool(x)), 5)
    return net.build()


def dilated(batch):
    """Pooling and depthwise convolutions whose taps are apart; transposed groups."""
    net = Network("dilated", batch)
    x = net.relu(net.conv(net.image(3, 9, 8), 6, 3, padding=1))
    x = net.add("depthwise", ops.Conv(6, (3, 3), (2, 1), ((2, 2), (2, 2)), (2, 2), 6), x)
    x = net.add("max", ops.Pool("max", (2, 3), (1, 2), PAIR, (2, 2)), net.relu(x))
    x = net.add("average", ops.Pool("average", (3, 2), (1, 1), PAIR, (2, 1), False, False), x)
    up = ops.ConvTranspose(4, (3, 2), (2, 1), PAIR, (1, 0), (1, 2), 2)
    x = net.relu(net.add("up", up, x))
    net.linear(net.flatten(net.global_average_pool(x)), 5)
    return net.build()


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("network", [volumes, dilated])
def test_a_step_is_that_of_pytorch(network, activations):
    """Scales before a normalisation, whose gradients cancel, are compared by their own size."""
    assert_step_is_that_of_pytorch(network(4), activations, near=4e-2, loss=1e-4, cancelled=2e-6)


DEPTHS = [
    Depth(2, 5, 5, 6, 8, 1, 2, 1, 1, 0),
    Depth(1, 7, 3, 10, 6, 2, 3, 2, 2, 2),
    Depth(3, 4, 2, 1, 3, 3, 1, 3, 1, 0),
    Depth(2, 3, 6, 700, 20, 1, 4, 1, 1, 3),
    Depth(1, 6, 2, 4, 5, 1, 2, 4, 1, 0),
]


def images_of(depth, x):
    """The images in NumPy."""
    found = np.zeros((depth.batch, depth.results, depth.positions, depth.width), x.dtype)
    for result in range(depth.results):
        for tap in range(depth.taps):
            plane = result * depth.stride + tap * depth.dilation - depth.before
            if not 0 <= plane < depth.planes:
                continue
            for group in range(depth.groups):
                to = (group * depth.taps + tap) * depth.own
                own = slice(group * depth.own, (group + 1) * depth.own)
                found[:, result, :, to : to + depth.own] = x[:, plane, :, own]
    return found


@pytest.mark.parametrize("region", [REGION, Region(0, 1 << 16)], ids=["whole", "pieces"])
@pytest.mark.parametrize("depth", DEPTHS, ids=str)
def test_planes_become_channels_and_are_added_up(depth, region):
    """Copies are exact; the sums are those of the adjoint map."""
    shape = (depth.batch, depth.planes, depth.positions, depth.channels)
    x, dx = Tensor("x", shape), Tensor("dx", shape)
    whole = (depth.batch, depth.results, depth.positions, depth.width)
    images, given = Tensor("images", whole), Tensor("given", whole)
    values = {"x": drawn(shape), "given": drawn(whole, 1)}
    kernels = [
        *unfold_depth("unfold", depth, x, images, region),
        fold_depth("fold", depth, given, dx, region),
    ]
    found = execute(kernels, [x, dx, images, given], values)
    assert same_bits(found["images"], images_of(depth, values["x"]))
    expected = np.zeros(shape)
    for place in np.ndindex(*shape[1:2]):
        one = np.zeros(shape)
        one[:, place[0]] = 1.0
        mask = images_of(depth, one)
        for channel in range(depth.channels):
            group, within = divmod(channel, depth.own)
            columns = [depth.column(group, tap) + within for tap in range(depth.taps)]
            sums = (mask * values["given"])[..., columns].sum((1, 3))
            expected[:, place[0], :, channel] = sums
    assert error(found["dx"], expected) < 1e-6


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize("network", [volumes, dilated])
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
