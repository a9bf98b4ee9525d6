"""Operators of other packages.

A package names a module as an entry point of the group `ENTRY_POINTS`. The module defines operators
and registers what there is of each: how it is read from PyTorch and ONNX, its reference, its cost
and its unit. It is imported before any of these is looked up.
"""

from __future__ import annotations

from typing import TypeVar

from fpgapipe.network import operators
from fpgapipe.network.operators.base import Operator
from fpgapipe.plugins import load_all

ENTRY_POINTS = "fpgapipe.operators"
"""Group of the entry points of modules with further operators."""

_OTHERS: dict[str, type[Operator]] = {}

Kind = TypeVar("Kind", bound=type[Operator])


def load_operators() -> None:
    """Import the modules of other packages."""
    load_all(ENTRY_POINTS)


def adds(kind: Kind) -> Kind:
    """Register the decorated operator, so that networks with it can be written and read.

    Raises
    ------
    ValueError
        If there is an operator of this name, of the class or of its ``kind``.
    """
    own = (each for each in vars(operators).values() if isinstance(each, type))
    taken = [*_OTHERS.values(), *(each for each in own if issubclass(each, Operator))]
    for each in taken:
        name = getattr(each, "kind", None)
        if each.__name__ == kind.__name__ or name == kind.kind:
            raise ValueError(f"there is an operator {each.__name__} ({name}) already")
    _OTHERS[kind.__name__] = kind
    return kind


def operator_class(name: str) -> type[Operator] | None:
    """The operator whose class has a name; None if there is none."""
    load_operators()
    kind = _OTHERS.get(name) or getattr(operators, name, None)
    is_one = isinstance(kind, type) and issubclass(kind, Operator) and kind is not Operator
    return kind if is_one else None
