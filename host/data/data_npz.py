"""Reads samples from a file of numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError
from fpgapipe.host.data.data_tokens import following
from fpgapipe.host.data.npz_file import NpzFile
from fpgapipe.host.data.samples import Dataset, Samples, Wanted, shape_text, split

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def read_npz(path: Path, wanted: Wanted) -> Dataset:
    """Read samples; see `fpgapipe.host.data.data.load_data`.

    Raises
    ------
    FileError
        If the file is damaged, lacks an array, or one does not fit the network.
    """
    what = "images" if wanted.indices is None else "tokens"
    pairs = ((what, "labels"), (f"validation_{what}", "validation_labels"))
    with NpzFile(path) as archive:
        names = archive.names
        if what in names and "labels" not in names and wanted.predicts_tokens:
            return _long_row(archive, what, wanted)
        for name in pairs[0]:
            if name not in names:
                raise FileError(
                    path, [f"must have arrays {what} and labels; it has {_listed(names)}"]
                )
        samples = _samples(archive, pairs[0], wanted)
        found = [name for name in pairs[1] if name in names]
        if len(found) == 1:
            raise FileError(
                path, [f"has {found[0]} only; it must have both of {_listed(pairs[1])}"]
            )
        if found:
            return Dataset(samples, _samples(archive, pairs[1], wanted))
    if len(samples.labels) < 2:
        raise FileError(path, [f"array {what} must have at least 2 samples, not 1"])
    return split(samples)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"


def _long_row(archive: NpzFile, name: str, wanted: Wanted) -> Dataset:
    """Read a long row of tokens, each of which is the label of the one before."""
    path = archive.path
    shape, dtype = archive.header(name)
    if dtype.kind not in "iu" or len(shape) != 1:
        raise FileError(
            path,
            [
                f"array {name} must be a row of whole numbers if there are no labels, not {dtype} "
                f"of shape {shape}"
            ],
        )
    wanted.check_size(path, f"array {name}", -(-shape[0] // wanted.shape[0]))
    tokens = archive.array(name)
    assert wanted.indices is not None
    _check_range(path, name, tokens, wanted.indices, f"the tokens of {wanted.network}", "token")
    return following(path, "tokens", tokens.astype(np.int64), wanted)


def _check_range(
    path: Path, name: str, values: NDArray[Any], count: int, what: str, each: str
) -> None:
    """Refuse numbers that are not in ``0..count - 1``."""
    wrong = np.argwhere((values < 0) | (values >= count))
    if len(wrong):
        at = tuple(map(int, wrong[0]))
        raise FileError(
            path,
            [
                f"array {name} must be in 0..{count - 1}, {what}, but {each} {at[0]} has "
                f"{values[at]}"
            ],
        )


def _samples(archive: NpzFile, names: tuple[str, str], wanted: Wanted) -> Samples:
    """Read a pair of arrays: images or tokens, and labels."""
    path = archive.path

    def fault(name: str, text: str) -> FileError:
        return FileError(path, [f"array {name} {text}"])

    inputs_name, labels_name = names
    (shape, dtype), (label_shape, label_dtype) = map(archive.header, names)
    if wanted.indices is not None and dtype.kind not in "iu":
        raise fault(inputs_name, f"must hold whole numbers, not {dtype}")
    if wanted.indices is None and dtype != np.uint8 and dtype.kind != "f":
        raise fault(
            inputs_name,
            f"must hold floating-point numbers, or whole ones of 8 bits (divided by 255), not "
            f"{dtype}; save it with astype('float32')",
        )
    if label_dtype.kind not in "iu" or label_shape[1:] != wanted.label_shape or not label_shape:
        sizes = shape_text(wanted.label_shape)
        each = (
            f"{sizes} whole numbers a sample, classes"
            if sizes
            else ("one whole number a sample, its class")
        )
        raise fault(labels_name, f"must hold {each}, not {label_dtype} of shape {label_shape}")
    if not shape or shape[0] != label_shape[0] or not shape[0]:
        raise fault(
            labels_name,
            f"must have as many rows as {inputs_name} has samples, at least one: "
            f"{shape[0] if shape else 0} samples, {label_shape[0]} rows of labels",
        )
    layout = _layout(shape, wanted)
    if layout is None:
        what = "images" if wanted.indices is None else "tokens"
        raise fault(
            inputs_name,
            f"must have {what} of {shape_text(wanted.shape)} for {wanted.network}, that is shape "
            f"{_expected(shape[0], wanted)}, not {shape}; resize them, or take a network for them",
        )
    wanted.check_size(path, f"array {inputs_name}", shape[0])
    inputs = archive.array(inputs_name)
    labels = archive.array(labels_name)
    if wanted.indices is None:
        inputs = _images(path, inputs_name, inputs, layout, wanted)
    else:
        what = f"the tokens of {wanted.network}"
        _check_range(path, inputs_name, inputs, wanted.indices, what, "sample")
        inputs = inputs.astype(np.int64)
    what = f"the classes of {wanted.network}"
    _check_range(path, labels_name, labels, wanted.classes, what, "sample")
    return Samples(inputs, labels.astype(np.int64))


def _images(
    path: Path, name: str, images: NDArray[Any], layout: str, wanted: Wanted
) -> NDArray[np.float32]:
    """Images with their channels first, as finite numbers in FP32."""
    scale = np.float32(255) if images.dtype == np.uint8 else np.float32(1)
    if layout == "channels last":
        images = np.moveaxis(images, -1, 1)
    images = images.reshape(len(images), *wanted.shape)
    with np.errstate(over="ignore"):  # values too large for FP32 become infinite and are refused
        numbers: NDArray[np.float32] = np.ascontiguousarray(images, np.float32) / scale
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        at = tuple(map(int, bad[0]))
        raise FileError(
            path,
            [f"array {name} must have finite numbers, but sample {at[0]} has {numbers[at]} in it"],
        )
    return numbers


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
