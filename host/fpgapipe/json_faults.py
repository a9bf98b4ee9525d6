"""Faults that pydantic finds in a file of JSON, a sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.errors import shown

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_FAULTS = 20
"""Faults shown of one file."""


def faults_of(error: ValidationError, whole: str = "file") -> list[str]:
    """Say where each fault is, what is wrong, and which value it was if that is a plain one.

    Parameters
    ----------
    error : ValidationError
    whole : str
        What stands for a fault of the whole value; if empty, nothing does.

    Returns
    -------
    list of str
        At least one, at most `MAX_FAULTS`: ``stages.0.batch: Input should be 3, not 2``.
    """
    found = []
    for each in error.errors()[:MAX_FAULTS]:
        where = ".".join(map(str, each["loc"])) or whole
        plain = each["input"] is None or isinstance(each["input"], str | int | float)
        came = f", not {shown(each['input'])}" if plain else ""
        found.append(f"{where}: {each['msg']}{came}" if where else f"{each['msg']}{came}")
    return found
