"""Where a network's values cross from one stage of a pipeline to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.kernels.transfers import TransferKernel
from fpgapipe.lowering.units.network_units import units_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.layouts import Value
    from fpgapipe.lowering.units.unit import Unit
    from fpgapipe.network.graph import Graph

PARTS = 8
"""Parts of all that crosses in a task, at most, if it is no more values than that."""


@dataclass(frozen=True)
class BoundaryTensor:
    """A value that goes from a stage to the next.

    Attributes
    ----------
    value : str
        Of a layer.
    number : int
        Different for each value of the network.
    has_gradient : bool
        Whether its gradient comes back.
    """

    value: str
    number: int
    has_gradient: bool


@dataclass(frozen=True)
class Stage:
    """A part of a network, on one device.

    Attributes
    ----------
    index, num_stages : int
    units : tuple of Unit
    before, after : tuple of Crossing
        What comes from the stage before and what goes to the next, in the order in which the
        network makes them. A value that a later stage needs passes through all between.
    """

    index: int
    num_stages: int
    units: tuple[Unit, ...]
    before: tuple[BoundaryTensor, ...] = ()
    after: tuple[BoundaryTensor, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether it has the network's outputs."""
        return self.index == self.num_stages - 1


@dataclass(frozen=True)
class Part:
    """What the device of a stage knows of its neighbours.

    Attributes
    ----------
    stage : Stage
    values : mapping of str to Value
        Of what comes from the stage before: shape and format, under any name.
    gradient_bytes : mapping of str to int
        Of what goes to the next stage: bytes of an element of the gradient that comes back.
    before, after : int
        The device's links to the stage before and to the next.
    """

    stage: Stage
    values: Mapping[str, Value] = field(default_factory=dict)
    gradient_bytes: Mapping[str, int] = field(default_factory=dict)
    before: int = 0
    after: int = 0

    def sends(
        self, boundary: BoundaryTensor, tensor: Tensor, microbatch: int, *, backward: bool = False
    ) -> TransferKernel:
        """A value that goes to the next stage, or a gradient to the one before."""
        count = len(self.stage.before if backward else self.stage.after)
        link = self.before if backward else self.after
        return _transfer(Opcode.SEND, boundary, tensor, microbatch, link, count, backward)

    def receives(
        self, boundary: BoundaryTensor, tensor: Tensor, microbatch: int, *, backward: bool = False
    ) -> TransferKernel:
        """A value that comes from the stage before, or a gradient from the next."""
        count = len(self.stage.after if backward else self.stage.before)
        link = self.after if backward else self.before
        return _transfer(Opcode.RECEIVE, boundary, tensor, microbatch, link, count, backward)


def _transfer(
    opcode: Opcode,
    boundary: BoundaryTensor,
    tensor: Tensor,
    microbatch: int,
    link: int,
    count: int,
    backward: bool,
) -> TransferKernel:
    """One of `count` tensors of a task that take the same way."""
    channel = Channel.GRADIENTS if backward else Channel.ACTIVATIONS
    # The number of the micro-batch may begin anew: streams of one channel come in order.
    stream = boundary.number << 12 | microbatch & 0xFFF
    parts = max(1, PARTS // count)
    name = f"{boundary.value} {channel.name.lower()}"
    return TransferKernel(name, opcode, link, channel, tensor, stream, parts)


def stages_of(graph: Graph, layers: Sequence[Sequence[str]], *, train: bool) -> list[Stage]:
    """Cut a network into stages.

    Layers that run together (a convolution, its bias and its activation, say) stay together: a
    stage gets those whose first layer it has.

    Parameters
    ----------
    graph : Graph
    layers : sequence of sequence of str
        For each stage the names of its layers, in the order of the network.
    train : bool
        Whether gradients come back.

    Raises
    ------
    UserError
        If the stages are not all the network's layers in their order, or one has nothing to do.
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
        Stage(index, len(layers), tuple(own), bounds[index], bounds[index + 1])
        for index, own in enumerate(placed)
    ]


def _boundary_tensors(
    graph: Graph, placed: Sequence[Sequence[Unit]], home: dict[str, int], *, train: bool
) -> list[tuple[BoundaryTensor, int, int]]:
    """Values that cross, each with its stage and the last that needs it."""
    last: dict[str, int] = {}
    needed = _with_gradient(graph) if train else frozenset[str]()
    for index, own in enumerate(placed):
        for unit in own:
            for name in unit.inputs:
                if name in home:
                    last[name] = max(last.get(name, 0), index)
    numbers = {name: number for number, name in enumerate(graph.layers)}
    return [
        (BoundaryTensor(name, numbers[name], name in needed), first, last[name])
        for name, first in home.items()
        if last.get(name, first) > first
    ]


def _with_gradient(graph: Graph) -> frozenset[str]:
    """Layers whose result gets a gradient: the output depends on it, and parameters lie before."""
    depends = set(graph.outputs)
    found: set[str] = set()
    for layer in reversed(list(graph.layers.values())):
        if layer.name not in depends:
            continue
        depends |= set(layer.inputs)
        found |= {layer.inputs[position] for position in graph.input_gradients(layer.name)}
    return frozenset(found)


def gradient_bytes(
    graph: Graph, stages: Sequence[Stage], index: int, activation_bytes: int
) -> dict[str, int]:
    """Of what a stage sends on, bytes of an element of the gradient that comes back.

    Gradients are features, but for that of the loss, which is FP32 and which some units pass on as
    it is.
    """
    stage_of = {unit.name: stage.index for stage in stages for unit in stage.units}
    units = [unit for stage in stages for unit in stage.units]

    def of(name: str, behind: int) -> int:
        if name in graph.outputs:
            return 4
        readers = [unit for unit in units if name in unit.inputs and stage_of[unit.name] > behind]
        if len(readers) == 1 and readers[0].passes_gradient(name):
            return of(readers[0].name, -1)
        return activation_bytes

    after = stages[index].after
    return {each.value: of(each.value, index) for each in after if each.has_gradient}
