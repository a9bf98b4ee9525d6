"""Reads samples from a file of numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError
from fpgapipe.host.data.npz_file import NpzFile
from fpgapipe.host.data.samples import Dataset, Samples, Wanted, shape_text, split

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = (("images", "labels"), ("validation_images", "validation_labels"))


def read_npz(path: Path, wanted: Wanted) -> Dataset:
    """Read samples; see `fpgapipe.host.data.data.load_data`.

    Raises
    ------
    FileError
        If the file is damaged, lacks an array, or one does not fit the network.
    """
    with NpzFile(path) as archive:
        names = archive.names
        for name in PAIRS[0]:
            if name not in names:
                raise FileError(
                    path, [f"must have arrays images and labels; it has {_listed(names)}"]
                )
        samples = _samples(archive, PAIRS[0], wanted)
        found = [name for name in PAIRS[1] if name in names]
        if len(found) == 1:
            raise FileError(
                path, [f"has {found[0]} only; it must have both of {_listed(PAIRS[1])}"]
            )
        if found:
            return Dataset(samples, _samples(archive, PAIRS[1], wanted))
    if len(samples.labels) < 2:
        raise FileError(path, ["array images must have at least 2 samples, not 1"])
    return split(samples)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"


def _samples(archive: NpzFile, names: tuple[str, str], wanted: Wanted) -> Samples:
    """Read a pair of arrays: images and labels."""
    path = archive.path

    def fault(name: str, text: str) -> FileError:
        return FileError(path, [f"array {name} {text}"])

    images_name, labels_name = names
    (shape, dtype), (label_shape, label_dtype) = map(archive.header, names)
    if dtype != np.uint8 and dtype.kind != "f":
        raise fault(
            images_name,
            f"must hold floating-point numbers, or whole ones of 8 bits (divided by 255), not "
            f"{dtype}; save it with astype('float32')",
        )
    if label_dtype.kind not in "iu" or len(label_shape) != 1:
        raise fault(
            labels_name,
            f"must hold one whole number a sample, its class, not {label_dtype} of shape "
            f"{label_shape}",
        )
    if not shape or shape[0] != label_shape[0] or not shape[0]:
        raise fault(
            labels_name,
            f"must have as many numbers as {images_name} has samples, at least one: "
            f"{shape[0] if shape else 0} samples, {label_shape[0]} labels",
        )
    layout = _layout(shape, wanted)
    if layout is None:
        raise fault(
            images_name,
            f"must have images of {shape_text(wanted.shape)} for {wanted.network}, that is shape "
            f"{_expected(shape[0], wanted)}, not {shape}; resize them, or take a network for them",
        )
    wanted.check_size(path, f"array {images_name}", shape[0])
    images = archive.array(images_name)
    labels = archive.array(labels_name)
    if layout == "channels last":
        images = np.moveaxis(images, -1, 1)
    images = images.reshape(shape[0], *wanted.shape)
    scale = np.float32(255) if dtype == np.uint8 else np.float32(1)
    with np.errstate(over="ignore"):  # values too large for FP32 become infinite and are refused
        numbers = np.ascontiguousarray(images, np.float32) / scale
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        at = tuple(map(int, bad[0]))
        raise fault(
            images_name, f"must have finite numbers, but sample {at[0]} has {numbers[at]} in it"
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= wanted.classes))
    if len(wrong):
        raise fault(
            labels_name,
            f"must be in 0..{wanted.classes - 1}, the classes of {wanted.network}, but sample "
            f"{wrong[0]} has {labels[wrong[0]]}",
        )
    return Samples(numbers, labels.astype(np.int64))


def _expected(samples: int, wanted: Wanted) -> str:
    """The shapes that an array of images may have, as text."""
    shapes = [(samples, *wanted.shape)]
    if len(wanted.shape) == 3:
        channels, height, width = wanted.shape
        shapes.append((samples, height, width, channels))
        if channels == 1:
            shapes.append((samples, height, width))
    return " or ".join(map(str, shapes))


def _layout(shape: tuple[int, ...], wanted: Wanted) -> str | None:
    """Whether channels come first or last; None if the shape does not fit.

    Where both would fit, channels come first.
    """
    size = wanted.shape
    if shape[1:] == size or (len(size) == 3 and size[0] == 1 and shape[1:] == size[1:]):
        return "channels first"
    if len(size) == 3 and shape[1:] == (*size[1:], size[0]):
        return "channels last"
    return None
