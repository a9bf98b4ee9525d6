"""The state of the translation of an ONNX graph, and the register of translations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from fpgapipe.network.frontends.builder import FrontendBuilder, Unsupported
from fpgapipe.network.frontends.masks import Masks, hides
from fpgapipe.network.frontends.onnx.onnx_constants import Constants
from fpgapipe.network.frontends.onnx.onnx_readings import Readings, Value
from fpgapipe.network.frontends.source import Place
from fpgapipe.network.graph import Graph, NetworkError
from fpgapipe.network.operators import Constant, Operator
from fpgapipe.network.operators.tensors import DType, ShapeError, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MAX_AXES = 1024
"""Longest list of axes, sizes or pieces that is accepted."""

DTYPES = {
    "FLOAT": DType.FLOAT32,
    "DOUBLE": DType.FLOAT64,
    "FLOAT16": DType.FLOAT16,
    "BFLOAT16": DType.BFLOAT16,
    "INT64": DType.INT64,
    "INT32": DType.INT32,
    "INT16": DType.INT16,
    "INT8": DType.INT8,
    "UINT8": DType.UINT8,
    "BOOL": DType.BOOL,
}
"""Our element type for each of ONNX's."""

Handler = Callable[["Translation", Any], None]
HANDLERS: dict[str, Handler] = {}
"""The function that translates each ONNX operator."""


DOMAINS: dict[str, tuple[str, ...]] = {}
"""Domains of the operators that are not ONNX's own."""


def handles(*op_types: str, domains: tuple[str, ...] = ()) -> Callable[[Handler], Handler]:
    """Register a function as the translation of the given operators.

    Parameters
    ----------
    *op_types : str
        Their names.
    domains : tuple of str
        Domains of operators that are not ONNX's own.

    Raises
    ------
    ValueError
        If one has a translation already.
    """

    def register(function: Handler) -> Handler:
        for op_type in op_types:
            if op_type in HANDLERS:
                raise ValueError(f"operator {op_type!r} has a translation already")
            HANDLERS[op_type] = function
            if domains:
                DOMAINS[op_type] = domains
        return function

    return register


Attempt = Callable[["Translation", Any], bool]
ATTEMPTS: dict[str, list[Attempt]] = {}
"""Functions that translate an operator of integers or of masks, and return whether they did."""


def attempts(*op_types: str) -> Callable[[Attempt], Attempt]:
    """Register a function that is asked before the translation of the given operators."""

    def register(function: Attempt) -> Attempt:
        for op_type in op_types:
            ATTEMPTS.setdefault(op_type, []).append(function)
        return function

    return register


class Pending(Protocol):
    """A tensor whose layers depend on what reads it."""

    def layer(self, t: Translation, name: str) -> str:
        """Add the layers that give the tensor itself; the last one is returned."""

    def tensor(self, t: Translation) -> Tensor:
        """Shape of the tensor."""


class Translation:
    """A graph that is being built, and the layer that stands for each ONNX tensor.

    Parameters
    ----------
    name : str
        The network's name.
    batch, opset : int
        Samples in a batch, and version of the operators.
    constants : Constants
        Tensors whose values are known.
    graph : onnx.GraphProto
        The graph to translate.
    consumers : Counter
        Number of nodes (and graph outputs) that read each tensor.
    apart : collection of str
        Initializers that are read in several ways; see `onnx_readings`.
    """

    def __init__(
        self,
        name: str,
        batch: int,
        opset: int,
        constants: Constants,
        graph: Any,
        consumers: Counter[str],
        apart: Collection[str] = (),
    ) -> None:
        self._initializers = frozenset(each.name for each in graph.initializer)
        self.builder = FrontendBuilder(name, batch, self._initializers)
        self.readings = Readings(constants, apart)
        self.masks = Masks(self.builder)
        self.opset = opset
        self.constants = constants
        self.consumers = consumers
        self._graph = graph
        self._layers: dict[str, str] = {}
        self._done: set[int] = set()
        self._readers: dict[str, list[Any]] = {}
        self.places: dict[str, Place] = {}
        """Where the values of parameters lie in the model's tensors, by the parameters' names."""
        self.pending: dict[str, Pending] = {}
        """Tensors whose layers are not there yet."""
        self.quantised_weights: dict[str, Any] = {}
        """Integers of weights that the translation has quantised."""
        self.makers = {name: node for node in graph.node for name in node.output if name}
        """The node that gives each tensor."""
        self._reads = Counter(each for node in graph.node for each in node.input)
        for node in graph.node:
            for each in set(node.input):
                self._readers.setdefault(each, []).append(node)

    def add_input(self, name: str, tensor: Tensor) -> None:
        """Declare a network input."""
        self._layers[name] = self.builder.input(name, tensor)

    def translate(self, node: Any) -> None:
        """Add a node's layers, unless it was translated together with another node."""
        if id(node) not in self._done:
            try:
                if not any(attempt(self, node) for attempt in ATTEMPTS.get(node.op_type, ())):
                    HANDLERS[node.op_type](self, node)
            except NetworkError as error:
                raise Unsupported(str(error)) from None
            except ShapeError:
                raise
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                # The checker lets some nodes with meaningless attributes or inputs pass.
                raise Unsupported(f"is malformed ({type(error).__name__}: {error})") from None

    def build(self) -> Graph:
        """Finish the graph.

        Raises
        ------
        Unsupported
            If the model has no outputs, or an output that is not the result of a layer.
        """
        outputs: list[str] = []
        for each in self._graph.output:
            known = each.name in self._layers or each.name in self.pending
            name = self.layer(each.name) if known else ""
            fault = ""
            if not name:
                fault = "is a constant"
            elif name in self.builder.inputs:
                fault = f"is the input {name!r} itself"
            elif name in outputs:
                fault = f"is the same as output {self._graph.output[outputs.index(name)].name!r}"
            if fault:
                raise Unsupported(f"output {each.name!r} {fault}; leave it out")
            outputs.append(name)
        if not outputs:
            raise Unsupported("has no outputs")
        graph = self.builder.build(outputs, prune=True)
        self.masks.check(graph)
        return graph

    # Attributes and operands of a node.

    def attributes(self, node: Any) -> dict[str, Any]:
        """A node's attributes as Python values."""
        from onnx import helper

        return {each.name: helper.get_attribute_value(each) for each in node.attribute}

    def operand(self, node: Any, index: int) -> str:
        """Name of an input tensor; empty if it is left out."""
        return str(node.input[index]) if index < len(node.input) else ""

    def value(self, node: Any, index: int) -> NDArray[np.generic] | None:
        """Values of a constant input; None if it is left out or not constant."""
        name = self.operand(node, index)
        return self.constants.get(name) if name else None

    def weight(self, node: Any, index: int, what: str) -> NDArray[np.generic]:
        """Values of an input that must be constant; `what` names it in the error."""
        value = self.value(node, index)
        if value is None:
            raise Unsupported(f"its {what} is not constant")
        return value

    def integers(self, node: Any, index: int, what: str) -> list[int] | None:
        """A constant input as a list of integers; None if it is left out."""
        if not self.operand(node, index):
            return None
        value = self.weight(node, index, what)
        if value.size > MAX_AXES:
            raise Unsupported(f"its {what} has {value.size} entries")
        return [int(each) for each in value.reshape(-1)]

    def number(self, node: Any, index: int, what: str) -> float:
        """The value of a constant input that must have one element."""
        value = self.weight(node, index, what)
        if value.size != 1:
            raise Unsupported(f"its {what} is no single number but {list(value.shape)}")
        return float(value.reshape(()))

    def tensor(self, name: str) -> Tensor:
        """Shape of an input tensor, constants included."""
        value = self.constants.get(name)
        if value is not None:
            return Tensor(value.shape, dtype_of(value))
        if name not in self._layers and name in self.pending:
            return self.pending[name].tensor(self)
        return self.builder.tensor(self._layers[name])

    def static_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor that is not constant."""
        if name not in self._layers and name in self.pending:
            return self.pending[name].tensor(self).shape
        return self.builder.tensor(self._layers[name]).shape

    def is_pending(self, name: str) -> bool:
        """Whether the layers of a tensor are not there yet."""
        return name not in self._layers and name in self.pending

    def sole_reader(self, name: str) -> Any | None:
        """The only node that reads a tensor; None if there are several readers or none."""
        readers = self._readers.get(name, [])
        return readers[0] if len(readers) == 1 and self.consumers[name] == 1 else None

    # Layers of a node.

    def layer(self, name: str) -> str:
        """The layer or network input that gives a tensor; a constant becomes a layer of its own."""
        if name not in self._layers and name in self.pending:
            self._layers[name] = self.pending[name].layer(self, name)
        if name not in self._layers:
            value = self.constants.get(name)
            if value is None:
                raise Unsupported(f"reads {name!r}, which no earlier node gives")
            moving = self.constants.moves(name)
            if moving is None and self.readings.is_apart(name):
                moving = self.makers.get(name)
            if moving is not None:
                self.translate(moving)
                return self._layers[name]
            tensor = Tensor(value.shape, dtype_of(value))
            learned = tensor.dtype.is_float and value.ndim > 0 and self.constants.is_learnable(name)
            if tensor.dtype.is_float and hides(value):
                learned = False
                self.builder.frozen.add(name)
            operator = Constant(tensor.shape, tensor.dtype, trainable=learned)
            self._layers[name] = self.add(name, operator, values={"value": (name, value)})
        return self._layers[name]

    def layers(self, node: Any) -> list[str]:
        """The layers that give all inputs of a node."""
        return [self.layer(name) for name in node.input if name]

    def add(
        self,
        name: str,
        operator: Operator,
        *inputs: str,
        values: Mapping[str, Value] | None = None,
    ) -> str:
        """Add a layer.

        Parameters
        ----------
        name, operator, *inputs
            As for `FrontendBuilder.add_with_values`.
        values : mapping, optional
            For each role, the parameter's values. Layers that learn the same elements of a tensor
            share them.
        """
        if not values:
            return self.builder.add_with_values(name, operator, *inputs, values={})
        specs = operator.parameters([self.builder.tensor(each) for each in inputs])
        learned = {
            spec.role
            for spec in specs
            if spec.trainable and values[spec.role][0] not in self.builder.frozen
        }
        keys = {
            role: self.readings.key(role, value, learned=role in learned)
            for role, value in values.items()
        }
        # What is not learned leaves the initializer's name to what may be learned of it.
        own = {
            role: self.readings.own(value)
            for role, value in values.items()
            if role in learned or self._reads[value[0]] == 1
        }
        added = self.builder.add_with_values(
            name,
            operator,
            *inputs,
            values={role: (value[0], value[1]) for role, value in values.items()},
            keys=keys,
            own={role: one for role, one in own.items() if one and one[0] in self._initializers},
        )
        layer = self.builder.layer(added)
        assert layer is not None
        for each in layer.parameters:
            place = self.readings.place(values[each.spec.role], each.order)
            if place is not None:
                self.places[each.name] = place
        return added

    def fixed(self, name: str, value: NDArray[np.generic]) -> str:
        """Add a layer that gives fixed numbers."""
        self.builder.frozen.add(f"%{name}")
        operator = Constant(value.shape, dtype_of(value))
        return self.add(name, operator, values={"value": (f"%{name}", value)})

    def put(self, name: str, layer: str) -> None:
        """Let another layer give a tensor to the nodes that follow."""
        self._layers[name] = layer

    def give(self, node: Any, layer: str, output: int = 0) -> None:
        """Record the layer that gives a node's result."""
        self._layers[node.output[output]] = layer

    def simple(self, node: Any, operator: Operator) -> None:
        """Translate a node to one layer with all its inputs."""
        self.give(node, self.add(node_name(node), operator, *self.layers(node)))

    def first(self, node: Any, operator: Operator, **values: Value) -> str:
        """Translate a node to one layer with its first input; further ones are parameters."""
        layer = self.add(node_name(node), operator, self.layer(node.input[0]), values=values)
        self.give(node, layer)
        return layer

    def refuse_outputs(self, node: Any, kept: int = 1) -> None:
        """Refuse a node if any but its first `kept` results are read."""
        for name in node.output[kept:]:
            if name and self.consumers[name]:
                raise Unsupported(f"its further output {name!r} is read")

    def stands_for(self, name: str, layer: str, run: Callable[[], None]) -> None:
        """Let a layer stand for a tensor while a function runs."""
        before = self._layers.pop(name, None)
        self._layers[name] = layer
        run()
        del self._layers[name]
        if before is not None:
            self._layers[name] = before

    def taken(self, name: str) -> str:
        """Take back the layer that was given for a tensor."""
        return self._layers.pop(name)

    def skip(self, node: Any) -> None:
        """Mark a node as translated together with another."""
        self._done.add(id(node))


def node_name(node: Any) -> str:
    """Name of a node's layer: that of the node or, if it has none, of its first result."""
    return str(node.name or next(filter(None, node.output), ""))


def dtype_of(value: NDArray[np.generic]) -> DType:
    """Our element type for that of an array."""
    try:
        return DType(str(value.dtype))
    except ValueError:
        raise Unsupported(f"element type {value.dtype} is not supported") from None
