"""BERT-base, GPTs and ViT-B, with attention written as products, scaling and softmax."""

import math
from dataclasses import dataclass

from fpgapipe.network.graph import Graph
from fpgapipe.network.operators import Constant, Expand, Slice
from fpgapipe.network.zoo.layers import Network


@dataclass(frozen=True)
class Sizes:
    """Sizes of a transformer, and its activation function; the default ones are BERT-base's.

    GPT-2 small has the same sizes.
    """

    features: int = 768
    heads: int = 12
    blocks: int = 12
    dropout: float = 0.1
    activation: str = "gelu"


GPT2 = Sizes(activation="gelu_tanh")
"""Sizes of GPT-2 small."""


def bert_base(batch: int) -> Graph:
    """BERT-base (uncased vocabulary) with its pooler, 128 positions.

    Source: J. Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding", NAACL 2019.
    """
    net = Network("bert_base", batch)
    return net.build(_bert(net))


def bert_classifier(batch: int) -> Graph:
    """BERT-base that tells two classes of texts apart, as for its fine-tuning."""
    net = Network("bert_classifier", batch)
    _, pooled = _bert(net)
    net.linear(net.dropout(pooled, Sizes.dropout, "dropout"), 2, name="classes")
    return net.build(["classes"])


def _bert(net: Network) -> list[str]:
    """BERT-base: the features of all positions, and the pooled ones of the first."""
    positions, epsilon, sizes = 128, 1e-12, Sizes()
    features = sizes.features
    x = net.embedding(net.tokens("tokens", positions), 30522, features, "embeddings.word")
    segments = net.tokens("segments", positions)
    x = net.plus(x, net.embedding(segments, 2, features, "embeddings.segment"), "embeddings.sum1")
    position = _positions(net, "embeddings.position", 512, positions, features)
    x = net.plus(x, position, "embeddings.sum2")
    x = net.layer_norm(x, epsilon=epsilon, name="embeddings.norm")
    x = _dropped(net, x, sizes, "embeddings.dropout")
    for i in range(sizes.blocks):
        name = f"block{i}"
        q, k, v = (net.linear(x, features, name=f"{name}.{part}") for part in ("q", "k", "v"))
        y = _attend(net, name, q, k, v, sizes, causal=False)
        y = net.linear(y, features, name=f"{name}.project")
        y = _dropped(net, y, sizes, f"{name}.dropout1")
        x = net.layer_norm(net.plus(x, y, f"{name}.add1"), epsilon=epsilon, name=f"{name}.norm1")
        y = _dropped(net, _feed_forward(net, x, name, sizes), sizes, f"{name}.dropout2")
        x = net.layer_norm(net.plus(x, y, f"{name}.add2"), epsilon=epsilon, name=f"{name}.norm2")
    first = net.add("pooler.first", Slice(1, 0, 1), x)
    first = net.flatten(first, "pooler.flatten")
    pooled = net.activation(net.linear(first, features, name="pooler"), "tanh", name="pooler.tanh")
    return [x, pooled]


def gpt2_small(batch: int) -> Graph:
    """GPT-2 small with its language-model head (tied to the embedding), 1,024 positions.

    Its activation function is the tanh form of GELU.

    Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners", OpenAI 2019.
    """
    return gpt("gpt2_small", batch, GPT2, vocabulary=50257, positions=1024)


def char_gpt(batch: int) -> Graph:
    """A small GPT over the 128 characters of ASCII, without dropout, 128 positions.

    It has GPT-2's blocks, of which four with 128 features and 4 heads are enough for spelling and
    the words of a text.
    """
    sizes = Sizes(features=128, heads=4, blocks=4, dropout=0)
    return gpt("char-gpt", batch, sizes, vocabulary=128, positions=128)


def vit_b(batch: int) -> Graph:
    """ViT-B/16 for images of 224 x 224, without dropout.

    Source: A. Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image
    Recognition at Scale", ICLR 2021.
    """
    return vit("vit_b", batch, Sizes(dropout=0), image=(3, 224, 224), patch=16, classes=1000)


def vit(
    name: str, batch: int, sizes: Sizes, *, image: tuple[int, int, int], patch: int, classes: int
) -> Graph:
    """A vision transformer over the square patches of images of ``channels, height, width``."""
    epsilon, features = 1e-6, sizes.features
    tokens = image[1] // patch * (image[2] // patch)
    net = Network(name, batch)
    x = net.conv(net.image(*image), features, patch, stride=patch, name="patches")
    x = net.reshape(x, batch, features, tokens, name="patches.rows")
    x = net.transpose(x, 0, 2, 1, name="patches.tokens")
    first = net.add("class_token", Constant((1, 1, features), trainable=True))
    first = net.add("class_token.repeated", Expand((batch, 1, features)), first)
    x = net.concat((first, x), 1, "tokens")
    places = net.add("positions", Constant((1, tokens + 1, features), trainable=True))
    x = net.plus(x, places, "embeddings")
    for i in range(sizes.blocks):
        block = f"block{i}"
        y = net.layer_norm(x, epsilon=epsilon, name=f"{block}.norm1")
        q, k, v = (net.linear(y, features, name=f"{block}.{part}") for part in ("q", "k", "v"))
        y = _attend(net, block, q, k, v, sizes, causal=False)
        x = net.plus(x, net.linear(y, features, name=f"{block}.project"), f"{block}.add1")
        y = net.layer_norm(x, epsilon=epsilon, name=f"{block}.norm2")
        x = net.plus(x, _feed_forward(net, y, block, sizes), f"{block}.add2")
    x = net.layer_norm(x, epsilon=epsilon, name="norm")
    x = net.flatten(net.add("class", Slice(1, 0, 1), x), "features")
    net.linear(x, classes, name="head")
    return net.build()


def gpt(name: str, batch: int, sizes: Sizes, *, vocabulary: int, positions: int) -> Graph:
    """Blocks of GPT-2 between an embedding and a head with the same weight."""
    net = Network(name, batch)
    features = sizes.features
    x = net.embedding(net.tokens("tokens", positions), vocabulary, features, "wte")
    x = net.plus(x, _positions(net, "wpe", positions, positions, features), "embeddings.sum")
    x = _dropped(net, x, sizes, "embeddings.dropout")
    for i in range(sizes.blocks):
        block = f"block{i}"
        y = net.linear(net.layer_norm(x, name=f"{block}.norm1"), 3 * features, name=f"{block}.qkv")
        q, k, v = net.split(y, 3, axis=2, name=f"{block}.split")
        y = net.linear(_attend(net, block, q, k, v, sizes, causal=True), features,
                       name=f"{block}.project")  # fmt: skip
        x = net.plus(x, _dropped(net, y, sizes, f"{block}.dropout1"), f"{block}.add1")
        y = _feed_forward(net, net.layer_norm(x, name=f"{block}.norm2"), block, sizes)
        x = net.plus(x, _dropped(net, y, sizes, f"{block}.dropout2"), f"{block}.add2")
    x = net.layer_norm(x, name="norm")
    net.linear(x, vocabulary, bias=False, name="head", weight="wte.weight")
    return net.build()


def _dropped(net: Network, x: str, sizes: Sizes, name: str) -> str:
    """The value after dropout, if there is any."""
    return net.dropout(x, sizes.dropout, name) if sizes.dropout else x


def _positions(net: Network, name: str, most: int, used: int, features: int) -> str:
    """A learned vector for each of the first `used` positions."""
    table = net.add(name, Constant((most, features), trainable=True))
    return table if used == most else net.add(f"{name}.used", Slice(0, 0, used), table)


def _attend(net: Network, name: str, q: str, k: str, v: str, sizes: Sizes, *, causal: bool) -> str:
    """Scaled dot-product attention of all heads."""
    batch, positions, features = net.tensor(q).shape
    width = features // sizes.heads

    def heads(x: str, part: str, *order: int) -> str:
        x = net.reshape(x, batch, positions, sizes.heads, width, name=f"{name}.{part}_heads")
        return net.transpose(x, *order, name=f"{name}.{part}_transpose")

    scores = net.matmul(heads(q, "q", 0, 2, 1, 3), heads(k, "k", 0, 2, 3, 1), name=f"{name}.scores")
    scores = net.scale(scores, 1 / math.sqrt(width), name=f"{name}.scale")
    share = net.softmax(scores, causal=causal, name=f"{name}.softmax")
    share = _dropped(net, share, sizes, f"{name}.dropout0")
    y = net.matmul(share, heads(v, "v", 0, 2, 1, 3), name=f"{name}.values")
    y = net.transpose(y, 0, 2, 1, 3, name=f"{name}.merge")
    return net.reshape(y, batch, positions, features, name=f"{name}.attention")


def _feed_forward(net: Network, x: str, name: str, sizes: Sizes) -> str:
    """Two linear layers with an activation function between them."""
    x = net.linear(x, 4 * sizes.features, name=f"{name}.fc1")
    x = net.activation(x, sizes.activation, name=f"{name}.gelu")
    return net.linear(x, sizes.features, name=f"{name}.fc2")
