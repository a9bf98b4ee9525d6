"""Square transposer: gives the columns of squares of words; other words pass through unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TransposerSpec:
    """A transposer.

    Parameters
    ----------
    size : int
        Number of lanes of a word and of words of a square; a power of two, at least 2.
    planes : tuple of int
        Widths of the groups of bits, from the lowest on, into which a lane is divided; the same
        group of all lanes travels together.
    side_bits : int
        Width of the side data that accompanies a word unchanged.
    lanes : int
        Lanes of a word that move in a cycle, a power of two, at least 2 and less than all; 0 for
        all of them. The words that leave do not depend on it.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    size: int = 32
    planes: tuple[int, ...] = (16, 1)
    side_bits: int = 1
    lanes: int = 0

    def __post_init__(self) -> None:
        if self.size < 2 or self.size & (self.size - 1):
            raise ValueError(
                f"transposer size must be a power of two, at least 2, not {self.size!r}"
            )
        if self.lanes and (
            self.lanes < 2 or self.lanes >= self.size or self.lanes & (self.lanes - 1)
        ):
            most = self.size // 2
            raise ValueError(
                f"transposer lanes must be a power of two in 2..{most}, not {self.lanes!r}"
            )
        if not self.planes or min(self.planes) < 1:
            raise ValueError(
                f"transposer planes must have at least 1 bit each, and there must be one, "
                f"not {self.planes!r}"
            )
        if self.side_bits < 1:
            raise ValueError(f"transposer side_bits must be at least 1, not {self.side_bits!r}")

    @property
    def width(self) -> int:
        """Lanes that move in a cycle."""
        return self.lanes or self.size

    @property
    def parts(self) -> int:
        """Cycles in which a word moves."""
        return self.size // self.width

    @property
    def lane_bits(self) -> int:
        """Width of a lane."""
        return sum(self.planes)

    def compute(
        self, words: NDArray[np.int64], transposed: Sequence[bool], emit: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Compute the words that leave, in order.

        Parameters
        ----------
        words : int64 array, shape (words, size)
        transposed : sequence of bool
            Whether each word belongs to a square; a square consists of `size` such words in a row.
        emit : sequence of int
            Number of columns of a square that leave, 1 to `size`; the square's last word decides.

        Returns
        -------
        words : int64 array, shape (leaving, size)
        source : int64 array, shape (leaving,)
            Index of the word whose side data accompanies each one: the word itself, or the last
            word of the square.

        Raises
        ------
        ValueError
            If a square is not whole, or `emit` is out of range.
        """
        leaving, source = [], []
        square: list[NDArray[np.int64]] = []
        for index, word in enumerate(words):
            if not transposed[index]:
                if square:
                    raise ValueError(
                        f"transposer square must have {self.size} words in a row, not {len(square)}"
                    )
                leaving.append(word)
                source.append(index)
                continue
            square.append(word)
            if len(square) == self.size:
                if not 1 <= emit[index] <= self.size:
                    raise ValueError(
                        f"transposer emit must be in 1..{self.size}, not {emit[index]}"
                    )
                leaving += list(np.stack(square, axis=1)[: emit[index]])
                source += [index] * emit[index]
                square = []
        if square:
            raise ValueError(
                f"transposer square must have {self.size} words in a row, not {len(square)}"
            )
        return np.array(leaving, np.int64).reshape(-1, self.size), np.array(source, np.int64)
