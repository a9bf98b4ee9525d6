"""Tcl text, made of words that are quoted where Tcl needs it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN = re.compile(r"[A-Za-z0-9_./:*+@%,=-]+")


class Call(str):
    """A command whose result is a word: its text is in brackets already."""

    __slots__ = ()


class Variable(str):
    """A word that is the value of a variable; the text begins with a dollar sign."""

    __slots__ = ()


def word(value: object) -> str:
    """Return a value as one word of Tcl.

    Raises
    ------
    ValueError
        If its braces are not balanced, or it ends with a backslash.
    """
    if isinstance(value, (Call, Variable)):
        return str(value)
    text = str(value)
    if _PLAIN.fullmatch(text):
        return text
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            break
    if depth or "\\" in text:
        raise ValueError(f"no word of Tcl can be made of {text!r}")
    return f"{{{text}}}"


def command(*words: object) -> str:
    """Return a command as a line."""
    return " ".join(word(each) for each in words)


def call(*words: object) -> Call:
    """Return a command whose result is used as a word."""
    return Call(f"[{command(*words)}]")


def properties(values: Mapping[str, object], target: object) -> str:
    """Return the command that sets properties of an object, one in a line.

    Parameters
    ----------
    values : mapping of str to object
        Values by the names of properties; there has to be at least one.
    target : object
        Word that names the object.
    """
    listed = " \\\n".join(f"    {word(name)} {{{value}}}" for name, value in values.items())
    return f"set_property -dict [list \\\n{listed} \\\n] {word(target)}"


def script(title: str, *parts: list[str]) -> str:
    """Return a file: a comment with a title, and parts with an empty line between them."""
    blocks = ["\n".join(part) for part in parts if part]
    return "\n\n".join([f"# {title}", *blocks]) + "\n"
