"""The factor by which all gradients are clipped, on one device or over those of a chain.

Every device adds up the squares of its gradients by itself. Then a total goes through the chain
from the last device to the first, whose stage is the last to end its backward passes, and each
device adds its sums to it, parameter by parameter, from the last of the network to the first. The
first device computes the factor and sends it back to all others. If each device is a stage, the
order of the additions is that of one device that has all stages, so no bit depends on where the
network is cut. Devices with parts of a gradient count their parts, and of those with the same
gradient only one counts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.isa.vector_op import LANES, Constant
from fpgapipe.lowering.kernels.clipping import (
    clip_coefficient,
    square_sums,
    sums_of,
    total_of_sums,
)
from fpgapipe.lowering.sums.all_reduce import passed_on, transfer
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.step_options import NORM, Scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.lowering.memory.memory_map import Stored
    from fpgapipe.lowering.sums.all_reduce import Member
    from fpgapipe.lowering.tiling.kernel import Kernel, Region
    from fpgapipe.network.graph import Graph

NAME = "clip"
"""Name of the kernels, and of the tensor of the factor."""

SQUARES = "sums of squares"
"""Tensor of the sums of a device's gradients, behind the total of the stages behind."""

TOTAL = "total of squares"
"""Tensor of the total that a stage sends on."""


def gradients_of(
    graph: Graph, stored: Mapping[str, Stored], elsewhere: Collection[str]
) -> list[Tensor]:
    """The gradients that a device counts, in the order in which their squares are added up.

    Parameters
    ----------
    graph : Graph
    stored : mapping of str to Stored
        The device's parameters.
    elsewhere : collection of str
        Those that an earlier stage or another device has, too, and counts.
    """
    names = dict.fromkeys(
        parameter.name for layer in graph.layers.values() for parameter in layer.parameters
    )
    return [
        Tensor(f"{name}.gradient", (stored[name].tensor.elements,))
        for name in reversed(names)
        if name in stored and stored[name].trainable and name not in elsewhere
    ]


class GlobalNorm:
    """The kernels of a device that compute the factor of all gradients.

    Parameters
    ----------
    member : Member
        The device's place in the chain; alone if it has all gradients.
    gradients : sequence of Tensor
        Result of `gradients_of`.
    region : Region
        Part of the scratchpad.
    declare : callable
        Called with each tensor that needs a place in memory; returns it.
    fix : callable
        Called with a tensor that never changes, and its contents.
    view : callable
        Names a part of a tensor, given that, the first element and the part's shape.
    """

    def __init__(
        self,
        member: Member,
        gradients: Sequence[Tensor],
        region: Region,
        declare: Callable[[Tensor], Tensor],
        fix: Callable[[Tensor, NDArray[np.float32]], object],
        view: Callable[[Tensor, int, tuple[int, ...]], Tensor],
    ) -> None:
        self._member = member
        self._gradients = gradients
        self._region = region
        self._declare = declare
        self._fix = fix
        self._view = view
        self.factor = declare(Tensor(NAME, (LANES,)))

    def kernels(self) -> list[Kernel]:
        """The kernels, whose order must be kept if the device is not alone."""
        member, region = self._member, self._region
        came = not member.is_last
        found: list[Kernel] = []
        if came or self._gradients:
            sums = self._declare(sums_of(came + len(self._gradients), SQUARES))
            found += square_sums(f"{NAME}.squares", self._gradients, sums, region, int(came))
        else:
            sums = sums_of(1, SQUARES)
            self._fix(sums, np.zeros((1, LANES), np.float32))
        if came:
            first = self._view(sums, 0, (LANES,))
            found.append(transfer(NAME, Opcode.RECEIVE, member, member.after, first, 0))
        if member.is_first:
            norm = self._declare(Tensor(NORM, (LANES,)))
            limit = Constant(register=Scalar.MAX_NORM)
            found.append(
                clip_coefficient(NAME, sums, self.factor, region, max_norm=limit, norm=norm)
            )
        else:
            total = self._declare(Tensor(TOTAL, (LANES,)))
            found.append(total_of_sums(f"{NAME}.total", sums, total, region))
            found.append(transfer(NAME, Opcode.SEND, member, member.before, total, 0))
        found += passed_on(NAME, member, 1, self.factor, 0, member.num_devices - 1)
        return found
