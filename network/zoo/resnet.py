"""ResNet-18, -50 and -152.

Source: K. He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. In ResNet-50 and
-152, the stride is in the 3x3 convolution, as in PyTorch's torchvision.
"""

from collections.abc import Sequence

from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network


def resnet18(batch: int) -> Graph:
    """ResNet-18: blocks of two 3x3 convolutions; 3x224x224 to 1,000 classes."""
    return _resnet("resnet18", batch, (2, 2, 2, 2), bottleneck=False)


def resnet50(batch: int) -> Graph:
    """ResNet-50: bottleneck blocks of 1x1, 3x3 and 1x1 convolutions; 3x224x224 to 1,000 classes."""
    return _resnet("resnet50", batch, (3, 4, 6, 3), bottleneck=True)


def resnet152(batch: int) -> Graph:
    """ResNet-152: 50 bottleneck blocks like those of ResNet-50; 3x224x224 to 1,000 classes."""
    return _resnet("resnet152", batch, (3, 8, 36, 3), bottleneck=True)


def _resnet(name: str, batch: int, depths: Sequence[int], *, bottleneck: bool) -> Graph:
    net = Network(name, batch)
    x = net.image(3, 224, 224)
    x = net.conv(x, 64, 7, stride=2, padding=3, bias=False, name="conv1")
    x = net.relu(net.batch_norm(x, name="bn1"), "relu")
    x = net.max_pool(x, 3, stride=2, padding=1, name="maxpool")
    for group, depth in enumerate(depths, 1):
        channels = 32 * 2**group
        for i in range(depth):
            stride = 2 if group > 1 and i == 0 else 1
            x = residual_block(net, x, f"layer{group}.{i}", channels, stride, bottleneck=bottleneck)
    x = net.flatten(net.global_average_pool(x, "avgpool"), "flatten")
    net.linear(x, 1000, name="fc")
    return net.build()


def residual_block(
    net: Network, x: str, name: str, channels: int, stride: int, *, bottleneck: bool = False
) -> str:
    """Convolutions and a parallel short cut, which is projected where shapes differ."""
    if bottleneck:
        sizes = [(channels, 1, 1), (channels, 3, stride), (4 * channels, 1, 1)]
    else:
        sizes = [(channels, 3, stride), (channels, 3, 1)]
    y = x
    for i, (out, kernel, step) in enumerate(sizes, 1):
        y = net.conv(
            y, out, kernel, stride=step, padding=kernel // 2, bias=False, name=f"{name}.conv{i}"
        )
        y = net.batch_norm(y, name=f"{name}.bn{i}")
        if i < len(sizes):
            y = net.relu(y, f"{name}.relu{i}")
    if net.tensor(x) != net.tensor(y):
        out = sizes[-1][0]
        x = net.conv(x, out, 1, stride=stride, bias=False, name=f"{name}.downsample.0")
        x = net.batch_norm(x, name=f"{name}.downsample.1")
    return net.relu(net.plus(y, x, f"{name}.add"), f"{name}.relu{len(sizes)}")
