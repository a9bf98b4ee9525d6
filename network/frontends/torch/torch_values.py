"""Values in an exported program: weights as operators read them, random numbers, tensors."""

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
    """A weight that an operator reads as it is.

    Attributes
    ----------
    source : str
        Its name in the module, or that of the node that computes it from what is not learned.
    order : tuple of int
        Its axes as the operator has them; in rising order if they are the weight's own.
    value : torch.Tensor
        As the operator has it.
    """

    source: str
    order: tuple[int, ...]
    value: Any


@dataclass
class Noise:
    """Zeros and ones drawn for a tensor, which are stochastic depth once something is multiplied.

    Attributes
    ----------
    shape : tuple of int
    kept : float or None
        Probability of a one; None before they are drawn.
    scale : float
        What the ones are divided by.
    """

    shape: tuple[int, ...]
    kept: float | None = None
    scale: float = 1.0


def order_of(node: Any) -> tuple[int, ...] | None:
    """Order of the axes that a node gives its input; None if it does anything else."""
    target = str(node.target)
    if node.op != "call_function" or target not in _ORDERS:
        return None
    axes = list(range(len(node.meta["val"].shape)))
    if target == "aten.permute.default":
        return tuple(axis % len(axes) for axis in node.args[1])
    one, two = node.args[1:3] if target == "aten.transpose.int" else (-1, -2)
    if len(axes) > 1:
        axes[one], axes[two] = axes[two], axes[one]
    return tuple(axes)


_ORDERS = ("aten.permute.default", "aten.transpose.int", "aten.t.default", "aten.mT.default")


def rank(node: Any) -> int:
    """How many axes a node's result has."""
    return len(getattr(node.meta.get("val"), "shape", ()))


def tensor_of(value: Any) -> Tensor:
    """Shape and element type of a value of PyTorch's.

    Raises
    ------
    ShapeError
        If there is none of ours for it.
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
    """Values as numpy has them; BF16, which numpy lacks, as FP32 (exact)."""
    try:
        value = value.detach().cpu()
        value = value.float() if value.dtype is torch.bfloat16 else value
        array: NDArray[np.generic] = value.numpy()
    except (RuntimeError, TypeError) as error:  # on the meta device, sparse, quantised
        reason = " ".join(str(error).split())
        raise Unsupported(f"a weight of it has no values that can be read: {reason}") from None
    return array
