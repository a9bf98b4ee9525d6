"""GNMT with 8 and 16 LSTM layers, for training with the target sentence as a second input.

Source: Y. Wu et al., "Google's Neural Machine Translation System", arXiv 1609.08144, in the sizes
that PipeDream (SOSP'19) measured: a vocabulary of 32,320, 1,024 features, and residual connections
from the third layer on.
"""

from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network

VOCABULARY = 32320
FEATURES = 1024
POSITIONS = 50
DROPOUT = 0.2


def gnmt8(batch: int) -> Graph:
    """GNMT with four encoder and four decoder layers, 50 source and 50 target positions."""
    return _gnmt("gnmt8", batch, depth=4)


def gnmt16(batch: int) -> Graph:
    """GNMT with eight encoder and eight decoder layers, 50 source and 50 target positions."""
    return _gnmt("gnmt16", batch, depth=8)


def _gnmt(name: str, batch: int, depth: int) -> Graph:
    net = Network(name, batch)
    encoded = _encoder(net, net.tokens("source", POSITIONS), depth)
    decoded = _decoder(net, net.tokens("target", POSITIONS), encoded, depth)
    net.linear(decoded, VOCABULARY, name="classifier")
    return net.build()


def _encoder(net: Network, source: str, depth: int) -> str:
    """A bidirectional LSTM layer, followed by plain ones."""
    x = net.embedding(source, VOCABULARY, FEATURES, "encoder.embedding")
    x = net.lstm(x, FEATURES, bidirectional=True, name="encoder.lstm1")
    for i in range(2, depth + 1):
        y = net.lstm(
            net.dropout(x, DROPOUT, f"encoder.dropout{i}"), FEATURES, name=f"encoder.lstm{i}"
        )
        x = net.plus(y, x, f"encoder.add{i}") if i > 2 else y
    return x


def _decoder(net: Network, target: str, encoded: str, depth: int) -> str:
    """A layer whose output attends to the source; all further layers read the context."""
    x = net.embedding(target, VOCABULARY, FEATURES, "decoder.embedding")
    x = net.lstm(x, FEATURES, name="decoder.lstm1")
    context = _attention(net, x, encoded)
    for i in range(2, depth + 1):
        y = net.dropout(x, DROPOUT, f"decoder.dropout{i}")
        y = net.concat([y, context], axis=2, name=f"decoder.concat{i}")
        y = net.lstm(y, FEATURES, name=f"decoder.lstm{i}")
        x = net.plus(y, x, f"decoder.add{i}") if i > 2 else y
    return x


def _attention(net: Network, query: str, keys: str) -> str:
    """Additive attention: a score is a vector times ``tanh(W_q q + W_k k)``."""
    batch = net.tensor(query).shape[0]
    q = net.linear(query, FEATURES, bias=False, name="attention.query")
    k = net.linear(keys, FEATURES, bias=False, name="attention.key")
    q = net.reshape(q, batch, POSITIONS, 1, FEATURES, name="attention.query_rows")
    k = net.reshape(k, batch, 1, POSITIONS, FEATURES, name="attention.key_columns")
    x = net.activation(net.plus(q, k, "attention.sum"), "tanh", name="attention.tanh")
    x = net.linear(x, 1, bias=False, name="attention.score")
    x = net.reshape(x, batch, POSITIONS, POSITIONS, name="attention.scores")
    return net.matmul(net.softmax(x, name="attention.softmax"), keys, "attention.context")
