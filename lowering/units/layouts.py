"""How the elements of a value or a parameter lie in memory.

A network's values are written down row by row: the last axis is the one whose elements are next to
each other. In memory they may lie otherwise, images with their channels last above all. A layout
says how. It speaks of the order of the elements alone and not of axes, so a reshape or a flatten,
which keeps that order, keeps the layout and moves nothing.
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

    The elements, in the network's order, are runs of ``channels x positions``; each run lies in
    memory as ``positions x channels``. With one channel or one position that moves nothing, and
    the layout is the plain one, `PLAIN`.

    Parameters
    ----------
    channels, positions : int
    """

    channels: int = 1
    positions: int = 1

    def __post_init__(self) -> None:
        if 1 in (self.channels, self.positions):
            object.__setattr__(self, "channels", 1)
            object.__setattr__(self, "positions", 1)

    @property
    def run(self) -> int:
        """Elements of a run: 1 if the layout is plain."""
        return self.channels * self.positions

    def within(self, width: int) -> Layout | None:
        """The layout of each `width` elements for themselves; None if they do not lie together."""
        return self if width % self.run == 0 else None

    def split(self, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Take an axis of `width` elements, whole runs, apart.

        Returns
        -------
        sizes, order : tuple of int
            Sizes of the axes that it becomes, and these axes in the order of the memory.
        """
        if self == PLAIN:
            return (width,), (0,)
        return (width // self.run, self.channels, self.positions), (0, 2, 1)

    def to_memory(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values in the order of the memory, in one axis."""
        return _transposed(values, self.channels, self.positions)

    def from_memory(self, values: NDArray[np.float32], shape: Sequence[int]) -> NDArray[np.float32]:
        """Inverse of `to_memory`; `shape` is the network's."""
        return _transposed(values, self.positions, self.channels).reshape(shape)


PLAIN = Layout()
"""Memory has the network's order."""


def _transposed(values: NDArray[np.float32], rows: int, columns: int) -> NDArray[np.float32]:
    moved = values.reshape(-1, rows, columns).transpose(0, 2, 1)
    return np.ascontiguousarray(moved).reshape(-1)


def channels_last(shape: Sequence[int]) -> Layout:
    """The layout of images: of ``N, C, spatial...`` the channels lie last."""
    return Layout(shape[1], prod(shape[2:])) if len(shape) > 2 else PLAIN


def with_channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """``N, C, spatial...`` as ``N, spatial..., C``."""
    return (shape[0], *shape[2:], shape[1])


@dataclass(frozen=True)
class Value:
    """A layer's result in memory.

    Attributes
    ----------
    tensor : Tensor
        Shaped as it lies, as far as a shape can say that.
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
        Of inputs of the network and results of units, as they are made.
    wanted : mapping of str to mapping of str to Layout
        By the name of a unit and of its input: how the unit takes it. Where that is another layout,
        the value is moved for it.
    parameters : mapping of str to Layout
        Of parameters whose last axis lies as features do.
    """

    values: Mapping[str, Layout]
    wanted: Mapping[str, Mapping[str, Layout]]
    parameters: Mapping[str, Layout]


def host_layout(shape: Sequence[int]) -> Layout:
    """How inputs and outputs of a network lie; see `lowering.memory.memory_map.channels_last`."""
    return channels_last(shape) if len(shape) == 4 else PLAIN
