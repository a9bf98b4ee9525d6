"""Safe reading of text files: checks of size, encoding and numbers, with lines in messages."""

import csv
import math
import re
from collections.abc import Iterator
from pathlib import Path

from fpgapipe import files
from fpgapipe.errors import FileError, shown

MAX_BYTES = 64 * 2**20
"""Largest table or profile that is read; 64 MiB hold about a million layers."""

MAX_COUNT = 2**53
"""Largest count that is accepted; a larger JSON number would not be exact."""

MAX_LAYERS_SHOWN = 20
"""Most faults of one file that are listed; the others are only counted."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"\d{1,20}", re.ASCII)


def read_text(path: Path) -> str:
    """Read a UTF-8 file.

    Raises
    ------
    FileError
        If the file is missing, unreadable, larger than ``MAX_BYTES``, or not text.
    """
    text = files.read_text(path, MAX_BYTES)
    if "\0" in text:
        raise FileError(path, ["is not text (it has null characters)"])
    return text


class Faults:
    """Collects the faults of one file, to report them together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: list[str] = []

    def add(self, line: int | None, message: str) -> None:
        """Add a fault, with its line unless that is None."""
        self._found.append(message if line is None else f"line {line}: {message}")

    def __len__(self) -> int:
        return len(self._found)

    def raise_if_any(self) -> None:
        """Raise `FileError` with the faults so far, if there are any."""
        if self._found:
            shown_faults = self._found[:MAX_LAYERS_SHOWN]
            hidden = len(self._found) - len(shown_faults)
            raise FileError(self.path, shown_faults + [f"and {hidden} more"] * (hidden > 0))

    def integer(self, line: int, key: str, text: str, least: int = 1) -> int:
        """Parse an integer of at least `least`; otherwise add a fault and return `least`."""
        text = text.strip()
        if _INTEGER.fullmatch(text) and least <= int(text) <= MAX_COUNT:
            return int(text)
        self.add(line, f"{key} must be an integer of {least}..2**53, not {shown(text)}")
        return least

    def quantity(self, line: int, key: str, text: str, unit: str) -> float:
        """Parse a non-negative finite number; otherwise add a fault and return 0."""
        text = text.strip()
        if _NUMBER.fullmatch(text):
            value = float(text)
            if 0 <= value <= MAX_COUNT and math.isfinite(value):
                return value
        self.add(line, f"{key} must be a number of 0..2**53 ({unit}), not {shown(text)}")
        return 0.0


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV file with their line numbers; cells are stripped and empty rows left out.

    Raises
    ------
    FileError
        If the file cannot be read as text or as CSV.
    """
    lines = read_text(path).splitlines()
    reader = csv.reader(lines, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise FileError(path, [f"line {reader.line_num}: {error}"]) from None
