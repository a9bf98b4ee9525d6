"""Reads samples from numpy arrays: those in a file, or those in a folder, which stay there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError
from fpgapipe.files import is_folder
from fpgapipe.host.data.array_rules import (
    ImageRule,
    MaskRule,
    NumberRule,
    Rule,
    TargetRule,
    WindowRule,
)
from fpgapipe.host.data.data_tokens import following
from fpgapipe.host.data.npy_folder import NpyFolder
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

    from fpgapipe.host.data.rows import Rows

Archive = NpzFile | NpyFolder
"""Where arrays are read from."""


def read_arrays(path: Path, wanted: Wanted) -> Dataset:
    """Read samples; see `fpgapipe.host.data.data.load_data`.

    Raises
    ------
    FileError
        If the file is damaged, lacks an array, or one does not fit the network.
    """
    if is_folder(path):
        return _read(NpyFolder(path), wanted)
    with NpzFile(path) as archive:
        return _read(archive, wanted)


def _read(archive: Archive, wanted: Wanted) -> Dataset:
    path, inputs = archive.path, [each.name for each in wanted.inputs]
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


def _long_row(archive: Archive, name: str, wanted: Wanted) -> Dataset:
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
    _check_size(archive, wanted, f"array {name}", -(-shape[0] // wanted.shape[0]))
    assert wanted.indices is not None
    indices, what = wanted.indices, f"the tokens of {wanted.network}"
    whole = None if isinstance(archive, NpyFolder) else archive.array(name)

    def cut(first: int, count: int) -> NDArray[Any] | Rows:
        rule = WindowRule(path, name, wanted.shape, indices, what, first=first)
        if isinstance(archive, NpyFolder):
            return archive.windows(name, rule, first, count)
        assert whole is not None
        return _made(whole[first : first + count * wanted.shape[0]].reshape(count, -1), rule)

    return following(path, "tokens", shape[0], cut, wanted)


def _check_size(archive: Archive, wanted: Wanted, what: str, samples: int) -> None:
    """Refuse a file whose samples do not fit into memory; those of folders stay in their files."""
    if isinstance(archive, NpzFile):
        more = "unpack it and name the folder; its .npy files are read while they are used"
        wanted.check_size(archive.path, what, samples, more)


def _made(raw: NDArray[Any], rule: Rule) -> NDArray[Any]:
    """Samples or labels in memory, from all rows of an array."""
    rule.check(raw, np.arange(len(raw)))
    return rule.made(raw)


def _rows(archive: Archive, rule: Rule) -> NDArray[Any] | Rows:
    """Samples or labels, from the array that a rule is for."""
    if isinstance(archive, NpyFolder):
        return archive.rows(rule.name, rule)
    return _made(archive.array(rule.name), rule)


def _samples(
    archive: Archive, inputs: Sequence[str], labels: Sequence[str], wanted: Wanted
) -> Samples:
    """Read the arrays of all inputs, and the labels of all outputs."""
    # All headers are looked at before anything is read.
    rows = [
        _rows_of_labels(archive, name, each)
        for name, each in zip(labels, wanted.labels, strict=True)
    ]
    rules = [
        _rule_of(archive, name, each, wanted, (own, count))
        for own, count in dict(zip(labels, rows, strict=True)).items()
        for name, each in zip(inputs, wanted.inputs, strict=True)
    ]
    _check_size(archive, wanted, _arrays(inputs), rows[0])
    first, *others = (_rows(archive, rule) for rule in rules[: len(inputs)])
    read = [
        _labels(archive, name, each, wanted.network)
        for name, each in zip(labels, wanted.labels, strict=True)
    ]
    of_outputs = {
        each.output: own for each, own in zip(wanted.outputs, read, strict=bool(wanted.outputs))
    }
    return Samples(first, read[0], tuple(others), of_outputs)


def _rows_of_labels(archive: Archive, name: str, wanted: WantedLabels) -> int:
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


def _labels(archive: Archive, name: str, wanted: WantedLabels, network: str) -> NDArray[Any] | Rows:
    """Read the labels or targets of an output; one number a sample is always in memory."""
    if not wanted.loss.has_classes:
        is_share = wanted.loss.kind == "bce"
        return _rows(archive, TargetRule(archive.path, name, wanted.shape, is_share))
    what, ignores = f"the classes of {network}", wanted.loss.ignores
    rule = NumberRule(archive.path, name, wanted.shape, wanted.classes, what, ignores)
    rows = _rows(archive, rule)
    return rows if wanted.shape else np.asarray(rows)


def _arrays(names: Sequence[str]) -> str:
    return f"array{'s' if len(names) > 1 else ''} {_in_words(names)}"


def _rule_of(
    archive: Archive, name: str, each: WantedInput, wanted: Wanted, labels: tuple[str, int]
) -> Rule:
    """Check shape and type of the array of an input, and give the rule for its rows.

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
    path = archive.path
    if each.mask is not None:
        return MaskRule(path, name, each.shape, each.mask)
    if each.indices is not None:
        what = f"the tokens of {wanted.network}"
        return NumberRule(path, name, each.shape, each.indices, what)
    return ImageRule(path, name, each.shape, layout == "channels last")


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
