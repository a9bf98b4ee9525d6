"""How a network compares with its source, as ``fpgapipe inspect --verify`` says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fpgapipe.host.backends import verification
from fpgapipe.host.terminal.console import Table
from fpgapipe.host.terminal.result import Result
from fpgapipe.network.graph import Graph
from fpgapipe.network.load import load_network
from fpgapipe.network.verification import Verification


@dataclass(frozen=True)
class Verified(Result):
    """The largest differences between a network and its source.

    Attributes
    ----------
    graph : Graph
    found : Verification
        Its attribute ``verified`` is False if they differ, None if nothing could be compared.
    """

    graph: Graph
    found: Verification

    def to_dict(self) -> dict[str, Any]:
        """The network, and what was compared."""
        return {"network": self.graph.name, "batch": self.graph.batch, **self.found.to_dict()}

    def shown(self) -> Iterator[Table | str]:
        """A row for each thing that was compared, and the outcome."""
        graph, found = self.graph, self.found
        rows = [
            (kind, name, f"{error:.1e}")
            for kind, each in found.errors.items()
            for name, error in each.items()
        ]
        if rows:
            columns = "compared|name|>difference"
            yield Table(columns, rows, f"{graph.name}, batch {graph.batch}")
        yield f"{graph.name} {found}" if found.verified is False else str(found)


def verify(network: str, batch: int | None = None) -> Verified:
    """Run a network and what it was imported from on random inputs, and compare them.

    Parameters
    ----------
    network, batch
        As for `fpgapipe.inspect`.
    """
    graph = load_network(network, batch)
    return Verified(graph, verification.verify(graph))
