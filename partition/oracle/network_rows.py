"""The oracle's layers from a network and a core, by the formulas of the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.network.operators import Conv, Linear, Pool
from fpgapipe.partition.cost.cost import CostModel, candidate_cores
from fpgapipe.partition.oracle.paradl import Image, LayerRow

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.device import DeviceSpec
    from fpgapipe.network.graph import Graph, Layer


def rows_of_network(graph: Graph, device: DeviceSpec) -> list[LayerRow]:
    """The layers of a network, per sample, on the core that runs it fastest.

    Filter and channel parallelism cut convolutions and linear layers.

    Parameters
    ----------
    graph : Graph
        The network for the samples of a device.
    device : DeviceSpec
        The board; its cores have two links.

    Raises
    ------
    ValueError
        If no core fits the board.
    """
    model = CostModel(graph)
    options = [model.costs(node) for node in candidate_cores(device, num_links=2)]
    costs = min(options, key=lambda each: sum(cost.total_s for cost in each))
    batch = graph.batch or 1
    rows = []
    for cost in costs:
        layer = graph.layers[cost.name]
        cut = isinstance(layer.operator, Conv | Linear)
        rows.append(
            LayerRow(
                cost.name,
                sum(each.elements for each in layer.input_tensors) / batch,
                layer.output.elements / batch,
                cost.weight_bytes / 4,
                cost.forward.seconds / batch,
                cost.backward_s / batch,
                cost.update.seconds,
                cut,
                layer.output.shape[1] if cut else None,
                layer.input_tensors[0].shape[1] if cut else None,
                _image(layer),
            )
        )
    return rows


def _image(layer: Layer) -> Image | None:
    """Shapes of a layer that gives images of more than one pixel."""
    read, written = layer.input_tensors[0].shape, layer.output.shape
    if len(read) != 4 or len(written) != 4 or written[2] * written[3] == 1:
        return None
    kernel = layer.operator.kernel if isinstance(layer.operator, Conv | Pool) else (1, 1)
    return Image(
        (read[1], read[2], read[3]), (written[1], written[2], written[3]), (kernel[0], kernel[1])
    )
