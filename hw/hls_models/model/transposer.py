"""Square transposer: words in, columns of squares of words out; words that bypass it in between."""

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
        Lanes of a word, and words of a square; a power of two, at least 2.
    planes : tuple of int
        Bits of a lane that travel with the same bits of all other lanes, from the lowest on.
    side_bits : int
        Width of what goes along with a word, unchanged.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    size: int = 32
    planes: tuple[int, ...] = (16, 1)
    side_bits: int = 1

    def __post_init__(self) -> None:
        if self.size < 2 or self.size & (self.size - 1):
            raise ValueError(
                f"transposer size must be a power of two, at least 2, not {self.size!r}"
            )
        if not self.planes or min(self.planes) < 1:
            raise ValueError(
                f"transposer planes must have at least 1 bit each, and there must be one, "
                f"not {self.planes!r}"
            )
        if self.side_bits < 1:
            raise ValueError(f"transposer side_bits must be at least 1, not {self.side_bits!r}")

    @property
    def lane_bits(self) -> int:
        """Width of a lane."""
        return sum(self.planes)

    def compute(
        self, words: NDArray[np.int64], transposed: Sequence[bool], emit: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Words that leave, in order.

        Parameters
        ----------
        words : int64 array, shape (words, size)
        transposed : sequence of bool
            Whether a word belongs to a square; squares are `size` such words in a row.
        emit : sequence of int
            1 to `size`, how many columns of its square leave, as the square's last word says.

        Returns
        -------
        words : int64 array, shape (leaving, size)
        source : int64 array, shape (leaving,)
            The word whose side data goes along: that of the word itself or of the square's last.

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
