"""Loads samples: the digits set, numpy arrays, folders of images, random ones.

Samples have the shape of the network's input. Arrays in a folder and folders of many images stay in
their files, and are read while they are used. The order of samples in training depends only on a
seed and on the number of the epoch.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError, UserError, nearest
from fpgapipe.files import is_folder
from fpgapipe.host.data.data_arrays import read_arrays
from fpgapipe.host.data.data_tokens import is_text, read_characters
from fpgapipe.host.data.npy_folder import is_npy_folder
from fpgapipe.host.data.samples import TRAINING_PART, Dataset, Samples, Wanted, shape_text
from fpgapipe.network.losses import CROSS_ENTROPY, Loss
from fpgapipe.optional import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph

SOURCES = ("digits", "random")
"""Names of samples that are not read from a file."""

FILES = "a .npz or .txt file, or a folder of .npy files or of images by class"

NUM_DIGITS = 1437
"""Number of shuffled digits, the first ones, that are for training; the other 360 validate."""

NUM_RANDOM = 1280
"""Number of random samples, of which a fifth is for validation."""

NOISE = 0.5
"""Standard deviation of the noise of a random sample; that of the prototypes of classes is 1."""


def load_data(name: str, graph: Graph, loss: Loss = CROSS_ENTROPY) -> Dataset:
    """Read samples for a network.

    Parameters
    ----------
    name : str
        One of these sources of samples:

        ``digits``: the 1,797 grey images of 8 x 8 that come with scikit-learn, with values in 0..1.

        ``random``: random samples, always the same ones, in which each class has a pattern of its
        own, to which noise is added.

        ``FILE.npz``: arrays `images`, of shape (n, c, h, w), (n, h, w) or (n, h, w, c), and
        `labels`, whole numbers from 0: one a sample, or (n, h, w) for each pixel; optionally
        `validation_images` and `validation_labels`. Whole numbers of 8 bits are divided by 255,
        floating-point numbers are not changed. For a network that reads tokens the arrays are
        `tokens`, of shape (n, tokens), and `labels`; where it predicts the token behind each, a
        single long row `tokens` is enough. For a network with several inputs there is an array for
        each, called by the input's name; those of masks are booleans, or 0 and 1. An output of
        several has labels of its own in an array `labels.NAME`, or targets in `targets.NAME`; all
        without share `labels` or `targets`.

        ``FILE.txt``: a text in UTF-8 for a network that predicts the token behind each. A
        character's token is its number in Unicode. The last fifth is for validation.

        ``FOLDER`` of arrays: files ``images.npy``, ``labels.npy`` and so on, the arrays of a
        ``.npz`` file. They are read while they are used, so they may be larger than the memory.

        ``FOLDER`` of images: a folder with one folder of images for each class. Classes are
        numbered in the order of the folders' names, or of their numbers if all names are numbers.
        A folder with `train` and `val` has such folders in either. Images of another size are
        resized to cover the network's input and cropped to their middle; values are divided by
        255. Images that take more than 512 MiB as FP32 are read while they are used.
    graph : Graph
        Network that the samples must fit.
    loss : Loss
        What the network is trained for. With a loss of targets, a `.npz` file has them as `targets`
        instead of `labels`, in the shape of the network's output. Where labels are ignored, these
        are below 0.

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
    wanted = Wanted.of(graph, loss)
    path = Path(name)
    is_npz = path.suffix.lower() == ".npz" and not is_folder(path)
    if name not in SOURCES and (is_npz or is_npy_folder(path)):
        return read_arrays(path, wanted)
    for each in wanted.labels:
        if not each.loss.has_classes:
            raise UserError(
                f"data {name} have classes, and {graph.name} is trained for targets (loss "
                f"{each.loss.kind}): take a .npz file with targets"
            )
    if name == "random":
        return _random(wanted)
    found = _with_classes(name, path, wanted.sharing())
    return replace(
        found, train=wanted.shared(found.train), validation=wanted.shared(found.validation)
    )


def _with_classes(name: str, path: Path, wanted: Wanted) -> Dataset:
    """Read samples from sources that have a label for each sample, token or pixel."""
    if wanted.several:
        names = ", ".join(each.name for each in wanted.several)
        raise UserError(
            f"{wanted.network} has {len(wanted.several)} inputs ({names}): its data must be random "
            f"or a .npz file with an array for each and labels, not {name!r}"
        )
    if name == "digits":
        return _digits(wanted)
    if is_folder(path):
        from fpgapipe.host.data.data_folder import read_folder

        return read_folder(path, wanted)
    if is_text(name):
        return read_characters(path, wanted)
    if path.suffix.lower() == ".npy":
        raise FileError(name, ["is one array; name the folder that has it and its labels.npy"])
    if os.path.lexists(path):
        raise FileError(name, [f"data must be {FILES}"])
    raise UserError(
        f"no data {name!r}{nearest(name, SOURCES)} (there are {', '.join(SOURCES)}; else it must "
        f"be {FILES})"
    )


def _digits(wanted: Wanted) -> Dataset:
    """Load the digits set, which is always split in the same way.

    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
    Repository, 1998, of which this is the test set.
    """
    require("sklearn", "the digits set")
    from sklearn.datasets import load_digits

    if wanted.shape != (1, 8, 8) or wanted.classes < 10 or wanted.label_shape or wanted.indices:
        what = "tokens" if wanted.indices else "images"
        each = f"labels of {shape_text(wanted.label_shape)} in " if wanted.label_shape else ""
        raise UserError(
            f"the digits set has images of 1x8x8 and 10 classes, but {wanted.network} takes {what} "
            f"of {shape_text(wanted.shape)} and {each}{wanted.classes} classes; use other data "
            "(random fits every network)"
        )
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = (found.images / 16).astype(np.float32)[order, None]
    labels = found.target.astype(np.int64)[order]
    samples = Samples(images, labels)
    return Dataset(samples.some(slice(NUM_DIGITS)), samples.some(slice(NUM_DIGITS, None)))


def _random(wanted: Wanted) -> Dataset:
    """Draw random samples, in which the labels can be learned.

    The labels follow from the first input if there are several.
    """
    rng = np.random.default_rng(0)
    wanted.check_size(Path("random"), "random samples", NUM_RANDOM, "name data of your own")
    parts = []
    for number, each in enumerate(wanted.inputs):
        single = replace(wanted, shape=each.shape, indices=each.indices, several=())
        if each.mask is not None:
            drawn = each.mask.random((NUM_RANDOM, *each.shape), rng)
            labels = rng.integers(0, max(wanted.classes, 1), (NUM_RANDOM, *wanted.label_shape))
            parts.append(Samples(drawn, labels))
        elif wanted.several and each.indices and each.shape == wanted.label_shape and not number:
            parts.append(_random_pairs(single, rng))
        else:
            parts.append((_random_images if each.indices is None else _random_tokens)(single, rng))
    samples = replace(parts[0], others=tuple(each.images for each in parts[1:]))
    if wanted.outputs:
        samples = replace(
            samples, of_outputs=_random_labels(wanted, np.asarray(samples.labels), rng)
        )
    first = round(NUM_RANDOM * TRAINING_PART)
    return Dataset(samples.some(slice(first)), samples.some(slice(first, None)))


def _random_labels(
    wanted: Wanted, labels: NDArray[Any], rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """Labels of all outputs, which follow from those of the first where they have their shape."""
    found = {}
    for each in wanted.outputs:
        if each.shape == wanted.label_shape:
            found[each.output] = labels % each.classes
        else:
            found[each.output] = rng.integers(0, each.classes, (NUM_RANDOM, *each.shape))
    return found


def _random_pairs(wanted: Wanted, rng: np.random.Generator) -> Samples:
    """Rows of tokens, each of which has a class."""
    assert wanted.indices is not None
    tokens = rng.integers(0, wanted.indices, (NUM_RANDOM, *wanted.shape))
    return Samples(tokens, rng.permutation(wanted.indices)[tokens] % wanted.classes)


def _random_images(wanted: Wanted, rng: np.random.Generator) -> Samples:
    """Images of a prototype for each class, or pixels of a colour for each, with noise.

    Where a sample has labels for other positions than its own, they are only random.
    """
    of_pixels = len(wanted.shape) == 3 and wanted.shape[1:] == wanted.label_shape
    shape = wanted.shape[:1] if of_pixels else wanted.shape
    prototypes = rng.standard_normal((wanted.classes, *shape), np.float32)
    if wanted.label_shape:
        labels = rng.integers(0, wanted.classes, (NUM_RANDOM, *wanted.label_shape))
    else:
        labels = rng.permutation(np.arange(NUM_RANDOM) % wanted.classes).astype(np.int64)
    images = rng.standard_normal((NUM_RANDOM, *wanted.shape), np.float32)
    images *= np.float32(NOISE)
    if of_pixels:
        images += np.moveaxis(prototypes[labels], -1, 1)
    elif not wanted.label_shape:
        images += prototypes[labels]
    return Samples(images, labels)


def _random_tokens(wanted: Wanted, rng: np.random.Generator) -> Samples:
    """Rows in which each token has a successor, or rows of a prototype for each class.

    A share of `NOISE` of a prototype's tokens is replaced by random ones.
    """
    assert wanted.indices is not None
    shape = (NUM_RANDOM, *wanted.shape)
    if wanted.predicts_tokens:
        behind = rng.permutation(wanted.indices)
        rows = [rng.integers(0, wanted.indices, NUM_RANDOM)]
        for _ in range(wanted.shape[0]):
            rows.append(behind[rows[-1]])
        found = np.stack(rows, 1)
        return Samples(found[:, :-1], found[:, 1:])
    if wanted.label_shape:
        tokens = rng.integers(0, wanted.indices, shape)
        return Samples(tokens, rng.integers(0, wanted.classes, (NUM_RANDOM, *wanted.label_shape)))
    prototypes = rng.integers(0, wanted.indices, (wanted.classes, *wanted.shape))
    labels = rng.permutation(np.arange(NUM_RANDOM) % wanted.classes).astype(np.int64)
    drawn = rng.integers(0, wanted.indices, shape)
    return Samples(np.where(rng.random(shape) < NOISE, drawn, prototypes[labels]), labels)
