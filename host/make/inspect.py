"""The layers of a network, as ``fpgapipe inspect`` lists them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from fpgapipe.errors import counted
from fpgapipe.host.terminal.console import Table, count
from fpgapipe.host.terminal.result import Result
from fpgapipe.network.graph import Graph
from fpgapipe.network.load import load_network


@dataclass(frozen=True)
class Layers(Result):
    """The layers of a network, with shapes, products and parameters.

    Attributes
    ----------
    graph : Graph
    """

    RECORDS: ClassVar[str] = "layers"

    graph: Graph

    def to_dict(self) -> dict[str, Any]:
        """The network and its layers."""
        return self.graph.to_dict()

    def shown(self) -> Iterator[Table | str]:
        """A row for each layer, the totals, and the outputs if there are several."""
        graph = self.graph
        columns = "layer|op|inputs|output shape|>MACs|>parameters|>features|passes"
        rows = [
            (
                layer.name,
                layer.op,
                " ".join(layer.inputs),
                "x".join(map(str, layer.output.shape)) or "scalar",
                count(layer.macs),
                count(layer.num_parameters),
                count(layer.features),
                " ".join(graph.passes(layer.name)),
            )
            for layer in graph.layers.values()
        ]
        totals = graph.totals
        rows.append(
            (
                "total",
                "",
                "",
                "",
                count(totals.macs),
                count(totals.parameters),
                count(totals.features),
                "",
            )
        )
        batch = "as measured" if graph.batch is None else graph.batch
        yield Table(
            columns, rows, f"{graph.name}, batch {batch}, {counted(len(graph.layers), 'layer')}"
        )
        if len(graph.outputs) > 1:
            names = [
                f"{name} (only in training)" if name in graph.auxiliary else name
                for name in graph.outputs
            ]
            yield f"outputs: {', '.join(names)}"


def inspect(network: str, batch: int | None = None) -> Layers:
    """List the layers of a network.

    Parameters
    ----------
    network : str
        A built-in name, a file, or ``module:function``.
    batch : int, optional
        Samples in a batch; that of the file if it is not given, else 1.
    """
    return Layers(load_network(network, batch))
