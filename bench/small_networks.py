"""Small networks of the kinds that people train, and samples for them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray

from fpgapipe.host.data.data import load_data
from fpgapipe.host.data.data_tokens import following
from fpgapipe.host.data.samples import Dataset, Samples, Wanted, split
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.operators import Binary, Embedding
from fpgapipe.network.zoo import built_in, transformer
from fpgapipe.network.zoo.gnmt import Sizes, gnmt
from fpgapipe.network.zoo.layers import Network
from fpgapipe.network.zoo.recurrent import lstm_language_model

CLASSES = 11
"""Classes of a pixel of a digit: ten digits, and the background."""


def mobilenet(batch: int) -> Graph:
    """Depthwise and pointwise convolutions with a gate, as in MobileNet v3, for the digits."""
    net = Network("mobilenet-mini", batch)
    x = net.activation(net.batch_norm(net.conv(net.image(1, 8, 8), 16, 3, padding=1)), "hardswish")
    for features, stride in ((24, 1), (40, 2), (40, 1), (64, 2)):
        wide = 3 * net.tensor(x).shape[1]
        y = net.activation(net.batch_norm(net.conv(x, wide, 1, bias=False)), "hardswish")
        y = net.conv(y, wide, 3, stride=stride, padding=1, groups=wide, bias=False)
        y = net.activation(net.batch_norm(y), "hardswish")
        gate = net.relu(net.conv(net.global_average_pool(y), 16, 1))
        gate = net.activation(net.conv(gate, wide, 1), "hardsigmoid")
        y = net.add(net.fresh_name("gated"), Binary("mul"), y, gate)
        y = net.batch_norm(net.conv(y, features, 1, bias=False))
        x = net.plus(x, y) if net.tensor(x).shape == net.tensor(y).shape else y
    net.linear(net.flatten(net.global_average_pool(x)), 10)
    return net.build()


def unet(batch: int, *, transposed: bool) -> Graph:
    """A U-Net of three levels that gives a class to each pixel."""
    net = Network("unet-transposed" if transposed else "unet-resize", batch)

    def block(x: str, features: int) -> str:
        for _ in range(2):
            x = net.relu(net.batch_norm(net.conv(x, features, 3, padding=1, bias=False)))
        return x

    levels = [block(net.image(1, 8, 8), 16)]
    for features in (32, 64):
        levels.append(block(net.max_pool(levels[-1], 2), features))
    x = levels.pop()
    while levels:
        beside = levels.pop()
        features = net.tensor(beside).shape[1]
        if transposed:
            x = net.conv_transpose(x, features, 2, stride=2)
        else:
            x = net.conv(net.upsample(x, 2, 2), features, 3, padding=1)
        x = block(net.concat([beside, x], 1), features)
    net.conv(x, CLASSES, 1)
    return net.build()


def digits(graph: Graph) -> Dataset:
    """The digits with a class for each."""
    return load_data("digits", graph)


def pixels_of_digits(graph: Graph) -> Dataset:
    """The digits with a class for each pixel: that of its digit where it is bright."""
    whole = load_data("digits", built_in("digits-cnn"))

    def of_pixels(samples: Samples) -> Samples:
        bright = samples.images[:, 0] > 0.5
        return Samples(samples.images, np.where(bright, samples.labels[:, None, None], CLASSES - 1))

    return Dataset(of_pixels(whole.train), of_pixels(whole.validation))


def text(graph: Graph) -> Dataset:
    """The text of Python's own help about its topics, without characters beyond ASCII."""
    whole = "\n".join(topics[name] for name in sorted(topics))
    codes = np.array([ord(each) for each in whole if each.isascii()], np.int64)
    return following(Path("pydoc_data"), "characters", codes, Wanted.of(graph))


WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"),
    "<",
)
"""Digits in English and in German, and the word with which sentences begin."""

NUMBERS, DIGITS = 9600, 12


def translator(batch: int) -> Graph:
    """GNMT with two layers each for encoder and decoder and 64 features: digits to words."""
    return gnmt("gnmt-mini", batch, Sizes(2, 10, len(WORDS), 64, DIGITS, DIGITS, 0))


def numbers(graph: Graph) -> Dataset:
    """Numbers as digits, and as words of two languages; the decoder reads the words so far.

    The language of each word is drawn, so no network has a loss below log(2).
    """
    rng = np.random.default_rng(0)
    digits = rng.integers(0, 10, (NUMBERS, DIGITS))
    words = digits + 10 * rng.integers(0, 2, digits.shape)
    begin = np.full((NUMBERS, 1), WORDS.index("<"))
    return split(Samples(digits, words, (np.concatenate([begin, words[:, :-1]], 1),)))


@dataclass(frozen=True)
class Task:
    """A network with its samples, and how it is trained.

    Attributes
    ----------
    make : callable
        Makes the network for a batch.
    data : callable
        Returns samples for the network.
    devices : int
        Devices on which a step is simulated.
    epochs : int
    validation : int
        Samples that validate.
    learning_rate : float
        The highest one.
    by_loss : bool
        Whether the loss says what was learned, and not the share of right labels.
    micro_batches, samples : int
        Micro-batches of a step of the training, and samples of each.
    embeddings : float
        Factor of the initial tables of embeddings.
    """

    make: Callable[[int], Graph]
    data: Callable[[Graph], Dataset]
    devices: int = 2
    epochs: int = 4
    validation: int = 360
    learning_rate: float = 3e-3
    by_loss: bool = False
    micro_batches: int = 4
    samples: int = 4
    embeddings: float = 1.0

    def initial(self, graph: Graph) -> dict[str, NDArray[np.float32]]:
        """The initial parameters."""
        tables = {
            each.name
            for layer in graph.layers.values()
            if isinstance(layer.operator, Embedding)
            for each in layer.parameters
        }
        return {
            name: value * np.float32(self.embeddings) if name in tables else value
            for name, value in initial_parameters(graph, 0).items()
        }


TASKS = {
    "mobilenet": Task(mobilenet, digits, epochs=12),
    "unet-resize": Task(lambda batch: unet(batch, transposed=False), pixels_of_digits),
    "unet-transposed": Task(lambda batch: unet(batch, transposed=True), pixels_of_digits),
    "char-gpt": Task(lambda batch: built_in("char-gpt", batch), text, 4, 1, 96, by_loss=True),
    "char-lstm": Task(
        lambda batch: built_in("char-lstm", batch),
        text,
        2,
        1,
        96,
        by_loss=True,
        micro_batches=1,
        samples=16,
        embeddings=384**0.5,
    ),
    "gnmt-mini": Task(translator, numbers, 2, 1, 1280, 1e-2, True, 1, 32, 8.0),
}


def _short_gpt(batch: int) -> Graph:
    sizes = transformer.Sizes(features=64, heads=2, blocks=2, dropout=0.1)
    return transformer.gpt("gpt-short", batch, sizes, vocabulary=32, positions=32)


def _short_lstm(batch: int) -> Graph:
    return lstm_language_model("lstm-short", batch, characters=32, features=32, positions=8)


def _small_vit(batch: int) -> Graph:
    sizes = transformer.Sizes(features=32, heads=2, blocks=2, dropout=0)
    return transformer.vit("vit-small", batch, sizes, image=(1, 8, 8), patch=2, classes=10)


def _short_translator(batch: int) -> Graph:
    return gnmt("gnmt-short", batch, Sizes(2, 10, 12, 32, 4, 4, 0))


SHORT: dict[str, Callable[[int], Graph]] = {
    "mobilenet": mobilenet,
    "unet-resize": lambda batch: unet(batch, transposed=False),
    "unet-transposed": lambda batch: unet(batch, transposed=True),
    "gpt-short": _short_gpt,
    "vit-small": _small_vit,
    "lstm-short": _short_lstm,
    "gnmt-short": _short_translator,
}
"""Networks whose step is simulated within minutes on a small core, to time them."""
