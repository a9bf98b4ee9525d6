"""Samples in a file of numpy arrays, which is never trusted: no pickles, no size before a check."""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy

from fpgapipe.errors import FileError
from fpgapipe.host.data import Dataset, Samples, Wanted, shape_text, split

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

DAMAGED = (
    EOFError,
    NotImplementedError,  # a compression that zipfile has not
    OSError,
    RuntimeError,  # an encrypted member
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a damaged file raises."""

PAIRS = (("images", "labels"), ("validation_images", "validation_labels"))


def read_npz(path: Path, wanted: Wanted) -> Dataset:
    """Read samples; see `fpgapipe.host.data.load_data`.

    Raises
    ------
    FileError
        If the file is damaged, lacks an array, or one does not fit the network.
    """
    try:
        archive = zipfile.ZipFile(path)
    except OSError as error:
        raise FileError(path, [f"cannot be read: {error.strerror or error}"]) from None
    except DAMAGED as error:
        raise FileError(path, [f"cannot be read as .npz: {error}"]) from None
    with archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}
        for name in PAIRS[0]:
            if name not in names:
                raise FileError(
                    path, [f"must have arrays images and labels; it has {_listed(names)}"]
                )
        samples = _samples(path, archive, PAIRS[0], wanted)
        found = [name for name in PAIRS[1] if name in names]
        if len(found) == 1:
            raise FileError(
                path, [f"has {found[0]} only; it must have both of {_listed(PAIRS[1])}"]
            )
        if found:
            return Dataset(samples, _samples(path, archive, PAIRS[1], wanted))
    if len(samples.labels) < 2:
        raise FileError(path, ["array images must have at least 2 samples, not 1"])
    return split(samples)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"


def _samples(
    path: Path, archive: zipfile.ZipFile, names: tuple[str, str], wanted: Wanted
) -> Samples:
    """Read a pair of arrays."""

    def fault(name: str, text: str) -> FileError:
        return FileError(path, [f"array {name} {text}"])

    images_name, labels_name = names
    (shape, dtype), (label_shape, label_dtype) = (_header(path, archive, name) for name in names)
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
    images = _array(path, archive, images_name)
    labels = _array(path, archive, labels_name)
    if layout == "channels last":
        images = np.moveaxis(images, -1, 1)
    images = images.reshape(shape[0], *wanted.shape)
    scale = np.float32(255) if dtype == np.uint8 else np.float32(1)
    with np.errstate(over="ignore"):  # what FP32 does not hold becomes infinite, and is refused
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
    """The shapes that an array of images may have."""
    shapes = [(samples, *wanted.shape)]
    if len(wanted.shape) == 3:
        channels, height, width = wanted.shape
        shapes.append((samples, height, width, channels))
        if channels == 1:
            shapes.append((samples, height, width))
    return " or ".join(map(str, shapes))


def _layout(shape: tuple[int, ...], wanted: Wanted) -> str | None:
    """Where the channels are; None if the shape does not fit. First, where both would fit."""
    size = wanted.shape
    if shape[1:] == size or (len(size) == 3 and size[0] == 1 and shape[1:] == size[1:]):
        return "channels first"
    if len(size) == 3 and shape[1:] == (*size[1:], size[0]):
        return "channels last"
    return None


def _member(archive: zipfile.ZipFile, name: str) -> str:
    return f"{name}.npy" if f"{name}.npy" in archive.namelist() else name


def _header(
    path: Path, archive: zipfile.ZipFile, name: str
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array, of which nothing else is read."""
    try:
        with archive.open(_member(archive, name)) as file:
            version = npy.read_magic(file)
            if version != (1, 0):  # the others are for names of fields, and may be of any size
                raise ValueError(f"its format must be 1.0, not {version[0]}.{version[1]}")
            shape, _, dtype = npy.read_array_header_1_0(file)
    except DAMAGED as error:
        raise FileError(path, [f"array {name} is damaged: {error}"]) from None
    if dtype.hasobject:
        raise FileError(
            path,
            [f"array {name} holds Python objects (pickles), which are never read; save numbers"],
        )
    return shape, dtype


def _array(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Read an array whose header was found good."""
    try:
        with archive.open(_member(archive, name)) as file:
            found: NDArray[Any] = npy.read_array(file, allow_pickle=False)
            if file.read(1):  # the checksum is looked at where the member ends
                raise ValueError("it goes on behind its last number")
    except DAMAGED as error:
        raise FileError(path, [f"array {name} is damaged: {error}"]) from None
    return found
