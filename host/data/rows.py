"""Rows of arrays that stay in their files until they are needed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Source(Protocol):
    """Where rows are read from.

    Attributes
    ----------
    shape : tuple of int
        Shape of the array of all rows.
    dtype : dtype
        Type of the rows that `read` returns.
    bounds : tuple of int
        Least and largest number that `read` lets pass; zeros for floating-point numbers, all of
        which pass that are finite.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bounds: tuple[int, int]

    def read(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Read the rows of some numbers, in their order.

        Raises
        ------
        FileError
            If they cannot be read, or do not fit the network.
        """

    def digest(self) -> bytes:
        """Digest of all that rows are made from, which is read once from begin to end.

        Raises
        ------
        FileError
            As `read`.
        """


@dataclass(frozen=True)
class Rows:
    """Some rows of a source, as an array whose first axis can be indexed.

    An index gives other `Rows`, for which nothing is read; ``numpy.asarray`` reads them.

    Attributes
    ----------
    source : Source
    numbers : int64 array
        Numbers of the rows, in their order.
    """

    source: Source
    numbers: NDArray[np.int64]

    @classmethod
    def of(cls, source: Source) -> Rows:
        """All rows of a source."""
        return cls(source, np.arange(source.shape[0]))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, which: NDArray[np.integer] | slice) -> Rows:
        return Rows(self.source, self.numbers[which])

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        return self.source.read(self.numbers).astype(dtype or self.dtype, copy=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return (len(self), *self.source.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the array."""
        return self.source.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    def digest(self) -> bytes:
        """Digest of the source, and of which rows of it these are."""
        return hashlib.sha256(self.source.digest() + self.numbers.astype("<i8").tobytes()).digest()


def extremes(values: NDArray[Any] | Rows) -> NDArray[Any]:
    """Rows by whose numbers all can be judged: an array itself, two rows of what is not read."""
    if not isinstance(values, Rows):
        return values
    return np.stack(
        [np.full(values.shape[1:], each, values.dtype) for each in values.source.bounds]
    )


def joined(one: NDArray[Any] | Rows, other: NDArray[Any] | Rows) -> NDArray[Any] | Rows:
    """The rows of one array, and behind them those of another of the same kind."""
    if isinstance(one, Rows) and isinstance(other, Rows):
        return Rows.of(_Joined(one, other))
    return np.concatenate([np.asarray(one), np.asarray(other)])


class _Joined:
    """Source of the rows of two others, which are read from files of the same data set."""

    def __init__(self, one: Rows, other: Rows) -> None:
        self._one, self._other = one, other
        self.shape = (len(one) + len(other), *one.shape[1:])
        self.dtype, self.bounds = one.dtype, one.source.bounds

    def read(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        first = numbers < len(self._one)
        found = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        found[first] = np.asarray(self._one[numbers[first]])
        found[~first] = np.asarray(self._other[numbers[~first] - len(self._one)])
        return found

    def digest(self) -> bytes:
        return self._one.digest() + self._other.digest()
