"""Groups a network's layers into units, refuses what cannot run, and chooses layouts."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.vector_op import LANES
from fpgapipe.lowering.kernels.dropout import drop_factors
from fpgapipe.lowering.kernels.loss import check_classes
from fpgapipe.lowering.units import integer_units, product_units  # noqa: F401, register units
from fpgapipe.lowering.units.attention import matmul_unit  # noqa: F401, registers units
from fpgapipe.lowering.units.attention.softmax_unit import SoftmaxUnit
from fpgapipe.lowering.units.images import (  # noqa: F401, register units
    map_unit,
    pool_unit,
)
from fpgapipe.lowering.units.layers import (  # noqa: F401, register units
    broadcast_unit,
    constant_units,
    embedding_unit,
    function_units,
    layer_norm_unit,
    mask_units,
    part_units,
    recurrent_unit,
    reduce_unit,
    reduction_units,
    select_unit,
    step_units,
    transposed_unit,
)
from fpgapipe.lowering.units.layers.dropout_unit import DropoutUnit
from fpgapipe.lowering.units.layouts import Layout, Layouts, host_layout
from fpgapipe.lowering.units.registry import Surroundings, unit_of
from fpgapipe.lowering.units.tensor_names import TensorNames
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.lowering.units.weight_order import order_of_weight
from fpgapipe.network import operators as ops
from fpgapipe.network.logits import Logits
from fpgapipe.network.losses import Loss, target_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph, Layer, Parameter

MOST_INDEX_AXES = 3
"""Most axes of an input of indices; with four, it would lie in memory as images do."""

# ---------------------------------------------------------------------- what is refused


@dataclass(frozen=True)
class Refusal:
    """A layer that the core cannot run.

    Attributes
    ----------
    layer, op : str
        Name and operator of the layer; for an input of the network, its name and ``input``.
    reason : str
    """

    layer: str
    op: str
    reason: str

    def __str__(self) -> str:
        """The refusal as a sentence."""
        kind = "input" if self.op == "input" else "layer"
        return f"{kind} {self.layer!r}: {self.reason}"

    def to_dict(self) -> dict[str, str]:
        """The refusal as a dictionary for JSON."""
        return asdict(self)


class RefusedNetwork(UserError):
    """Raised for a network with layers that the core cannot run.

    Parameters
    ----------
    graph : Graph
    refusals : sequence of Refusal
        All layers that the core cannot run.
    """

    def __init__(self, graph: Graph, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        if len(refusals) == 1:
            super().__init__(f"{refusals[0]} (docs/limits.md)")
            return
        alike: dict[tuple[str, str], list[str]] = {}
        for each in refusals:
            alike.setdefault((each.op, each.reason), []).append(repr(each.layer))
        count = len({each.layer for each in refusals})
        head = f"the core does not run {count} layers of {graph.name} (docs/limits.md):"
        lines = [f"  {op} {', '.join(names)}: {reason}" for (op, reason), names in alike.items()]
        super().__init__("\n".join([head, *lines]))


def refusals_of(
    graph: Graph, *, train: bool, loss: Loss | None = None, outputs: Collection[str] | None = None
) -> list[Refusal]:
    """List the reasons why a core of any size, with any memory, cannot run a network.

    The units themselves are asked. What passes here can be refused later only for lack of room.

    Parameters
    ----------
    graph : Graph
    train : bool
        Whether the network is to be trained.
    loss : Loss, optional
        The loss; softmax with cross-entropy if not given.
    outputs : collection of str, optional
        Outputs whose losses must be computed; all if not given.
    """
    found = [*_of_inputs(graph), *_of_outputs(graph)]
    for each in grouped(graph):
        if isinstance(each, Refusal):
            found.append(each)
        else:
            found += _refused(each.layers[0], partial(each.check, train=train))
    found += [*_of_shared(graph), *_of_names(graph)]
    refused = {each.layer for each in found}
    for output in graph.outputs if train else ():
        if output not in refused and (outputs is None or output in outputs):
            found += _of_loss(graph, output, (loss or Loss()).of(output))
    return found


def _refused(layer: Layer, check: Callable[[], None]) -> list[Refusal]:
    """Run a check of a layer, and return its refusal if it fails."""
    try:
        check()
    except (NotImplementedError, ValueError) as error:
        return [Refusal(layer.name, layer.op, str(error))]
    return []


def check_network(
    graph: Graph, *, train: bool, loss: Loss | None = None, outputs: Collection[str] | None = None
) -> None:
    """Raise if the core cannot run a network; see `refusals_of`.

    Raises
    ------
    RefusedNetwork
        If there are layers that it cannot run; the error lists all of them.
    UserError
        If the network is to be trained, and a loss is that of no output.
    """
    found = refusals_of(graph, train=train, loss=loss, outputs=outputs)
    if found:
        raise RefusedNetwork(graph, found)
    if train and loss is not None:
        try:
            loss.of_each(graph)
        except ValueError as error:
            raise UserError(str(error)) from None


def _of_inputs(graph: Graph) -> Iterator[Refusal]:
    readers: dict[str, list[Layer]] = {}
    for layer in graph.layers.values():
        for name in layer.inputs:
            readers.setdefault(name, []).append(layer)
    for name, tensor in graph.inputs.items():
        if tensor.dtype.is_float or name not in readers:
            continue
        others = [each for each in readers[name] if not each.operator.reads_integers]
        is_index = any(isinstance(each.operator, ops.Embedding) for each in readers[name])
        if others:
            reason = (
                f"must have floating-point numbers for layer {others[0].name!r}, not {tensor.dtype}"
            )
            yield Refusal(name, "input", reason)
        elif is_index and len(tensor.shape) > MOST_INDEX_AXES:
            reason = f"must have at most {MOST_INDEX_AXES} axes of indices, not {len(tensor.shape)}"
            yield Refusal(name, "input", reason)


def _of_names(graph: Graph) -> Iterator[Refusal]:
    """Refuse inputs and outputs that the host could not find by their names."""
    names = TensorNames(graph)
    for name in (*graph.inputs, *graph.outputs):
        if names.is_taken(name):
            kind = graph.layers[name].op if name in graph.layers else "input"
            reason = "needs another name; this one is that of a parameter or of the step's tensors"
            yield Refusal(name, kind, reason)


def _read_as(parameter: Parameter) -> str:
    """How a layer reads a parameter."""
    order = f" (axes {list(parameter.order)})" if parameter.order else ""
    return f"{list(parameter.spec.shape)}{order}"


def _of_outputs(graph: Graph) -> Iterator[Refusal]:
    for name in graph.outputs:
        layer = graph.layers[name]
        if not layer.output.shape:
            reason = (
                "its result leaves the network and is one number for all samples; give each sample "
                "a result of its own, and let fpgapipe compute the loss"
            )
            yield Refusal(name, layer.op, reason)


def _of_shared(graph: Graph) -> Iterator[Refusal]:
    """Refuse layers that share a parameter but expect it in different shapes or orders."""
    first: dict[str, tuple[Layer, Parameter]] = {}
    for layer in graph.layers.values():
        for parameter in layer.parameters:
            owner, expected = first.setdefault(parameter.name, (layer, parameter))
            if parameter.spec.shape != expected.spec.shape or parameter.order != expected.order:
                yield Refusal(
                    layer.name,
                    layer.op,
                    f"parameter {parameter.name!r} must have one shape and order in all layers "
                    f"that share it, not {_read_as(parameter)} here and {_read_as(expected)} in "
                    f"{owner.name!r}",
                )
                continue
            own, other = (
                order_of_weight(each) if parameter.spec.role == "weight" else None
                for each in (layer, owner)
            )
            if own is not other:
                one, two = (each.value if each else "as it is" for each in (other, own))
                yield Refusal(
                    layer.name,
                    layer.op,
                    f"parameter {parameter.name!r} must lie in one order for all layers that share "
                    f"it, and {owner.name!r} reads it with its {one}, not with its {two}",
                )


def _of_loss(graph: Graph, output: str, loss: Loss) -> Iterator[Refusal]:
    logits = graph.layers[output]
    try:
        if not loss.has_classes:
            target_shape(graph, output)
            return
        found = Logits.of(graph, output)
        check_classes(found.classes, found.labels)
    except ValueError as error:
        yield Refusal(logits.name, logits.op, str(error))


# ---------------------------------------------------------------------- layers that go together


def units_of(graph: Graph) -> list[Unit]:
    """Group a network's layers into units.

    Raises
    ------
    RefusedNetwork
        If the core cannot run a layer, not even in inference.
    """
    check_network(graph, train=False)
    return [each for each in grouped(graph) if isinstance(each, Unit)]


def layers_together(graph: Graph) -> list[tuple[str, ...]]:
    """Names of the layers of each unit, in the order of the network.

    A layer that the core does not run is alone.
    """
    return [
        (each.layer,) if isinstance(each, Refusal) else tuple(layer.name for layer in each.layers)
        for each in grouped(graph)
    ]


def grouped(graph: Graph) -> Iterator[Unit | Refusal]:
    """Yield the units in the order of the network, and a refusal for each layer without a unit.

    A unit that reads what a later layer computes comes as soon as that is there.
    """
    around = Surroundings.of(graph)
    taken: set[str] = set()
    known = set(graph.inputs)
    waiting: list[Unit] = []
    for layer in graph.layers.values():
        if layer.name in taken:
            continue
        try:
            unit = unit_of(layer, around)
        except NotImplementedError as error:
            known.add(layer.name)
            yield Refusal(layer.name, layer.op, str(error))
            unit = None
        if unit is not None:
            taken |= {each.name for each in unit.layers}
            waiting.append(unit)
        while ready := next((each for each in waiting if known.issuperset(each.inputs)), None):
            waiting.remove(ready)
            known.add(ready.name)
            yield ready
    assert not waiting, "units must not wait for each other"


# ---------------------------------------------------------------------- layouts of values


def layouts_of(graph: Graph, units: Sequence[Unit]) -> Layouts:
    """Choose the layout of every value of a network.

    The inputs of the network have the layout in which the host writes them. A parameter that
    several layers share must have one layout: if the layers would choose different ones, it keeps
    the order of the network, and values are copied into that order where necessary.
    """
    rigid: set[str] = set()
    while True:
        values = {name: host_layout(tensor.shape) for name, tensor in graph.inputs.items()}
        wanted: dict[str, Mapping[str, Layout]] = {}
        parameters: dict[str, Layout] = {}
        torn: set[str] = set()
        for unit in units:
            wants = wanted[unit.name] = unit.wants(values, rigid)
            values[unit.name] = unit.gives(wants)
            for name, layout in unit.arranges(wants).items():
                if parameters.setdefault(name, layout) != layout:
                    torn.add(name)
        if not torn:
            return Layouts(values, wanted, parameters)
        rigid |= torn


def drop_factors_of(
    graph: Graph, key: Sequence[int], microbatch: int = 0
) -> dict[str, NDArray[np.float32]]:
    """Factors by which dropout multiplies a micro-batch in training, in the network's order.

    Axes that are dropped together have one factor.

    Parameters
    ----------
    graph : Graph
        The network, with the batch size of one micro-batch.
    key : sequence of int
        Contents of the two scalar registers that seed the random numbers.
    microbatch : int
        Number of the micro-batch.
    """
    units = units_of(graph)
    layouts = layouts_of(graph, units)
    found = {}
    for each in units:
        unit = each.dropout if isinstance(each, SoftmaxUnit) else each
        if isinstance(unit, DropoutUnit):
            shape = unit.drawn_shape
            elements = math.prod(shape)
            if unit.rate:
                first = microbatch * math.ceil(elements / LANES)
                drawn = drop_factors(elements, unit.rate, unit.stream, key, first=first)
            else:
                drawn = np.ones(elements, np.float32)
            if shape == unit.out_shape:
                found[unit.name] = layouts.values[unit.name].from_memory(drawn, shape)
            else:
                found[unit.name] = drawn.reshape(shape)
    return found
