"""The register of translations of ATen operators, and a node as these see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Handler = Callable[[Any, "Node"], None]
HANDLERS: dict[str, Handler] = {}
"""The function that translates each ATen operator (``aten.conv2d.default``)."""

Attempt = Callable[[Any, "Node"], bool]
ATTEMPTS: dict[str, Attempt] = {}
"""Functions that translate an operator on masks, and return whether they did."""


def handles(*targets: str) -> Callable[[Handler], Handler]:
    """Register a function as the translation of operators.

    Parameters
    ----------
    *targets : str
        Names of the operators: those of ATen without ``aten.`` (``conv2d.default``), others with
        their library (``lab.magnitude.default``).

    Raises
    ------
    ValueError
        If one has a translation already.
    """

    def register(function: Handler) -> Handler:
        for target in targets:
            name = target if target.count(".") == 2 else f"aten.{target}"
            if name in HANDLERS:
                raise ValueError(f"operator {name!r} has a translation already")
            HANDLERS[name] = function
        return function

    return register


def attempts(*targets: str) -> Callable[[Attempt], Attempt]:
    """Register a function that is asked before the translation of operators."""

    def register(function: Attempt) -> Attempt:
        ATTEMPTS.update({f"aten.{target}": function for target in targets})
        return function

    return register


class Node:
    """A call in the exported graph, with its arguments by their names in the operator's schema."""

    def __init__(self, node: Any) -> None:
        self.fx = node
        self.target = str(node.target)
        self.name = str(node.name)
        self.arguments: dict[str, Any] = {}
        schema = getattr(node.target, "_schema", None)
        if schema is not None:
            for i, argument in enumerate(schema.arguments):
                if i < len(node.args):
                    self.arguments[argument.name] = node.args[i]
                elif argument.name in node.kwargs:
                    self.arguments[argument.name] = node.kwargs[argument.name]
                elif argument.has_default_value():
                    self.arguments[argument.name] = argument.default_value

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]
