"""Networks written to JSON and read from it.

A layer is stored as its operator (the name of the class and its attributes), the names of its
inputs, and the names of its parameters. Shapes follow from these. Values are not stored.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fpgapipe.json_faults import faults_of
from fpgapipe.network.graph import Graph, GraphBuilder, NetworkError
from fpgapipe.network.operators import Operator
from fpgapipe.network.operators.others import operator_class
from fpgapipe.network.operators.tensors import Tensor
from fpgapipe.network.source_state import SourceState

GRAPH_VERSION = 1


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants"
    )


class _Layer(_Part):
    name: str
    operator: str
    attributes: dict[str, Any]
    inputs: tuple[str, ...] = Field(strict=False)
    parameters: dict[str, str]
    frozen: tuple[str, ...] = Field((), strict=False)
    orders: dict[str, Annotated[tuple[int, ...], Field(strict=False)]] = Field({})


class _State(_Part):
    names: tuple[str, ...] = Field(strict=False)
    folded: tuple[str, ...] = Field(strict=False)


class _Network(_Part):
    version: int
    name: str
    batch: int | None
    inputs: dict[str, Tensor] = Field(strict=False)
    layers: tuple[_Layer, ...] = Field(strict=False)
    outputs: tuple[str, ...] = Field(strict=False)
    auxiliary: tuple[str, ...] = Field((), strict=False)
    aliases: dict[str, str] = Field({})
    state: _State | None = None


def to_json(graph: Graph) -> str:
    """Write a network, without its initial values, as text that `from_json` can read back."""
    layers = []
    for layer in graph.layers.values():
        name = type(layer.operator).__name__
        if operator_class(name) is not type(layer.operator):
            raise NetworkError(
                f"layer {layer.name!r}: a network with {name} cannot be written, since no package "
                "adds the operator"
            )
        layers.append(
            _Layer(
                name=layer.name,
                operator=name,
                attributes=_adapter(type(layer.operator)).dump_python(layer.operator, mode="json"),
                inputs=layer.inputs,
                parameters={each.spec.role: each.name for each in layer.parameters},
                frozen=tuple(layer.frozen),
                orders=layer.orders,
            )
        )
    network = _Network(
        version=GRAPH_VERSION,
        name=graph.name,
        batch=graph.batch,
        inputs=dict(graph.inputs),
        layers=tuple(layers),
        outputs=graph.outputs,
        auxiliary=graph.auxiliary,
        aliases=dict(graph.aliases),
        state=_State(names=graph.state.names, folded=graph.state.folded),
    )
    # Networks whose sources have no state keep the bytes that they always had.
    left_out = None if graph.state.names else {"state"}
    return network.model_dump_json(indent=1, exclude=left_out) + "\n"


def from_json(text: str) -> Graph:
    """Read a network.

    Raises
    ------
    NetworkError
        If the text is no network, or its layers do not fit together.
    """
    try:
        network = _Network.model_validate_json(text)
    except ValidationError as error:
        raise NetworkError(f"no network: {faults_of(error)[0]}") from None
    if network.version != GRAPH_VERSION:
        raise NetworkError(
            f"network {network.name} has format version {network.version}, not {GRAPH_VERSION}"
        )
    builder = GraphBuilder(network.name, network.batch)
    for name, tensor in network.inputs.items():
        builder.input(name, tensor)
    for layer in network.layers:
        builder.add(
            layer.name,
            _operator(layer),
            *layer.inputs,
            shared=layer.parameters,
            frozen=layer.frozen,
            orders=layer.orders,
        )
    graph = builder.build(network.outputs, network.auxiliary)
    names = {each.name for layer in graph.layers.values() for each in layer.parameters}
    for alias, name in network.aliases.items():
        if name not in names or alias in names:
            raise NetworkError(f"network {network.name}: {alias!r} is no further name of {name!r}")
    state = network.state
    kept = SourceState(state.names, state.folded) if state else SourceState()
    return replace(graph, aliases=network.aliases, state=kept)


def _operator(layer: _Layer) -> Operator:
    kind = operator_class(layer.operator)
    if kind is None:
        raise NetworkError(f"layer {layer.name!r}: there is no operator {layer.operator!r}")
    try:
        found: Operator = _adapter(kind).validate_python(layer.attributes)
    except ValidationError as error:
        fault = faults_of(error, whole="")[0]
        raise NetworkError(f"layer {layer.name!r}: {layer.operator}: {fault}") from None
    return found


@cache
def _adapter(kind: type[Operator]) -> TypeAdapter[Any]:
    """The pydantic adapter that writes and reads the operators of a class."""
    return TypeAdapter(kind)
