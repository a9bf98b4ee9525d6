"""BERT-base and GPT-2 small, with attention written as products, scaling and softmax."""

import math

from fpgapipe.network.graph import Graph
from fpgapipe.network.operators import Constant, Slice
from fpgapipe.network.zoo.layers import Network

FEATURES = 768
HEADS = 12
BLOCKS = 12


def bert_base(batch: int) -> Graph:
    """BERT-base (uncased vocabulary) with its pooler, 128 positions.

    Source: J. Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding", NAACL 2019.
    """
    positions, epsilon = 128, 1e-12
    net = Network("bert_base", batch)
    x = net.embedding(net.tokens("tokens", positions), 30522, FEATURES, "embeddings.word")
    segments = net.tokens("segments", positions)
    x = net.plus(x, net.embedding(segments, 2, FEATURES, "embeddings.segment"), "embeddings.sum1")
    x = net.plus(x, _positions(net, "embeddings.position", 512, positions), "embeddings.sum2")
    x = net.layer_norm(x, epsilon=epsilon, name="embeddings.norm")
    x = net.dropout(x, 0.1, "embeddings.dropout")
    for i in range(BLOCKS):
        name = f"block{i}"
        q, k, v = (net.linear(x, FEATURES, name=f"{name}.{part}") for part in ("q", "k", "v"))
        y = _attend(net, name, q, k, v, causal=False)
        y = net.dropout(net.linear(y, FEATURES, name=f"{name}.project"), 0.1, f"{name}.dropout1")
        x = net.layer_norm(net.plus(x, y, f"{name}.add1"), epsilon=epsilon, name=f"{name}.norm1")
        y = net.dropout(_feed_forward(net, x, name), 0.1, f"{name}.dropout2")
        x = net.layer_norm(net.plus(x, y, f"{name}.add2"), epsilon=epsilon, name=f"{name}.norm2")
    first = net.add("pooler.first", Slice(1, 0, 1), x)
    first = net.flatten(first, "pooler.flatten")
    pooled = net.activation(net.linear(first, FEATURES, name="pooler"), "tanh", name="pooler.tanh")
    return net.build([x, pooled])


def gpt2_small(batch: int) -> Graph:
    """GPT-2 small with its language-model head (tied to the embedding), 1,024 positions.

    Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners", OpenAI 2019.
    """
    positions = 1024
    net = Network("gpt2_small", batch)
    x = net.embedding(net.tokens("tokens", positions), 50257, FEATURES, "wte")
    x = net.plus(x, _positions(net, "wpe", positions, positions), "embeddings.sum")
    x = net.dropout(x, 0.1, "embeddings.dropout")
    for i in range(BLOCKS):
        name = f"block{i}"
        y = net.linear(net.layer_norm(x, name=f"{name}.norm1"), 3 * FEATURES, name=f"{name}.qkv")
        q, k, v = net.split(y, 3, axis=2, name=f"{name}.split")
        y = _attend(net, name, q, k, v, causal=True)
        y = net.dropout(net.linear(y, FEATURES, name=f"{name}.project"), 0.1, f"{name}.dropout1")
        x = net.plus(x, y, f"{name}.add1")
        y = _feed_forward(net, net.layer_norm(x, name=f"{name}.norm2"), name)
        x = net.plus(x, net.dropout(y, 0.1, f"{name}.dropout2"), f"{name}.add2")
    x = net.layer_norm(x, name="norm")
    net.linear(x, 50257, bias=False, name="head", weight="wte.weight")
    return net.build()


def _positions(net: Network, name: str, most: int, used: int) -> str:
    """A learned vector for each of the first `used` positions."""
    table = net.add(name, Constant((most, FEATURES), trainable=True))
    return table if used == most else net.add(f"{name}.used", Slice(0, 0, used), table)


def _attend(net: Network, name: str, q: str, k: str, v: str, *, causal: bool) -> str:
    """Scaled dot-product attention of all heads."""
    batch, positions, features = net.tensor(q).shape
    width = features // HEADS

    def heads(x: str, part: str, *order: int) -> str:
        x = net.reshape(x, batch, positions, HEADS, width, name=f"{name}.{part}_heads")
        return net.transpose(x, *order, name=f"{name}.{part}_transpose")

    scores = net.matmul(heads(q, "q", 0, 2, 1, 3), heads(k, "k", 0, 2, 3, 1), name=f"{name}.scores")
    scores = net.scale(scores, 1 / math.sqrt(width), name=f"{name}.scale")
    share = net.softmax(scores, causal=causal, name=f"{name}.softmax")
    share = net.dropout(share, 0.1, f"{name}.dropout0")
    y = net.matmul(share, heads(v, "v", 0, 2, 1, 3), name=f"{name}.values")
    y = net.transpose(y, 0, 2, 1, 3, name=f"{name}.merge")
    return net.reshape(y, batch, positions, features, name=f"{name}.attention")


def _feed_forward(net: Network, x: str, name: str) -> str:
    """Two linear layers with a GELU between them."""
    x = net.linear(x, 4 * FEATURES, name=f"{name}.fc1")
    return net.linear(net.activation(x, "gelu", name=f"{name}.gelu"), FEATURES, name=f"{name}.fc2")
