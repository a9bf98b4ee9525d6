"""The log of a run: one line of JSON for each step, written before the next step begins."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from fpgapipe.closing import Closing
from fpgapipe.errors import FileError
from fpgapipe.files import open_file, parse_json, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fpgapipe.host.backends.base import StepRunner


MAX_BYTES = 1 << 27
"""Most bytes of a log that is read, which suffice for half a million steps."""

MAX_LINES, MAX_LINE_BYTES = 500_000, 1 << 16
"""Most lines of a log that are read, and most bytes of a line."""

MAX_FIGURE = 1e300


class RunLog(Closing):
    """Appends lines to a log, each whole or not at all; a context manager.

    When `write` returns, the kernel has the line, so that it is not lost if the process is killed.

    Parameters
    ----------
    path : Path
    lines : sequence of mapping
        First lines of the log, which replace an earlier file.
    """

    def __init__(self, path: Path, lines: Sequence[Mapping[str, Any]] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [_encoded(line) for line in lines])
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line.

        Raises
        ------
        OSError
            If the line cannot be written; the file then ends with the line before it.
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


def simulated(backend: StepRunner) -> dict[str, str]:
    """Description of the simulation in a line or a file; empty if the backend simulates nothing."""
    return {"simulation": backend.simulation} if backend.simulation else {}


def read_log(path: Path, steps: int | None = None) -> list[dict[str, Any]]:
    """Read the lines of a log; the result is empty if there is no such file.

    Parameters
    ----------
    path : Path
    steps : int, optional
        Number of steps; if given, lines of later steps are left out.
    """
    found: list[dict[str, Any]] = []
    try:
        with open_file(path, MAX_BYTES) as file:
            # The file is read line by line, so that lines that are not of a log take no memory.
            while (each := file.readline(MAX_LINE_BYTES)) and len(found) < MAX_LINES:
                line = _line(each)
                if line is None:
                    continue
                # A step states its own number, from 0, and others the steps done before them.
                done = line["step"] + 1 if "step" in line else _told(line)["step"]
                if steps is None or done <= steps:
                    found.append(line)
    except (FileError, OSError):
        return []
    return found


def _line(data: bytes) -> dict[str, Any] | None:
    """Parse a line of a log; None if a crash has cut it off, or it is no line of a log."""
    try:
        line: dict[str, Any] = parse_json(data)
        told = _told(line)
        whole = isinstance(told["step"], int) and all(map(_is_figure, told, told.values()))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return line if whole else None


def _told(line: Mapping[str, Any]) -> Any:
    """Entries of a line: those of a validation, of a setting that changes, or of a step."""
    return line.get("validation") or line.get("change") or line


def _is_figure(name: str, value: object) -> bool:
    """Whether a value may stand in a log: a number, None, or a name where one is expected."""
    if name in ("before", "after") and isinstance(value, str):
        return True
    if value is None or name in ("backend", "simulation", "setting"):
        return value is None or isinstance(value, str)
    return isinstance(value, int | float) and abs(value) < MAX_FIGURE
