"""Inception-v3.

Source: C. Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016,
in the sizes that PyTorch's torchvision uses, without the auxiliary classifier.
"""

from collections.abc import Sequence

from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network, Size

Step = tuple[int, Size, Size, Size]
"""Channels, kernel, stride and padding of a convolution."""


def inception_v3(batch: int) -> Graph:
    """Inception-v3 without its auxiliary classifier, from 3x299x299 to 1,000 classes."""
    net = Network("inception_v3", batch)
    x = net.image(3, 299, 299)
    stem: list[Step] = [(32, 3, 2, 0), (32, 3, 1, 0), (64, 3, 1, 1)]
    x = _branch(net, x, "stem1", stem)
    x = net.max_pool(x, 3, stride=2, name="maxpool1")
    x = _branch(net, x, "stem2", [(80, 1, 1, 0), (192, 3, 1, 0)])
    x = net.max_pool(x, 3, stride=2, name="maxpool2")
    for name, pool_features in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        x = _module_35(net, x, name, pool_features)
    x = _reduction_17(net, x, "Mixed_6a")
    for name, inner in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        x = _module_17(net, x, name, inner)
    x = _reduction_8(net, x, "Mixed_7a")
    for name in ("Mixed_7b", "Mixed_7c"):
        x = _module_8(net, x, name)
    x = net.global_average_pool(x, "avgpool")
    x = net.flatten(net.dropout(x, 0.5, name="dropout"), "flatten")
    net.linear(x, 1000, name="fc")
    return net.build()


def _branch(net: Network, x: str, name: str, steps: Sequence[Step]) -> str:
    """A chain of convolutions, each with batch normalisation and ReLU."""
    for i, (channels, kernel, stride, padding) in enumerate(steps, 1):
        x = net.conv(
            x,
            channels,
            kernel,
            stride=stride,
            padding=padding,
            bias=False,
            name=f"{name}.conv{i}",
        )
        x = net.relu(net.batch_norm(x, epsilon=1e-3, name=f"{name}.bn{i}"), f"{name}.relu{i}")
    return x


def _pooled(net: Network, x: str, name: str, channels: int) -> str:
    """The branch with an average pooling and a 1x1 convolution."""
    pool = net.average_pool(x, 3, stride=1, padding=1, name=f"{name}.avgpool")
    return _branch(net, pool, f"{name}.pool", [(channels, 1, 1, 0)])


def _module_35(net: Network, x: str, name: str, pool_features: int) -> str:
    """Module of the 35x35 grid."""
    branches = [
        _branch(net, x, f"{name}.1x1", [(64, 1, 1, 0)]),
        _branch(net, x, f"{name}.5x5", [(48, 1, 1, 0), (64, 5, 1, 2)]),
        _branch(net, x, f"{name}.3x3dbl", [(64, 1, 1, 0), (96, 3, 1, 1), (96, 3, 1, 1)]),
        _pooled(net, x, name, pool_features),
    ]
    return net.concat(branches, name=name)


def _reduction_17(net: Network, x: str, name: str) -> str:
    """Reduction from the 35x35 grid to 17x17."""
    branches = [
        _branch(net, x, f"{name}.3x3", [(384, 3, 2, 0)]),
        _branch(net, x, f"{name}.3x3dbl", [(64, 1, 1, 0), (96, 3, 1, 1), (96, 3, 2, 0)]),
        net.max_pool(x, 3, stride=2, name=f"{name}.maxpool"),
    ]
    return net.concat(branches, name=name)


def _module_17(net: Network, x: str, name: str, inner: int) -> str:
    """Module of the 17x17 grid, with 7x7 convolutions factorised into 1x7 and 7x1."""
    wide: tuple[Size, Size, Size] = ((1, 7), 1, (0, 3))
    tall: tuple[Size, Size, Size] = ((7, 1), 1, (3, 0))
    branches = [
        _branch(net, x, f"{name}.1x1", [(192, 1, 1, 0)]),
        _branch(net, x, f"{name}.7x7", [(inner, 1, 1, 0), (inner, *wide), (192, *tall)]),
        _branch(
            net,
            x,
            f"{name}.7x7dbl",
            [(inner, 1, 1, 0), (inner, *tall), (inner, *wide), (inner, *tall), (192, *wide)],
        ),
        _pooled(net, x, name, 192),
    ]
    return net.concat(branches, name=name)


def _reduction_8(net: Network, x: str, name: str) -> str:
    """Reduction from the 17x17 grid to 8x8."""
    branches = [
        _branch(net, x, f"{name}.3x3", [(192, 1, 1, 0), (320, 3, 2, 0)]),
        _branch(
            net,
            x,
            f"{name}.7x7x3",
            [(192, 1, 1, 0), (192, (1, 7), 1, (0, 3)), (192, (7, 1), 1, (3, 0)), (192, 3, 2, 0)],
        ),
        net.max_pool(x, 3, stride=2, name=f"{name}.maxpool"),
    ]
    return net.concat(branches, name=name)


def _module_8(net: Network, x: str, name: str) -> str:
    """Module of the 8x8 grid, whose 3x3 branches fork into a 1x3 and a 3x1 at their end."""

    def forked(stem: str, steps: Sequence[Step]) -> str:
        trunk = _branch(net, x, f"{name}.{stem}", steps)
        wide = _branch(net, trunk, f"{name}.{stem}.1x3", [(384, (1, 3), 1, (0, 1))])
        tall = _branch(net, trunk, f"{name}.{stem}.3x1", [(384, (3, 1), 1, (1, 0))])
        return net.concat([wide, tall], name=f"{name}.{stem}")

    branches = [
        _branch(net, x, f"{name}.1x1", [(320, 1, 1, 0)]),
        forked("3x3", [(384, 1, 1, 0)]),
        forked("3x3dbl", [(448, 1, 1, 0), (384, 3, 1, 1)]),
        _pooled(net, x, name, 192),
    ]
    return net.concat(branches, name=name)
