"""Small networks of the kinds that people train, and samples for them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from fpgapipe.host.data.data import load_data
from fpgapipe.host.data.data_tokens import following
from fpgapipe.host.data.samples import Dataset, Samples, Wanted, split
from fpgapipe.network.graph import Graph
from fpgapipe.network.operators import Binary
from fpgapipe.network.zoo import built_in
from fpgapipe.network.zoo.gnmt import Sizes, gnmt
from fpgapipe.network.zoo.layers import Network

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
    """What Python's own help says about its topics, without characters beyond ASCII."""
    whole = "\n".join(topics[name] for name in sorted(topics))
    codes = np.array([ord(each) for each in whole if each.isascii()], np.int64)
    return following(Path("pydoc_data"), "characters", codes, Wanted.of(graph))


ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
WORDS = ("", "<", *ONES, *TENS, "hundred", "thousand")
"""Words of numbers; the first one fills sentences up, the second one begins them."""

DIGITS, NUM_WORDS = 6, 12
NUMBERS = 6400


def translator(batch: int) -> Graph:
    """GNMT with two layers each for encoder and decoder and 64 features: numbers to words."""
    return gnmt("gnmt-mini", batch, Sizes(2, 10, len(WORDS), 64, DIGITS, NUM_WORDS, 0))


def in_words(number: int) -> list[str]:
    """A number below a million in English."""
    if number < 20:
        return [ONES[number]]
    if number < 100:
        return [TENS[number // 10 - 2], *(in_words(number % 10) if number % 10 else [])]
    size, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    rest = in_words(number % size) if number % size else []
    return [*in_words(number // size), name, *rest]


def numbers(graph: Graph) -> Dataset:
    """Numbers as digits, and as words; the decoder reads the words so far."""
    drawn = np.random.default_rng(0).choice(10**DIGITS, NUMBERS, replace=False)
    source = drawn[:, None] // 10 ** np.arange(DIGITS - 1, -1, -1) % 10
    words = np.zeros((NUMBERS, NUM_WORDS + 1), np.int64)
    words[:, 0] = WORDS.index("<")
    for row, number in zip(words, drawn, strict=True):
        found = [WORDS.index(word) for word in in_words(int(number))]
        row[1 : 1 + len(found)] = found
    return split(Samples(source, words[:, 1:], (words[:, :-1],)))


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
    """

    make: Callable[[int], Graph]
    data: Callable[[Graph], Dataset]
    devices: int = 2
    epochs: int = 4
    validation: int = 360


TASKS = {
    "mobilenet": Task(mobilenet, digits, epochs=12),
    "unet-resize": Task(lambda batch: unet(batch, transposed=False), pixels_of_digits),
    "unet-transposed": Task(lambda batch: unet(batch, transposed=True), pixels_of_digits),
    "char-gpt": Task(lambda batch: built_in("char-gpt", batch), text, 4, 1, 96),
    "gnmt-mini": Task(translator, numbers, 4, 1),
}
