"""Folders of ``.npy`` files, whose rows are read when they are needed.

Rows are read by calls, not by a memory map: pages of a map count as the process's memory until the
system takes them back, and a file that is cut off meanwhile would kill the process.
"""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError
from fpgapipe.files import is_folder, list_folder, open_file
from fpgapipe.host.data.npz_file import DAMAGED, read_header
from fpgapipe.host.data.rows import Rows
from fpgapipe.stopwatch import phase

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.host.data.array_rules import Rule

MAX_BYTES = 1 << 46
"""Most bytes of a file that is opened; its rows are read a few at a time."""

CHUNK_BYTES = 4 << 20
"""Bytes of rows that are read at once where all are looked at."""


def is_npy_folder(path: Path) -> bool:
    """Whether a folder has ``.npy`` files, and no folders, which would be classes of images."""
    if not is_folder(path):
        return False
    found = [each for each in list_folder(path) if not each.name.startswith(".")]
    return any(each.suffix == ".npy" for each in found) and not any(map(is_folder, found))


class NpyFolder:
    """A folder of arrays, as `NpzFile` is a file of them.

    Attributes
    ----------
    path : Path
    names : frozenset of str
        Names of the arrays, those of the files without the suffix.

    Raises
    ------
    FileError
        If the folder cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = frozenset(each.stem for each in list_folder(path) if each.suffix == ".npy")

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Read only the shape and the type of an array, and check the size of its file.

        Raises
        ------
        FileError
            If the array is damaged, or holds Python objects.
        """
        file = _NpyFile(self.path / f"{name}.npy", name)
        return file.shape, file.dtype

    def rows(self, name: str, rule: Rule) -> Rows:
        """All rows of an array, as a rule makes them samples or labels."""
        return Rows.of(_FileRows(_NpyFile(self.path / f"{name}.npy", name), rule))

    def windows(self, name: str, rule: Rule, first: int, count: int) -> Rows:
        """Rows that are cut from an array of one axis, from its number `first` on."""
        file = _NpyFile(self.path / f"{name}.npy", name)
        file.offset += first * file.dtype.itemsize
        file.shape = (count, *rule.shape)
        return Rows.of(_FileRows(file, rule))


class _NpyFile:
    """A file of an array, which is opened for each reading.

    Attributes
    ----------
    path : Path
    shape : tuple of int
    dtype : dtype
    offset : int
        Byte at which the first row begins.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        with open_file(path, MAX_BYTES) as file:
            try:
                self.shape, is_fortran, self.dtype = read_header(file)
            except DAMAGED as error:
                raise FileError(path, [f"array {name} is damaged: {error}"]) from None
            self.offset = file.tell()
            self._status = _status(file)
        if self.dtype.hasobject:
            what = "holds Python objects (pickles), which are never read; save numbers"
            raise FileError(path, [f"array {name} {what}"])
        if is_fortran and len(self.shape) > 1:
            what = "has its first axis innermost (Fortran's order), so that its rows do not lie"
            raise FileError(
                path, [f"array {name} {what} together; save it with numpy.ascontiguousarray"]
            )
        size = self.offset + int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize
        if size != self._status[0]:
            what = f"is damaged: its header tells of {size:,} bytes, and it has {self._status[0]:,}"
            raise FileError(path, [f"array {name} {what}"])

    @property
    def row_bytes(self) -> int:
        """Bytes from row to row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def read(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Read rows as they are; those that follow each other at once."""
        found = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        if not found.size:
            return found
        view = found.reshape(-1).view(np.uint8).data
        borders = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1), len(numbers)]
        with open_file(self.path, MAX_BYTES) as file:
            for begin, end in pairwise(borders):
                at = self.offset + int(numbers[begin]) * self.row_bytes
                self._fill(file, view[begin * self.row_bytes : end * self.row_bytes], at)
            self._check_is_as_before(file)
        return found

    def _fill(self, file: BufferedReader, view: memoryview, at: int) -> None:
        while view:
            try:
                count = os.preadv(file.fileno(), [view], at)
            except OSError as error:
                raise FileError(self.path, [f"cannot be read: {error.strerror}"]) from None
            if not count:
                self._check_is_as_before(file)
                raise FileError(self.path, ["ends before its last row"])
            view, at = view[count:], at + count

    def _check_is_as_before(self, file: BufferedReader) -> None:
        """Refuse a file that was changed before its rows were read, or meanwhile."""
        if _status(file) != self._status:
            raise FileError(self.path, ["has changed since its first rows were read"])


def _status(file: BufferedReader) -> tuple[int, int, int]:
    """What is another if a file is changed or replaced; its size comes first."""
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns, found.st_ino


class _FileRows:
    """Source of rows in a file; see `fpgapipe.host.data.rows.Source`."""

    def __init__(self, file: _NpyFile, rule: Rule) -> None:
        self._file, self._rule = file, rule
        self.shape, self.dtype = (file.shape[0], *rule.shape), rule.dtype
        self.bounds = rule.bounds

    def read(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        raw = self._file.read(numbers)
        self._rule.check(raw, numbers)
        return self._rule.made(raw)

    def digest(self) -> bytes:
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        file, count = self._file, self.shape[0]
        digest = hashlib.sha256(f"{file.dtype} {file.shape} {self.shape}".encode())
        step = max(1, CHUNK_BYTES // max(file.row_bytes, 1))
        with phase("a first look at all samples"):
            for first in range(0, count, step):
                numbers = np.arange(first, min(first + step, count))
                raw = file.read(numbers)
                self._rule.check(raw, numbers)
                digest.update(raw.data)
        return digest.digest()
