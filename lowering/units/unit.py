"""Units: layers of a network that run together, and the kernels of their passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fpgapipe.hw.hls_models.spec.core_spec import NoRoom

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

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
        The layers in the order of the network; only the last one's result is kept.
    """

    layers: tuple[Layer, ...]

    engine: ClassVar[Literal["array", "vector", "none"]] = "vector"
    """Engine of most of the unit's work; ``none`` if nothing is computed or moved."""

    @property
    def name(self) -> str:
        """Name of the unit's result, which is that of its last layer."""
        return self.layers[-1].name

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values that the unit reads and that none of its own layers computes."""
        own = {layer.name for layer in self.layers}
        return tuple(name for layer in self.layers for name in layer.inputs if name not in own)

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of the unit's first input in the network."""
        return self.layers[0].input_tensors[0].shape

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the unit's result in the network."""
        return self.layers[-1].output.shape

    def check(self, *, train: bool) -> None:
        """Raise if no core, whatever its size, runs this unit.

        Raises
        ------
        NotImplementedError, ValueError
            If the core cannot run it; the message is the reason.
        """
        del train  # Most units run in training and in inference.

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """Layouts in which the unit reads its inputs; by default, those in which they are written.

        Parameters
        ----------
        given : mapping of str to Layout
            Layouts of the values so far, the unit's inputs among them.
        rigid : collection of str
            Names of the parameters that must keep the network's order.
        """
        return {name: given[name] for name in self.inputs}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """Layout of the result, given the layouts of the inputs; by default, that of the first."""
        return wanted[self.inputs[0]]

    def arranges(self, wanted: Mapping[str, Layout]) -> dict[str, Layout]:
        """Layouts of the parameters whose last axis must have the order of the unit's input."""
        return {}

    @abstractmethod
    def forward(self, step: MicroBatch) -> Tensor:
        """Add the kernels of the forward pass, and return the result."""

    @abstractmethod
    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """Add the kernels of the backward pass, and give the inputs their gradients."""

    def passes_gradient(self, name: str) -> bool:
        """Whether an input's gradient is the same tensor as the result's gradient."""
        return False


@contextmanager
def naming(unit: Unit) -> Iterator[None]:
    """Name the layer in the errors of its kernels and products."""
    try:
        yield
    except (NotImplementedError, ValueError) as error:
        text = str(error)
        named = text if text.startswith("layer ") else f"layer {unit.layers[0].name!r}: {text}"
        kind = NoRoom if isinstance(error, NoRoom) else NotImplementedError
        raise kind(named) from error
