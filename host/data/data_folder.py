"""Reads samples from folders of images, with one folder for each class.

Images that do not fit the network's input are resized and cropped. Many of them stay in their
files, and are read by several threads while they are used.
"""

from __future__ import annotations

import hashlib
import struct
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from fpgapipe.errors import FileError
from fpgapipe.files import is_folder, list_folder, open_file, read_bytes
from fpgapipe.host.data.rows import Rows
from fpgapipe.host.data.samples import Dataset, Samples, Wanted, shape_text, split
from fpgapipe.hw.hls_models.native.native_library import num_threads
from fpgapipe.optional import require
from fpgapipe.stopwatch import phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

Answer = TypeVar("Answer")

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".webp"})
"""Suffixes of image files; other files in the folder of a class are ignored."""

FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP")
"""Pillow's names of the formats that are read.

Pillow recognises a format by the first bytes of a file, whatever its name is. Some formats that are
not in this list start other programs: EPS runs Ghostscript.
"""

MAX_BYTES = 256 << 20
"""Most bytes of an image file; a larger one is not opened."""

MAX_PIXELS = 1 << 26
"""Most pixels of an image; a larger one is not decoded."""

MOST_JOBS = 1024
"""Most files that wait for a thread at a time."""

HELD_BYTES = 1 << 29
"""Most bytes of all images, as FP32, that are read once into memory."""

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
        return _held(replace(split(samples), classes=tuple(classes)))
    classes = _classes(train, _folders(train), wanted)
    others = [each.name for each in _folders(held_out)]
    unknown = sorted(set(others) - set(classes))
    if unknown:
        raise FileError(held_out, [f"has classes that {train} has not: {', '.join(unknown[:5])}"])
    return _held(
        Dataset(
            _samples(train, classes, classes, wanted),
            _samples(held_out, [name for name in classes if name in others], classes, wanted),
            classes=tuple(classes),
        )
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
    names = [each.name for each in _images_in(path)]
    samples = _of_files(path, names, [0] * len(names), wanted)
    return samples.in_memory() if 4 * samples.images.size <= HELD_BYTES else samples


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
    """All images in the folders of some classes; their files are not read yet."""
    names: list[str] = []
    labels: list[int] = []
    for name in folders:
        own = [f"{name}/{each.name}" for each in _images_in(path / name)]
        if not own:
            raise FileError(
                path / name,
                [f"must have at least one image ({', '.join(sorted(SUFFIXES))}); it has none"],
            )
        names += own
        labels += [classes.index(name)] * len(own)
    if not names:
        raise FileError(path, ["must have a folder of images for each class; it has no folder"])
    return _of_files(path, names, labels, wanted)


def _images_in(path: Path) -> list[Path]:
    """Image files in a folder, without hidden ones."""
    return [
        each
        for each in list_folder(path)
        if each.suffix.lower() in SUFFIXES and not each.name.startswith(".")
    ]


def _of_files(path: Path, names: Sequence[str], labels: Sequence[int], wanted: Wanted) -> Samples:
    """Samples of image files, of which the names below a folder are given."""
    kept = np.array(names, np.str_)
    images = Rows.of(ImageFiles(path, kept, wanted))
    return Samples(images, np.array(labels, np.int64), names=kept)


def _held(data: Dataset) -> Dataset:
    """The same samples in memory, if they are few; the note says what is done to images."""
    images = [each.images for each in (data.train, data.validation)]
    sources = [each.source for each in images if isinstance(each, Rows)]
    files = [each for each in dict.fromkeys(sources) if isinstance(each, ImageFiles)]
    width, height = files[0].size
    if 4 * sum(each.size for each in images) > HELD_BYTES:
        note = f"images of other sizes than {width}x{height} are resized, and cropped to the middle"
        return replace(data, note=_and(data.note, f"{note}, while they are read in training"))
    data = replace(data, train=data.train.in_memory(), validation=data.validation.in_memory())
    if not (count := sum(each.num_resized for each in files)):
        return data
    note = f"{count:,} of {sum(map(len, images)):,} images were resized to cover {width}x{height}"
    return replace(data, note=_and(data.note, f"{note}, and cropped to their middle"))


def _and(one: str, other: str) -> str:
    return f"{one}; {other}" if one else other


class ImageFiles:
    """Source of images in files, see `fpgapipe.host.data.rows.Source`.

    Parameters
    ----------
    path : Path
        Folder.
    names : str array, shape (images,)
        Names of the files below it.
    wanted : Wanted
        Samples that the network takes.
    workers : int, optional
        Threads that read; by default as many as there are processors.

    Attributes
    ----------
    size : tuple of int
        Width and height of the network's input.
    num_resized : int
        Images that were resized so far, each as often as it was read.
    """

    def __init__(
        self, path: Path, names: NDArray[np.str_], wanted: Wanted, workers: int | None = None
    ) -> None:
        self._path, self._names, self._wanted = path, names, wanted
        self._workers = workers or num_threads()
        self.shape, self.dtype = (len(names), *wanted.shape), np.dtype(np.float32)
        self.bounds = 0, 0
        self.size = wanted.shape[2], wanted.shape[1]
        self.num_resized = 0
        # Pillow warns of files that are odd and can be read; a filter of each thread there is not.
        warnings.filterwarnings("ignore", module=r"PIL\.")

    def read(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `Source`."""
        images = np.empty((len(numbers), *self._wanted.shape), np.float32)

        def fill(at: int) -> bool:
            images[at], was_resized = _image(self._file(int(numbers[at])), self._wanted)
            return was_resized

        self.num_resized += sum(self._all(fill, len(numbers)))
        return images

    def digest(self) -> bytes:
        """See `Source`."""
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        """Digest of the contents of all files; whether they can be decoded is not seen here."""

        def one(number: int) -> bytes:
            return hashlib.sha256(read_bytes(self._file(number), MAX_BYTES)).digest()

        with phase("a first look at all samples"):
            return hashlib.sha256(b"".join(self._all(one, len(self._names)))).digest()

    def _all(self, function: Callable[[int], Answer], count: int) -> Iterator[Answer]:
        """What a function gives for the first numbers, in their order, by all threads."""
        for first in range(0, count, MOST_JOBS):
            numbers = range(first, min(first + MOST_JOBS, count))
            yield from self._threads.map(function, numbers)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._workers)

    def _file(self, number: int) -> Path:
        return self._path / str(self._names[number])


def _image(path: Path, wanted: Wanted) -> tuple[NDArray[np.float32], bool]:
    """Read an image, and say whether it was resized.

    Until its size is known to be right, only the header is read.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    channels, height, width = wanted.shape
    try:
        with open_file(path, MAX_BYTES) as file, Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise FileError(
                    path,
                    [f"must have at most {MAX_PIXELS:,} pixels, not {image.width}x{image.height}"],
                )
            if image.mode not in DEPTH_8:
                raise FileError(
                    path, [f"must have 8 bits a channel, not those of mode {image.mode}"]
                )
            found = image.convert(MODES[channels])
            is_resized = found.size != (width, height)
            if is_resized:
                found = ImageOps.fit(found, (width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(found, np.float32)
    except UnidentifiedImageError:
        formats = ", ".join(FORMATS)
        raise FileError(path, [f"is no image of a format that is read ({formats})"]) from None
    except (*DAMAGED, Image.DecompressionBombError) as error:
        raise FileError(path, [f"cannot be read as an image: {error}"]) from None
    own = pixels.reshape(height, width, channels).transpose(2, 0, 1) / np.float32(255)
    return own, is_resized
