"""Networks of the usual kinds that are small enough to simulate their training cycle by cycle.

Both map images of 3x32x32, as in CIFAR-10, to 10 classes.
"""

from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network
from fpgapipe.network.zoo.resnet import residual_block

CLASSES = 10


def resnet_mini(batch: int) -> Graph:
    """A ResNet of three blocks with 8, 16 and 32 channels: nine convolutions.

    Source: K. He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2,
    with projections where shapes differ.
    """
    net = Network("resnet-mini", batch)
    x = net.image(3, 32, 32)
    x = net.conv(x, 8, 3, padding=1, bias=False, name="conv1")
    x = net.relu(net.batch_norm(x, name="bn1"), "relu")
    for i, (channels, stride) in enumerate(((8, 1), (16, 2), (32, 2)), 1):
        x = residual_block(net, x, f"block{i}", channels, stride)
    x = net.flatten(net.global_average_pool(x, "avgpool"), "flatten")
    net.linear(x, CLASSES, name="fc")
    return net.build()


def vgg_mini(batch: int) -> Graph:
    """A VGG of four blocks with 8, 16, 32 and 64 channels; all blocks have about as many MACs.

    A block is two 3x3 convolutions and a pooling, so each block has twice the channels and a
    quarter of the pixels of the block before. A batch normalisation after each pooling lets the
    network train from the usual initial values; there it takes a quarter of the work that it would
    take after a convolution.

    Source: K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
    Recognition", ICLR 2015.
    """
    net = Network("vgg-mini", batch)
    x = net.image(3, 32, 32)
    for block, channels in enumerate((8, 16, 32, 64), 1):
        for i in (1, 2):
            x = net.conv(x, channels, 3, padding=1, name=f"conv{block}_{i}")
            x = net.relu(x, f"relu{block}_{i}")
        x = net.batch_norm(net.max_pool(x, 2, name=f"pool{block}"), name=f"bn{block}")
    net.linear(net.flatten(x, "flatten"), CLASSES, name="fc")
    return net.build()
