"""Operators of masks: comparisons with a number, and elements that a mask hides."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fpgapipe.network.operators.base import Operator, require_float
from fpgapipe.network.operators.tensors import DType, ShapeError, Tensor, broadcast

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
"""Comparisons of a number with another one: equal, not equal, less, less or equal, and so on."""


@dataclass(frozen=True)
class Compare(Operator):
    """One number where a comparison with a fixed number holds, and another one elsewhere.

    Parameters
    ----------
    function : str
        One of `COMPARISONS`.
    number : float
        What each element is compared with.
    then, otherwise : float
        Results where the comparison holds, and where it does not.
    """

    kind: ClassVar[str] = "compare"
    reads_exactly: ClassVar[bool] = True
    reads_integers: ClassVar[bool] = True

    function: str
    number: float
    then: float = 1.0
    otherwise: float = 0.0

    def __post_init__(self) -> None:
        if self.function not in COMPARISONS:
            raise ShapeError(
                f"comparison must be one of {', '.join(COMPARISONS)}, not {self.function!r}"
            )
        if any(math.isnan(each) for each in (self.number, self.then, self.otherwise)):
            raise ShapeError("a comparison must have numbers, not NaN")

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The input's shape, of floating-point numbers."""
        return Tensor(inputs[0].shape, DType.FLOAT32)

    def is_differentiable(self, index: int) -> bool:
        """No gradient flows through a comparison."""
        return False


@dataclass(frozen=True)
class MaskedFill(Operator):
    """A tensor with a fixed number in the place of the elements that a mask hides.

    Inputs are the tensor and the mask, which is repeated to the tensor's shape.

    Parameters
    ----------
    value : float
        Number in the place of what is hidden.
    keeps : bool
        Whether elements whose mask is not 0 are kept; else those are hidden.
    """

    kind: ClassVar[str] = "masked_fill"
    arity: ClassVar[tuple[int, int | None]] = (2, 2)

    value: float
    keeps: bool = True

    def __post_init__(self) -> None:
        if math.isnan(self.value):
            raise ShapeError("what is hidden must become a number, not NaN")

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """The tensor's shape."""
        x, mask = inputs
        require_float(self.kind, x)
        require_float(self.kind, mask)
        if broadcast([x.shape, mask.shape]) != x.shape:
            raise ShapeError(
                f"a mask of shape {list(mask.shape)} cannot be repeated to {list(x.shape)}"
            )
        return x

    def is_differentiable(self, index: int) -> bool:
        """Gradients flow to the tensor, but not to the mask."""
        return index == 0
