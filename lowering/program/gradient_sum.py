"""The sums of the gradients of weights that several devices have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.lowering.memory.placed import Placed
from fpgapipe.lowering.program.device_program import SUM
from fpgapipe.lowering.program.share import Summed
from fpgapipe.lowering.sums.all_reduce import (
    BUFFERS,
    Team,
    all_reduce,
    buffers_of,
    chunks_of,
    passed_on,
)
from fpgapipe.lowering.sums.on_chip_sum import adds_on_chip
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.step_options import GRADIENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.program.arenas import Arenas
    from fpgapipe.lowering.program.share import Share
    from fpgapipe.lowering.tiling.kernel import Kernel, Region


class GradientSum:
    """Kernels that a device adds to its program so that devices have the sums of their gradients.

    The gradients that all devices add up come first, then those of which all devices of a group
    have the same, then those of parts, or of the stages of a pipeline. For each part or stage the
    whole chain sums: devices that have others pass it on.

    Parameters
    ----------
    share : Share
    arenas : Arenas
        Where the gradients lie.
    core : CoreSpec
    region : Region
        Part of the scratchpad for the additions.

    Attributes
    ----------
    received : list of Tensor
        Tensors that need a place in memory besides the gradients.
    """

    def __init__(self, share: Share, arenas: Arenas, core: CoreSpec, region: Region) -> None:
        self._share, self._region = share, region
        member = share.member
        count = member.num_devices
        size = share.group_size
        last = tuple(range(size - 1, count, size))  # so that no device lies behind the last adder
        sums: list[tuple[Team, Sequence[Tensor]]] = [
            (Team.every(count), arenas.summed(Summed.ALL)),
            (Team(last, tuple(range(count))), arenas.summed(Summed.GROUPS)),
        ]
        own = arenas.summed(Summed.LANES)
        told = share.stages[share.lane].learned if share.stages else own
        assert arenas.elements_of(own) == arenas.elements_of(told), "others expect as many elements"
        sums += [(share.lane_team(lane), share.learned_of(lane, own)) for lane in range(size)]
        self._sums: list[tuple[Team, list[Tensor]]] = []
        self._places: list[tuple[Tensor, int]] = []
        begin = 0
        for number, (team, tensors) in enumerate(sums):
            elements = arenas.elements_of(tensors)
            chunks = chunks_of(f"{GRADIENTS}.sum{number}", elements)
            self._sums.append((team, chunks))
            if member.index in team.keepers:
                at = begin
                for chunk in chunks:
                    self._places.append((chunk, at))
                    at += chunk.size_bytes
                begin = at
        self._chunks = chunks = [chunk for _, each in self._sums for chunk in each]
        self._coming = buffers_of(f"{GRADIENTS}.coming", chunks)
        self._passing = buffers_of(f"{GRADIENTS}.passing", chunks)
        self.received: list[Tensor] = []
        filled = [team for team, each in self._sums if each]
        self._on_chip = adds_on_chip(core, region, chunks)
        if any(team.needs_buffers(member.index, on_chip=self._on_chip) for team in filled):
            self.received += dict.fromkeys(self._coming)
        if any(team.passes_on(member.index) for team in filled):
            self.received += dict.fromkeys(self._passing)

    def kernels(
        self, averages: Iterable[Tensor], *, few: bool = False
    ) -> tuple[list[Kernel], list[tuple[Kernel, int]]]:
        """Kernels in an order that the program must keep.

        All devices then have the running averages of the first device, or of the first one with the
        same part of the network, as with PyTorch's ``DistributedDataParallel``.

        Parameters
        ----------
        averages : iterable of Tensor
            Running averages that devices have in common, in an order that is the same on all.
        few : bool
            Whether to leave out the kernels of most chunks, if only the memory that the program
            needs is asked for.

        Returns
        -------
        kernels : list of Kernel
        left_out : list of (Kernel, int)
            Kernels, and how often each is added for those that are left out, or taken away.
        """
        share, member = self._share, self._share.member
        found: list[Kernel] = []
        left_out: list[tuple[Kernel, int]] = []
        done = 0
        for team, chunks in self._sums:

            def added(numbers: Sequence[int], team: Team = team, first: int = done) -> list[Kernel]:
                coming, passing = (
                    [each[first + number] for number in numbers]
                    for each in (self._coming, self._passing)
                )
                some = [self._chunks[first + number] for number in numbers]
                more = {"on_chip": self._on_chip}
                return [*all_reduce(SUM, member, some, coming, self._region, team, passing, **more)]

            numbers = list(range(len(chunks)))
            if few and len(chunks) > BUFFERS + 1:
                numbers = [*range(BUFFERS), len(chunks) - 1]
                more = len(chunks) - len(numbers)
                # Two chunks take as much more than one as each further chunk.
                left_out += [(kernel, more) for kernel in added([0, 1])]
                left_out += [(kernel, -more) for kernel in added([0])]
            found += added(numbers)
            done += len(chunks)
        whole, of_lanes = self._averages(averages)
        ways = [(0, member.num_devices - 1, tensor) for tensor in whole]
        for lane, tensors in enumerate(of_lanes):
            devices = share.lane_team(lane).adders
            ways += [(devices[0], devices[-1], tensor) for tensor in tensors]
        for number, (source, target, tensor) in enumerate(ways):
            found += passed_on(SUM, member, number, tensor, source, target)
        return found, left_out

    def foreign(self, averages: Sequence[Tensor]) -> list[Tensor]:
        """Tensors for running averages of other lanes, which may go through this device."""
        share = self._share
        _, of_lanes = self._averages(averages)
        return [
            tensor
            for lane, tensors in enumerate(of_lanes)
            if lane != share.lane and share.lane_team(lane).passes(share.member.index)
            for tensor in tensors
        ]

    def _averages(self, averages: Iterable[Tensor]) -> tuple[list[Tensor], list[Sequence[Tensor]]]:
        """Running averages that all devices have, and those of each lane."""
        share = self._share
        whole: list[Tensor] = []
        own: list[Tensor] = []
        for tensor in averages:
            (own if share.summed(tensor.name) is Summed.LANES else whole).append(tensor)
        return whole, [share.averages_of(lane, own) for lane in range(share.group_size)]

    def places(self, begin: int) -> dict[str, Placed]:
        """Places of the chunks, if the gradients begin at a given byte."""
        return {
            chunk.name: Placed(begin + at, begin + at + chunk.size_bytes)
            for chunk, at in self._places
        }
