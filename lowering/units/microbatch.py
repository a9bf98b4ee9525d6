"""What a network's units see while they become kernels: one micro-batch on one device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from fpgapipe.hw.hls_models.isa.vector_op import LANES
from fpgapipe.lowering.kernels import activation, optimiser
from fpgapipe.lowering.kernels.cast import cast
from fpgapipe.lowering.kernels.layout import transpose
from fpgapipe.lowering.tiling.kernel import Kernel, Region, Tensor
from fpgapipe.lowering.units.layouts import PLAIN, Layout, host_layout, with_channels_last

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.memory.memory_map import Stored
    from fpgapipe.lowering.units.layouts import Layouts, Value
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.network.graph import Graph, Layer


@dataclass(frozen=True)
class LoweredKernel:
    """A kernel, and what it was made for.

    Attributes
    ----------
    kernel : Kernel
    is_weight : bool
        Whether it belongs to a weight gradient that can wait, and not to what the layers before
        wait for.
    layer : str
        Whose work it does, as `fpgapipe.lowering.program.device_program.KernelOrigin` says.
    """

    kernel: Kernel
    is_weight: bool = False
    layer: str = ""


class Named(Protocol):
    """What has a name, as a unit does."""

    @property
    def name(self) -> str:
        """Name of its result."""


class Builder(Protocol):
    """What a micro-batch asks of its step, `lowering.program.step.StepBuilder`."""

    graph: Graph
    memory: MemorySpec
    options: StepOptions
    layouts: Layouts
    tensors: dict[str, Tensor]
    stored: dict[str, Stored]
    random_key: int

    @property
    def product_core(self) -> CoreSpec:
        """The core with the part of the scratchpad that is the products'."""

    @property
    def product_region(self) -> Region:
        """That part."""

    @property
    def region(self) -> Region:
        """The part that is the vector engine's."""

    def parameter(self, layer: Layer, role: str) -> Tensor | None:
        """A layer's parameter, or None if it has none of that role."""

    def weight(self, layer: Layer) -> Tensor:
        """The weight of a product, with the input channels last."""

    def in_slot(self, name: str, slot: int) -> str:
        """Name of a slot's tensor."""

    def of_microbatch(self, name: str, index: int) -> str:
        """Name of a tensor that each micro-batch has one of."""

    def declare(self, tensor: Tensor) -> Tensor:
        """Take a tensor that needs a place in memory."""

    def gradient_places(self, parameter: Tensor) -> tuple[Tensor, Tensor | None]:
        """Where a parameter's gradient is summed, and where what is added to it has to go."""


class MicroBatch:
    """A micro-batch on a device: its tensors, and the kernels that its passes become.

    What a micro-batch keeps lies in a slot, which another takes over when it has done its backward
    pass; micro-batches of one slot have the same tensors.

    Parameters
    ----------
    builder : Builder
    index : int
        Number of the micro-batch.
    slot : int

    Attributes
    ----------
    values : dict of str to Value
        Results of layers, and inputs of the network.
    gradients : dict of str to str
        Tensor of the gradient of each value that has one.
    operands : dict of (str, str) to str
        Tensor of each value as each unit takes it: by the unit's name and the value's.
    lowered : list of Made
        Kernels of the pass that is being made.
    layer : str
        Whose kernels come next.
    """

    def __init__(self, builder: Builder, index: int, slot: int) -> None:
        self._builder = builder
        self.index = index
        self.slot = slot
        self.values: dict[str, Value] = {}
        self.gradients: dict[str, str] = {}
        self.lowered: list[LoweredKernel] = []
        self.layer = ""
        self.operands: dict[tuple[str, str], str] = {}
        self._given: dict[str, list[Tensor]] = {}
        self._moved: dict[tuple[str, Layout], Tensor] = {}
        self._num_moved = 0
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

    def weight(self, layer: Layer) -> Tensor:
        """The weight of a product, with the input channels last."""
        return self._builder.weight(layer)

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

    def activation(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Make a tensor of features or their gradients.

        What leaves the network is FP32, and each micro-batch has its own; where it does not lie as
        the host reads it, `deliver` makes another one of that name.
        """
        if name not in self.graph.outputs:
            return self.tensor(name, shape, self.options.activation_bytes)
        leaving = self.graph.layers[name].output.shape
        if self._builder.layouts.values[name] != host_layout(leaving):
            return self.tensor(f"{name}.result", shape, 4)
        return self._leaving(name)

    def _leaving(self, name: str) -> Tensor:
        """The tensor in which the host finds a result of the network."""
        shape = self.graph.layers[name].output.shape
        if len(shape) == 4:
            shape = with_channels_last(shape)
        return self.declare(Tensor(self._builder.of_microbatch(name, self.index), shape, 4))

    def deliver(self, name: str) -> None:
        """Let a result of the network lie where and how the host reads it."""
        if self.values[name].tensor.name == self._builder.of_microbatch(name, self.index):
            return
        result = self._leaving(name)
        lies = self.taken(name, host_layout(self.graph.layers[name].output.shape))
        self.add(cast(f"{name}.copy", replace(lies, shape=result.shape), result, self.region))

    # ------------------------------------------------------------------ values and their layouts

    def take(self, unit: Named, name: str) -> Tensor:
        """A value as a unit wants it to lie."""
        found = self.taken(name, self._builder.layouts.wanted[unit.name][name])
        self.operands[unit.name, name] = found.name
        return found

    def taken(self, name: str, layout: Layout) -> Tensor:
        """A value in a layout; it is moved if it has another one, once for all that want it so."""
        value = self.values[name]
        if value.layout == layout:
            return value.tensor
        found = self._moved.get((name, layout))
        if found is None:
            # Between two layouts neither of which is plain, it is moved twice.
            source = value.layout if PLAIN in (value.layout, layout) else PLAIN
            tensor = self.taken(name, source)
            found = self._move(f"{name}.moved", tensor, source, layout)
            self._moved[name, layout] = found
        return found

    def _move(self, name: str, x: Tensor, source: Layout, layout: Layout) -> Tensor:
        """A copy of a tensor in another layout; one of the two is plain."""
        assert PLAIN in (source, layout), "a value is moved to the plain layout, or from it"
        if source == layout:
            return x
        self._num_moved += 1
        y = self.tensor(f"{name}{self._num_moved}", x.shape, x.element_bytes)
        rows, columns = layout.channels, layout.positions
        if layout == PLAIN:
            rows, columns = source.positions, source.channels
        self.add(
            transpose(
                y.name,
                replace(x, shape=(x.elements // (rows * columns), rows, columns)),
                replace(y, shape=(x.elements // (rows * columns), columns, rows)),
                self.region,
            )
        )
        return y

    # ------------------------------------------------------------------ kernels

    def add(self, kernel: Kernel, *, is_weight: bool = False) -> None:
        """Take a kernel; kernels run in the order in which they come.

        Parameters
        ----------
        kernel : Kernel
        is_weight : bool
            As in `LoweredKernel`.
        """
        self.lowered.append(LoweredKernel(kernel, is_weight, self.layer))
        for total, part in [each for each in self._parts if each[1].name in kernel.writes]:
            self._parts.remove((total, part))
            summed = optimiser.accumulate(f"{total.name}.sum", total, part, self.region)
            self.lowered.append(LoweredKernel(summed, is_weight, self.layer))

    def gradient_of(self, parameter: Tensor) -> Tensor | None:
        """Where a kernel, the next to be added, shall write the gradient of a parameter.

        The first of a step writes it; what later ones write is added to it, in their order, which
        is that of the micro-batches. None if the parameter is not learned.
        """
        if not self._builder.stored[parameter.name].trainable:
            return None
        total, part = self._builder.gradient_places(parameter)
        if part is None:
            return total
        self._parts.append((total, part))
        return part

    # ------------------------------------------------------------------ gradients of features

    def give_gradient(self, unit: Named, name: str, gradient: Tensor) -> None:
        """Take a gradient of a value from a unit, as the unit took the value."""
        self.give(name, gradient, self._builder.layouts.wanted[unit.name][name])

    def give(self, name: str, gradient: Tensor, layout: Layout) -> None:
        """Take a gradient of a value; it is moved to the value's own layout."""
        if name not in self.graph.layers:
            return
        own = self.values[name].layout
        if layout != own:
            moved = f"{name}.gradient.moved"
            plain = self._move(moved, gradient, layout, PLAIN)
            gradient = self._move(moved, plain, PLAIN, own)
        self._given.setdefault(name, []).append(gradient)

    def gradient(self, name: str) -> Tensor | None:
        """The gradient of a value, summed over all that read it; None if nothing gave one."""
        given = self._given.pop(name, [])
        if not given:
            return None
        total = given[0]
        for number, other in enumerate(given[1:]):
            last = self.activation(f"{name}.gradient{number}", total.shape)
            self.add(activation.add(last.name, total, other, last, self.region))
            total = last
        self.gradients[name] = total.name
        return replace(total, shape=self.values[name].tensor.shape)
