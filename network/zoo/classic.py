"""Plain chains of convolutions: digits-cnn, LeNet-5, AlexNet, VGG-16, CosmoFlow."""

from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network


def digits_cnn(batch: int) -> Graph:
    """Three 3x3 convolutions (32, 32, 64 channels) and two linear layers for 8x8 grey digits.

    fpgapipe's own example: small enough to simulate its training cycle by cycle.
    """
    net = Network("digits-cnn", batch)
    x = net.image(1, 8, 8)
    x = net.relu(net.conv(x, 32, 3, padding=1, name="conv1"), "relu1")
    x = net.relu(net.conv(x, 32, 3, padding=1, name="conv2"), "relu2")
    x = net.max_pool(x, 2, name="pool1")
    x = net.relu(net.conv(x, 64, 3, padding=1, name="conv3"), "relu3")
    x = net.flatten(net.max_pool(x, 2, name="pool2"), "flatten")
    x = net.relu(net.linear(x, 128, name="fc1"), "relu4")
    net.linear(x, 10, name="fc2")
    return net.build()


def lenet5(batch: int) -> Graph:
    """LeNet-5 for 32x32 grey digits, with all channels of its second convolution connected.

    Source: Y. LeCun et al., "Gradient-Based Learning Applied to Document Recognition",
    Proc. IEEE 86(11), 1998.
    """
    net = Network("lenet5", batch)
    x = net.image(1, 32, 32)
    for name, channels in (("1", 6), ("2", 16)):
        x = net.activation(net.conv(x, channels, 5, name=f"conv{name}"), "tanh", name=f"tanh{name}")
        x = net.average_pool(x, 2, name=f"pool{name}")
    x = net.activation(net.conv(x, 120, 5, name="conv3"), "tanh", name="tanh3")
    x = net.flatten(x, "flatten")
    x = net.activation(net.linear(x, 84, name="fc1"), "tanh", name="tanh4")
    net.linear(x, 10, name="fc2")
    return net.build()


def alexnet(batch: int) -> Graph:
    """AlexNet in its one-tower form, from 3x224x224 to 1,000 classes.

    Source: A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks",
    arXiv 1404.5997, in the sizes that PyTorch's torchvision uses.
    """
    net = Network("alexnet", batch)
    x = net.image(3, 224, 224)
    x = net.relu(net.conv(x, 64, 11, stride=4, padding=2, name="conv1"), "relu1")
    x = net.max_pool(x, 3, stride=2, name="pool1")
    x = net.relu(net.conv(x, 192, 5, padding=2, name="conv2"), "relu2")
    x = net.max_pool(x, 3, stride=2, name="pool2")
    x = net.relu(net.conv(x, 384, 3, padding=1, name="conv3"), "relu3")
    x = net.relu(net.conv(x, 256, 3, padding=1, name="conv4"), "relu4")
    x = net.relu(net.conv(x, 256, 3, padding=1, name="conv5"), "relu5")
    x = net.flatten(net.max_pool(x, 3, stride=2, name="pool5"), "flatten")
    _classifier(net, x)
    return net.build()


def vgg16(batch: int) -> Graph:
    """VGG-16 (configuration D), from 3x224x224 to 1,000 classes.

    Source: K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
    Recognition", ICLR 2015.
    """
    net = Network("vgg16", batch)
    x = net.image(3, 224, 224)
    for block, (channels, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for i in range(1, depth + 1):
            x = net.conv(x, channels, 3, padding=1, name=f"conv{block}_{i}")
            x = net.relu(x, f"relu{block}_{i}")
        x = net.max_pool(x, 2, name=f"pool{block}")
    x = net.flatten(x, "flatten")
    _classifier(net, x)
    return net.build()


def cosmoflow(batch: int) -> Graph:
    """CosmoFlow, a 3-D network from 4x128x128x128 to four numbers.

    Source: A. Mathuriya et al., "CosmoFlow: Using Deep Learning to Learn the Universe at Scale",
    SC'18, in the sizes of the MLPerf HPC benchmark (five convolutions of 2x2x2, 32 channels
    doubling, "same" padding; linear layers of 128, 64 and 4).
    """
    net = Network("cosmoflow", batch)
    x = net.image(4, 128, 128, 128)
    for i in range(1, 6):
        # "Same" padding with an even kernel has its extra zeros after the data.
        x = net.conv(x, 16 * 2**i, 2, padding=((0, 1),) * 3, name=f"conv{i}")
        x = net.activation(x, "leaky_relu", alpha=0.3, name=f"leaky_relu{i}")
        x = net.max_pool(x, 2, name=f"pool{i}")
    x = net.flatten(x, "flatten")
    for i, features in enumerate((128, 64), 1):
        x = net.linear(x, features, name=f"fc{i}")
        x = net.activation(x, "leaky_relu", alpha=0.3, name=f"leaky_relu{i + 5}")
        x = net.dropout(x, 0.5, name=f"dropout{i}")
    x = net.activation(net.linear(x, 4, name="fc3"), "tanh", name="tanh")
    net.scale(x, 1.2, name="scale")
    return net.build()


def _classifier(net: Network, x: str) -> None:
    """The three linear layers that AlexNet and VGG share."""
    for name in ("6", "7"):
        x = net.relu(net.linear(x, 4096, name=f"fc{name}"), f"relu_fc{name}")
        x = net.dropout(x, 0.5, name=f"dropout{name}")
    net.linear(x, 1000, name="fc8")
