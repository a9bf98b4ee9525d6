"""One micro-batch on one device: the context in which units become kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from fpgapipe.hw.hls_models.isa.vector_op import LANES
from fpgapipe.hw.hls_models.numerics.element_format import FP32, ElementFormat
from fpgapipe.lowering.kernels import activation, optimiser
from fpgapipe.lowering.kernels.cast import cast
from fpgapipe.lowering.kernels.layout import transpose
from fpgapipe.lowering.tiling.kernel import Kernel, Region, Tensor
from fpgapipe.lowering.units.gradient_parts import GradientOfParts
from fpgapipe.lowering.units.layouts import PLAIN, Layout, host_layout, with_channels_last
from fpgapipe.lowering.units.step_options import (
    MOMENTUM,
    PARAMETERS,
    SECOND_MOMENT,
    SUFFIXES,
    UPDATE,
)
from fpgapipe.lowering.units.update import update_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.memory.memory_map import Stored
    from fpgapipe.lowering.units.gradient_parts import Stretch
    from fpgapipe.lowering.units.layouts import Layouts, Value
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.lowering.units.tensor_names import TensorNames
    from fpgapipe.network.graph import Graph, Layer


@dataclass(frozen=True)
class LoweredKernel:
    """A kernel and the layer that it belongs to.

    Attributes
    ----------
    kernel : Kernel
    is_weight : bool
        Whether it belongs to a weight gradient, which can wait. The layers before wait for the
        other kernels of a backward pass, not for this one.
    layer : str
        Name of the layer whose work it does; see `device_program.KernelOrigin`.
    begins_phase : bool
        Whether what has come over links, from this kernel on, is read only after all kernels
        before this one have been given to their engines; see `MicroBatch.begin_phase`.
    """

    kernel: Kernel
    is_weight: bool = False
    layer: str = ""
    begins_phase: bool = False


def phases_of(lowered: Sequence[LoweredKernel], steps: Sequence[int]) -> list[int]:
    """Number of the phase of each kernel, for `lowering.program.assemble`.

    Parameters
    ----------
    lowered : sequence of LoweredKernel
    steps : sequence of int
        Number of the step of each kernel, in non-decreasing order; each begins a phase.
    """
    found: list[int] = []
    number, last = -1, None
    for each, step in zip(lowered, steps, strict=True):
        number += step != last or each.begins_phase
        last = step
        found.append(number)
    return found


class Named(Protocol):
    """An object with a name, such as a unit."""

    @property
    def name(self) -> str:
        """Name of the unit's result."""


class Builder(Protocol):
    """The part of `lowering.program.step.StepBuilder` that a micro-batch uses."""

    graph: Graph
    memory: MemorySpec
    options: StepOptions
    layouts: Layouts
    names: TensorNames
    tensors: dict[str, Tensor]
    stored: dict[str, Stored]
    random_key: int
    undecayed: set[str]
    num_microbatches: int

    @property
    def product_core(self) -> CoreSpec:
        """The core, with only the part of the scratchpad that is reserved for products."""

    @property
    def product_region(self) -> Region:
        """The part of the scratchpad that is reserved for products."""

    @property
    def region(self) -> Region:
        """The part of the scratchpad that is reserved for the vector engine."""

    def parameter(self, layer: Layer, role: str) -> Tensor | None:
        """A layer's parameter, or None if the layer has none of that role."""

    def weight(self, layer: Layer) -> Tensor:
        """The weight of a product, with the input channels last."""

    def in_slot(self, name: str, slot: int) -> str:
        """Name of a tensor in a slot."""

    def of_microbatch(self, name: str, index: int) -> str:
        """Name of a tensor that exists once per micro-batch."""

    def declare(self, tensor: Tensor) -> Tensor:
        """Register a tensor that needs a place in memory."""

    def add_copy(
        self,
        layer: str,
        kernel: Kernel,
        copy: Tensor,
        constants: Mapping[Tensor, NDArray[np.float32]],
    ) -> None:
        """Let a kernel make a copy at the beginning of the present task, unless it is there."""

    def fix(self, tensor: Tensor, values: NDArray[np.float32]) -> None:
        """Register a tensor that never changes, with its contents."""

    def keeps_gradient(self, parameter: Tensor) -> bool:
        """Whether the whole gradient of a parameter must be there before the update."""

    def view(self, whole: Tensor, first: int, shape: tuple[int, ...]) -> Tensor:
        """Name the part of a tensor, or of a parameter's values, from an element on."""

    def gradient_buffer(self, parameter: Tensor, number: int, shape: tuple[int, ...]) -> Tensor:
        """Declare a buffer for a part of a gradient, which is then not kept."""

    def add_late(self, name: str, layer: str, batch: MicroBatch, add: Callable[[], None]) -> None:
        """Let `add` add the kernels of a layer to a micro-batch after all backward passes."""

    def for_all(self, name: str, part: Tensor) -> Tensor:
        """Declare the tensor that holds such a tensor of every micro-batch, one after the other."""

    def gradient_places(self, parameter: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tensor of a parameter's gradient sum, and of the next summand unless it is the first."""


class MicroBatch:
    """A micro-batch on a device: its tensors, and the kernels of its passes.

    The tensors that a micro-batch keeps from its forward to its backward pass lie in a slot.
    Another micro-batch takes the slot over when the backward pass is done, so micro-batches of one
    slot share their tensors.

    Parameters
    ----------
    builder : Builder
    index : int
        Number of the micro-batch.
    slot : int
        Number of the slot.
    position : int
        Number of the micro-batch among those of the device.

    Attributes
    ----------
    values : dict of str to Value
        Results of layers, and inputs of the network.
    gradients : dict of str to str
        Name of the tensor of each value's gradient, for the values that have one.
    operands : dict of (str, str) to str
        Name of the tensor that a unit reads for a value, by the unit's name and the value's name.
    lowered : list of LoweredKernel
        Kernels of the pass that is being lowered.
    layer : str
        Name of the layer that the next kernels belong to.
    declared : dict of str to None
        Names of the micro-batch's tensors, in the order in which they were declared.
    """

    def __init__(self, builder: Builder, index: int, slot: int, position: int) -> None:
        self._builder = builder
        self.index = index
        self.slot = slot
        self.position = position
        self.values: dict[str, Value] = {}
        self.gradients: dict[str, str] = {}
        self.lowered: list[LoweredKernel] = []
        self.layer = ""
        self.operands: dict[tuple[str, str], str] = {}
        self._given: dict[str, list[Tensor | GradientOfParts]] = {}
        self._moved: dict[tuple[str, Layout], Tensor] = {}
        self._num_moved = 0
        self._num_parts = 0
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._begins_phase = False
        self.declared: dict[str, None] = {}

    # ------------------------------------------------------------------ properties of the builder

    @property
    def graph(self) -> Graph:
        """The network, with the batch size of one micro-batch."""
        return self._builder.graph

    @property
    def options(self) -> StepOptions:
        """Options of the step."""
        return self._builder.options

    @property
    def product_core(self) -> CoreSpec:
        """The core, with only the part of the scratchpad that is reserved for products."""
        return self._builder.product_core

    @property
    def product_region(self) -> Region:
        """The part of the scratchpad that is reserved for products."""
        return self._builder.product_region

    @property
    def region(self) -> Region:
        """The part of the scratchpad that is reserved for the vector engine."""
        return self._builder.region

    @property
    def memory(self) -> MemorySpec:
        """Speed of the memory, with which run times are estimated."""
        return self._builder.memory

    @property
    def random_key(self) -> int:
        """Number of the first of the two scalar registers that seed the random numbers."""
        return self._builder.random_key

    def random_vectors(self, elements: int) -> int:
        """Number of random vectors that earlier micro-batches draw for a layer of this size."""
        return self.index * math.ceil(elements / LANES)

    def parameter(self, layer: Layer, role: str) -> Tensor | None:
        """A layer's parameter, or None if the layer has none of that role."""
        return self._builder.parameter(layer, role)

    def weight(self, layer: Layer) -> Tensor:
        """The weight of a product, with the input channels last."""
        return self._builder.weight(layer)

    # ------------------------------------------------------------------ tensors

    def owned(self, name: str) -> str:
        """Name of a tensor of the present layer, which all micro-batches share."""
        return self._builder.names.inner(self.layer, name)

    def named(self, name: str) -> str:
        """Name of a tensor of the present layer in the slot of this micro-batch.

        The layer's own name is that of its result.
        """
        own = self._builder.names.value(name) if name == self.layer else self.owned(name)
        return self._builder.in_slot(own, self.slot)

    def tensor(self, name: str, shape: tuple[int, ...], element: ElementFormat) -> Tensor:
        """Declare a new tensor of the present layer; see `named`."""
        return self.declare(Tensor(self.named(name), shape, element))

    def declare(self, tensor: Tensor) -> Tensor:
        """Register a tensor, whose name contains the slot, that needs a place in memory."""
        assert tensor.name not in self.declared, f"tensor {tensor.name} is there already"
        self.declared[tensor.name] = None
        return self._builder.declare(tensor)

    def fix(self, tensor: Tensor, values: NDArray[np.float32]) -> None:
        """Register a tensor that never changes, with its contents; all layers share it."""
        self._builder.fix(tensor, values)

    def of_host(self, name: str, count: int) -> Tensor:
        """Declare FP32 numbers of the micro-batch that the host writes or reads."""
        own = self._builder.of_microbatch(name, self.index)
        return self._builder.declare(Tensor(own, (count,), FP32))

    def from_earlier_pass(self, name: str) -> Tensor:
        """Return a tensor of this slot that an earlier pass has declared."""
        return self._builder.tensors[self.named(name)]

    def activation(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Declare a tensor of activations or of their gradients; see `named`.

        An output of the network is FP32. Where the host reads it, each micro-batch has its own
        tensor for it; if its layout is not the one that the host reads, `deliver` copies it into
        another tensor of that name.
        """
        if name != self.layer or name not in self.graph.outputs:
            return self.tensor(name, shape, self.options.activations)
        if not self.options.keeps_results:
            return self.tensor(name, shape, FP32)
        leaving = self.graph.layers[name].output.shape
        if self._builder.layouts.values[name] != host_layout(leaving):
            return self.tensor(f"{name}.result", shape, FP32)
        return self._leaving(name)

    def _leaving(self, name: str) -> Tensor:
        """Declare the tensor in which the host finds an output of the network."""
        shape = self.graph.layers[name].output.shape
        if len(shape) == 4:
            shape = with_channels_last(shape)
        return self.declare(Tensor(self._builder.of_microbatch(name, self.index), shape, FP32))

    def deliver(self, name: str) -> None:
        """Copy an output of the network into the tensor that the host reads, if necessary."""
        if not self.options.keeps_results:
            return
        if self.values[name].tensor.name == self._builder.of_microbatch(name, self.index):
            return
        result = self._leaving(name)
        lies = self.taken(name, host_layout(self.graph.layers[name].output.shape))
        self.add(cast(f"{name}.copy", replace(lies, shape=result.shape), result, self.region))

    # ------------------------------------------------------------------ values and their layouts

    def take(self, unit: Named, name: str) -> Tensor:
        """Return a value in the layout in which a unit reads it."""
        found = self.taken(name, self._builder.layouts.wanted[unit.name][name])
        self.operands[unit.name, name] = found.name
        return found

    def wanted(self, unit: Named) -> Mapping[str, Layout]:
        """Layouts in which a unit reads its inputs."""
        return self._builder.layouts.wanted[unit.name]

    def taken(self, name: str, layout: Layout) -> Tensor:
        """Return a value in a layout; it is copied only once into each other layout."""
        value = self.values[name]
        if value.layout == layout:
            return value.tensor
        found = self._moved.get((name, layout))
        if found is None:
            # A copy between two layouts that are not plain takes two moves, by way of the plain
            # layout.
            source = value.layout if PLAIN in (value.layout, layout) else PLAIN
            tensor = self.taken(name, source)
            found = self._move(f"{name}.moved", tensor, source, layout)
            self._moved[name, layout] = found
        return found

    def _move(self, name: str, x: Tensor, source: Layout, layout: Layout) -> Tensor:
        """Copy a tensor into another layout; one of the two layouts must be plain."""
        assert PLAIN in (source, layout), "a value is moved to the plain layout, or from it"
        if source == layout:
            return x
        self._num_moved += 1
        y = self.tensor(f"{name}{self._num_moved}", x.shape, x.format)
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
        """Add a kernel; kernels run in the order in which they are added.

        Parameters
        ----------
        kernel : Kernel
        is_weight : bool
            As in `LoweredKernel`.
        """
        self.lowered.append(LoweredKernel(kernel, is_weight, self.layer, self._begins_phase))
        self._begins_phase = False
        for total, part in [each for each in self._parts if each[1].name in kernel.writes]:
            # Several kernels of a layer may write a summand: it is added behind the last one.
            summed = optimiser.accumulate(f"{total.name}.sum", total, part, self.region)
            last = LoweredKernel(summed, is_weight, self.layer)
            self.lowered = [each for each in self.lowered if each != last] + [last]

    def begin_phase(self) -> None:
        """Let a new phase begin with the next kernel.

        Engines do their work in the order of the program, so work that waits for another device
        holds up what comes after it. What a kernel reads of a link is therefore read only after all
        kernels of earlier phases have been given to their engines; what another device waits for is
        among them.
        """
        self._begins_phase = True

    @property
    def num_microbatches(self) -> int:
        """Number of micro-batches that the device computes in a step."""
        return self._builder.num_microbatches

    def for_all(self, name: str, part: Tensor) -> Tensor:
        """Declare the tensor that holds such a tensor of every micro-batch, one after the other."""
        return self._builder.for_all(name, part)

    def keeps_gradient(self, parameter: Tensor) -> bool:
        """Whether the whole gradient of a parameter must be there before the update."""
        return self._builder.keeps_gradient(parameter)

    def view(self, whole: Tensor, first: int, shape: tuple[int, ...]) -> Tensor:
        """Name the part of a tensor, or of a parameter's values, from an element on.

        Parameters
        ----------
        whole : Tensor
        first : int
            First element, at the beginning of a word.
        shape : tuple of int
            Shape of the part.
        """
        return self._builder.view(whole, first, shape)

    def gradient_buffer(self, parameter: Tensor, number: int, shape: tuple[int, ...]) -> Tensor:
        """Declare a buffer for a part of a parameter's gradient, which is then not kept.

        Parameters
        ----------
        parameter : Tensor
        number : int
            Number of the buffer; what is in it is overwritten by the next part.
        shape : tuple of int
            Shape of the buffer.
        """
        return self._builder.gradient_buffer(parameter, number, shape)

    def add_copy(
        self, kernel: Kernel, copy: Tensor, constants: Mapping[Tensor, NDArray[np.float32]]
    ) -> None:
        """Let a kernel make a copy of a weight at the beginning of the present task.

        A copy that an earlier micro-batch has let make is there already.

        Parameters
        ----------
        kernel : Kernel
        copy : Tensor
            The tensor that the kernel writes.
        constants : mapping of Tensor to array
            Tensors that the kernel reads besides the weight, and their contents.
        """
        self._builder.add_copy(self.layer, kernel, copy, constants)

    def add_late(self, name: str, add: Callable[[], None]) -> None:
        """Let `add` add kernels after the backward passes of all micro-batches, once for a layer.

        `add` is called for the last micro-batch.
        """
        self._builder.add_late(name, self.layer, self, add)

    def update(self, weight: Tensor, first: int, gradient: Tensor) -> None:
        """Add the kernel that updates a part of a weight, from an element on."""
        count = (gradient.elements,)
        flat = replace(gradient, shape=count)
        weights, momentum, second = (
            self.view(Tensor(f"{weight.name}{SUFFIXES[arena]}", weight.shape), first, count)
            for arena in (PARAMETERS, MOMENTUM, SECOND_MOMENT)
        )
        kernel = update_kernel(
            self.options, (weights, flat, momentum, second), self.region,
            decays=weight.name not in self._builder.undecayed,
        )  # fmt: skip
        self.lowered.append(LoweredKernel(kernel, is_weight=True, layer=UPDATE))

    def gradient_of(self, parameter: Tensor) -> Tensor | None:
        """Return the tensor to which the next added kernel must write the gradient of a parameter.

        The first kernel of a step that computes this gradient writes it directly. The results of
        later kernels are added to it in order, which is the order of the micro-batches. The result
        is None if the parameter is not trainable.
        """
        if not self._builder.stored[parameter.name].trainable:
            return None
        total, part = self._builder.gradient_places(parameter)
        if part is None:
            return total
        if (total, part) not in self._parts:
            self._parts.append((total, part))
        return part

    # ------------------------------------------------------------------ gradients of activations

    def give_gradient(self, unit: Named, name: str, gradient: Tensor) -> None:
        """Accept the gradient of a unit's input, in the layout in which the unit read the input."""
        self.give(name, gradient, self._builder.layouts.wanted[unit.name][name])

    def give(self, name: str, gradient: Tensor, layout: Layout) -> None:
        """Accept a gradient of a value and copy it into the value's own layout if necessary."""
        if name in self.graph.layers:
            lies = self._in_own_layout(name, gradient, layout)
            self._given.setdefault(name, []).append(lies)

    def _in_own_layout(self, name: str, gradient: Tensor, layout: Layout) -> Tensor:
        own = self.values[name].layout
        if layout == own:
            return gradient
        moved = f"{name}.gradient.moved"
        plain = self._move(moved, gradient, layout, PLAIN)
        return self._move(moved, plain, PLAIN, own)

    def part_of_gradient(self, unit: Named, name: str, part: Stretch) -> Tensor:
        """Return a tensor for the gradient of a unit's input, of which the unit writes a part.

        The tensor lies as the unit has read the input. Other units write other parts of it.
        """
        layout = self._builder.layouts.wanted[unit.name][name]
        given = self._given.setdefault(name, [])
        for each in given:
            if isinstance(each, GradientOfParts) and each.takes(part, layout):
                each.parts.append(part)
                return each.tensor
        self._num_parts += 1
        shape = self.taken(name, layout).shape
        tensor = self.activation(f"{name}.gradient of parts{self._num_parts}", shape)
        given.append(GradientOfParts(tensor, layout, [part]))
        return tensor

    def _completed(self, name: str, given: Tensor | GradientOfParts) -> Tensor:
        """A gradient, with zeros in the parts that no unit has written."""
        if not isinstance(given, GradientOfParts):
            return given
        for kernel in given.zeros(self.region):
            self.add(kernel)
        return self._in_own_layout(name, given.tensor, given.layout)

    def gradient(self, name: str) -> Tensor | None:
        """Return a value's gradient, summed over its readers, or None if no reader gave one."""
        given = self._given.pop(name, [])
        if not given:
            return None
        if name in self.graph.outputs and len(given) > 1:
            # The loss's gradient, which is there first, comes last, so that those of all readers
            # are added up in one order wherever the network is cut.
            given = [*given[1:], given[0]]
        total = self._completed(name, given[0])
        for number, part in enumerate(given[1:]):
            other = self._completed(name, part)
            last = self.activation(f"{name}.gradient{number}", total.shape)
            self.add(activation.add(last.name, total, other, last, self.region))
            total = last
        self.gradients[name] = total.name
        return replace(total, shape=self.values[name].tensor.shape)
