"""The base class of operators, and their parameters, matrix products and passes."""

import abc
import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fpgapipe.network.operators.tensors import DType, ShapeError, Tensor


@dataclass(frozen=True)
class ParameterSpec:
    """A tensor that belongs to a layer: learned, or (``trainable=False``) fixed or a statistic.

    Parameters
    ----------
    role : str
        Role of the tensor in the layer: ``weight``, ``bias``, ``running_mean``...
    shape : tuple of int
        Shape of the tensor.
    trainable : bool
        Whether the tensor has a gradient and counts as a parameter.
    dtype : DType
        Element type.
    """

    role: str
    shape: tuple[int, ...]
    trainable: bool = True
    dtype: DType = DType.FLOAT32

    @property
    def elements(self) -> int:
        """Number of elements."""
        return Tensor(self.shape, self.dtype).elements


@dataclass(frozen=True)
class Gemm:
    """Matrix products of an ``m x k`` by a ``k x n`` matrix, all of the same size.

    Parameters
    ----------
    m, k, n : int
        Rows of the result, reduction length, columns of the result.
    count : int
        Number of independent products of this size (groups of a convolution, heads, directions).
    steps : int
        Number of times that these products are repeated, each time with the result of the time
        before (positions of a recurrent layer).
    weights : bool
        Whether the right-hand matrix is a parameter; if not, both matrices are activations.
    """

    m: int
    k: int
    n: int
    count: int = 1
    steps: int = 1
    weights: bool = True

    @property
    def macs(self) -> int:
        """Multiply-accumulates, products with padding zeros included."""
        return self.m * self.k * self.n * self.count * self.steps

    def input_gradients(self) -> "tuple[Gemm, ...]":
        """The products that give the gradients of the activations that this product reads.

        With ``Y = X W``: ``dX = dY W^T``. If the right-hand matrix is an activation too,
        ``dW = X^T dY`` is an input gradient as well.
        """
        left = dataclasses.replace(self, k=self.n, n=self.k)
        return (left,) if self.weights else (left, self._transposed())

    def weight_gradients(self) -> "tuple[Gemm, ...]":
        """The products that give the gradient of the weights: ``dW = X^T dY``.

        For a recurrent layer, this is one product that reduces over the steps as well, since it can
        wait until the gradients of all steps are known.
        """
        return (self._transposed(),) if self.weights else ()

    def _transposed(self) -> "Gemm":
        return dataclasses.replace(self, m=self.k, k=self.m * self.steps, steps=1)


class Pass(enum.StrEnum):
    """The three passes of a layer in training."""

    FORWARD = "F"
    INPUT_GRADIENT = "dX"
    WEIGHT_GRADIENT = "dW"


class Operator(abc.ABC):
    """A layer's operation: a frozen dataclass of attributes.

    A subclass defines its `kind` and the shape of its output, and also its parameters and matrix
    products if it has any. In shapes, the batch comes first and the channels second
    (``N, C, spatial...``); sequences have ``N, positions, features``.
    """

    kind: ClassVar[str]
    """The operator's name in tables, JSON and messages."""

    arity: ClassVar[tuple[int, int | None]] = (1, 1)
    """Fewest and most inputs; None as the second number means that there is no limit."""

    reads_exactly: ClassVar[bool] = False
    """Whether inputs must not be rounded to less than FP32 before the operator reads them."""

    reads_integers: ClassVar[bool] = False
    """Whether an input of the network that the operator reads may hold integers."""

    averages: ClassVar[tuple[str, ...]] = ()
    """Roles of the parameters that training changes without a gradient, such as running means."""

    @abc.abstractmethod
    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """Shape and type of the result; raises `ShapeError` if the inputs do not fit."""

    def parameters(self, inputs: Sequence[Tensor]) -> tuple[ParameterSpec, ...]:
        """Tensors that the layer owns."""
        return ()

    def gemms(self, inputs: Sequence[Tensor], output: Tensor) -> tuple[Gemm, ...]:
        """Matrix products of the forward pass."""
        return ()

    def is_differentiable(self, index: int) -> bool:
        """Whether a gradient flows to input `index`; none flows to indices, labels or masks."""
        return True

    def attributes(self) -> dict[str, Any]:
        """The operator's settings, for tables and JSON."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def check_arity(self, count: int) -> None:
        """Raise `ShapeError` if the operator does not take `count` inputs."""
        fewest, most = self.arity
        if count < fewest or (most is not None and count > most):
            if fewest == most:
                wanted = str(fewest)
            else:
                wanted = f"{fewest} or more" if most is None else f"{fewest}..{most}"
            raise ShapeError(f"{self.kind} takes {wanted} inputs, not {count}")


def require_positive(kind: str, **values: int | Sequence[int]) -> None:
    """Raise `ShapeError` for an attribute that is no positive integer or sequence of them."""
    for name, value in values.items():
        items = [value] if isinstance(value, int) else list(value)
        if not items or any(not isinstance(v, int) or isinstance(v, bool) or v < 1 for v in items):
            raise ShapeError(f"{kind} {name} must be at least 1, not {value}")


def require_rank(kind: str, tensor: Tensor, fewest: int, most: int | None = None) -> None:
    """Raise `ShapeError` if a tensor has too few or too many dimensions."""
    rank = len(tensor.shape)
    if rank < fewest or (most is not None and rank > most):
        wanted = f"{fewest}" if fewest == most else f"{fewest}..{'' if most is None else most}"
        raise ShapeError(f"{kind} needs an input of {wanted} dimensions, not {list(tensor.shape)}")


def require_float(kind: str, tensor: Tensor) -> None:
    """Raise `ShapeError` for an input that is not of a floating-point type."""
    if not tensor.dtype.is_float:
        raise ShapeError(f"{kind} needs a floating-point input, not {tensor.dtype}")
