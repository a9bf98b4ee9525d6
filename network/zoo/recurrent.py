"""A small language model of LSTMs."""

from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network

CHARACTERS = 128
FEATURES = 128
POSITIONS = 64
LAYERS = 2


def char_lstm(batch: int) -> Graph:
    """Two layers of LSTM over the 128 characters of ASCII, 128 features, 64 positions.

    Each sample begins with states of zeros.
    """
    net = Network("char-lstm", batch)
    x = net.embedding(net.tokens("tokens", POSITIONS), CHARACTERS, FEATURES, "embedding")
    for number in range(1, LAYERS + 1):
        x = net.lstm(x, FEATURES, name=f"lstm{number}")
    net.linear(x, CHARACTERS, name="head")
    return net.build()
