"""A unit: layers of a network that run together, and what their passes do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.layouts import Layout
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


@dataclass(frozen=True)
class Unit(ABC):
    """Layers that run together.

    Attributes
    ----------
    layers : tuple of Layer
        In the order of the network; only the last one's result is kept.
    """

    layers: tuple[Layer, ...]

    @property
    def name(self) -> str:
        """Name of its result."""
        return self.layers[-1].name

    @property
    def inputs(self) -> tuple[str, ...]:
        """Values that it takes: those of its layers that none of them makes."""
        own = {layer.name for layer in self.layers}
        return tuple(name for layer in self.layers for name in layer.inputs if name not in own)

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of its first input, as the network has it."""
        return self.layers[0].input_tensors[0].shape

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of its result, as the network has it."""
        return self.layers[-1].output.shape

    def check(self, *, train: bool) -> None:
        """Refuse what the core does not run, whatever its size.

        Raises
        ------
        NotImplementedError, ValueError
            With the reason.
        """
        del train  # Most units run in both.

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """Layouts in which it takes its inputs: as they come, if it says nothing else.

        Parameters
        ----------
        given : mapping of str to Layout
            Those in which its inputs, and other values, lie.
        rigid : collection of str
            Parameters that have to lie as the network has them.
        """
        return {name: given[name] for name in self.inputs}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """Layout of its result, if its inputs come as it wants them: that of the first."""
        return wanted[self.inputs[0]]

    def arranges(self, wanted: Mapping[str, Layout]) -> dict[str, Layout]:
        """Parameters whose last axis lies as the features of its input do, with their layout."""
        return {}

    @abstractmethod
    def forward(self, step: MicroBatch) -> Tensor:
        """Add the kernels of the forward pass; returns the result."""

    @abstractmethod
    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """Add the kernels of the backward pass; gives its inputs their gradients."""

    def passes_gradient(self, name: str) -> bool:
        """Whether an input's gradient is the result's, the same tensor."""
        return False
