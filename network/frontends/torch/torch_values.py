"""Values in an exported program: references to weights, random numbers, shapes and arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.operators.tensors import DType, ShapeError, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Reference:
    """A weight that an operator reads unchanged, except perhaps for the order of its axes.

    Attributes
    ----------
    source : str
        Name of the weight in the module, or of the node that computes it from values that are not
        learned.
    order : tuple of int
        For each axis in the operator, the axis of the weight; in rising order if it is not changed.
    value : torch.Tensor
        Values, with the axes in the operator's order.
    """

    source: str
    order: tuple[int, ...]
    value: Any


@dataclass
class Noise:
    """A tensor of random zeros and ones; a multiplication by it is dropout or stochastic depth.

    Attributes
    ----------
    shape : tuple of int
        Shape of the tensor.
    kept : float or None
        Probability of a one; None before the numbers are drawn.
    scale : float
        Number by which the ones are divided.
    """

    shape: tuple[int, ...]
    kept: float | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Pairs:
    """A tensor of complex numbers, as pairs of real numbers.

    Attributes
    ----------
    layer : str
        The layer that gives real and imaginary parts, in a last axis of two elements.
    """

    layer: str


def order_of(node: Any) -> tuple[int, ...] | None:
    """Order into which a node brings its input's axes; None if the node does anything else."""
    target = str(node.target)
    if node.op != "call_function" or target not in _ORDERS:
        return None
    axes = list(range(len(node.meta["val"].shape)))
    if target == "aten.permute.default":
        return tuple(axis % len(axes) for axis in node.args[1])
    if target == "aten.numpy_T.default":
        return tuple(reversed(axes))
    one, two = node.args[1:3] if target == "aten.transpose.int" else (-1, -2)
    if len(axes) > 1:
        axes[one], axes[two] = axes[two], axes[one]
    return tuple(axes)


_ORDERS = tuple(
    f"aten.{name}"
    for name in ("permute.default", "transpose.int", "t.default", "mT.default", "numpy_T.default")
)


def only_asks(node: Any) -> bool:
    """Whether a node reads only the shape and the element type of its single input."""
    if node.op != "call_function" or str(node.target) not in _FILLED:
        return False
    return bool(node.all_input_nodes == [node.args[0]])


_FILLED = {f"aten.{name}.default" for name in (
    "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"
)}  # fmt: skip


FILLS = ("aten.zero_.default", "aten.fill_.Scalar", "aten.fill_.Tensor", "aten.copy_.default")
"""Operators whose result does not depend on what they overwrite."""


def rank(node: Any) -> int:
    """Number of axes of a node's result; 0 if it is no tensor."""
    return len(getattr(node.meta.get("val"), "shape", ()))


def tensor_of(value: Any) -> Tensor:
    """Shape and element type of a PyTorch tensor.

    Raises
    ------
    ShapeError
        If its shape is dynamic or not allowed, or its element type is not supported.
    """
    sizes = tuple(value.shape)
    if not all(type(size) is int for size in sizes):
        raise ShapeError(f"shape {list(sizes)} is dynamic; export with fixed sizes")
    try:
        return Tensor(sizes, DType(str(value.dtype).removeprefix("torch.")))
    except ValueError as error:
        if isinstance(error, ShapeError):
            raise
        raise ShapeError(f"element type {value.dtype} is not supported") from None


def array(torch: Any, value: Any) -> NDArray[np.generic]:
    """A tensor's values as a numpy array; BF16, which numpy lacks, becomes FP32 (exactly)."""
    try:
        value = value.detach().cpu()
        value = value.float() if value.dtype is torch.bfloat16 else value
        array: NDArray[np.generic] = value.numpy()
    except (RuntimeError, TypeError) as error:  # it is on the meta device, sparse or quantised
        reason = " ".join(str(error).split())
        raise Unsupported(f"a weight of it has no values that can be read: {reason}") from None
    return array
