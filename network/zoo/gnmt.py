"""GNMT: an encoder and a decoder of LSTM layers with attention between them.

Training reads the target sentence as a second input, so that the decoder sees the right tokens so
far. The built-in networks have 8 and 16 LSTM layers.

Source: Y. Wu et al., "Google's Neural Machine Translation System", arXiv 1609.08144, in the sizes
that PipeDream (SOSP'19) measured: a vocabulary of 32,320, 1,024 features, and residual connections
from the third layer on.
"""

from dataclasses import dataclass

from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network; the defaults are those of the built-in ones.

    Attributes
    ----------
    depth : int
        Number of layers of the encoder, and of the decoder.
    vocabulary, target_vocabulary : int
        Number of source tokens and of target tokens.
    features : int
    positions, target_positions : int
        Number of tokens of a source sentence and of a target sentence.
    dropout : float
    """

    depth: int
    vocabulary: int = 32320
    target_vocabulary: int = 32320
    features: int = 1024
    positions: int = 50
    target_positions: int = 50
    dropout: float = 0.2


def gnmt8(batch: int) -> Graph:
    """GNMT with four encoder and four decoder layers, 50 source and 50 target positions."""
    return gnmt("gnmt8", batch, Sizes(4))


def gnmt16(batch: int) -> Graph:
    """GNMT with eight encoder and eight decoder layers, 50 source and 50 target positions."""
    return gnmt("gnmt16", batch, Sizes(8))


def gnmt(name: str, batch: int, sizes: Sizes) -> Graph:
    """A network with the layers of GNMT, of some sizes."""
    net = Network(name, batch)
    encoded = _encoder(net, net.tokens("source", sizes.positions), sizes)
    decoded = _decoder(net, net.tokens("target", sizes.target_positions), encoded, sizes)
    net.linear(decoded, sizes.target_vocabulary, name="classifier")
    return net.build()


def _dropped(net: Network, x: str, sizes: Sizes, name: str) -> str:
    return net.dropout(x, sizes.dropout, name) if sizes.dropout else x


def _encoder(net: Network, source: str, sizes: Sizes) -> str:
    """A bidirectional LSTM layer, followed by plain ones."""
    features = sizes.features
    x = net.embedding(source, sizes.vocabulary, features, "encoder.embedding")
    x = net.lstm(x, features, bidirectional=True, name="encoder.lstm1")
    for i in range(2, sizes.depth + 1):
        y = _dropped(net, x, sizes, f"encoder.dropout{i}")
        y = net.lstm(y, features, name=f"encoder.lstm{i}")
        x = net.plus(y, x, f"encoder.add{i}") if i > 2 else y
    return x


def _decoder(net: Network, target: str, encoded: str, sizes: Sizes) -> str:
    """A layer whose output attends to the source; all further layers read the context."""
    features = sizes.features
    x = net.embedding(target, sizes.target_vocabulary, features, "decoder.embedding")
    x = net.lstm(x, features, name="decoder.lstm1")
    context = _attention(net, x, encoded, features)
    for i in range(2, sizes.depth + 1):
        y = _dropped(net, x, sizes, f"decoder.dropout{i}")
        y = net.concat([y, context], axis=2, name=f"decoder.concat{i}")
        y = net.lstm(y, features, name=f"decoder.lstm{i}")
        x = net.plus(y, x, f"decoder.add{i}") if i > 2 else y
    return x


def _attention(net: Network, query: str, keys: str, features: int) -> str:
    """Additive attention: a score is a vector times ``tanh(W_q q + W_k k)``."""
    batch, rows, _ = net.tensor(query).shape
    columns = net.tensor(keys).shape[1]
    q = net.linear(query, features, bias=False, name="attention.query")
    k = net.linear(keys, features, bias=False, name="attention.key")
    q = net.reshape(q, batch, rows, 1, features, name="attention.query_rows")
    k = net.reshape(k, batch, 1, columns, features, name="attention.key_columns")
    x = net.activation(net.plus(q, k, "attention.sum"), "tanh", name="attention.tanh")
    x = net.linear(x, 1, bias=False, name="attention.score")
    x = net.reshape(x, batch, rows, columns, name="attention.scores")
    return net.matmul(net.softmax(x, name="attention.softmax"), keys, "attention.context")
