"""Faults that pydantic finds in a file of JSON, one sentence for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.errors import shown

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_FAULTS = 20
"""Most faults that are shown for one file."""


def faults_of(error: ValidationError, whole: str = "file") -> list[str]:
    """Say where each fault is, what is wrong, and which value was found if it is a plain one.

    Parameters
    ----------
    error : ValidationError
    whole : str
        Location that is printed for a fault of the whole value; if empty, none is printed.

    Returns
    -------
    list of str
        At least one and at most `MAX_FAULTS` sentences, such as
        ``stages.0.batch: Input should be 3, not 2``.
    """
    found = []
    for each in error.errors()[:MAX_FAULTS]:
        where = ".".join(map(str, each["loc"])) or whole
        plain = each["input"] is None or isinstance(each["input"], str | int | float)
        came = f", not {shown(each['input'])}" if plain else ""
        found.append(f"{where}: {each['msg']}{came}" if where else f"{each['msg']}{came}")
    return found
