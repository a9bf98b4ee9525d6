"""How the elements of a value or a parameter lie in memory.

The network's own order is row-major: elements that are next to each other along the last axis are
next to each other in memory. A device may store values in another order; above all, it stores
images with their channels last. A layout describes this order. It concerns the order of the
elements only, not the axes. A reshape or a flatten keeps the order, so it keeps the layout and
moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.lowering.tiling.kernel import Tensor


@dataclass(frozen=True)
class Layout:
    """An order of elements in memory.

    The elements, in the network's order, are split into runs of ``channels x positions``; each run
    lies in memory as ``positions x channels``. With one channel or one position nothing moves, and
    the layout is the plain one, `PLAIN`.

    Parameters
    ----------
    channels, positions : int
    channels, positions : int
        Size of a run; both are set to 1 if either is 1.
    """

    channels: int = 1
    positions: int = 1

    def __post_init__(self) -> None:
        if 1 in (self.channels, self.positions):
            object.__setattr__(self, "channels", 1)
            object.__setattr__(self, "positions", 1)

    @property
    def run(self) -> int:
        """Number of elements of a run, 1 if the layout is plain."""
        return self.channels * self.positions

    def within(self, width: int) -> Layout | None:
        """The layout within groups of `width` elements, or None if a run crosses two groups."""
        return self if width % self.run == 0 else None

    def split(self, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split an axis of `width` elements, a whole number of runs, into several axes.

        Returns
        -------
        sizes, order : tuple of int
            Sizes of the new axes in the network's order, and these axes in the order of the memory.
        """
        if self == PLAIN:
            return (width,), (0,)
        return (width // self.run, self.channels, self.positions), (0, 2, 1)

    def to_memory(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the values in the order of the memory, as one axis."""
        return _transposed(values, self.channels, self.positions)

    def from_memory(self, values: NDArray[np.float32], shape: Sequence[int]) -> NDArray[np.float32]:
        """Inverse of `to_memory`; `shape` is the shape in the network."""
        return _transposed(values, self.positions, self.channels).reshape(shape)


PLAIN = Layout()
"""The layout whose order is that of the network."""


def _transposed(values: NDArray[np.float32], rows: int, columns: int) -> NDArray[np.float32]:
    moved = values.reshape(-1, rows, columns).transpose(0, 2, 1)
    return np.ascontiguousarray(moved).reshape(-1)


def channels_last(shape: Sequence[int]) -> Layout:
    """The layout of images of shape ``N, C, spatial...`` whose channels lie last in memory."""
    return Layout(shape[1], prod(shape[2:])) if len(shape) > 2 else PLAIN


def with_channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape ``N, C, spatial...`` as ``N, spatial..., C``."""
    return (shape[0], *shape[2:], shape[1])


@dataclass(frozen=True)
class Value:
    """A layer's result in memory.

    Attributes
    ----------
    tensor : Tensor
        The tensor, with its axes in the order of the memory as far as a shape can express that.
    layout : Layout
    """

    tensor: Tensor
    layout: Layout = PLAIN


@dataclass(frozen=True)
class Layouts:
    """How the values and parameters of a network lie in memory.

    Attributes
    ----------
    values : mapping of str to Layout
        Layout in which each input of the network and each result of a unit is written.
    wanted : mapping of str to mapping of str to Layout
        Layout in which a unit reads an input, by the unit's name and the input's name. Where it is
        not the layout of the value, the value is copied into it first.
    parameters : mapping of str to Layout
        Layout of the last axis of each parameter that follows the layout of a unit's input.
    """

    values: Mapping[str, Layout]
    wanted: Mapping[str, Mapping[str, Layout]]
    parameters: Mapping[str, Layout]


def host_layout(shape: Sequence[int]) -> Layout:
    """Layout of inputs and outputs on the host; see `lowering.memory.memory_map.channels_last`."""
    return channels_last(shape) if len(shape) == 4 else PLAIN
