"""Fixed linear maps of an axis: resizing, adaptive averages, repeated and selected elements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from fpgapipe.network.operators.base import Operator, require_float
from fpgapipe.network.operators.tensors import ShapeError, Tensor, normalise_axis

Taps = tuple[tuple[int, float], ...]
"""Elements of an axis that are added up, each with its index and its factor."""


@dataclass(frozen=True)
class AxisMap(Operator):
    """Each element along an axis becomes a sum of elements of the input times fixed factors.

    Its gradient is the transposed map. Maps of several axes are layers one behind the other.

    Parameters
    ----------
    axis : int
    taps : tuple of taps
        For each element of the result, the elements of the input, their indices increasing.
    """

    kind: ClassVar[str] = "axis_map"

    axis: int
    taps: tuple[Taps, ...]

    def __post_init__(self) -> None:
        if not self.taps:
            raise ShapeError("axis_map must give at least one element")
        for each in self.taps:
            places = [index for index, _ in each]
            if places != sorted(set(places)) or (places and places[0] < 0):
                raise ShapeError(f"axis_map indices must be at least 0 and increase: {places}")
            if not all(math.isfinite(factor) for _, factor in each):
                raise ShapeError("axis_map factors must be finite")

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape with as many elements on the axis as there are taps."""
        (x,) = inputs
        require_float(self.kind, x)
        axis = normalise_axis(self.axis, len(x.shape))
        if self.reach > x.shape[axis]:
            raise ShapeError(
                f"axis_map reads element {self.reach - 1} of an axis of {x.shape[axis]}"
            )
        shape = list(x.shape)
        shape[axis] = len(self.taps)
        return x.with_shape(shape)

    @cached_property
    def reach(self) -> int:
        """One more than the largest index that is read."""
        return max((each[-1][0] + 1 for each in self.taps if each), default=0)

    @property
    def products(self) -> int:
        """Number of factors of a row: multiply-adds for each row along the axis."""
        return sum(map(len, self.taps))


def selection(indices: Iterable[int]) -> tuple[Taps, ...]:
    """The map that selects elements."""
    return tuple(((int(index), 1.0),) for index in indices)


def windows(size: int, wanted: int) -> list[tuple[int, int]]:
    """The windows of adaptive pooling, as the first index and that after the last."""
    return [(i * size // wanted, -(-(i + 1) * size // wanted)) for i in range(wanted)]


def averages(size: int, wanted: int) -> tuple[Taps, ...]:
    """The map of adaptive average pooling."""
    return tuple(
        tuple((index, 1 / (end - begin)) for index in range(begin, end))
        for begin, end in windows(size, wanted)
    )


def extended(windows_of: Sequence[tuple[int, int]]) -> list[int]:
    """Indices of windows of one size: shorter windows repeat their last element."""
    longest = max(end - begin for begin, end in windows_of)
    return [min(begin + place, end - 1) for begin, end in windows_of for place in range(longest)]


def interpolation(positions: Sequence[float], size: int) -> tuple[Taps, ...]:
    """The map that interpolates linearly at positions; those outside have the end's value."""
    found: list[Taps] = []
    for position in positions:
        at = min(max(float(position), 0.0), size - 1.0)
        low = min(int(at), size - 1)
        share = at - low
        found.append(added([(low, 1 - share), (low + 1, share)]))
    return tuple(found)


def cubic(
    positions: Sequence[float], size: int, a: float, *, exclude: bool = False
) -> tuple[Taps, ...]:
    """The map that interpolates by cubic convolution; elements outside are those at the ends.

    With `exclude`, elements outside are left out, and the factors of the others add up to 1.

    Source: R. G. Keys, "Cubic Convolution Interpolation for Digital Image Processing", IEEE
    Transactions on Acoustics, Speech, and Signal Processing 29(6), 1981.
    """

    def factor(distance: float) -> float:
        d = abs(distance)
        if d <= 1:
            return ((a + 2) * d - (a + 3)) * d * d + 1
        return a * (((d - 5) * d + 8) * d - 4) if d < 2 else 0.0

    found = []
    for position in positions:
        low = math.floor(position)
        places = range(low - 1, low + 3)
        if exclude:
            places = range(max(low - 1, 0), min(low + 3, size))
        factors = [factor(position - index) for index in places]
        whole = sum(factors) if exclude else 1.0
        taps = [
            (min(max(index, 0), size - 1), each / whole)
            for index, each in zip(places, factors, strict=True)
        ]
        found.append(added(taps))
    return tuple(found)


def added(taps: Sequence[tuple[int, float]]) -> Taps:
    """Taps in order, those of one element added up, and those whose factor is 0 left out."""
    factors: dict[int, float] = {}
    for index, factor in taps:
        factors[index] = factors.get(index, 0.0) + factor
    return tuple((index, factors[index]) for index in sorted(factors) if factors[index])


PADDINGS = ("reflect", "replicate", "circular")
"""Kinds of padding that repeat elements of the input."""


def padded_indices(kind: str, size: int, before: int, after: int) -> list[int]:
    """Indices of an axis with elements of the input before and after it.

    Parameters
    ----------
    kind : str
        One of `PADDINGS`.
    size, before, after : int

    Raises
    ------
    ShapeError
        If the axis is too small for the padding.
    """
    most = {"reflect": size - 1, "circular": size, "replicate": max(before, after)}[kind]
    if max(before, after) > most:
        raise ShapeError(
            f"{kind} padding of an axis of {size} must be at most {most}, not {max(before, after)}"
        )
    places = range(-before, size + after)
    if kind == "replicate":
        return [min(max(place, 0), size - 1) for place in places]
    if kind == "circular":
        return [place % size for place in places]
    return [abs(place) if place < size else 2 * (size - 1) - place for place in places]
