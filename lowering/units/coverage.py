"""Coverage of a network by a core, layer by layer, forward and backward, with reasons against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpgapipe.lowering.units.network_units import Refusal, grouped, refusals_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.network.graph import Graph


@dataclass(frozen=True)
class LayerCoverage:
    """Coverage of a layer by a core.

    Attributes
    ----------
    layer, op : str
        Name and operator; for an input of the network, its name and ``input``.
    unit : str
        Name of the layer with which the unit of the layer begins; empty if there is no unit.
    engine : str
        ``array``, ``vector``, or ``none`` where nothing has to be computed or moved.
    forward, backward : bool
        Whether the core runs its forward pass, and whether also its backward pass.
    reasons : tuple of str
        Why not.
    """

    layer: str
    op: str
    unit: str
    engine: str
    forward: bool
    backward: bool
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The layer as a dictionary for JSON."""
        return {
            "layer": self.layer,
            "op": self.op,
            "unit": self.unit or None,
            "engine": self.engine,
            "forward": self.forward,
            "backward": self.backward,
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True)
class Coverage:
    """Coverage of a network by a core.

    Attributes
    ----------
    layers : tuple of LayerCoverage
        Inputs that the core cannot read, then all layers.
    """

    layers: tuple[LayerCoverage, ...]

    @property
    def infers(self) -> bool:
        """Whether the core runs the network forward."""
        return all(each.forward for each in self.layers)

    @property
    def trains(self) -> bool:
        """Whether the core trains the network."""
        return all(each.backward for each in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """The coverage as a dictionary for JSON."""
        return {
            "infers": self.infers,
            "trains": self.trains,
            "layers": [each.to_dict() for each in self.layers],
        }


def coverage_of(graph: Graph) -> Coverage:
    """Ask the units of all layers what a core of any size, with any memory, runs.

    Parameters
    ----------
    graph : Graph
        The network, with its operators.
    """
    forward, backward = (refusals_of(graph, train=train) for train in (False, True))
    lead: dict[str, tuple[str, str]] = {}
    for unit in grouped(graph):
        if not isinstance(unit, Refusal):
            lead |= {each.name: (unit.layers[0].name, unit.engine) for each in unit.layers}

    def about(name: str, op: str) -> LayerCoverage:
        unit, engine = lead.get(name, ("", "none"))
        first = unit or name
        reasons = [each.reason for each in (*forward, *backward) if each.layer in (name, first)]
        return LayerCoverage(
            name,
            op,
            unit,
            engine,
            not _has(forward, name, first),
            not _has(backward, name, first),
            tuple(dict.fromkeys(reasons)),
        )

    inputs = [each.layer for each in forward if each.op == "input"]
    layers = [about(name, "input") for name in inputs]
    layers += [about(each.name, each.op) for each in graph.layers.values()]
    return Coverage(tuple(layers))


def _has(refusals: Sequence[Refusal], *names: str) -> bool:
    return any(each.layer in names for each in refusals)
