"""Tensors as the graph describes them, by shape and element type, without values."""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

MAX_ELEMENTS = 2**53
"""Most elements of a tensor. More can only be a mistake; a JSON number holds this many exactly."""


class DType(enum.StrEnum):
    """Element types; the values are numpy's names (for bfloat16 that of ml_dtypes)."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def bits(self) -> int:
        """Bits that an element takes in memory."""
        return _BITS[self]

    @property
    def is_float(self) -> bool:
        """Whether gradients can flow through a tensor of this type."""
        return "float" in self.value


_BITS = {
    DType.FLOAT64: 64,
    DType.FLOAT32: 32,
    DType.FLOAT16: 16,
    DType.BFLOAT16: 16,
    DType.INT64: 64,
    DType.INT32: 32,
    DType.INT16: 16,
    DType.INT8: 8,
    DType.UINT8: 8,
    DType.BOOL: 8,
}


class ShapeError(ValueError):
    """Shapes, types or attributes do not fit together; the caller adds the layer's name."""


@dataclass(frozen=True)
class Tensor:
    """Shape and element type of a tensor.

    Parameters
    ----------
    shape : tuple of int
        Dimensions, each at least 1; ``()`` is a scalar.
    dtype : DType
        Element type.

    Raises
    ------
    ShapeError
        If a dimension is not a positive integer, or there are over ``MAX_ELEMENTS`` elements.
    """

    shape: tuple[int, ...]
    dtype: DType = DType.FLOAT32

    def __post_init__(self) -> None:
        for size in self.shape:
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ShapeError(
                    f"each dimension must be a positive integer, not {list(self.shape)}"
                )
        if self.elements > MAX_ELEMENTS:
            raise ShapeError(f"a tensor holds at most 2**53 elements, not {list(self.shape)}")

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size in bytes, densely packed."""
        return self.elements * self.dtype.bits // 8

    def with_shape(self, shape: Sequence[int]) -> "Tensor":
        """A tensor of the same element type in another shape."""
        return Tensor(tuple(shape), self.dtype)


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of an element-wise result, by numpy's rules for broadcasting.

    Raises
    ------
    ShapeError
        If two dimensions differ and neither is 1.
    """
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        distinct = {size for size in sizes if size != 1}
        if len(distinct) > 1:
            raise ShapeError(
                f"shapes {' and '.join(str(list(shape)) for shape in shapes)} do not broadcast"
            )
        result.append(distinct.pop() if distinct else 1)
    return tuple(result)


def normalise_axis(axis: int, rank: int) -> int:
    """Turn a possibly negative axis into ``0..rank - 1``.

    Raises
    ------
    ShapeError
        If the axis is outside ``-rank..rank - 1``.
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"axis must be in {-rank}..{rank - 1}, not {axis}")
    return axis % rank
