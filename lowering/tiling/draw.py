"""Random numbers that a kernel draws, by which elements are dropped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fpgapipe.hw.hls_models.isa.vector_op import Choice, Random


@dataclass(frozen=True)
class Draw:
    """Random numbers that drop elements.

    Attributes
    ----------
    rate : float
        Share of dropped elements, rounded to a multiple of 1/65,536.
    stream : int
        Number of the sequence of random numbers; each layer has its own.
    key : int
        Number of the first of the two scalar registers that hold seed and step.
    first : int
        Number of vectors of 16 random numbers to skip at the beginning of the sequence.
    """

    rate: float
    stream: int
    key: int
    first: int = 0

    @property
    def factor(self) -> float:
        """Factor of the elements that are kept."""
        return (1 << 16) / kept_of(self.rate)

    @property
    def skipped(self) -> int:
        """Number of the first vector among those of all sequences, which follow one another."""
        return (self.stream << 36) + self.first

    @property
    def from_zero(self) -> Draw:
        """As many random numbers, from the first of all on."""
        return replace(self, stream=0, first=0)

    def settings(self, vector: int = 0) -> dict[str, Any]:
        """Settings of an instruction that keeps its result or gives 0, from a vector on."""
        return {
            "test": Random(kept_of(self.rate), self.skipped + vector, self.key),
            "then": Choice.S,
            "otherwise": Choice.ZERO,
        }


def kept_of(rate: float) -> int:
    """Number of elements, out of 65,536, that are kept.

    Raises
    ------
    ValueError
        If none or all of them are kept.
    """
    kept = round((1 - rate) * (1 << 16))
    if not 0 < kept < 1 << 16:
        raise ValueError(f"dropout rate must be above 0 and below 1, not {rate}")
    return kept
