"""Messages about operators that have no translation: their nodes, and the likeliest others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher

MAX_SHOWN = 50
"""Most nodes that an error lists; the others are only counted."""

LIKELIEST = 10
"""Operators with a translation that are named."""

LIST = "docs/networks.md, 'Operators'"
"""Where all operators are listed."""


def unsupported(by_operator: Mapping[str, Sequence[str]]) -> list[str]:
    """A fault for each operator that has no translation.

    Parameters
    ----------
    by_operator : mapping of str to sequence of str
        Names of the nodes of each operator.
    """
    faults = []
    for operator, names in sorted(by_operator.items()):
        hidden = len(names) - MAX_SHOWN
        listed = ", ".join(names[:MAX_SHOWN]) + (f" and {hidden} more" if hidden > 0 else "")
        faults.append(f"operator {operator} is not supported (nodes {listed})")
    return faults


def likeliest(wanted: Collection[str], known: Collection[str]) -> str:
    """Name the operators whose names are nearest to those that are wanted, and where all are."""

    def plain(name: str) -> str:
        return name.removeprefix("aten.").removesuffix(".default").lower()

    def near(name: str) -> float:
        return max(SequenceMatcher(None, plain(each), plain(name)).ratio() for each in wanted)

    nearest = sorted(sorted(known), key=near, reverse=True)[:LIKELIEST]
    return f"of {len(known)} that are, the nearest are {', '.join(nearest)}; all are in {LIST}"
