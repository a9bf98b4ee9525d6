"""Loads samples: the digits set, files of numpy arrays, folders of images, random ones.

All samples are read into memory, in the shape of the network's input. Their order in training
depends only on a seed and on the number of the epoch.
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
"""Names of samples that are not read from a file."""

NUM_DIGITS = 1437
"""Number of shuffled digits, the first ones, that are for training; the other 360 validate."""

NUM_RANDOM = 1280
"""Number of random samples, of which a fifth is for validation."""

NOISE = 0.5
"""Standard deviation of the noise of a random sample; that of the prototypes of classes is 1."""


def load_data(name: str, graph: Graph) -> Dataset:
    """Read samples for a network.

    Parameters
    ----------
    name : str
        One of these sources of samples:

        ``digits``: the 1,797 grey images of 8 x 8 that come with scikit-learn, with values in 0..1.

        ``random``: random samples, always the same ones, in which each class has a pattern of its
        own, to which noise is added.

        ``FILE.npz``: arrays `images`, of shape (n, c, h, w), (n, h, w) or (n, h, w, c), and
        `labels`, whole numbers from 0; optionally `validation_images` and `validation_labels`.
        Whole numbers of 8 bits are divided by 255, floating-point numbers are not changed.

        ``FOLDER``: a folder with one folder of images for each class. Classes are numbered in the
        order of the folders' names, or of their numbers if all names are numbers. A folder with
        `train` and `val` has such folders in either. Values are divided by 255.
    graph : Graph
        Network that the samples must fit.

    Returns
    -------
    Dataset
        Samples. If the source has none for validation, a fifth of all is, always the same ones.

    Raises
    ------
    UserError
        If a library is missing, or the source does not exist, is damaged or does not fit the
        network.
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
    """Load the digits set, which is always split in the same way.

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
    """Draw random samples: a prototype for each class, to which noise is added."""
    rng = np.random.default_rng(0)
    prototypes = rng.standard_normal((wanted.classes, *wanted.shape), np.float32)
    labels = rng.permutation(np.arange(NUM_RANDOM) % wanted.classes).astype(np.int64)
    images = rng.standard_normal((NUM_RANDOM, *wanted.shape), np.float32)
    images *= np.float32(NOISE)
    images += prototypes[labels]
    samples = Samples(images, labels)
    first = round(NUM_RANDOM * TRAINING_PART)
    return Dataset(samples.some(slice(first)), samples.some(slice(first, None)))
