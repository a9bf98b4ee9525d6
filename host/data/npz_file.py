"""Files of numpy arrays, read without trusting them: no pickles, no memory before a check."""

from __future__ import annotations

import io
import lzma
import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy

from fpgapipe.closing import Closing
from fpgapipe.errors import FileError
from fpgapipe.files import open_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import BufferedReader
    from pathlib import Path

    from numpy.typing import NDArray

MAX_BYTES = 1 << 36
"""Most bytes of a file that is opened; the caller bounds what is read from it."""

MAX_DIRECTORY_BYTES = 1 << 20
"""Most bytes of the list of members, enough for some ten thousand."""

DAMAGED = (
    EOFError,
    NotImplementedError,  # a compression that zipfile does not support
    OSError,
    OverflowError,
    RuntimeError,  # an encrypted member
    SyntaxError,  # in a header, which is text
    TypeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions that reading a damaged file may raise."""


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, whether the first axis is innermost, and type of an array from its begin.

    Raises
    ------
    Exception
        One of `DAMAGED` if there is no such header.
    """
    version = npy.read_magic(file)
    if version != (1, 0):  # later versions allow headers of any size
        raise ValueError(f"its format must be 1.0, not {version[0]}.{version[1]}")
    return npy.read_array_header_1_0(file)


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Contents of a ``.npz`` file; equal arrays give equal bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, value in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # always of the same date
            with archive.open(member, "w", force_zip64=True) as entry:
                npy.write_array(entry, np.asanyarray(value), version=(1, 0), allow_pickle=False)
    return file.getvalue()


class NpzFile(Closing):
    """An opened ``.npz`` file; a context manager.

    Attributes
    ----------
    path : Path
    names : frozenset of str
        Names of its arrays.

    Raises
    ------
    FileError
        If the file cannot be read, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_file(path, MAX_BYTES)
        try:
            self._archive = zipfile.ZipFile(_Bounded(self._file))
        except DAMAGED as error:
            self._file.close()
            raise FileError(path, [f"cannot be read as .npz: {error}"]) from None
        members = Counter(name.removesuffix(".npy") for name in self._archive.namelist())
        self.names = frozenset(members)
        twice = [name for name, count in members.items() if count > 1]
        if twice:
            self.close()
            raise FileError(path, [f"has array {twice[0]} twice"])

    def close(self) -> None:
        """Close the file."""
        self._archive.close()
        self._file.close()

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Read only the shape and the type of an array.

        Raises
        ------
        FileError
            If the array is damaged, or holds Python objects.
        """
        try:
            with self._archive.open(self._member(name)) as file:
                shape, _, dtype = read_header(file)
        except DAMAGED as error:
            raise FileError(self.path, [f"array {name} is damaged: {error}"]) from None
        if dtype.hasobject:
            what = "holds Python objects (pickles), which are never read; save numbers"
            raise FileError(self.path, [f"array {name} {what}"])
        return shape, dtype

    def array(self, name: str) -> NDArray[Any]:
        """Read an array; the caller has checked with `header` that there is memory for it.

        Raises
        ------
        FileError
            If the array is damaged.
        """
        try:
            with self._archive.open(self._member(name)) as file:
                found: NDArray[Any] = npy.read_array(file, allow_pickle=False)
                if file.read(1):  # reading to the end also verifies the checksum
                    raise ValueError("it goes on behind its last number")
        except DAMAGED as error:
            raise FileError(self.path, [f"array {name} is damaged: {error}"]) from None
        return found

    def _member(self, name: str) -> str:
        return f"{name}.npy" if f"{name}.npy" in self._archive.NameToInfo else name


class _Bounded:
    """A file that refuses long reads, since a zip file itself states how long its list is."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY_BYTES:
            raise ValueError("its list of arrays is too long")
        return self._file.read(MAX_DIRECTORY_BYTES if size < 0 else size)
