r"""Escapes in what is printed, since texts of strangers could tell a terminal to do things.

Names of layers, devices and files, and messages of agents and tools may have any characters. A
terminal obeys some of them: it moves its cursor over what stands there, changes its title or the
clipboard, or writes a line backwards. What the command prints passes one stream, `EscapingStream`,
which shows these characters as Python writes them: ``\x1b[2J``. The library rich, which draws with
such characters, writes beside it, and is given texts that were `escaped` before.
"""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OBEYED = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # all control characters but tab and newline
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # line ends, and directions of text
)
_IN_TEXT = re.compile(f"[{_OBEYED}]")
_IN_CELL = re.compile(f"[\t\n{_OBEYED}]")


def escaped(text: str, *, is_cell: bool = False) -> str:
    """Return a text without the characters that a terminal obeys.

    Parameters
    ----------
    text : str
    is_cell : bool
        Whether it is to stay on one line: tabs and newlines are escaped as well.
    """
    pattern = _IN_CELL if is_cell else _IN_TEXT
    return pattern.sub(lambda found: ascii(found[0])[1:-1], text)


def in_one_line(text: str, words: Iterable[str]) -> str:
    """Return a text in which each of some words stays on one line, wherever it stands.

    Parameters
    ----------
    text : str
        A message, which may have several lines of its own.
    words : iterable of str
        What it may quote, such as paths.
    """
    for word in words:
        for part in (word, word.partition("=")[2]):
            if part.strip() and (shown := escaped(part, is_cell=True)) != part:
                text = text.replace(part, shown)
    return text


class EscapingStream:
    """A stream of text that escapes what is written to it, and is otherwise another stream.

    Parameters
    ----------
    stream : TextIO
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # the name that rich's own streams have for it

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        if not isinstance(text, str):
            raise TypeError(f"write() takes a text, not {type(text).__name__}")
        self.rich_proxied_file.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.rich_proxied_file)


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream itself that is behind one that escapes, and behind those of rich."""
    while (inner := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = inner
    return stream


@contextlib.contextmanager
def escaping() -> Iterator[None]:
    """Escape what is written to standard output and standard error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", EscapingStream(each)) for each in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
