"""Prices of all layers by the program of the whole network on one device of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.spec.core_spec import NoRoom
from fpgapipe.partition.cost.cores import with_larger_scratchpad
from fpgapipe.partition.cost.cost import CostModel, LayerCost
from fpgapipe.partition.pricing.layer_prices import LayerPrices
from fpgapipe.partition.pricing.machine import MOST_CYCLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fpgapipe.hw.hls_models.spec.device import DeviceSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.network.graph import Graph

Choice = dict["DeviceSpec", tuple["NodeSpec", list[LayerCost]]]
"""Core of each kind of device, and the costs of all layers on it."""


def priced_choice(
    graph: Graph,
    cores: Mapping[DeviceSpec, NodeSpec],
    *,
    train: bool,
    accumulates: bool,
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
    train, accumulates : bool
        As for `LayerPrices`.
    scratchpad_bytes : int, optional
        Upper limit of a core's scratchpad.
    options : StepOptions, optional
        As for `LayerPrices`.
    """
    model = CostModel(graph)
    prices = LayerPrices(graph, train, accumulates, options)
    choice: Choice = {}
    try:
        for device, node in cores.items():
            estimates = model.costs(node, train=train, as_one=True)
            seconds = prices.num_microbatches * sum(each.total_s for each in estimates)
            if seconds * node.clk_hz > MOST_CYCLES:
                return None
            while device not in choice:
                try:
                    choice[device] = node, prices.costs(estimates, node)
                except NoRoom:
                    size = 2 * node.core.scratchpad.size_bytes
                    larger = with_larger_scratchpad(device, node)
                    if larger is None or size > (scratchpad_bytes or size):
                        raise
                    node = larger
    except (UserError, NotImplementedError):
        return None
    return choice
