"""What a network's units see while they become kernels: one micro-batch on one device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.kernels import activation, optimiser
from fpgapipe.hw.hls_models.kernels.kernel import Kernel, Region, Tensor
from fpgapipe.hw.hls_models.vector_op import LANES

if TYPE_CHECKING:
    from fpgapipe.host.step import StepBuilder
    from fpgapipe.host.step_program import StepOptions
    from fpgapipe.host.step_units import Value
    from fpgapipe.hw.hls_models.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.core_spec import CoreSpec
    from fpgapipe.partition.graph import Graph, Layer


@dataclass(frozen=True)
class Made:
    """A kernel, and what it was made for.

    Attributes
    ----------
    kernel : Kernel
    is_weight : bool
        Whether it belongs to a weight gradient that can wait, and not to what the layers before
        wait for.
    layer : str
        Whose work it does, as `fpgapipe.host.device_program.KernelOrigin` says.
    """

    kernel: Kernel
    is_weight: bool = False
    layer: str = ""


class MicroBatch:
    """A micro-batch on a device: its tensors, and the kernels that its passes become.

    What a micro-batch keeps lies in a slot, which another takes over when it has done its backward
    pass; micro-batches of one slot have the same tensors.

    Parameters
    ----------
    builder : StepBuilder
    index : int
        Number of the micro-batch.
    slot : int

    Attributes
    ----------
    values : dict of str to Value
        Results of layers, and inputs of the network.
    gradients : dict of str to str
        Tensor of the gradient of each value that has one.
    made : list of Made
        Kernels of the pass that is being made.
    layer : str
        Whose kernels come next.
    """

    def __init__(self, builder: StepBuilder, index: int, slot: int) -> None:
        self._builder = builder
        self.index = index
        self.slot = slot
        self.values: dict[str, Value] = {}
        self.gradients: dict[str, str] = {}
        self.made: list[Made] = []
        self.layer = ""
        self._given: dict[str, list[Tensor]] = {}
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._declared: set[str] = set()

    # ------------------------------------------------------------------ what is the builder's

    @property
    def graph(self) -> Graph:
        """The network, for the samples of one micro-batch."""
        return self._builder.graph

    @property
    def options(self) -> StepOptions:
        """Of the step."""
        return self._builder.options

    @property
    def product_core(self) -> CoreSpec:
        """The core with the part of the scratchpad that is the products'."""
        return self._builder.product_core

    @property
    def product_region(self) -> Region:
        """That part."""
        return self._builder.product_region

    @property
    def region(self) -> Region:
        """The part of the scratchpad that is the vector engine's."""
        return self._builder.region

    @property
    def memory(self) -> MemorySpec:
        """What times are estimated with."""
        return self._builder.memory

    @property
    def random_key(self) -> int:
        """Number of the first of the two registers that random numbers depend on."""
        return self._builder.random_key

    def random_vectors(self, elements: int) -> int:
        """Vectors of random numbers that the micro-batches before have drawn, in one layer."""
        return self.index * math.ceil(elements / LANES)

    def parameter(self, layer: Layer, role: str) -> Tensor | None:
        """A layer's parameter, or None if it has none of that role."""
        return self._builder.parameter(layer, role)

    def weight(self, layer: Layer, x: Value) -> Tensor:
        """The weight of a product, with the input channels last."""
        return self._builder.weight(layer, x)

    # ------------------------------------------------------------------ tensors

    def named(self, name: str) -> str:
        """A name in this slot."""
        return self._builder.in_slot(name, self.slot)

    def tensor(self, name: str, shape: tuple[int, ...], element_bytes: int) -> Tensor:
        """Make a tensor of this slot."""
        return self.declare(Tensor(self.named(name), shape, element_bytes))

    def declare(self, tensor: Tensor) -> Tensor:
        """Take a tensor, named for its slot already, that needs a place in memory."""
        assert tensor.name not in self._declared, f"tensor {tensor.name} is there already"
        self._declared.add(tensor.name)
        return self._builder.declare(tensor)

    def made_before(self, name: str) -> Tensor:
        """Return a tensor of this slot that a pass before has made."""
        return self._builder.tensors[self.named(name)]

    def feature(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Make a tensor of features or their gradients.

        What leaves the network is FP32, and each micro-batch has its own.
        """
        if name in self.graph.outputs:
            return self.declare(Tensor(self._builder.of_microbatch(name, self.index), shape, 4))
        return self.tensor(name, shape, self.options.feature_bytes)

    # ------------------------------------------------------------------ kernels

    def add(self, kernel: Kernel, *, is_weight: bool = False) -> None:
        """Take a kernel; kernels run in the order in which they come.

        Parameters
        ----------
        kernel : Kernel
        is_weight : bool
            As in `Made`.
        """
        self.made.append(Made(kernel, is_weight, self.layer))
        for total, part in [each for each in self._parts if each[1].name in kernel.writes]:
            self._parts.remove((total, part))
            summed = optimiser.accumulate(f"{total.name}.sum", total, part, self.region)
            self.made.append(Made(summed, is_weight, self.layer))

    def gradient_of(self, parameter: Tensor) -> Tensor:
        """Where a kernel, the next to be added, shall write the gradient of a parameter.

        The first of a step writes it; what later ones write is added to it, in their order, which
        is that of the micro-batches.
        """
        total, part = self._builder.gradient_places(parameter)
        if part is None:
            return total
        self._parts.append((total, part))
        return part

    # ------------------------------------------------------------------ gradients of features

    def give_gradient(self, name: str, gradient: Tensor) -> None:
        """Take a gradient of a value from one of those that read it."""
        if name in self.graph.layers:
            self._given.setdefault(name, []).append(gradient)

    def gradient(self, name: str) -> Tensor | None:
        """The gradient of a value, summed over all that read it; None if nothing gave one."""
        given = self._given.pop(name, [])
        if not given:
            return None
        total = given[0]
        for number, other in enumerate(given[1:]):
            last = self.feature(f"{name}.gradient{number}", total.shape)
            self.add(activation.add(last.name, total, other, last, self.region))
            total = last
        self.gradients[name] = total.name
        return total
