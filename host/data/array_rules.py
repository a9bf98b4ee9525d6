"""Rules for numbers in files: which are refused, and what samples or labels they become."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.network.mask_inputs import MaskInput


@dataclass(frozen=True)
class Rule(ABC):
    """Rule for the rows of an array in a file.

    Attributes
    ----------
    path : Path
        File, for errors.
    name : str
        Name of the array, for errors.
    shape : tuple of int
        Shape of a row of samples or labels.
    """

    path: Path
    name: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of samples or labels."""
        return np.dtype(np.int64)

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and largest whole number that pass; zeros for floating-point numbers."""
        return 0, 0

    def check(self, raw: NDArray[Any], numbers: NDArray[np.int64]) -> None:
        """Refuse rows of the file that do not fit the network.

        Parameters
        ----------
        raw : array
            Rows as they are in the file.
        numbers : int64 array
            Their numbers.

        Raises
        ------
        FileError
            If one does not fit.
        """
        wrong = self.wrong(raw)
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            text = self.must(raw[at], self.place(at, numbers))
            raise FileError(self.path, [f"array {self.name} must {text}"])

    @abstractmethod
    def wrong(self, raw: NDArray[Any]) -> NDArray[np.int64]:
        """Indices of numbers that do not fit, one a row."""

    @abstractmethod
    def must(self, value: Any, place: str) -> str:
        """What all numbers must be, and which one at which place is not."""

    def place(self, at: tuple[int, ...], numbers: NDArray[np.int64]) -> str:
        """Where in the file an index leads."""
        return f"sample {numbers[at[0]]}"

    def made(self, raw: NDArray[Any]) -> NDArray[Any]:
        """Make samples or labels of rows of the file."""
        return raw.reshape(len(raw), *self.shape).astype(self.dtype)


@dataclass(frozen=True)
class ImageRule(Rule):
    """Rule for numbers that the network computes with, finite ones in FP32."""

    is_channels_last: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Rule`."""
        return np.dtype(np.float32)

    def wrong(self, raw: NDArray[Any]) -> NDArray[np.int64]:
        """See `Rule`."""
        if raw.dtype.kind != "f":
            return np.empty((0, raw.ndim), np.int64)
        with np.errstate(over="ignore"):  # values too large for FP32 become infinite
            return np.argwhere(~np.isfinite(raw.astype(np.float32, copy=False)))

    def must(self, value: Any, place: str) -> str:
        """See `Rule`."""
        with np.errstate(over="ignore"):
            return f"have finite numbers, but {place} has {np.float32(value)} in it"

    def made(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        """See `Rule`."""
        images = np.moveaxis(raw, -1, 1) if self.is_channels_last else raw
        images = images.reshape(len(raw), *self.shape)
        numbers: NDArray[np.float32] = np.ascontiguousarray(images, np.float32)
        return numbers / np.float32(255) if raw.dtype == np.uint8 else numbers


@dataclass(frozen=True)
class MaskRule(Rule):
    """Rule for masks, and other numbers to compare."""

    mask: MaskInput

    @property
    def bounds(self) -> tuple[int, int]:
        """See `Rule`."""
        return self.mask.low, self.mask.high

    def wrong(self, raw: NDArray[Any]) -> NDArray[np.int64]:
        """See `Rule`."""
        return self.mask.wrong(raw)

    def must(self, value: Any, place: str) -> str:
        """See `Rule`."""
        return f"be {self.mask.text}, but {place} has {value} in it"


@dataclass(frozen=True)
class NumberRule(Rule):
    """Rule for tokens and classes, numbers below a limit; those below 0 may be ignored.

    Attributes
    ----------
    count : int
    what : str
        What the numbers are, for errors.
    ignores : bool
    """

    count: int
    what: str
    ignores: bool = False

    @property
    def bounds(self) -> tuple[int, int]:
        """See `Rule`."""
        return -self.ignores, self.count - 1

    def wrong(self, raw: NDArray[Any]) -> NDArray[np.int64]:
        """See `Rule`."""
        return np.argwhere((raw >= self.count) | ((raw < 0) & (not self.ignores)))

    def must(self, value: Any, place: str) -> str:
        """See `Rule`."""
        return f"be in 0..{self.count - 1}, {self.what}, but {place} has {value}"


@dataclass(frozen=True)
class WindowRule(NumberRule):
    """Rule for rows of tokens that are cut from a long one, beginning at a token of it."""

    first: int = 0

    def place(self, at: tuple[int, ...], numbers: NDArray[np.int64]) -> str:
        """See `Rule`."""
        return f"token {self.first + numbers[at[0]] * self.shape[0] + at[1]}"


@dataclass(frozen=True)
class TargetRule(Rule):
    """Rule for targets: finite in FP32, and probabilities where these are needed."""

    are_probabilities: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Rule`."""
        return np.dtype(np.float32)

    def wrong(self, raw: NDArray[Any]) -> NDArray[np.int64]:
        """See `Rule`."""
        targets = self.made(raw)
        wrong = ~np.isfinite(targets)
        if self.are_probabilities:
            wrong |= (targets < 0) | (targets > 1)
        return np.argwhere(wrong)

    def must(self, value: Any, place: str) -> str:
        """See `Rule`."""
        kind = "probabilities, in 0..1" if self.are_probabilities else "finite numbers"
        with np.errstate(over="ignore"):
            return f"have {kind}, but {place} has {np.float32(value)} in it"

    def made(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        """See `Rule`."""
        with np.errstate(over="ignore"):  # values too large for FP32 are refused
            return raw.reshape(len(raw), *self.shape).astype(np.float32)
