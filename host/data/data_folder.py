"""Reads samples from folders of images, with one folder for each class."""

from __future__ import annotations

import struct
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import FileError
from fpgapipe.files import is_folder, list_folder, open_file
from fpgapipe.host.data.samples import Dataset, Samples, Wanted, shape_text, split
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".webp"})
"""Suffixes of image files; other files in the folder of a class are ignored."""

FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP")
"""Pillow's names of the formats that are read.

Pillow recognises a format by the first bytes of a file, whatever its name is. Some formats that are
not in this list start other programs: EPS runs Ghostscript.
"""

MAX_BYTES = 256 << 20
"""Most bytes of an image file; a larger one is not opened."""

MODES = {1: "L", 3: "RGB"}
"""Pillow's name of the pixel format for each number of channels."""

DEPTH_8 = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV"})
"""Pillow's names of pixel formats with at most 8 bits per channel."""

VALIDATION = ("val", "validation")

DAMAGED = (EOFError, IndexError, OSError, SyntaxError, TypeError, ValueError, struct.error)
"""Exceptions that Pillow raises for a damaged file."""


def read_folder(path: Path, wanted: Wanted) -> Dataset:
    """Read samples; see `fpgapipe.host.data.data.load_data`.

    Raises
    ------
    UserError
        If Pillow is not installed, a file is damaged, or images or classes do not fit the network.
    """
    _check_wanted(path, wanted)
    folders = _folders(path)
    train = next((each for each in folders if each.name == "train"), None)
    held_out = next((each for each in folders if each.name in VALIDATION), None)
    if train is None or held_out is None or len(folders) > 2:
        classes = _classes(path, folders, wanted)
        samples = _samples(path, classes, classes, wanted)
        if len(samples.labels) < 2:
            raise FileError(path, ["must have at least 2 images, not 1"])
        return replace(split(samples), classes=tuple(classes))
    classes = _classes(train, _folders(train), wanted)
    others = [each.name for each in _folders(held_out)]
    unknown = sorted(set(others) - set(classes))
    if unknown:
        raise FileError(held_out, [f"has classes that {train} has not: {', '.join(unknown[:5])}"])
    return Dataset(
        _samples(train, classes, classes, wanted),
        _samples(held_out, [name for name in classes if name in others], classes, wanted),
        classes=tuple(classes),
    )


def has_no_classes(path: Path) -> bool:
    """Whether a folder has images and no folders, which would be classes."""
    return is_folder(path) and not _folders(path) and bool(_images_in(path))


def read_images(path: Path, wanted: Wanted) -> Samples:
    """Read the images of a folder, whose classes are not known: all labels are 0.

    Raises
    ------
    UserError
        As for `read_folder`.
    """
    _check_wanted(path, wanted)
    return _read(path, _images_in(path), [0] * len(_images_in(path)), wanted)


def classes_in(path: Path) -> tuple[str, ...]:
    """Names of the classes of a folder by their numbers; empty if it is no folder of classes."""
    if not is_folder(path):
        return ()
    folders = {each.name: each for each in _folders(path)}
    parts = folders.keys() & {"train", *VALIDATION}
    inner = "train" in parts and len(parts) == len(folders) == 2
    return tuple(each.name for each in _folders(folders["train"])) if inner else tuple(folders)


def _check_wanted(path: Path, wanted: Wanted) -> None:
    """Refuse a network that takes no images, or gives no class for each."""
    require("PIL", "a folder of images")
    if len(wanted.shape) != 3 or wanted.shape[0] not in MODES or wanted.indices is not None:
        raise FileError(
            path,
            [
                f"images have 1 or 3 channels, but {wanted.network} takes "
                f"{shape_text(wanted.shape)}; use a .npz file"
            ],
        )
    if wanted.label_shape:
        raise FileError(
            path,
            [
                f"images in folders have one label each, but {wanted.network} takes "
                f"{shape_text(wanted.label_shape)}; use a .npz file"
            ],
        )


def _folders(path: Path) -> list[Path]:
    """Folders in a folder, without hidden ones, in the order of their names or numbers."""
    found = [
        each for each in list_folder(path) if is_folder(each) and not each.name.startswith(".")
    ]
    if all(each.name.isascii() and each.name.isdecimal() for each in found):
        return sorted(found, key=lambda each: (int(each.name), each.name))
    return sorted(found, key=lambda each: each.name)


def _classes(path: Path, folders: Sequence[Path], wanted: Wanted) -> list[str]:
    """Names of classes, in the order of their numbers."""
    if not folders:
        raise FileError(path, ["must have a folder of images for each class; it has no folder"])
    if len(folders) > wanted.classes:
        raise FileError(
            path,
            [
                f"must have at most {wanted.classes} folders, one for each class of "
                f"{wanted.network}, not {len(folders)}"
            ],
        )
    return [each.name for each in folders]


def _samples(path: Path, folders: Sequence[str], classes: Sequence[str], wanted: Wanted) -> Samples:
    """Read all images in the folders of some classes."""
    files: list[Path] = []
    labels: list[int] = []
    for name in folders:
        own = _images_in(path / name)
        if not own:
            raise FileError(
                path / name,
                [f"must have at least one image ({', '.join(sorted(SUFFIXES))}); it has none"],
            )
        files += own
        labels += [classes.index(name)] * len(own)
    if not files:
        raise FileError(path, ["must have a folder of images for each class; it has no folder"])
    return _read(path, files, labels, wanted)


def _images_in(path: Path) -> list[Path]:
    """Image files in a folder, without hidden ones."""
    return [
        each
        for each in list_folder(path)
        if each.suffix.lower() in SUFFIXES and not each.name.startswith(".")
    ]


def _read(path: Path, files: Sequence[Path], labels: Sequence[int], wanted: Wanted) -> Samples:
    """Read images, with their names below a folder."""
    wanted.check_size(path, "the images in it", len(files))
    images = np.empty((len(files), *wanted.shape), np.float32)
    for number, file in enumerate(files):
        images[number] = _image(file, wanted)
    names = np.array([each.relative_to(path).as_posix() for each in files], np.str_)
    return Samples(images, np.array(labels, np.int64), names=names)


def _image(path: Path, wanted: Wanted) -> NDArray[np.float32]:
    """Read an image; until its size is known to be right, only the header is read."""
    from PIL import Image, UnidentifiedImageError

    channels, height, width = wanted.shape
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_file(path, MAX_BYTES) as file, Image.open(file, formats=FORMATS) as image:
                if image.size != (width, height):
                    raise FileError(
                        path,
                        [
                            f"must have {width}x{height} pixels for {wanted.network}, not "
                            f"{image.width}x{image.height}; resize it, or take a network for it"
                        ],
                    )
                if image.mode not in DEPTH_8:
                    raise FileError(
                        path, [f"must have 8 bits a channel, not those of mode {image.mode}"]
                    )
                pixels = np.asarray(image.convert(MODES[channels]), np.float32)
    except UnidentifiedImageError:
        formats = ", ".join(FORMATS)
        raise FileError(path, [f"is no image of a format that is read ({formats})"]) from None
    except (*DAMAGED, Image.DecompressionBombError) as error:
        raise FileError(path, [f"cannot be read as an image: {error}"]) from None
    return pixels.reshape(height, width, channels).transpose(2, 0, 1) / np.float32(255)
