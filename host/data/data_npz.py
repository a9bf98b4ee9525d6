"""Reads samples from a file of numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError
from fpgapipe.host.data.data_tokens import following
from fpgapipe.host.data.npz_file import NpzFile
from fpgapipe.host.data.samples import (
    Dataset,
    Samples,
    Wanted,
    WantedInput,
    WantedLabels,
    shape_text,
    split,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.network.losses import Loss


def read_npz(path: Path, wanted: Wanted) -> Dataset:
    """Read samples; see `fpgapipe.host.data.data.load_data`.

    Raises
    ------
    FileError
        If the file is damaged, lacks an array, or one does not fit the network.
    """
    inputs = [each.name for each in wanted.inputs]
    with NpzFile(path) as archive:
        present = archive.names
        if wanted.predicts_tokens and inputs[0] in present and "labels" not in present:
            return _long_row(archive, inputs[0], wanted)
        labels = [_array_of(each, present) for each in wanted.labels]
        names = list(dict.fromkeys([*inputs, *labels]))
        validation = [f"validation_{name}" for name in names]
        missing = [name for name in names if name not in present]
        if missing:
            wants = f"must have arrays {_in_words(names)}"
            if wanted.several:
                wants += f" for {wanted.network}, and has no {_in_words(missing)}"
            raise FileError(path, [f"{wants}; it has {_listed(present)}"])
        strange = sorted(present - {*names, *validation})
        if (wanted.several or wanted.outputs) and strange:
            what = f"has array {strange[0]}, which is no input of {wanted.network}"
            if wanted.outputs:
                what += ", and no labels or targets of one of its outputs"
            raise FileError(path, [f"{what}; its arrays are {_in_words(names)}"])
        samples = _samples(archive, inputs, labels, wanted)
        found = [name for name in validation if name in present]
        if found and len(found) < len(validation):
            both = "both" if len(validation) == 2 else "all"
            raise FileError(
                path, [f"has {_listed(found)} only; it must have {both} of {_listed(validation)}"]
            )
        if found:
            theirs, own = ([f"validation_{name}" for name in each] for each in (inputs, labels))
            return Dataset(samples, _samples(archive, theirs, own, wanted))
    if len(samples.labels) < 2:
        raise FileError(path, [f"array {names[0]} must have at least 2 samples, not 1"])
    return split(samples)


def _array_of(labels: WantedLabels, present: Collection[str]) -> str:
    """Name of the array of an output's labels: its own if it is there, else the shared one."""
    own = f"{labels.array}.{labels.output}"
    return own if labels.output and own in present else labels.array


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


def _samples(
    archive: NpzFile, inputs: Sequence[str], labels: Sequence[str], wanted: Wanted
) -> Samples:
    """Read the arrays of all inputs, and the labels of all outputs."""
    # All headers are looked at before anything is read.
    rows = [
        _rows_of_labels(archive, name, each)
        for name, each in zip(labels, wanted.labels, strict=True)
    ]
    layouts = [
        _layout_of(archive, name, each, wanted, (own, count))
        for own, count in dict(zip(labels, rows, strict=True)).items()
        for name, each in zip(inputs, wanted.inputs, strict=True)
    ]
    wanted.check_size(archive.path, _arrays(inputs), rows[0])
    first, *others = (
        _input(archive, name, each, wanted.network, layout)
        for name, each, layout in zip(inputs, wanted.inputs, layouts, strict=False)
    )
    read = [
        _labels(archive, name, each, wanted.network)
        for name, each in zip(labels, wanted.labels, strict=True)
    ]
    of_outputs = {
        each.output: own for each, own in zip(wanted.outputs, read, strict=bool(wanted.outputs))
    }
    return Samples(first, read[0], tuple(others), of_outputs)


def _rows_of_labels(archive: NpzFile, name: str, wanted: WantedLabels) -> int:
    """Check shape and type of an array of labels or targets, and return its rows."""
    shape, dtype = archive.header(name)
    fits = bool(shape) and shape[1:] == wanted.shape
    sizes = shape_text(wanted.shape)
    if not wanted.loss.has_classes:
        each = f"floating-point numbers of {sizes} a sample"
    elif sizes:
        each = f"{sizes} whole numbers a sample, classes"
    else:
        each = "one whole number a sample, its class"
    if not fits or dtype.kind not in ("iu" if wanted.loss.has_classes else "f"):
        raise FileError(
            archive.path, [f"array {name} must hold {each}, not {dtype} of shape {shape}"]
        )
    return shape[0]


def _labels(archive: NpzFile, name: str, wanted: WantedLabels, network: str) -> NDArray[Any]:
    """Read the labels or targets of an output."""
    path, labels = archive.path, archive.array(name)
    if not wanted.loss.has_classes:
        with np.errstate(over="ignore"):  # values too large for FP32 are refused
            targets = labels.astype(np.float32)
        _refuse_targets(path, name, targets, wanted.loss)
        return targets
    counted = labels
    if wanted.loss.ignores:
        counted = np.maximum(labels, 0) if labels.dtype.kind == "i" else labels
    _check_range(path, name, counted, wanted.classes, f"the classes of {network}", "sample")
    return labels.astype(np.int64)


def _refuse_targets(path: Path, name: str, targets: NDArray[np.float32], loss: Loss) -> None:
    """Refuse targets that are not finite, or no probabilities where these are needed."""
    wrong = ~np.isfinite(targets)
    must = "finite numbers"
    if loss.kind == "bce":
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
    if each.mask is not None and dtype.kind not in "biu":
        raise fault(name, f"must hold a mask, {each.mask.text}, not {dtype}")
    is_real = each.indices is None and each.mask is None
    if is_real and dtype != np.uint8 and dtype.kind != "f":
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
    if layout is None or (each.mask is not None and layout == "channels last"):
        what = "images" if is_real else "tokens" if each.mask is None else "masks"
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
    if each.mask is not None:
        wrong = each.mask.wrong(values)
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            text = f"must be {each.mask.text}, but sample {at[0]} has {values[at]} in it"
            raise FileError(archive.path, [f"array {name} {text}"])
        return values.reshape(len(values), *each.shape).astype(np.int64)
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
