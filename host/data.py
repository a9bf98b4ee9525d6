"""Samples to train with: the digits set, files of numpy, folders of images, random ones.

All come whole into memory, in the shape of the network's input. Their order in training depends on
a seed and the number of the epoch, on nothing else.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import FileError, UserError, nearest
from fpgapipe.files import is_folder
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fpgapipe.partition.graph import Graph

SOURCES = ("digits", "random")
"""Names that are no files."""

MOST_BYTES = 4 << 30
"""Of all images of a source as FP32."""

NUM_DIGITS = 1437
"""The first so many of the shuffled digits are for training, the other 360 for validation."""

NUM_RANDOM = 1280
"""Random samples, a fifth of which is for validation."""

NOISE = 0.5
"""Standard deviation of a random sample from the prototype of its class, whose own is 1."""

TRAINING_PART = 0.8
"""Of samples that do not come with others for validation."""


@dataclass(frozen=True)
class Samples:
    """Inputs of a network, a row each, and their classes.

    Attributes
    ----------
    images : float32 array, shape (samples, channels, height, width)
        Other shapes behind the first axis where the network has such.
    labels : int64 array, shape (samples,)
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def batches(self, size: int, seed: int | None = None, epoch: int = 0) -> Iterator[Samples]:
        """Whole batches, shuffled if there is a seed; samples that fill no batch are left out."""
        order = np.arange(len(self.labels))
        if seed is not None:
            np.random.default_rng((seed, epoch)).shuffle(order)
        for first in range(0, len(order) - size + 1, size):
            yield self.some(order[first : first + size])

    def some(self, which: NDArray[np.integer] | slice) -> Samples:
        """Some of them, in that order."""
        return Samples(self.images[which], self.labels[which])


@dataclass(frozen=True)
class Dataset:
    """Samples for training and others to see what was learned.

    Attributes
    ----------
    train, validation : Samples
    note : str
        How they were told apart, where the source did not say; else empty.
    """

    train: Samples
    validation: Samples
    note: str = ""


@dataclass(frozen=True)
class Wanted:
    """What a network takes.

    Attributes
    ----------
    network : str
    shape : tuple of int
        Of one sample.
    classes : int
    """

    network: str
    shape: tuple[int, ...]
    classes: int

    @classmethod
    def of(cls, graph: Graph) -> Wanted:
        """What a graph takes.

        Raises
        ------
        UserError
            If it has other than one input of floating-point numbers and one output of a row of
            logits a sample.
        """
        if len(graph.inputs) != 1 or len(graph.outputs) != 1:
            raise UserError(
                f"{graph.name} must have one input and one output to be trained with samples, not "
                f"{len(graph.inputs)} and {len(graph.outputs)}"
            )
        (tensor,) = graph.inputs.values()
        logits = graph.layers[graph.outputs[0]].output.shape
        if not tensor.dtype.is_float or len(tensor.shape) < 2 or len(logits) != 2:
            raise UserError(
                f"{graph.name} must have an input of floating-point numbers and a row of logits a "
                f"sample to be trained with samples, not {tensor.dtype} {list(tensor.shape)} and "
                f"{list(logits)}"
            )
        return cls(graph.name, tensor.shape[1:], logits[1])

    def check_size(self, path: Path, what: str, samples: int) -> None:
        """Refuse more samples than memory may be taken for."""
        size = 4 * samples * math.prod(self.shape)
        if size > MOST_BYTES:
            raise FileError(
                path,
                [
                    f"{what} must be at most {MOST_BYTES >> 30} GiB as FP32, not "
                    f"{size / (1 << 30):.3g} GiB: {samples:,} samples of {shape_text(self.shape)}"
                ],
            )


def shape_text(shape: tuple[int, ...]) -> str:
    """Write a shape as ``3x32x32``."""
    return "x".join(map(str, shape))


def load_data(name: str, graph: Graph) -> Dataset:
    """Read samples for a network.

    Parameters
    ----------
    name : str
        ``digits``: the 1,797 grey images of 8 x 8 that come with scikit-learn, with values in 0..1.
        ``random``: classes that differ by a pattern each, in noise; always the same ones.
        ``FILE.npz``: arrays `images`, of shape (n, c, h, w), (n, h, w) or (n, h, w, c), and
        `labels`, whole numbers from 0; optional `validation_images` and `validation_labels`. Whole
        numbers of 8 bits are divided by 255, floating-point numbers are taken as they are.
        ``FOLDER``: a folder of images for each class, in the order of their names (of their
        numbers, if all are numbers); or `train` and `val`, with such folders in each. Values are
        divided by 255.
    graph : Graph
        What they have to fit.

    Returns
    -------
    Dataset
        Where there are none for validation, a fifth of all, always the same ones.

    Raises
    ------
    UserError
        If a library is missing, there is no such source, it is damaged, or it does not fit.
    """
    wanted = Wanted.of(graph)
    if name == "digits":
        return _digits(wanted)
    if name == "random":
        return _random(wanted)
    path = Path(name)
    if is_folder(path):
        from fpgapipe.host.data_folder import read_folder

        return read_folder(path, wanted)
    if path.suffix.lower() == ".npz":
        from fpgapipe.host.data_npz import read_npz

        return read_npz(path, wanted)
    if os.path.lexists(path):
        raise FileError(name, ["data must be a .npz file or a folder of images by class"])
    raise UserError(
        f"no data {name!r}{nearest(name, SOURCES)} (there are {', '.join(SOURCES)}; else it must "
        "be a .npz file or a folder of images by class)"
    )


def split(samples: Samples) -> Dataset:
    """Tell samples for training and for validation apart: a fifth, drawn with a fixed seed.

    Raises
    ------
    ValueError
        If there are fewer than two.
    """
    count = len(samples.labels)
    if count < 2:
        raise ValueError(f"samples to split must be at least 2, not {count}")
    order = np.random.default_rng(0).permutation(count)
    held_out = max(round(count * (1 - TRAINING_PART)), 1)
    return Dataset(
        samples.some(np.sort(order[held_out:])),
        samples.some(np.sort(order[:held_out])),
        f"{held_out:,} of {count:,} samples, drawn with a fixed seed, are for validation",
    )


def _digits(wanted: Wanted) -> Dataset:
    """The digits set, always split in the same way.

    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
    Repository, 1998, of which this is the test set.
    """
    require("sklearn", "the digits set")
    from sklearn.datasets import load_digits

    if wanted.shape != (1, 8, 8) or wanted.classes < 10:
        raise UserError(
            f"the digits set has images of 1x8x8 and 10 classes, but {wanted.network} takes "
            f"{shape_text(wanted.shape)} and {wanted.classes} classes; use other data (random fits "
            "every network)"
        )
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = (found.images / 16).astype(np.float32)[order, None]
    labels = found.target.astype(np.int64)[order]
    samples = Samples(images, labels)
    return Dataset(samples.some(slice(NUM_DIGITS)), samples.some(slice(NUM_DIGITS, None)))


def _random(wanted: Wanted) -> Dataset:
    """A prototype of each class, and noise around it."""
    rng = np.random.default_rng(0)
    prototypes = rng.standard_normal((wanted.classes, *wanted.shape), np.float32)
    labels = rng.permutation(np.arange(NUM_RANDOM) % wanted.classes).astype(np.int64)
    images = rng.standard_normal((NUM_RANDOM, *wanted.shape), np.float32)
    images *= np.float32(NOISE)
    images += prototypes[labels]
    samples = Samples(images, labels)
    first = round(NUM_RANDOM * TRAINING_PART)
    return Dataset(samples.some(slice(first)), samples.some(slice(first, None)))
