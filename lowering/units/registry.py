"""The registry of units: which unit runs each operator, and which layers go into it.

A module registers its units with `runs_alone`, or their makers with `runs`. Modules of other
packages do so for their own operators (`fpgapipe.network.operators.others`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network.operators.others import load_operators
from fpgapipe.plugins import expected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fpgapipe.network.graph import Graph, Layer

    Maker = Callable[[Layer, "Surroundings"], Unit]
    Taker = Callable[[Layer, "Surroundings"], Unit | None]

U = TypeVar("U", bound=Unit)

_MAKERS: dict[str, Maker] = {}
"""Makers of units by the name of the operator that a unit begins with."""

_TAKERS: dict[str, list[Taker]] = {}
"""Functions that are asked before the maker, by the same name."""


@dataclass(frozen=True)
class Surroundings:
    """Questions that a maker may ask about the layers around its own.

    Attributes
    ----------
    graph : Graph
    readers : mapping of str to list of Layer
        Layers that read each value; a layer that reads it twice is listed twice.
    order : mapping of str to int
        Number of each layer in the order of the network.
    """

    graph: Graph
    readers: Mapping[str, list[Layer]]
    order: Mapping[str, int]

    @classmethod
    def of(cls, graph: Graph) -> Surroundings:
        """Look around in a network."""
        readers: dict[str, list[Layer]] = {}
        for layer in graph.layers.values():
            for name in layer.inputs:
                readers.setdefault(name, []).append(layer)
        return cls(graph, readers, {name: number for number, name in enumerate(graph.layers)})

    def only_reader(self, name: str) -> Layer | None:
        """The layer that reads a value, if it is read once and is no output of the network."""
        found = self.readers.get(name, [])
        return found[0] if len(found) == 1 and name not in self.graph.outputs else None

    def is_computed_before(self, name: str, layer: Layer) -> bool:
        """Whether a value is there before a layer runs; an input of the network always is."""
        return self.order.get(name, -1) < self.order[layer.name]

    def number(self, layer: Layer) -> int:
        """Number of a layer among those of its operator, from 1."""
        names = [each.name for each in self.graph.layers.values() if each.op == layer.op]
        return 1 + names.index(layer.name)


def runs(*kinds: str) -> Callable[[Maker], Maker]:
    """Register the decorated function as the maker of the units of some operators.

    The maker gets the first layer of the unit and its surroundings. It returns the unit, with the
    layers that are to run together with the first, or raises `NotImplementedError` with the reason
    why the core cannot run the layer.

    Parameters
    ----------
    *kinds : str
        Names of the operators (`Operator.kind`).

    Raises
    ------
    ValueError
        If an operator has a maker already.
    """

    def register(maker: Maker) -> Maker:
        for kind in kinds:
            if kind in _MAKERS:
                raise ValueError(f"operator {kind!r} has a unit already")
            _MAKERS[kind] = maker
        return maker

    return register


def runs_alone(*kinds: str) -> Callable[[type[U]], type[U]]:
    """Register the decorated class of units, whose layer runs alone, for some operators.

    Parameters
    ----------
    *kinds : str
        Names of the operators (`Operator.kind`).

    Raises
    ------
    ValueError
        If an operator has a maker already.
    """

    def register(unit: type[U]) -> type[U]:
        @wraps(unit, updated=())  # its package is named where it fails
        def maker(layer: Layer, around: Surroundings) -> Unit:
            return unit((layer,))

        runs(*kinds)(maker)
        return unit

    return register


def takes(*kinds: str) -> Callable[[Taker], Taker]:
    """Register the decorated function, which is asked before the maker of some operators.

    It returns a unit of another kind that begins with the layer, or None.

    Parameters
    ----------
    *kinds : str
        Names of the operators (`Operator.kind`).
    """

    def register(taker: Taker) -> Taker:
        for kind in kinds:
            _TAKERS.setdefault(kind, []).append(taker)
        return taker

    return register


def unit_of(layer: Layer, around: Surroundings) -> Unit:
    """Make the unit that begins with a layer.

    Raises
    ------
    NotImplementedError
        If the core does not run the layer; the message is the reason.
    """
    load_operators()
    for taker in _TAKERS.get(layer.op, ()):
        if (found := taker(layer, around)) is not None:
            return expected(found, Unit, taker)  # type: ignore[no-any-return]
    maker = _MAKERS.get(layer.op)
    if maker is None:
        raise NotImplementedError(f"the core has no {layer.op}")
    unit: Unit = expected(maker(layer, around), Unit, maker)
    return unit
