"""The log of a run: a line of JSON for each step, on the disk before the next one begins."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Self

from fpgapipe.errors import FileError
from fpgapipe.files import open_file, parse_json, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType


MAX_BYTES = 1 << 27
"""A larger log is not read: it would be one of half a million steps."""

MAX_LINES, MAX_LINE_BYTES = 500_000, 1 << 16
"""More lines, and longer ones, are not read."""

MAX_FIGURE = 1e300


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
    found: list[dict[str, Any]] = []
    try:
        with open_file(path, MAX_BYTES) as file:
            # Line by line: what is no line of a log takes no memory.
            while (each := file.readline(MAX_LINE_BYTES)) and len(found) < MAX_LINES:
                line = _line(each)
                if line is None:
                    continue
                # A validation has the steps before it, a step its own number, from 0.
                done = line["validation"]["step"] if "validation" in line else line["step"] + 1
                if steps is None or done <= steps:
                    found.append(line)
    except (FileError, OSError):
        return []
    return found


def _line(data: bytes) -> dict[str, Any] | None:
    """A line of a log; None for what a crash of the machine cut off, or nobody wrote."""
    try:
        line: dict[str, Any] = parse_json(data)
        told = line.get("validation", line)
        whole = isinstance(told["step"], int) and all(map(_is_figure, told, told.values()))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return line if whole else None


def _is_figure(name: str, value: object) -> bool:
    """Whether something has a name as a log has it: numbers, but for that of the backend."""
    if value is None or name == "backend":
        return value is None or isinstance(value, str)
    return isinstance(value, int | float) and abs(value) < MAX_FIGURE
