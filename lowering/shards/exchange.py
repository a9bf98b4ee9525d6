"""Operators of a device's own network by which it exchanges values with other devices.

Each device computes a network of its own, with its parts of layers. Where a layer needs of a value
what other devices have, the device's network has one of these operators. They change where a value
is, not what it is, so the network as a whole computes the same function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from fpgapipe.lowering.sums.all_reduce import Member
from fpgapipe.network.operators import BatchNorm
from fpgapipe.network.operators.base import Operator, ParameterSpec
from fpgapipe.network.operators.tensors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.lowering.shards.degrees import Range
    from fpgapipe.network.operators.tensors import Tensor


@dataclass(frozen=True)
class Exchange(Operator):
    """An operator that exchanges a value.

    Attributes
    ----------
    member : Member
        The device's place among the devices.
    number : int
        Number of the operator in the network, the same on all devices.
    """

    member: Member = field(default_factory=lambda: Member(0, 1))
    number: int = 0


@dataclass(frozen=True)
class Gather(Exchange):
    """The whole of a value of which each device has a part.

    Attributes
    ----------
    axis : int
        Axis along which the value is cut: 0 for samples, 1 for channels, 2 for rows.
    sizes : tuple of int
        Size of each device's part along it.
    sums : bool
        Whether each device has only a summand of the whole value's gradient. Otherwise all devices
        have the same gradient, and take their part of it.
    """

    kind: ClassVar[str] = "gather"

    axis: int = 0
    sizes: tuple[int, ...] = ()
    sums: bool = False

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape, with all parts along the axis."""
        return _resized(inputs, self.axis, self.sizes[self.member.index], sum(self.sizes))


@dataclass(frozen=True)
class Take(Exchange):
    """The device's part of a value that all devices have.

    The gradients of the parts are gathered, so all devices have the whole value's gradient.

    Attributes
    ----------
    axis, sizes
        As in `Gather`.
    """

    kind: ClassVar[str] = "take"

    axis: int = 0
    sizes: tuple[int, ...] = ()

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape, with one part along the axis."""
        return _resized(inputs, self.axis, sum(self.sizes), self.sizes[self.member.index])


@dataclass(frozen=True)
class SumGradients(Exchange):
    """A value that all devices have, of whose gradient each device has a summand.

    Forward nothing moves; backward the summands are added up.
    """

    kind: ClassVar[str] = "sum-gradients"

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input."""
        (x,) = inputs
        return x


@dataclass(frozen=True)
class Scatter(Exchange):
    """The device's channels of a sum of which each device has a summand, plus a bias.

    The summands are products over some of the input channels. Backward, all devices get the whole
    gradient.

    Attributes
    ----------
    sizes : tuple of int
        Channels of each device's part.
    bias : bool
        Whether a bias is added.
    """

    kind: ClassVar[str] = "scatter"

    sizes: tuple[int, ...] = ()
    bias: bool = False

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape, with the device's channels."""
        return _resized(inputs, 1, sum(self.sizes), self.sizes[self.member.index])

    def parameters(self, inputs: Sequence[Tensor]) -> tuple[ParameterSpec, ...]:
        """The device's part of the bias."""
        own = (self.sizes[self.member.index],)
        return (ParameterSpec("bias", own),) if self.bias else ()


@dataclass(frozen=True)
class Halo(Exchange):
    """The rows of an image that a device needs, of which its neighbours have some.

    Backward, the gradients of their rows go to the neighbours, who add them to their own.

    Attributes
    ----------
    has, needs : tuple of (int, int)
        For each device, its rows and those that it needs: the first and the one after the last.
    """

    kind: ClassVar[str] = "halo"

    has: tuple[Range, ...] = ()
    needs: tuple[Range, ...] = ()

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape, with the rows that the device needs."""
        (begin, end), (first, last) = (each[self.member.index] for each in (self.has, self.needs))
        return _resized(inputs, 2, end - begin, last - first)


@dataclass(frozen=True)
class SharedBatchNorm(BatchNorm):
    """A batch normalisation of images of which each device has some rows.

    The devices add up their sums over positions, so the statistics are those of whole images, and
    all have the same gradients of scale and bias.

    Attributes
    ----------
    member : Member
        The device's place among the devices.
    number : int
        Number of the first of its exchanges, of which there are `SUMS`.
    rows : (int, int)
        Rows that the device has, and rows of an image.
    """

    kind: ClassVar[str] = "shared_batch_norm"
    SUMS: ClassVar[int] = 3

    member: Member = field(default_factory=lambda: Member(0, 1))
    number: int = 0
    rows: tuple[int, int] = (1, 1)


def _resized(inputs: Sequence[Tensor], axis: int, old: int, new: int) -> Tensor:
    (x,) = inputs
    if axis >= len(x.shape) or x.shape[axis] != old:
        raise ShapeError(f"the exchanged value must have {old} along axis {axis}, not {x.shape}")
    return x.with_shape((*x.shape[:axis], new, *x.shape[axis + 1 :]))
