"""Names of the tensors of a step, which are apart from each other whatever the user's names are.

The host finds inputs, outputs and parameters by the names that they have in the network, and what
belongs to a parameter by that name and a suffix. All other tensors of a layer have the layer's name
and, behind a separator that is in no name of the network, one of their own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fpgapipe.lowering.memory.memory_map import CORRECT, LABELS, LOSS, WEIGHTS
from fpgapipe.lowering.units.step_options import NORM, SUFFIXES

if TYPE_CHECKING:
    from fpgapipe.network.graph import Graph

_OWN = (
    WEIGHTS, LABELS, LOSS, CORRECT, *SUFFIXES, NORM, "identity", "clip", "tied", "total of squares",
    "updated parameters", "row numbers", "class numbers",
)  # fmt: skip
_OF_STEP = re.compile(rf"({'|'.join(map(re.escape, _OWN))})([ \d].*)?", re.DOTALL)
"""Tensors that no layer has, but the step; some of them are numbered, or those of an output."""

_BEHIND = re.compile(r"[.\[ ]")
"""Characters that may follow a parameter's name in that of a tensor that belongs to it."""

_COUNTED = re.compile(r"(.*)[#@]\d+", re.DOTALL)
"""Name of a tensor that several slots or micro-batches have."""


class TensorNames:
    """Names of tensors in the lowering of a network.

    Parameters
    ----------
    graph : Graph
    """

    def __init__(self, graph: Graph) -> None:
        self._parameters = {each.name for it in graph.layers.values() for each in it.parameters}
        names = {*graph.inputs, *graph.layers, *self._parameters}
        self._separator = "|"
        while any(self._separator in name for name in names):
            self._separator += "|"
        self._counted = {m[1] for m in map(_COUNTED.fullmatch, self._parameters) if m}

    def inner(self, layer: str, name: str) -> str:
        """Name of a tensor that a layer has besides its result.

        Parameters
        ----------
        layer : str
        name : str
            Name that is unique among the layer's; it may begin with the layer's, and a dot.
        """
        if name.startswith(f"{layer}."):
            return f"{layer}{self._separator}{name.removeprefix(f'{layer}.')}"
        return f"{layer}{2 * self._separator}{name}"

    def value(self, name: str) -> str:
        """Name of the tensor of a value that the host neither writes nor reads."""
        apart = self.is_taken(name) or _COUNTED.fullmatch(name)
        return f"{name}{self._separator}" if apart else name

    def is_taken(self, name: str) -> bool:
        """Whether a value's name could be that of a parameter or of a tensor of the step."""
        return (
            name in self._parameters
            or name in self._counted
            or _OF_STEP.fullmatch(name) is not None
            or any(name[: found.start()] in self._parameters for found in _BEHIND.finditer(name))
        )
