"""How a parameter lies in the memory of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.lowering.memory.memory_map import Stored
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.weight_order import Order

if TYPE_CHECKING:
    from fpgapipe.lowering.units.layouts import Layout
    from fpgapipe.network.graph import Parameter


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
        order = {
            Order.INPUTS_LAST: (0, *taps, 1),
            Order.PLANES_AND_INPUTS_LAST: (0, *taps[1:], 2, 1),
            Order.CHANNELS_LAST: (1, *taps, 0),
        }[layout]
    else:
        *rest, width = shape or (1,)  # a number is a row of one element
        sizes, moved = layout.split(width)
        split = (*rest, *sizes)
        order = (*range(len(rest)), *(len(rest) + axis for axis in moved))
    tensor = Tensor(parameter.name, tuple(split[axis] for axis in order))
    if not parameter.order:
        return Stored(parameter.spec.trainable, tensor, shape, split, order, part)
    # The axes of the parameter's own layout; the last one that the layer reads may be two here.
    last = len(shape) - 1
    pieces = [*([axis] for axis in range(last)), [*range(last, len(split))]]
    own = [place for axis in parameter.back for place in pieces[axis]]
    if part:
        part = (parameter.order[part[0]], *part[1:])
    return Stored(
        parameter.spec.trainable,
        tensor,
        parameter.shape,
        tuple(split[axis] for axis in own),
        tuple(own.index(axis) for axis in order),
        part,
    )
