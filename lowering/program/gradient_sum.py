"""The sums of the gradients of weights that several devices have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.lowering.kernels.cast import cast
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
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.step_options import GRADIENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fpgapipe.lowering.program.arenas import Arenas
    from fpgapipe.lowering.program.share import Share
    from fpgapipe.lowering.tiling.kernel import Kernel, Region

HELD = 7 / 8
"""Share of the sums that a node between two others passes on before its weights are updated.

Less delays the nodes at the ends (10 % of a mini-batch of digits-cnn with 32x64 cells, where the
update begins with the first sum); with all, the update keeps the others waiting by up to 4 %.
"""


class GradientSum:
    """Kernels that a device adds to its program so that devices have the sums of their gradients.

    The gradients that all devices add up come first, then those of which all devices of a group
    have the same, then those of parts. For each part the whole chain sums: devices that have other
    parts pass it on.

    Parameters
    ----------
    share : Share
    arenas : Arenas
        Where the gradients lie.

    Attributes
    ----------
    received : list of Tensor
        Tensors that need a place in memory besides the gradients.
    """

    def __init__(self, share: Share, arenas: Arenas) -> None:
        self._share = share
        member = share.member
        count = member.num_devices
        size = share.group_size
        last = tuple(range(size - 1, count, size))  # so that no device lies behind the last adder
        sums = [
            (Team.every(count), arenas.summed(Summed.ALL)),
            (Team(last, tuple(range(count))), arenas.summed(Summed.GROUPS)),
        ]
        own = arenas.summed(Summed.LANES)
        for lane in range(size) if own else ():
            sums.append((share.lane_team(lane), [share.tensor_of(lane, each) for each in own]))
        self._sums: list[tuple[Team, list[Tensor]]] = []
        self._places: list[tuple[Tensor, int]] = []
        begin = 0
        for number, (team, tensors) in enumerate(sums):
            elements = arenas.elements_of(tensors)
            by_turns = share.by_turns and not number  # what all devices have
            chunks = chunks_of(f"{GRADIENTS}.sum{number}", elements, by_turns=by_turns)
            self._sums.append((team, chunks))
            if member.index in team.keepers:
                at = begin
                for chunk in chunks:
                    self._places.append((chunk, at))
                    at += chunk.size_bytes
                begin = at
        chunks = [chunk for _, each in self._sums for chunk in each]
        self._coming = buffers_of(f"{GRADIENTS}.coming", chunks)
        self._passing = buffers_of(f"{GRADIENTS}.passing", chunks)
        self.received: list[Tensor] = []
        filled = [team for team, each in self._sums if each]
        turns = share.by_turns and bool(self._sums[0][1])
        if turns or any(team.receives(member.index) for team in filled):
            self.received += dict.fromkeys(self._coming)
        if (turns and count > 2) or any(team.passes_on(member.index) for team in filled):
            self.received += dict.fromkeys(self._passing)

    def kernels(
        self, averages: Iterable[Tensor], region: Region, *, few: bool = False
    ) -> tuple[list[Kernel], list[tuple[Kernel, int]]]:
        """Kernels in an order that the program must keep.

        All devices then have the running averages of the first device, or of the first one with the
        same part of the network, as with PyTorch's ``DistributedDataParallel``.

        Parameters
        ----------
        averages : iterable of Tensor
            Running averages that devices have in common, in an order that is the same on all.
        region : Region
            Part of the scratchpad for the additions.
        few : bool
            Whether to leave out the kernels of most chunks, if only the memory that the program
            needs is asked for.

        Returns
        -------
        kernels : list of Kernel
        left_out : list of (Kernel, int)
            Kernels like those that are left out, and how many there are of each.
        """
        share, member = self._share, self._share.member
        found: list[Kernel] = []
        left_out: list[tuple[Kernel, int]] = []
        done = 0
        for place, (team, chunks) in enumerate(self._sums):
            by_turns = share.by_turns and not place
            numbers = list(range(len(chunks)))
            if few and len(chunks) > BUFFERS + 1:
                numbers = [*range(BUFFERS), len(chunks) - 1]
                more = len(chunks) - len(numbers)
                alike = 2 if by_turns else 1
                kernels = all_reduce(
                    *(SUM, member, chunks[:alike], self._coming, region, team, self._passing),
                    by_turns=by_turns,
                )
                left_out += [(kernel, -(-more // alike)) for kernel in kernels]
            coming, passing = (
                [each[done + number] for number in numbers]
                for each in (self._coming, self._passing)
            )
            some = [chunks[number] for number in numbers]
            found += all_reduce(SUM, member, some, coming, region, team, passing, by_turns=by_turns)
            done += len(chunks)
        for number, tensor in enumerate(averages):
            ways = [(0, member.num_devices - 1, tensor)]
            if share.summed(tensor.name) is Summed.LANES:
                teams = [share.lane_team(lane).adders for lane in range(share.group_size)]
                ways = [
                    (team[0], team[-1], share.tensor_of(lane, tensor))
                    for lane, team in enumerate(teams)
                ]
            for source, target, each in ways:
                found += passed_on(SUM, member, number, each, source, target)
        return [*found, *self._until_most_are_passed_on(region)], left_out

    def _until_most_are_passed_on(self, region: Region) -> Iterator[Kernel]:
        """A kernel behind which the update of a node between two others begins.

        By turns, that node adds nothing up. Its update would begin with the first sum, and take the
        memory through which all further sums go to the ends. The kernel reads a sum that comes
        late (`HELD`), for which all loads behind it wait.
        """
        member, chunks = self._share.member, self._sums[0][1]
        if self._share.by_turns and chunks and not (member.is_first or member.is_last):
            late, buffer = (
                Tensor(each.name, (1,))
                for each in (chunks[int(HELD * len(chunks))], self._coming[0])
            )
            yield cast(f"{SUM}.held", late, buffer, region)

    def foreign(self, averages: Sequence[Tensor]) -> list[Tensor]:
        """Tensors for running averages of other parts, which go through this device."""
        share = self._share
        return [
            share.tensor_of(lane, tensor)
            for tensor in averages
            if share.summed(tensor.name) is Summed.LANES
            for lane in range(share.group_size)
            if lane != share.lane
        ]

    def places(self, begin: int) -> dict[str, Placed]:
        """Places of the chunks, if the gradients begin at a given byte."""
        return {
            chunk.name: Placed(begin + at, begin + at + chunk.size_bytes)
            for chunk, at in self._places
        }
