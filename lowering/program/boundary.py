"""Boundary tensors: values that go from one stage of a pipeline to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.numerics.element_format import FP32, ElementFormat
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.sums.transfers import TransferKernel
from fpgapipe.lowering.units.network_units import units_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fpgapipe.lowering.sums.tied_weights import Tie
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.layouts import Value
    from fpgapipe.lowering.units.unit import Unit
    from fpgapipe.network.graph import Graph

PARTS = 8
"""Most parts of all boundary tensors of a task together; each tensor has at least one part."""


@dataclass(frozen=True)
class BoundaryTensor:
    """A value that goes from one stage to the next.

    Attributes
    ----------
    value : str
        Name of the layer that computes the value.
    number : int
        Number that is different for each value of the network.
    has_gradient : bool
        Whether the value's gradient is sent back.
    """

    value: str
    number: int
    has_gradient: bool


@dataclass(frozen=True)
class StageUnits:
    """A part of a network that runs on one device.

    Attributes
    ----------
    index, num_stages : int
        Number of the stage, and number of stages.
    units : tuple of Unit
    before, after : tuple of BoundaryTensor
        Values that come from the stage before and that go to the next one, in the order in which
        they are sent. A value for a later stage passes through all stages between.
    """

    index: int
    num_stages: int
    units: tuple[Unit, ...]
    before: tuple[BoundaryTensor, ...] = ()
    after: tuple[BoundaryTensor, ...] = ()

    @property
    def layers(self) -> list[str]:
        """Names of its layers."""
        return [layer.name for unit in self.units for layer in unit.layers]

    @property
    def is_last(self) -> bool:
        """Whether this is the last stage, which computes the network's outputs."""
        return self.index == self.num_stages - 1


@dataclass(frozen=True)
class Part:
    """A stage, or a device's share of it, with what the device knows of its neighbours.

    If neighbours compute a stage together, each of them has all boundary tensors, whole: they pass
    on what comes.

    Attributes
    ----------
    stage : StageUnits
        Its units are those of the device's own network.
    values : mapping of str to Value
        Values that come from the stage before, for their shapes and formats; the names of their
        tensors do not matter.
    gradient_formats : mapping of str to ElementFormat
        Format of the gradient that comes back for each value sent to the next stage.
    returned_formats : mapping of str to ElementFormat
        Format that the stage before expects of each gradient.
    before, after : int
        Numbers of the device's links to the device before and to the next one.
    device, num_devices : int
        Number of the first device of the stage in the chain, and number of devices of the chain.
    lane, group_size : int
        Number of the device among those of the stage, and number of these.
    sharers : int
        Parts into which devices divide the samples of a mini-batch: devices of the stage that share
        those of a micro-batch, or replicas. Each has micro-batches of its own, that many for one of
        the schedule.
    names : mapping of str to str
        Names of values in the device's own network, where these are others.
    ties : tuple of Tie
        Weights that several stages have.
    """

    stage: StageUnits
    values: Mapping[str, Value] = field(default_factory=dict)
    gradient_formats: Mapping[str, ElementFormat] = field(default_factory=dict)
    returned_formats: Mapping[str, ElementFormat] = field(default_factory=dict)
    before: int = 0
    after: int = 0
    device: int = 0
    num_devices: int = 1
    lane: int = 0
    group_size: int = 1
    sharers: int = 1
    names: Mapping[str, str] = field(default_factory=dict)
    ties: tuple[Tie, ...] = ()

    @property
    def is_first_lane(self) -> bool:
        """Whether the device before belongs to another stage."""
        return self.lane == 0

    @property
    def is_last_lane(self) -> bool:
        """Whether the next device belongs to another stage."""
        return self.lane == self.group_size - 1

    def name(self, boundary: BoundaryTensor) -> str:
        """Name of a boundary tensor's value in the device's own network."""
        return self.names.get(boundary.value, boundary.value)

    @property
    def given(self) -> tuple[BoundaryTensor, ...]:
        """Values of the stage itself that the device sends to the next stage."""
        if not self.is_last_lane:
            return ()
        return tuple(each for each in self.stage.after if each not in self.stage.before)

    @property
    def returned(self) -> tuple[BoundaryTensor, ...]:
        """Values whose gradients the device sends to the stage before."""
        if not self.is_first_lane:
            return ()
        return tuple(each for each in self.stage.before if each.has_gradient)

    def value_comes(
        self, boundary: BoundaryTensor, tensor: Tensor, microbatch: int
    ) -> list[TransferKernel]:
        """Kernels that receive a value from the device before, and pass it on if it goes on."""
        count = len(self.stage.before)
        opcodes = [(Opcode.RECEIVE, self.before, count)]
        if not self.is_last_lane:
            opcodes.append((Opcode.SEND, self.after, count))
        elif boundary in self.stage.after:
            opcodes.append((Opcode.SEND, self.after, len(self.stage.after)))
        return [
            self._transfer(opcode, boundary, tensor, microbatch, link, of, backward=False)
            for opcode, link, of in opcodes
        ]

    def gradient_comes(
        self, boundary: BoundaryTensor, tensor: Tensor, microbatch: int
    ) -> list[TransferKernel]:
        """Kernels that receive a gradient from the next device, and pass it on in the stage."""
        opcodes = [(Opcode.RECEIVE, self.after)]
        if not self.is_first_lane:
            opcodes.append((Opcode.SEND, self.before))
        count = len(self.stage.after)
        return [
            self._transfer(opcode, boundary, tensor, microbatch, link, count, backward=True)
            for opcode, link in opcodes
        ]

    def sends(self, boundary: BoundaryTensor, tensor: Tensor, microbatch: int) -> TransferKernel:
        """Kernel that sends a value to the next stage."""
        count = len(self.stage.after)
        return self._transfer(
            Opcode.SEND, boundary, tensor, microbatch, self.after, count, backward=False
        )

    def returns(self, boundary: BoundaryTensor, tensor: Tensor, microbatch: int) -> TransferKernel:
        """Kernel that sends a value's gradient to the stage before.

        Raises
        ------
        NotImplementedError
            If the gradient has another format than the stage before expects.
        """
        expected = self.returned_formats.get(boundary.value, tensor.format)
        if tensor.format != expected:
            raise NotImplementedError(
                f"the gradient of {boundary.value!r} is {tensor.format.name} where it leaves a "
                f"stage of {self.group_size} devices, and {expected.name} in the stage before; cut "
                "the network elsewhere"
            )
        count = len(self.stage.before)
        return self._transfer(
            Opcode.SEND, boundary, tensor, microbatch, self.before, count, backward=True
        )

    def _transfer(
        self,
        opcode: Opcode,
        boundary: BoundaryTensor,
        tensor: Tensor,
        microbatch: int,
        link: int,
        count: int,
        *,
        backward: bool,
    ) -> TransferKernel:
        """Kernel for one of `count` tensors that a task transfers in the same direction."""
        channel = Channel.GRADIENTS if backward else Channel.ACTIVATIONS
        # The micro-batch number may wrap around, since the tags of one channel arrive in order.
        stream = boundary.number << 12 | microbatch // self.sharers & 0xFFF
        parts = max(1, PARTS // count)
        name = f"{boundary.value} {channel.name.lower()}"
        return TransferKernel(name, opcode, link, channel, tensor, stream, parts)


def stages_of(graph: Graph, layers: Sequence[Sequence[str]], *, train: bool) -> list[StageUnits]:
    """Divide a network into stages.

    Layers of one unit (for example a convolution, its bias and its activation) stay together, in
    the stage of the unit's first layer, or where the last of what the unit reads is computed.

    Parameters
    ----------
    graph : Graph
    layers : sequence of sequence of str
        Names of the layers of each stage, in the order of the network.
    train : bool
        Whether gradients are sent back.

    Raises
    ------
    UserError
        If the stages do not contain each layer exactly once, if data would flow back to an earlier
        stage, or if a stage has no unit.
    """
    names = [name for stage in layers for name in stage]
    if sorted(names) != sorted(graph.layers):
        known = set(graph.layers)
        strange = sorted(set(names) ^ known) or sorted({n for n in names if names.count(n) > 1})
        raise UserError(
            f"stages must have each layer of {graph.name} once; {strange[0]!r} they have not"
        )
    stage_of = {name: index for index, stage in enumerate(layers) for name in stage}
    units = units_of(graph)
    placed: list[list[Unit]] = [[] for _ in layers]
    home: dict[str, int] = {}
    for unit in units:
        index = stage_of[unit.layers[0].name]
        if len(unit.layers) > 1:
            index = max([index, *(home.get(name, 0) for name in unit.inputs)])
        for name in unit.inputs:
            if home.get(name, 0) > index:
                raise UserError(
                    f"layer {unit.layers[0].name!r} of stage {index} needs {name!r} of stage "
                    f"{home[name]}, and stages must lie in the order of the data"
                )
        placed[index].append(unit)
        home[unit.name] = index
    for index, own in enumerate(placed):
        if not own:
            raise UserError(
                f"stage {index} of {graph.name} has no layer that does not run together with one "
                "of the stage before; use fewer stages"
            )
    boundary_tensors = _boundary_tensors(graph, placed, home, train=train)
    bounds: list[tuple[BoundaryTensor, ...]] = [()]
    for index in range(1, len(layers)):
        bounds.append(
            tuple(each for each, first, last in boundary_tensors if first < index <= last)
        )
    bounds.append(())
    return [
        StageUnits(index, len(layers), tuple(own), bounds[index], bounds[index + 1])
        for index, own in enumerate(placed)
    ]


def _boundary_tensors(
    graph: Graph, placed: Sequence[Sequence[Unit]], home: dict[str, int], *, train: bool
) -> list[tuple[BoundaryTensor, int, int]]:
    """Each boundary tensor, with the stage that computes it and the last stage that reads it.

    They come in the order of these stages, and within a stage in that of the network: a stage
    passes on what comes to it before it sends what it computes, whichever the network has first.
    """
    last: dict[str, int] = {}
    needed = _with_gradient(graph) if train else frozenset[str]()
    for index, own in enumerate(placed):
        for unit in own:
            for name in unit.inputs:
                if name in home:
                    last[name] = max(last.get(name, 0), index)
    numbers = {name: number for number, name in enumerate(graph.layers)}
    found = [
        (BoundaryTensor(name, numbers[name], name in needed), first, last[name])
        for name, first in home.items()
        if last.get(name, first) > first
    ]
    return sorted(found, key=lambda each: each[1])


def _with_gradient(graph: Graph) -> frozenset[str]:
    """Values that get a gradient: the output depends on them, and they depend on parameters."""
    depends = set(graph.outputs)
    found: set[str] = set()
    for layer in reversed(list(graph.layers.values())):
        if layer.name not in depends:
            continue
        depends |= set(layer.inputs)
        found |= {layer.inputs[position] for position in graph.input_gradients(layer.name)}
    return frozenset(found)


def gradient_formats(
    graph: Graph, stages: Sequence[StageUnits], index: int, activations: ElementFormat
) -> dict[str, ElementFormat]:
    """Formats of the gradients that come back for what a stage sends on.

    Gradients have the format of activations, except that of the loss, which is FP32 and which some
    units pass on unchanged.
    """
    stage_of = {unit.name: stage.index for stage in stages for unit in stage.units}
    units = [unit for stage in stages for unit in stage.units]

    def of(name: str, behind: int) -> ElementFormat:
        readers = [unit for unit in units if name in unit.inputs and stage_of[unit.name] > behind]
        if name in graph.outputs and stage_of[name] > behind:
            return activations if readers else FP32
        if len(readers) == 1 and readers[0].passes_gradient(name):
            return of(readers[0].name, -1)
        return activations

    after = stages[index].after
    return {each.value: of(each.value, index) for each in after if each.has_gradient}
