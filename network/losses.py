"""The losses that networks are trained with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph

LossKind = Literal["cross-entropy", "mse", "bce"]

LOSS_KINDS: tuple[LossKind, ...] = get_args(LossKind)

IGNORED = -100
"""Label that is ignored, as in PyTorch; so is every other label below 0."""


@dataclass(frozen=True)
class Loss:
    """A loss, as the mean over all labels, or all elements, of a mini-batch.

    Attributes
    ----------
    kind : str
        ``cross-entropy``, of softmax and class numbers; ``mse``, the mean squared error; or
        ``bce``, binary cross-entropy from logits.
    smoothing : float
        For cross-entropy, the share of each label that all classes have in equal parts.
    ignores : bool
        For cross-entropy, whether labels below 0 are ignored. The mean is over the others then.

    Raises
    ------
    ValueError
        If there is no such loss, or it has a setting of another one.
    """

    kind: LossKind = "cross-entropy"
    smoothing: float = 0.0
    ignores: bool = False

    def __post_init__(self) -> None:
        if self.kind not in LOSS_KINDS:
            raise ValueError(f"loss must be {', '.join(LOSS_KINDS)}, not {self.kind!r}")
        if not 0 <= self.smoothing < 1:
            raise ValueError(
                f"label smoothing must be at least 0 and below 1, not {self.smoothing}"
            )
        if not self.has_classes and (self.smoothing or self.ignores):
            raise ValueError(f"loss {self.kind} has targets, no labels to smooth or to ignore")

    @property
    def has_classes(self) -> bool:
        """Whether the host gives the number of a class for each label, not a target."""
        return self.kind == "cross-entropy"


CROSS_ENTROPY = Loss()
"""Softmax with cross-entropy, in which every label counts."""


def target_shape(graph: Graph) -> tuple[int, ...]:
    """Shape of the targets of a network with one output, which is that of the output.

    Raises
    ------
    ValueError
        If the output does not have the samples first.
    """
    shape = graph.layers[graph.outputs[0]].output.shape
    if len(shape) < 2 or shape[0] != graph.batch:
        raise ValueError(
            f"the loss needs an output of {graph.batch} samples by their values, not {list(shape)}"
        )
    return shape


def count_of(labels: NDArray[Any]) -> int:
    """Labels that are not ignored; all elements of targets."""
    return int((labels >= 0).sum()) if np.issubdtype(labels.dtype, np.integer) else labels.size
