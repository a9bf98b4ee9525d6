"""The logits of a network: which axis has the classes, and what a label belongs to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.network.operators import Conv, ConvTranspose

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph

SHAPES = "samples x classes, samples x tokens x classes, or samples x classes x height x width"
"""The shapes of logits, as a text for errors."""


@dataclass(frozen=True)
class Logits:
    """Logits of samples, of their tokens, or of the pixels of images.

    Attributes
    ----------
    shape : tuple of int
        ``samples, classes``; ``samples, tokens, classes``; or ``samples, classes, height, width``.
    """

    shape: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, output: str | None = None) -> Logits:
        """The logits that an output of a network gives, the first if none is named.

        Raises
        ------
        ValueError
            If the output has another shape, or other samples than the inputs.
        """
        layer = graph.layers[output or graph.outputs[0]]
        shape = layer.output.shape
        if len(shape) == 3 and isinstance(layer.operator, Conv | ConvTranspose):
            raise ValueError(
                f"the loss takes the classes of tokens from the last axis, and a convolution has "
                f"them in the middle one of {list(shape)}: transpose its result"
            )
        if len(shape) not in (2, 3, 4) or shape[0] != graph.batch:
            raise ValueError(
                f"the loss needs logits of {SHAPES}, with {graph.batch} samples, not {list(shape)}"
            )
        return cls(shape)

    @property
    def axis(self) -> int:
        """Axis of the classes."""
        return 1 if len(self.shape) in (2, 4) else 2

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.shape[self.axis]

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of the labels, of which there is one for each row of logits."""
        return (*self.shape[: self.axis], *self.shape[self.axis + 1 :])

    @property
    def labels(self) -> int:
        """Number of labels."""
        return math.prod(self.label_shape)

    @property
    def labels_of_sample(self) -> tuple[int, ...]:
        """Shape of the labels of one sample; empty if a sample has one."""
        return self.label_shape[1:]

    def predicted(self, values: NDArray[np.float32]) -> NDArray[np.int64]:
        """The classes with the largest logits, for any number of samples."""
        found: NDArray[np.int64] = values.argmax(self.axis)
        return found

    def classes_second(self, values: Any) -> Any:
        """Move the classes to axis 1, where PyTorch's loss expects them."""
        return values.movedim(self.axis, 1)
