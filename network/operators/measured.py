"""The operator of a layer of which only measurements are known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fpgapipe.network.operators.base import Operator, ParameterSpec
from fpgapipe.network.operators.tensors import DType, ShapeError, Tensor

ASSUMED_DTYPE = DType.FLOAT32
"""Element type that is assumed to turn the bytes of a profile into numbers of elements."""


@dataclass(frozen=True)
class Measured(Operator):
    """A layer from a profile, with seconds and bytes instead of shapes.

    Numbers of output elements and parameters are the bytes divided by four, rounded up, as if all
    were FP32. The bytes themselves are kept exactly.

    Parameters
    ----------
    forward_s, backward_input_s, backward_weight_s : float
        Seconds of the forward pass and of both gradients, for the profile's batch. If a profile has
        only one backward time, `backward_input_s` has all of it, since a weight gradient that was
        not measured separately cannot be postponed.
    output_bytes, weight_bytes : int
        Size of the result and of the parameters.
    label : str
        Name of the operation in the profile.
    """

    kind: ClassVar[str] = "measured"
    arity: ClassVar[tuple[int, int | None]] = (0, None)

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    output_bytes: int
    weight_bytes: int
    label: str = ""

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_input_s", "backward_weight_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ShapeError(f"{name} must be at least 0 and finite, not {getattr(self, name)}")
        for name in ("output_bytes", "weight_bytes"):
            if getattr(self, name) < 0:
                raise ShapeError(f"{name} must be at least 0, not {getattr(self, name)}")

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        """A vector with as many FP32 elements as the bytes hold, at least one."""
        return Tensor((max(1, _elements(self.output_bytes)),), ASSUMED_DTYPE)

    def parameters(self, inputs: Sequence[Tensor]) -> tuple[ParameterSpec, ...]:
        """All parameters as one vector."""
        if self.weight_bytes == 0:
            return ()
        return (ParameterSpec("weight", (_elements(self.weight_bytes),)),)


def _elements(size_bytes: int) -> int:
    return -(-size_bytes * 8 // ASSUMED_DTYPE.bits)
