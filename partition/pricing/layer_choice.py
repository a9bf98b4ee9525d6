"""Prices of all layers by the program of the whole network on one device of each kind."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.partition.cost.cores import with_larger_scratchpad, with_room
from fpgapipe.partition.cost.cost import CostModel
from fpgapipe.partition.pricing.layer_prices import LayerPrices
from fpgapipe.partition.pricing.machine import MOST_CYCLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fpgapipe.hw.hls_models.spec.device import DeviceSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import Choice


def priced_choice(
    graph: Graph,
    cores: Mapping[DeviceSpec, NodeSpec],
    *,
    train: bool,
    count: int,
    scratchpad_bytes: int | None = None,
    options: StepOptions | None = None,
) -> Choice | None:
    """Costs of all layers by the programs of some cores; None if these cannot be made soon.

    Where a layer has no tiling that fits a core's scratchpad, one twice as large takes its place,
    as long as it fits the device.

    Parameters
    ----------
    graph : Graph
        The network for one micro-batch.
    cores : mapping of DeviceSpec to NodeSpec
    train : bool
    count : int
        As for `LayerPrices`.
    scratchpad_bytes : int, optional
        Upper limit of a core's scratchpad.
    options : StepOptions, optional
        As for `LayerPrices`.
    """
    model = CostModel(graph, accumulates=count > 1)
    prices = LayerPrices(graph, train, count, options)
    choice: Choice = {}
    try:
        for device, node in cores.items():
            estimates = model.costs(node, train=train, as_one=True)
            seconds = prices.num_microbatches * sum(each.total_s for each in estimates)
            if seconds * node.clk_hz > MOST_CYCLES:
                return None
            choice[device] = with_room(
                node,
                partial(prices.costs, estimates),
                partial(with_larger_scratchpad, device, limit_bytes=scratchpad_bytes),
            )
    except (UserError, NotImplementedError):
        return None
    return choice
