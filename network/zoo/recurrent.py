"""A small language model of LSTMs."""

from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network


def char_lstm(batch: int) -> Graph:
    """Two layers of LSTM over the 128 characters of ASCII, 128 features, 64 positions."""
    return lstm_language_model("char-lstm", batch, characters=128, features=128, positions=64)


def lstm_language_model(
    name: str, batch: int, *, characters: int, features: int, positions: int, layers: int = 2
) -> Graph:
    """An embedding, layers of LSTM, and a head; each sample begins with states of zeros."""
    net = Network(name, batch)
    x = net.embedding(net.tokens("tokens", positions), characters, features, "embedding")
    for number in range(1, layers + 1):
        x = net.lstm(x, features, name=f"lstm{number}")
    net.linear(x, characters, name="head")
    return net.build()
