"""The log of a run: a line of JSON for each step, on the disk before the next one begins."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Self

from fpgapipe.errors import FileError
from fpgapipe.files import read_bytes, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType


MAX_BYTES = 1 << 30
"""A larger log is not read: it would be one of millions of steps."""


class RunLog:
    """Appends lines, each whole or not at all; a context manager.

    A line is in the kernel's hands when `write` returns, so what kills the process loses none.

    Parameters
    ----------
    path : Path
    lines : sequence of mapping
        What the file has in the beginning, instead of what it had.
    """

    def __init__(self, path: Path, lines: Sequence[Mapping[str, Any]] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [_encoded(line) for line in lines])
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line.

        Raises
        ------
        OSError
            If it does not fit; the file ends with the line before it then.
        """
        data = _encoded(line)
        size = os.fstat(self._file).st_size
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            os.ftruncate(self._file, size)
            raise OSError(error.errno, error.strerror, str(self._path)) from None


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"


def read_log(path: Path, steps: int | None = None) -> list[dict[str, Any]]:
    """Lines of a log; of one that is not there, none.

    Parameters
    ----------
    path : Path
    steps : int, optional
        Only those of the first so many steps.
    """
    try:
        text = read_bytes(path, MAX_BYTES).decode(errors="replace")
    except FileError:
        return []
    found = []
    for each in text.splitlines():
        try:
            line = json.loads(each)
            # A validation has the steps before it, a step its own number, from 0.
            done = line["validation"]["step"] if "validation" in line else line["step"] + 1
            if steps is None or done <= steps:
                found.append(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # cut off by a crash of the machine
    return found
