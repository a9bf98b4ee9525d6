"""The sum of the gradients of devices that all have the same part of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.lowering.memory.placed import Placed
from fpgapipe.lowering.program.all_reduce import (
    Member,
    all_reduce,
    broadcast,
    chunks_of,
    coming_chunks,
)
from fpgapipe.lowering.program.device_program import SUM
from fpgapipe.lowering.units.step_options import GRADIENTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fpgapipe.lowering.tiling.kernel import Kernel, Region, Tensor


class GradientSum:
    """What a device adds to its program so that all devices have the sum of their gradients.

    Parameters
    ----------
    member : Member
        The device's place among the devices.
    elements : int
        Elements of all gradients.

    Attributes
    ----------
    received : list of Tensor
        Tensors that need a place in memory besides the gradients.
    """

    def __init__(self, member: Member, elements: int) -> None:
        self._member = member
        self._chunks = chunks_of(GRADIENTS, elements)
        self._coming = coming_chunks(GRADIENTS, self._chunks)
        self.received: list[Tensor] = [] if member.is_first else list(dict.fromkeys(self._coming))

    def kernels(self, averages: Iterable[Tensor], region: Region) -> list[Kernel]:
        """Kernels in an order that the program must keep.

        All devices then have the running averages of the first device, as with PyTorch's
        ``DistributedDataParallel``.

        Parameters
        ----------
        averages : iterable of Tensor
            Running averages, in an order that is the same on all devices.
        region : Region
            Part of the scratchpad for the additions.
        """
        found = list(all_reduce(SUM, self._member, self._chunks, self._coming, region))
        for number, tensor in enumerate(averages):
            found += broadcast(SUM, self._member, number, tensor, to_last=True)
        return found

    def places(self, begin: int) -> dict[str, Placed]:
        """Places of the chunks, if the gradients begin at a given byte."""
        found = {}
        for chunk in self._chunks:
            found[chunk.name] = Placed(begin, begin + chunk.size_bytes)
            begin += chunk.size_bytes
        return found
