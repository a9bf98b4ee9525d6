"""The orders in which the weights of convolutions lie in the memory of a device."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from fpgapipe.lowering.units.layers.depthwise_unit import is_depthwise
from fpgapipe.network.operators import Conv, ConvTranspose

if TYPE_CHECKING:
    from fpgapipe.network.graph import Layer


class Order(Enum):
    """Orders of the weights of convolutions, of ``outputs x inputs x taps`` in the network."""

    INPUTS_LAST = "inputs last"
    """``outputs x taps x inputs``."""
    PLANES_AND_INPUTS_LAST = "planes and inputs last"
    """``outputs x rows x columns x planes x inputs``, of weights with three axes."""
    CHANNELS_LAST = "channels last"
    """``inputs x taps x outputs``, where each channel has a window of its own."""


def order_of_weight(layer: Layer) -> Order | None:
    """Order of the weight of a convolution; None for other layers."""
    if not isinstance(layer.operator, Conv | ConvTranspose):
        return None
    if len(layer.operator.kernel) > 2:
        return Order.PLANES_AND_INPUTS_LAST
    if isinstance(layer.operator, ConvTranspose):
        return Order.INPUTS_LAST  # of the convolution of which it is the input gradient
    depthwise = is_depthwise(layer.operator, layer.input_tensors[0].shape)
    return Order.CHANNELS_LAST if depthwise else Order.INPUTS_LAST
