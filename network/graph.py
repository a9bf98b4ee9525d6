"""The network as a graph of layers, which planner, lowering and reports all read.

A layer has any number of inputs and exactly one output, which carries the layer's name. An operator
with several results becomes one layer for each of them. Every cut of the graph is therefore a set
of layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from fpgapipe.errors import UserError
from fpgapipe.network.operators import Gemm, Operator, ParameterSpec, Pass
from fpgapipe.network.operators.tensors import ShapeError, Tensor
from fpgapipe.network.source_state import SourceState

if TYPE_CHECKING:
    import networkx as nx
    import numpy as np
    from numpy.typing import NDArray

Value = TypeVar("Value")


class NetworkError(UserError):
    """A network cannot be read, or its layers do not fit together."""


@dataclass(frozen=True)
class Parameter:
    """A parameter tensor of a layer, with its name in the whole network.

    Two layers that share a parameter (tied weights) use the same name. Values under this name have
    the layout of the network's source.

    Parameters
    ----------
    name : str
    spec : ParameterSpec
        The parameter as the layer's operator reads it.
    order : tuple of int
        Axis `i` of what the operator reads is axis ``order[i]`` of the values under this name;
        empty if the axes are in the same order.
    """

    name: str
    spec: ParameterSpec
    order: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values under this name."""
        return tuple(self.spec.shape[axis] for axis in self.back) or self.spec.shape

    @property
    def back(self) -> tuple[int, ...]:
        """The inverse of `order`; empty like it."""
        return tuple(sorted(range(len(self.order)), key=self.order.__getitem__))


@dataclass(frozen=True)
class Layer:
    """One operation of the network.

    Parameters
    ----------
    name : str
        Name that is unique in the network; it is also the name of the layer's output.
    operator : Operator
        The layer's operation.
    inputs : tuple of str
        Names of layers or network inputs, in the operator's order.
    input_tensors : tuple of Tensor
        Shapes and types of the inputs.
    output : Tensor
        Shape and type of the result.
    parameters : tuple of Parameter
        Parameters that the layer owns or shares.
    """

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    input_tensors: tuple[Tensor, ...]
    output: Tensor
    parameters: tuple[Parameter, ...]

    @property
    def op(self) -> str:
        """The operator's name."""
        return self.operator.kind

    @cached_property
    def gemms(self) -> tuple[Gemm, ...]:
        """Matrix products of the forward pass."""
        return self.operator.gemms(self.input_tensors, self.output)

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates of the forward pass over the whole batch.

        They are those of convolutions, linear layers, matrix products and recurrent layers,
        products with padding zeros included. Additions of a bias, pooling and element-wise work do
        not count.
        """
        return sum(gemm.macs for gemm in self.gemms)

    @cached_property
    def num_parameters(self) -> int:
        """Number of learned elements, shared ones included."""
        return sum(p.spec.elements for p in self.parameters if p.spec.trainable)

    @property
    def frozen(self) -> tuple[str, ...]:
        """Roles of the operator's learned parameters that training leaves unchanged here."""
        learned = [spec.trainable for spec in self.operator.parameters(self.input_tensors)]
        return tuple(
            each.spec.role
            for each, would in zip(self.parameters, learned, strict=True)
            if would and not each.spec.trainable
        )

    @property
    def orders(self) -> dict[str, tuple[int, ...]]:
        """Orders of axes by the parameters' roles, where they are not those of the values."""
        return {each.spec.role: each.order for each in self.parameters if each.order}

    @property
    def features(self) -> int:
        """Number of elements of the output over the whole batch."""
        return self.output.elements


@dataclass(frozen=True)
class Totals:
    """Sums over a network: forward MACs and output elements for the batch, learned elements.

    A parameter that several layers share counts once.
    """

    macs: int
    parameters: int
    features: int


@dataclass(frozen=True)
class Graph:
    """A network for a given batch size. Build one with `GraphBuilder`.

    Parameters
    ----------
    name : str
    batch : int or None
        Samples in a batch or micro-batch; None for a profile, which does not say.
    inputs : mapping of str to Tensor
        The network's inputs.
    layers : mapping of str to Layer
        Layers in an order in which each comes after its inputs.
    outputs : tuple of str
        Layers whose results leave the network.
    auxiliary : tuple of str
        Outputs that there are only in training, such as those of auxiliary classifiers.
    values : mapping of str to array
        Initial values by parameter name, where the source had them.
    source : object or None
        Source of the import (`fpgapipe.network.frontends.source`); None if the graph was not
        imported.
    aliases : mapping of str to str
        Further names that parameters have in the source (tied weights, modules used several times),
        with the name in the network.
    state : SourceState
        All that the source keeps by name, also what no layer has.
    """

    name: str
    batch: int | None
    inputs: Mapping[str, Tensor]
    layers: Mapping[str, Layer]
    outputs: tuple[str, ...]
    values: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    source: object = field(default=None, compare=False, repr=False)
    auxiliary: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    state: SourceState = field(default_factory=SourceState)

    def by_every_name(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Values of parameters under all the names that these have in the source."""
        further = {alias: values[name] for alias, name in self.aliases.items() if name in values}
        return {**values, **further}

    @cached_property
    def evaluated(self) -> Graph:
        """The network without what only training computes, its auxiliary outputs."""
        if not self.auxiliary:
            return self
        kept = tuple(name for name in self.outputs if name not in self.auxiliary)
        needed = set(kept)
        for layer in reversed(list(self.layers.values())):
            if layer.name in needed:
                needed.update(layer.inputs)
        layers = {name: each for name, each in self.layers.items() if name in needed}
        names = {p.name for layer in layers.values() for p in layer.parameters}
        return dataclasses.replace(
            self,
            layers=layers,
            outputs=kept,
            auxiliary=(),
            values={name: value for name, value in self.values.items() if name in names},
        )

    @cached_property
    def totals(self) -> Totals:
        """Sums over all layers."""
        unique = {p.name: p.spec for layer in self.layers.values() for p in layer.parameters}
        return Totals(
            macs=sum(layer.macs for layer in self.layers.values()),
            parameters=sum(spec.elements for spec in unique.values() if spec.trainable),
            features=sum(layer.features for layer in self.layers.values()),
        )

    @cached_property
    def depends_on_inputs(self) -> frozenset[str]:
        """Layers that compute from the network's inputs; others give the same for all samples."""
        found = set(self.inputs)
        for layer in self.layers.values():
            if not found.isdisjoint(layer.inputs):
                found.add(layer.name)
        return frozenset(found - self.inputs.keys())

    @cached_property
    def _carries_gradient(self) -> frozenset[str]:
        """Layers whose output gradient is needed by a learned parameter at or before the layer."""
        found: set[str] = set()
        for layer in self.layers.values():
            learned = any(p.spec.trainable for p in layer.parameters)
            if learned or any(self._flows(layer, i, found) for i in range(len(layer.inputs))):
                found.add(layer.name)
        return frozenset(found)

    @staticmethod
    def _flows(layer: Layer, index: int, carrying: set[str] | frozenset[str]) -> bool:
        return layer.inputs[index] in carrying and layer.operator.is_differentiable(index)

    def input_gradients(self, name: str) -> tuple[int, ...]:
        """Positions of the inputs for which a layer has to compute a gradient.

        An input needs a gradient if there is a learned parameter before it. The first layer of a
        network therefore computes none.
        """
        layer = self.layers[name]
        return tuple(
            i for i in range(len(layer.inputs)) if self._flows(layer, i, self._carries_gradient)
        )

    def reads_exactly(self, name: str) -> bool:
        """Whether a layer must read a value as it is, with all bits of FP32."""
        readers = (each for each in self.layers.values() if name in each.inputs)
        return any(each.operator.reads_exactly for each in readers)

    def passes(self, name: str) -> dict[Pass, tuple[Gemm, ...]]:
        """The passes that a layer has in training, with the matrix products of each.

        A pass without products (as for pooling) has an empty tuple. A pass that the layer does not
        have is not in the dictionary.
        """
        layer = self.layers[name]
        result: dict[Pass, tuple[Gemm, ...]] = {Pass.FORWARD: layer.gemms}
        wanted = self.input_gradients(name)
        # In backpropagation through time, the hidden state's gradient is needed even in the first
        # layer.
        if wanted or any(gemm.steps > 1 for gemm in layer.gemms):
            products: list[Gemm] = []
            for gemm in layer.gemms:
                each = gemm.input_gradients()
                if gemm.steps > 1:
                    products += each
                else:  # if both factors are activations, one product per wanted factor
                    products += (each[i] for i in wanted if i < len(each))
            result[Pass.INPUT_GRADIENT] = tuple(products)
        if any(p.spec.trainable for p in layer.parameters):
            result[Pass.WEIGHT_GRADIENT] = tuple(
                each for gemm in layer.gemms for each in gemm.weight_gradients()
            )
        return result

    def to_networkx(self) -> nx.DiGraph[str]:
        """Layers as nodes (attribute ``layer``), dependencies between layers as edges.

        Network inputs are not nodes.
        """
        import networkx as nx

        graph: nx.DiGraph[str] = nx.DiGraph(name=self.name)
        for layer in self.layers.values():
            graph.add_node(layer.name, layer=layer)
            graph.add_edges_from((i, layer.name) for i in layer.inputs if i in self.layers)
        return graph

    def to_dict(self) -> dict[str, Any]:
        """The object that ``fpgapipe inspect --json`` prints."""
        return {
            "network": self.name,
            "batch": self.batch,
            "totals": {
                "macs": self.totals.macs,
                "parameters": self.totals.parameters,
                "features": self.totals.features,
            },
            "inputs": [
                {"name": name, "shape": list(tensor.shape), "dtype": tensor.dtype.value}
                for name, tensor in self.inputs.items()
            ],
            "outputs": list(self.outputs),
            "auxiliary": list(self.auxiliary),
            "layers": [self._layer_dict(layer) for layer in self.layers.values()],
        }

    def _layer_dict(self, layer: Layer) -> dict[str, Any]:
        return {
            "name": layer.name,
            "op": layer.op,
            "inputs": list(layer.inputs),
            "input_shapes": [list(tensor.shape) for tensor in layer.input_tensors],
            "output_shape": list(layer.output.shape),
            "dtype": layer.output.dtype.value,
            "macs": layer.macs,
            "parameters": layer.num_parameters,
            "features": layer.features,
            "passes": {
                kind.value: [
                    {"m": g.m, "k": g.k, "n": g.n, "count": g.count, "steps": g.steps}
                    for g in gemms
                ]
                for kind, gemms in self.passes(layer.name).items()
            },
            "attributes": layer.operator.attributes(),
        }


class GraphBuilder:
    """Builds a graph layer by layer, and checks each layer against the ones before it.

    Parameters
    ----------
    name : str
        The network's name.
    batch : int or None
        Samples in a batch; None if they are not known.

    Raises
    ------
    NetworkError
        If `batch` is below 1.
    """

    def __init__(self, name: str, batch: int | None) -> None:
        if batch is not None and batch < 1:
            raise NetworkError(f"{name}: batch must be at least 1, not {batch}")
        self.name = name
        self.batch = batch
        self._inputs: dict[str, Tensor] = {}
        self._layers: dict[str, Layer] = {}
        self._parameters: dict[str, Parameter] = {}
        self._values: dict[str, NDArray[np.generic]] = {}
        self._numbers: dict[str, int] = {}

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """The network inputs declared so far."""
        return self._inputs

    def is_free(self, name: str) -> bool:
        """Whether no input or layer has a given name yet."""
        return name not in self._inputs and name not in self._layers

    def tensor(self, name: str) -> Tensor:
        """Shape and type of a network input or of a layer's output."""
        return self._inputs[name] if name in self._inputs else self._layers[name].output

    def input(self, name: str, tensor: Tensor) -> str:
        """Declare a network input; return its name."""
        self._check_new(name)
        self._inputs[name] = tensor
        return name

    def add(
        self,
        name: str,
        operator: Operator,
        *inputs: str,
        shared: Mapping[str, str] | None = None,
        frozen: Collection[str] = (),
        orders: Mapping[str, tuple[int, ...]] | None = None,
    ) -> str:
        """Add a layer; return its name, which is also that of its output.

        Parameters
        ----------
        name : str
            Name of the layer, unique in the network.
        operator : Operator
            The layer's operation.
        *inputs : str
            Names of network inputs or earlier layers.
        shared : mapping, optional
            Names of parameters in the network by role; a name may be that of an earlier layer's
            parameter. Other parameters are named by the layer's name, a dot and the role.
        frozen : collection of str
            Roles of parameters that training leaves unchanged.
        orders : mapping, optional
            Orders of axes by role; see `Parameter`.

        Raises
        ------
        NetworkError
            If the name is taken, an input is unknown, or the shapes do not fit.
        """
        self._check_new(name)
        for each in inputs:
            if each not in self._inputs and each not in self._layers:
                raise NetworkError(
                    f"{self.name}: layer {name!r} reads {each!r}, which nothing gives"
                )
        tensors = tuple(self.tensor(each) for each in inputs)
        try:
            operator.check_arity(len(inputs))
            output = operator.output(tensors)
            specs = [
                dataclasses.replace(spec, trainable=spec.trainable and spec.role not in frozen)
                for spec in operator.parameters(tensors)
            ]
            parameters = tuple(
                Parameter(
                    (shared or {}).get(spec.role, f"{name}.{spec.role}"),
                    spec,
                    tuple((orders or {}).get(spec.role, ())),
                )
                for spec in specs
            )
            _refuse_two_roles(parameters)
            for parameter in parameters:
                Tensor(parameter.spec.shape)
                axes = range(len(parameter.spec.shape))
                if parameter.order and sorted(parameter.order) != [*axes]:
                    raise ShapeError(
                        f"order {list(parameter.order)} of {parameter.name!r} is no permutation of "
                        f"{len(axes)} axes"
                    )
                known = self._parameters.setdefault(parameter.name, parameter)
                if known.spec.elements != parameter.spec.elements:
                    raise ShapeError(
                        f"{parameter.spec.role} of shape {list(parameter.shape)} cannot share "
                        f"{parameter.name!r} of shape {list(known.shape)}"
                    )
        except ShapeError as error:
            raise NetworkError(f"{self.name}: layer {name!r}: {error}") from None
        self._layers[name] = Layer(name, operator, inputs, tensors, output, parameters)
        return name

    def set_value(self, parameter: str, value: NDArray[np.generic]) -> None:
        """Set the initial value of a parameter of a layer that was added before.

        Raises
        ------
        NetworkError
            If the value does not have the parameter's shape.
        """
        shape = self._parameters[parameter].shape
        if value.shape != shape:
            raise NetworkError(
                f"{self.name}: {parameter!r} has shape {list(shape)}, its value has "
                f"{list(value.shape)}"
            )
        self._values[parameter] = value

    def build(self, outputs: Sequence[str] | None = None, auxiliary: Sequence[str] = ()) -> Graph:
        """Finish the network.

        Parameters
        ----------
        outputs : sequence of str, optional
            Layers whose results leave the network. The default is all layers that no other layer
            reads.
        auxiliary : sequence of str
            Outputs that there are only in training.

        Raises
        ------
        NetworkError
            If there is no layer, or an output is unknown.
        """
        if not self._layers:
            raise NetworkError(f"{self.name}: the network has no layers")
        if outputs is None:
            read = {each for layer in self._layers.values() for each in layer.inputs}
            outputs = [name for name in self._layers if name not in read]
        for name in outputs:
            if name not in self._layers:
                raise NetworkError(f"{self.name}: output {name!r} is no layer of the network")
        if not set(auxiliary) < set(outputs) and auxiliary:
            raise NetworkError(f"{self.name}: some of its outputs must be there in evaluation, too")
        return Graph(
            self.name,
            self.batch,
            self._inputs,
            self._layers,
            tuple(outputs),
            self._values,
            auxiliary=tuple(auxiliary),
        )

    def fresh_name(self, stem: str) -> str:
        """A name that is not taken yet: the stem, followed by the next free number."""
        number = self._numbers.get(stem, 0)
        while True:
            number += 1
            name = f"{stem}{number}"
            if self.is_free(name):
                self._numbers[stem] = number
                return name

    def _check_new(self, name: str) -> None:
        if not name:
            raise NetworkError(f"{self.name}: a layer has an empty name")
        if not self.is_free(name):
            raise NetworkError(f"{self.name}: the name {name!r} stands for two tensors")


def _refuse_two_roles(parameters: Sequence[Parameter]) -> None:
    """Refuse a layer that learns one parameter in two roles, of which it has one gradient."""
    roles: dict[str, str] = {}
    for each in parameters:
        role = each.spec.role
        if each.spec.trainable and roles.setdefault(each.name, role) != role:
            raise ShapeError(
                f"{roles[each.name]} and {role} are one parameter, {each.name!r}; each must have "
                "its own"
            )
