"""Samples to train with: the digits set, files of numpy, folders of images, random ones.

All come whole into memory, in the shape of the network's input. Their order in training depends on
a seed and the number of the epoch, on nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import FileError, UserError, nearest
from fpgapipe.files import is_folder
from fpgapipe.host.data.samples import TRAINING_PART, Dataset, Samples, Wanted, shape_text
from fpgapipe.optional import require

if TYPE_CHECKING:
    from fpgapipe.network.graph import Graph

SOURCES = ("digits", "random")
"""Names that are no files."""

NUM_DIGITS = 1437
"""The first so many of the shuffled digits are for training, the other 360 for validation."""

NUM_RANDOM = 1280
"""Random samples, a fifth of which is for validation."""

NOISE = 0.5
"""Standard deviation of a random sample from the prototype of its class, whose own is 1."""


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
        from fpgapipe.host.data.data_folder import read_folder

        return read_folder(path, wanted)
    if path.suffix.lower() == ".npz":
        from fpgapipe.host.data.data_npz import read_npz

        return read_npz(path, wanted)
    if os.path.lexists(path):
        raise FileError(name, ["data must be a .npz file or a folder of images by class"])
    raise UserError(
        f"no data {name!r}{nearest(name, SOURCES)} (there are {', '.join(SOURCES)}; else it must "
        "be a .npz file or a folder of images by class)"
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
