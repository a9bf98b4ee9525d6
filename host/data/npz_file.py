"""Files of numpy arrays, which are never trusted: no pickles, no memory before a check."""

from __future__ import annotations

import lzma
import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.lib import format as npy

from fpgapipe.errors import FileError
from fpgapipe.files import open_file

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

MAX_BYTES = 1 << 36
"""A larger file is not opened; what is read of it is bounded by what the reader wants."""

MAX_DIRECTORY_BYTES = 1 << 20
"""What the list of members may take: some ten thousand of them."""

DAMAGED = (
    EOFError,
    NotImplementedError,  # a compression that zipfile has not
    OSError,
    OverflowError,
    RuntimeError,  # an encrypted member
    SyntaxError,  # of a header, which is text
    TypeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a damaged file raises."""


class NpzFile:
    """An opened ``.npz`` file; a context manager.

    Attributes
    ----------
    path : Path
    names : frozenset of str
        Of its arrays.

    Raises
    ------
    FileError
        If it cannot be read, or is damaged.
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type of an array, of which nothing else is read.

        Raises
        ------
        FileError
            If it is damaged, or holds Python objects.
        """
        try:
            with self._archive.open(self._member(name)) as file:
                version = npy.read_magic(file)
                if version != (1, 0):  # the others are for names of fields, and may be of any size
                    raise ValueError(f"its format must be 1.0, not {version[0]}.{version[1]}")
                shape, _, dtype = npy.read_array_header_1_0(file)
        except DAMAGED as error:
            raise FileError(self.path, [f"array {name} is damaged: {error}"]) from None
        if dtype.hasobject:
            what = "holds Python objects (pickles), which are never read; save numbers"
            raise FileError(self.path, [f"array {name} {what}"])
        return shape, dtype

    def array(self, name: str) -> NDArray[Any]:
        """Read an array, whose header says that there is memory for it.

        Raises
        ------
        FileError
            If it is damaged.
        """
        try:
            with self._archive.open(self._member(name)) as file:
                found: NDArray[Any] = npy.read_array(file, allow_pickle=False)
                if file.read(1):  # the checksum is looked at where the member ends
                    raise ValueError("it goes on behind its last number")
        except DAMAGED as error:
            raise FileError(self.path, [f"array {name} is damaged: {error}"]) from None
        return found

    def _member(self, name: str) -> str:
        return f"{name}.npy" if f"{name}.npy" in self._archive.NameToInfo else name


class _Bounded:
    """A file of which only so much is read at once: a zip file says itself how long its list is."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY_BYTES:
            raise ValueError("its list of arrays is too long")
        return self._file.read(MAX_DIRECTORY_BYTES if size < 0 else size)
