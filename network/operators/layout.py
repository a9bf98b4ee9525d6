"""Operators that move, repeat or convert elements but compute nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fpgapipe.network.operators.base import Operator, require_positive, require_rank
from fpgapipe.network.operators.tensors import DType, ShapeError, Tensor, broadcast, normalise_axis


@dataclass(frozen=True)
class Reshape(Operator):
    """The same elements in the same order, in another shape."""

    kind: ClassVar[str] = "reshape"

    shape: tuple[int, ...]

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The attribute `shape`; an entry of -1 becomes the size that is left."""
        (x,) = inputs
        known = math.prod(size for size in self.shape if size != -1)
        if self.shape.count(-1) > 1 or any(size < 1 and size != -1 for size in self.shape):
            raise ShapeError(
                f"reshape to {list(self.shape)}: sizes are positive, at most one is -1"
            )
        shape = self.shape
        if -1 in shape and x.elements % known == 0:
            shape = tuple(x.elements // known if size == -1 else size for size in shape)
        if -1 in shape or math.prod(shape) != x.elements:
            raise ShapeError(
                f"reshape of {list(x.shape)} ({x.elements} elements) to {list(self.shape)} "
                "changes the number of elements"
            )
        return x.with_shape(shape)


@dataclass(frozen=True)
class Flatten(Operator):
    """The same elements, with the axes `start` to `stop` (inclusive) joined into one."""

    kind: ClassVar[str] = "flatten"

    start: int = 1
    stop: int = -1

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape with one axis for the joined ones."""
        (x,) = inputs
        require_rank("flatten", x, 1)
        if self.start == len(x.shape):  # nothing left to join: a last axis of one element
            return x.with_shape((*x.shape, 1))
        start = normalise_axis(self.start, len(x.shape))
        stop = normalise_axis(self.stop, len(x.shape))
        if stop < start:
            raise ShapeError(f"flatten must not end (axis {stop}) before it starts (axis {start})")
        joined = math.prod(x.shape[start : stop + 1])
        return x.with_shape((*x.shape[:start], joined, *x.shape[stop + 1 :]))


@dataclass(frozen=True)
class Transpose(Operator):
    """The axes in another order: axis `i` of the result is axis ``order[i]`` of the input."""

    kind: ClassVar[str] = "transpose"

    order: tuple[int, ...]

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape, permuted."""
        (x,) = inputs
        if sorted(self.order) != list(range(len(x.shape))):
            raise ShapeError(
                f"transpose order {list(self.order)} is no permutation of {len(x.shape)} axes"
            )
        return x.with_shape([x.shape[axis] for axis in self.order])


@dataclass(frozen=True)
class Concat(Operator):
    """Tensors concatenated along an axis."""

    kind: ClassVar[str] = "concat"
    arity: ClassVar[tuple[int, int | None]] = (1, None)

    axis: int = 1

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The sum of the sizes on that axis; all other axes must be equal."""
        first = inputs[0]
        axis = normalise_axis(self.axis, len(first.shape))
        for x in inputs[1:]:
            same_rank = len(x.shape) == len(first.shape)
            if not same_rank or any(
                a != b
                for i, (a, b) in enumerate(zip(x.shape, first.shape, strict=True))
                if i != axis
            ):
                raise ShapeError(
                    f"concat along axis {axis} of {list(first.shape)} and {list(x.shape)}: "
                    "the other axes differ"
                )
        shape = list(first.shape)
        shape[axis] = sum(x.shape[axis] for x in inputs)
        return first.with_shape(shape)


@dataclass(frozen=True)
class Slice(Operator):
    """The elements `start`, ``start + step``... below `stop` along one axis."""

    kind: ClassVar[str] = "slice"

    axis: int
    start: int
    stop: int
    step: int = 1

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape with fewer elements on the axis."""
        (x,) = inputs
        axis = normalise_axis(self.axis, len(x.shape))
        if self.step < 1 or not 0 <= self.start < self.stop <= x.shape[axis]:
            raise ShapeError(
                f"slice {self.start}:{self.stop}:{self.step} must lie in 0..{x.shape[axis]} with a "
                "positive step"
            )
        shape = list(x.shape)
        shape[axis] = -(-(self.stop - self.start) // self.step)
        return x.with_shape(shape)


@dataclass(frozen=True)
class Split(Slice):
    """One piece of a tensor that is split along an axis; each piece is a layer of its own."""

    kind: ClassVar[str] = "split"


@dataclass(frozen=True)
class Select(Operator):
    """Entries along the first axis at fixed places, which may repeat.

    Parameters
    ----------
    indices : tuple of int
        Place of each entry of the result.
    """

    kind: ClassVar[str] = "select"

    indices: tuple[int, ...]

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape, with an entry for each index."""
        (x,) = inputs
        require_rank("select", x, 1)
        if not self.indices or not 0 <= min(self.indices) <= max(self.indices) < x.shape[0]:
            low, high = min(self.indices, default=0), max(self.indices, default=0)
            raise ShapeError(
                f"select needs indices in 0..{x.shape[0] - 1}, not {len(self.indices)} in "
                f"{low}..{high}"
            )
        return x.with_shape((len(self.indices), *x.shape[1:]))


@dataclass(frozen=True)
class Pad(Operator):
    """The input with a constant added before and after it on each axis."""

    kind: ClassVar[str] = "pad"

    padding: tuple[tuple[int, int], ...]
    value: float = 0.0

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape, larger by the padding on each axis."""
        (x,) = inputs
        require_rank("pad", x, len(self.padding), len(self.padding))
        if any(side < 0 for pair in self.padding for side in pair):
            raise ShapeError(f"pad must not be negative: {self.padding}")
        return x.with_shape(
            [size + a + b for size, (a, b) in zip(x.shape, self.padding, strict=True)]
        )


@dataclass(frozen=True)
class Expand(Operator):
    """The input with its elements repeated along axes of size 1."""

    kind: ClassVar[str] = "expand"

    shape: tuple[int, ...]

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The broadcast of the input's shape and `shape`."""
        return inputs[0].with_shape(broadcast([inputs[0].shape, self.shape]))


@dataclass(frozen=True)
class Cast(Operator):
    """The same values in another element type."""

    kind: ClassVar[str] = "cast"

    dtype: DType

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape in the other type."""
        return Tensor(inputs[0].shape, self.dtype)

    def is_differentiable(self, index: int) -> bool:
        """Gradients flow only if the result has a floating-point type."""
        return self.dtype.is_float


@dataclass(frozen=True)
class Detach(Operator):
    """The same values, through which no gradient flows."""

    kind: ClassVar[str] = "detach"

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape."""
        return inputs[0]

    def is_differentiable(self, index: int) -> bool:
        """No gradient flows to the input."""
        return False


@dataclass(frozen=True)
class Unlisted(Operator):
    """A placeholder for steps that a table of layers omits (padding, pooling, flattening).

    Tables such as SCALE-Sim's give the input size of each layer. Where it differs from the output
    of the layer before, this operator connects the two. It computes nothing and occurs in no other
    networks.
    """

    kind: ClassVar[str] = "unlisted"

    shape: tuple[int, ...]

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The shape of the next layer's input."""
        return inputs[0].with_shape(self.shape)


@dataclass(frozen=True)
class Upsample(Operator):
    """Each element repeated along the spatial axes: the nearest one of a larger image.

    Parameters
    ----------
    factors : tuple of int
        How often an element comes along each spatial axis.
    """

    kind: ClassVar[str] = "upsample"

    factors: tuple[int, ...]

    def __post_init__(self) -> None:
        require_positive(self.kind, factors=self.factors)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """``N, C, spatial...`` with each spatial size times its factor."""
        (x,) = inputs
        require_rank(self.kind, x, len(self.factors) + 2, len(self.factors) + 2)
        sizes = (size * f for size, f in zip(x.shape[2:], self.factors, strict=True))
        return x.with_shape((*x.shape[:2], *sizes))
