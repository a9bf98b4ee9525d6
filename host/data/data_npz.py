"""Reads samples from a file of numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError
from fpgapipe.host.data.data_tokens import following
from fpgapipe.host.data.npz_file import NpzFile
from fpgapipe.host.data.samples import Dataset, Samples, Wanted, WantedInput, shape_text, split

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray


def read_npz(path: Path, wanted: Wanted) -> Dataset:
    """Read samples; see `fpgapipe.host.data.data.load_data`.

    Raises
    ------
    FileError
        If the file is damaged, lacks an array, or one does not fit the network.
    """
    inputs = wanted.inputs
    names = [*(each.name for each in inputs), wanted.labels]
    validation = [f"validation_{name}" for name in names]
    with NpzFile(path) as archive:
        present = archive.names
        if wanted.predicts_tokens and names[0] in present and "labels" not in present:
            return _long_row(archive, names[0], wanted)
        missing = [name for name in names if name not in present]
        if missing:
            wants = f"must have arrays {_in_words(names)}"
            if wanted.several:
                wants += f" for {wanted.network}, and has no {_in_words(missing)}"
            raise FileError(path, [f"{wants}; it has {_listed(present)}"])
        strange = sorted(present - {*names, *validation})
        if wanted.several and strange:
            what = f"has array {strange[0]}, which is no input of {wanted.network}"
            raise FileError(path, [f"{what}; its arrays are {_in_words(names)}"])
        samples = _samples(archive, names, wanted)
        found = [name for name in validation if name in present]
        if found and len(found) < len(validation):
            both = "both" if len(validation) == 2 else "all"
            raise FileError(
                path, [f"has {_listed(found)} only; it must have {both} of {_listed(validation)}"]
            )
        if found:
            return Dataset(samples, _samples(archive, validation, wanted))
    if len(samples.labels) < 2:
        raise FileError(path, [f"array {names[0]} must have at least 2 samples, not 1"])
    return split(samples)


def _in_words(names: Sequence[str]) -> str:
    """Write names as ``a, b and c``."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


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


def _samples(archive: NpzFile, names: Sequence[str], wanted: Wanted) -> Samples:
    """Read the arrays of all inputs, and at last the labels."""
    path, labels_name = archive.path, names[-1]
    shape, dtype = archive.header(labels_name)
    if not wanted.loss.has_classes:
        if dtype.kind != "f" or shape[1:] != wanted.label_shape or not shape:
            each = f"floating-point numbers of {shape_text(wanted.label_shape)} a sample"
            raise FileError(
                path, [f"array {labels_name} must hold {each}, not {dtype} of shape {shape}"]
            )
    elif dtype.kind not in "iu" or shape[1:] != wanted.label_shape or not shape:
        sizes = shape_text(wanted.label_shape)
        each = (
            f"{sizes} whole numbers a sample, classes"
            if sizes
            else ("one whole number a sample, its class")
        )
        raise FileError(
            path, [f"array {labels_name} must hold {each}, not {dtype} of shape {shape}"]
        )
    # All headers are looked at before anything is read.
    layouts = [
        _layout_of(archive, name, each, wanted, (labels_name, shape[0]))
        for name, each in zip(names[:-1], wanted.inputs, strict=True)
    ]
    wanted.check_size(path, _arrays(names[:-1]), shape[0])
    first, *others = (
        _input(archive, name, each, wanted.network, layout)
        for name, each, layout in zip(names[:-1], wanted.inputs, layouts, strict=True)
    )
    labels = archive.array(labels_name)
    if not wanted.loss.has_classes:
        with np.errstate(over="ignore"):  # values too large for FP32 are refused
            targets = labels.astype(np.float32)
        _refuse_targets(path, labels_name, targets, wanted)
        return Samples(first, targets, tuple(others))
    counted = labels
    if wanted.loss.ignores:
        counted = np.maximum(labels, 0) if labels.dtype.kind == "i" else labels
    _check_range(
        path, labels_name, counted, wanted.classes, f"the classes of {wanted.network}", "sample"
    )
    return Samples(first, labels.astype(np.int64), tuple(others))


def _refuse_targets(path: Path, name: str, targets: NDArray[np.float32], wanted: Wanted) -> None:
    """Refuse targets that are not finite, or no probabilities where these are needed."""
    wrong = ~np.isfinite(targets)
    must = "finite numbers"
    if wanted.loss.kind == "bce":
        must = "probabilities, in 0..1"
        wrong |= (targets < 0) | (targets > 1)
    found = np.argwhere(wrong)
    if len(found):
        at = tuple(map(int, found[0]))
        text = f"array {name} must have {must}, but sample {at[0]} has {targets[at]} in it"
        raise FileError(path, [text])


def _arrays(names: Sequence[str]) -> str:
    return f"array{'s' if len(names) > 1 else ''} {_in_words(names)}"


def _layout_of(
    archive: NpzFile, name: str, each: WantedInput, wanted: Wanted, labels: tuple[str, int]
) -> str:
    """Check shape and type of the array of an input, and say how its samples lie.

    `labels` are the name and the number of rows of the array of labels.
    """
    shape, dtype = archive.header(name)

    def fault(about: str, text: str) -> FileError:
        return FileError(archive.path, [f"array {about} {text}"])

    if each.indices is not None and dtype.kind not in "iu":
        raise fault(name, f"must hold whole numbers, not {dtype}")
    if each.indices is None and dtype != np.uint8 and dtype.kind != "f":
        raise fault(
            name,
            f"must hold floating-point numbers, or whole ones of 8 bits (divided by 255), not "
            f"{dtype}; save it with astype('float32')",
        )
    if not shape or shape[0] != labels[1] or not shape[0]:
        raise fault(
            labels[0],
            f"must have as many rows as {name} has samples, at least one: "
            f"{shape[0] if shape else 0} samples, {labels[1]} rows of labels",
        )
    layout = _layout(shape, each.shape)
    if layout is None:
        what = "images" if each.indices is None else "tokens"
        raise fault(
            name,
            f"must have {what} of {shape_text(each.shape)} for {wanted.network}, that is shape "
            f"{_expected(shape[0], each.shape)}, not {shape}; resize them, or take a network for "
            "them",
        )
    return layout


def _input(
    archive: NpzFile, name: str, each: WantedInput, network: str, layout: str
) -> NDArray[Any]:
    """Read the array of an input."""
    values = archive.array(name)
    if each.indices is None:
        return _images(archive.path, name, values, layout, each.shape)
    what = f"the tokens of {network}"
    _check_range(archive.path, name, values, each.indices, what, "sample")
    return values.astype(np.int64)


def _images(
    path: Path, name: str, images: NDArray[Any], layout: str, size: tuple[int, ...]
) -> NDArray[np.float32]:
    """Images with their channels first, as finite numbers in FP32."""
    scale = np.float32(255) if images.dtype == np.uint8 else np.float32(1)
    if layout == "channels last":
        images = np.moveaxis(images, -1, 1)
    images = images.reshape(len(images), *size)
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


def _expected(samples: int, size: tuple[int, ...]) -> str:
    """The shapes that an array of images may have, as text."""
    shapes = [(samples, *size)]
    if len(size) == 3:
        channels, height, width = size
        shapes.append((samples, height, width, channels))
        if channels == 1:
            shapes.append((samples, height, width))
    return " or ".join(map(str, shapes))


def _layout(shape: tuple[int, ...], size: tuple[int, ...]) -> str | None:
    """Whether channels come first or last; None if the shape does not fit.

    Where both would fit, channels come first.
    """
    if shape[1:] == size or (len(size) == 3 and size[0] == 1 and shape[1:] == size[1:]):
        return "channels first"
    if len(size) == 3 and shape[1:] == (*size[1:], size[0]):
        return "channels last"
    return None
