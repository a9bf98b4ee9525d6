"""How a parameter lies in the memory of a device."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from fpgapipe.lowering.memory.memory_map import Stored
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.layers.depthwise_unit import is_depthwise
from fpgapipe.network.operators import Conv, ConvTranspose

if TYPE_CHECKING:
    from fpgapipe.lowering.units.layouts import Layout
    from fpgapipe.network.graph import Layer, Parameter


class Order(Enum):
    """Orders of the weights of convolutions, of ``outputs x inputs x taps`` in the network."""

    INPUTS_LAST = "inputs last"
    """``outputs x taps x inputs``."""
    CHANNELS_LAST = "channels last"
    """``inputs x taps x outputs``, where each channel has a window of its own."""


def order_of_weight(layer: Layer) -> Order | None:
    """Order of the weight of a convolution; None for other layers."""
    if isinstance(layer.operator, ConvTranspose):
        return Order.INPUTS_LAST  # of the convolution of which it is the input gradient
    if not isinstance(layer.operator, Conv):
        return None
    depthwise = is_depthwise(layer.operator, layer.input_tensors[0].shape)
    return Order.CHANNELS_LAST if depthwise else Order.INPUTS_LAST


def stored_as(
    parameter: Parameter, layout: Layout | Order, part: tuple[int, int, int] | None
) -> Stored:
    """How a parameter lies in memory.

    Parameters
    ----------
    parameter : Parameter
    layout : Layout or Order
        Layout of its last axis, or the order of the weight of a convolution.
    part : (int, int, int) or None
        As in `Stored`.
    """
    shape = parameter.spec.shape
    if isinstance(layout, Order):
        taps = range(2, len(shape))
        split = shape
        order = (0, *taps, 1) if layout is Order.INPUTS_LAST else (1, *taps, 0)
    else:
        *rest, width = shape
        sizes, moved = layout.split(width)
        split = (*rest, *sizes)
        order = (*range(len(rest)), *(len(rest) + axis for axis in moved))
    tensor = Tensor(parameter.name, tuple(split[axis] for axis in order))
    return Stored(parameter.spec.trainable, tensor, shape, split, order, part)
