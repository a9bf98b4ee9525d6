"""Small networks of the kinds that strategies cut: images, groups, tokens, permutes."""

from collections.abc import Callable

from fpgapipe.network.frontends.torch.torch_program import from_torch
from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network
from fpgapipe.network.zoo.recurrent import lstm_language_model


def convolutions(batch: int) -> Graph:
    """Two convolutions, a pooling and two linear layers."""
    net = Network("convolutions", batch)
    x = net.relu(net.conv(net.image(2, 8, 8), 8, 3, padding=1))
    x = net.max_pool(net.relu(net.conv(x, 8, 3, padding=1)), 2)
    net.linear(net.relu(net.linear(net.flatten(x), 12)), 4)
    return net.build()


def grouped(batch: int) -> Graph:
    """A grouped and a depthwise convolution between plain ones."""
    net = Network("grouped", batch)
    x = net.relu(net.conv(net.image(2, 8, 8), 8, 3, padding=1))
    x = net.relu(net.conv(x, 8, 3, padding=1, groups=2))
    x = net.relu(net.conv(x, 8, 3, padding=1, groups=8))
    net.linear(net.flatten(net.global_average_pool(net.conv(x, 8, 1))), 4)
    return net.build()


def residual(batch: int) -> Graph:
    """A sum of two ways, one of which has another convolution."""
    net = Network("residual", batch)
    x = net.relu(net.conv(net.image(2, 8, 8), 8, 3, padding=1))
    y = net.conv(net.relu(net.conv(x, 8, 3, padding=1)), 8, 3, padding=1)
    x = net.relu(net.plus(x, y))
    net.linear(net.flatten(net.max_pool(x, 2)), 4)
    return net.build()


def recurrent(batch: int) -> Graph:
    """A language model of one LSTM."""
    return lstm_language_model("lstm", batch, characters=20, features=8, positions=4, layers=1)


def permutes(batch: int) -> Graph:
    """Channels last: a linear layer over the channels of each pixel, between convolutions."""
    net = Network("permutes", batch)
    x = net.relu(net.conv(net.image(2, 8, 8), 8, 3, padding=1))
    x = net.linear(net.transpose(x, 0, 2, 3, 1), 8)
    x = net.relu(net.conv(net.transpose(x, 0, 3, 1, 2), 8, 3, padding=1))
    net.linear(net.flatten(net.max_pool(x, 2)), 4)
    return net.build()


def turned(batch: int) -> Graph:
    """Positions in front of samples for a while, as many as some micro-batches have samples."""
    net = Network("turned", batch)
    x = net.relu(net.linear(net.image(4, 8), 8))
    x = net.relu(net.linear(net.transpose(x, 1, 0, 2), 8))
    net.linear(net.flatten(net.transpose(x, 1, 0, 2)), 4)
    return net.build()


def transformer(batch: int) -> Graph:
    """PyTorch's layer of an encoder, and a linear layer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return from_torch((nn.Sequential(layer, nn.Linear(16, 4)), torch.randn(batch, 8, 16)), name="t")


NETWORKS: dict[str, Callable[[int], Graph]] = {
    each.__name__: each
    for each in (convolutions, grouped, residual, recurrent, permutes, turned, transformer)
}
