"""MobileNet v2."""

from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network

BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
          (6, 320, 1, 1))  # fmt: skip
"""Expansion, output channels, number and first stride of the blocks of each stage."""


def mobilenet_v2(batch: int) -> Graph:
    """MobileNet v2 of width 1 for images of 224 x 224.

    Source: M. Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018,
    table 2.
    """
    net = Network("mobilenet_v2", batch)
    x = _convolved(net, net.image(3, 224, 224), "stem", 32, 3, stride=2)
    for stage, (expansion, channels, count, stride) in enumerate(BLOCKS, 1):
        for number in range(count):
            name = f"stage{stage}.{number}"
            x = _block(net, x, name, expansion, channels, stride if number == 0 else 1)
    x = _convolved(net, x, "last", 1280, 1)
    x = net.flatten(net.global_average_pool(x, "avgpool"), "flatten")
    net.linear(net.dropout(x, 0.2, "dropout"), 1000, name="fc")
    return net.build()


def _block(net: Network, x: str, name: str, expansion: int, channels: int, stride: int) -> str:
    """An inverted residual: expansion, convolution of single channels, linear projection."""
    given = net.tensor(x).shape[1]
    y, wide = x, given * expansion
    if expansion > 1:
        y = _convolved(net, y, f"{name}.expand", wide, 1)
    y = _convolved(net, y, f"{name}.depthwise", wide, 3, stride=stride, groups=wide)
    y = net.conv(y, channels, 1, bias=False, name=f"{name}.project")
    y = net.batch_norm(y, name=f"{name}.project.bn")
    return net.plus(x, y, f"{name}.add") if stride == 1 and given == channels else y


def _convolved(
    net: Network,
    x: str,
    name: str,
    channels: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
) -> str:
    """Convolution, batch normalisation and ReLU6."""
    x = net.conv(
        x, channels, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False,
        name=name,
    )  # fmt: skip
    return net.activation(net.batch_norm(x, name=f"{name}.bn"), "relu6", name=f"{name}.relu6")
