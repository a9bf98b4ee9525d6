"""Coverage of a network by a core, as ``fpgapipe inspect --hardware`` lists it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from fpgapipe.host.terminal.console import Table
from fpgapipe.host.terminal.result import Result
from fpgapipe.lowering.units.coverage import Coverage, coverage_of
from fpgapipe.network.graph import Graph
from fpgapipe.network.load import load_network


@dataclass(frozen=True)
class Covered(Result):
    """Coverage of each layer by a core of enough room, with reasons against.

    Attributes
    ----------
    graph : Graph
    found : Coverage
    """

    RECORDS: ClassVar[str] = "layers"

    graph: Graph
    found: Coverage

    def to_dict(self) -> dict[str, Any]:
        """The network, and what a core runs of each layer."""
        return {"network": self.graph.name, "batch": self.graph.batch, **self.found.to_dict()}

    def shown(self) -> Iterator[Table | str]:
        """A row for each layer, and every reason against one."""
        graph, found = self.graph, self.found
        columns = "layer|op|with|engine|forward|backward"
        rows = [
            (
                each.layer,
                each.op,
                each.unit if each.unit != each.layer else "",
                each.engine if each.unit else "",
                "yes" if each.forward else "no",
                "yes" if each.backward else "no",
            )
            for each in found.layers
        ]
        yield Table(columns, rows, f"{graph.name}, batch {graph.batch}, on a core")
        alike: dict[str, list[str]] = {}
        for each in found.layers:
            for reason in each.reasons:
                alike.setdefault(reason, []).append(each.layer)
        for reason, names in alike.items():
            yield f"{', '.join(names)}: {reason}"
        if found.trains:
            yield f"A core of enough room runs and trains {graph.name}."
        else:
            runs = "runs but does not train" if found.infers else "does not run"
            yield f"The core {runs} {graph.name} (docs/limits.md)."


def coverage(network: str, batch: int | None = None) -> Covered:
    """List what a core runs of each layer of a network, forward and backward.

    Parameters
    ----------
    network, batch
        As for `fpgapipe.inspect`.
    """
    graph = load_network(network, batch)
    return Covered(graph, coverage_of(graph))
