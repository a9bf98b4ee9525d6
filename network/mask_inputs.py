"""Inputs of a network that are masks: their values, and what they hide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.network.operators import (
    Binary,
    Compare,
    Embedding,
    Expand,
    Flatten,
    MaskedFill,
    Operator,
    Reshape,
    Slice,
    Split,
    Transpose,
)
from fpgapipe.network.operators.tensors import DType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph, Layer

MOST_NUMBER = 1 << 24
"""Largest magnitude of a whole number of an input, since devices read it as FP32."""

VIEWS = (Reshape, Flatten, Expand, Transpose, Slice, Split)
"""Operators that repeat, move or leave out elements and change none."""


@dataclass(frozen=True)
class MaskInput:
    """An input of whole numbers or booleans that is compared with numbers.

    Attributes
    ----------
    low, high : int
        Least and largest value. They are 0 and 1 unless the input is compared with other numbers.
    hides : int
        The one of 0 and 1 that hides an element.
    """

    low: int
    high: int
    hides: int

    @property
    def is_binary(self) -> bool:
        """Whether its values are 0 and 1."""
        return (self.low, self.high) == (0, 1)

    @property
    def text(self) -> str:
        """Values that it must have."""
        if self.is_binary:
            return f"0 or 1 ({self.hides} hides)"
        return f"whole numbers in {self.low:,}..{self.high:,}"

    def wrong(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Places of the values that it must not have."""
        return np.argwhere((values < self.low) | (values > self.high))

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> NDArray[np.int64]:
        """Random values; of a mask, each row keeps its first positions, at least half of them."""
        if not self.is_binary:
            return rng.integers(0, 4, shape)
        positions = shape[-1]
        kept = rng.integers((positions + 1) // 2, positions + 1, (*shape[:-1], 1))
        return np.where(np.arange(positions) < kept, 1 - self.hides, self.hides)


def mask_inputs(graph: Graph) -> dict[str, MaskInput]:
    """The inputs of whole numbers or booleans that comparisons read, and embeddings do not."""
    readers: dict[str, list[Layer]] = {}
    for layer in graph.layers.values():
        for name in layer.inputs:
            readers.setdefault(name, []).append(layer)
    found = {}
    for name, tensor in graph.inputs.items():
        own = readers.get(name, [])
        compared = [each.operator for each in own if isinstance(each.operator, Compare)]
        if tensor.dtype.is_float or not compared:
            continue
        if any(isinstance(each.operator, Embedding) for each in own):
            continue
        is_binary = tensor.dtype is DType.BOOL or all(0 <= each.number <= 1 for each in compared)
        low, high = (0, 1) if is_binary else (-MOST_NUMBER, MOST_NUMBER)
        hides = _hides(name, (0.0, 1.0), readers)
        found[name] = MaskInput(low, high, 0 if hides is None else hides)
    return found


def _hides(
    name: str, levels: tuple[float, float], readers: Mapping[str, Sequence[Layer]]
) -> int | None:
    """The value of an input, 0 or 1, that hides what a value with these levels is applied to."""
    for layer in readers.get(name, ()):
        operator = layer.operator
        if isinstance(operator, MaskedFill) and layer.inputs[1] == name:
            hidden = [bool(level) != operator.keeps for level in levels]
            if hidden[0] != hidden[1]:
                return hidden.index(True)
            continue
        if isinstance(operator, Binary) and operator.function == "add" and min(levels) < -1:
            return levels.index(min(levels))
        passed = levels_behind(operator, levels)
        if passed is not None and (found := _hides(layer.name, passed, readers)) is not None:
            return found
    return None


def levels_behind(operator: Operator, levels: tuple[float, float]) -> tuple[float, float] | None:
    """Result of an operator for two values; None if it may differ for each."""
    if isinstance(operator, Compare):
        return holds(operator, levels[0]), holds(operator, levels[1])
    if isinstance(operator, VIEWS) or (isinstance(operator, Binary) and operator.function == "mul"):
        return levels
    return None


def holds(operator: Compare, value: float) -> float:
    """The result of a comparison for a value."""
    compared = {
        "eq": value == operator.number,
        "ne": value != operator.number,
        "lt": value < operator.number,
        "le": value <= operator.number,
        "gt": value > operator.number,
        "ge": value >= operator.number,
    }
    return operator.then if compared[operator.function] else operator.otherwise
