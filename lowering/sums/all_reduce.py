"""The sum of a tensor over the devices of a chain, as kernels of each of them.

The tensor is cut into chunks. For each chunk, the first device sends its values to the second one,
which adds its own and sends the sum to the third, and so on. The last device has the sum of all,
and sends it back through all devices, which keep it. The order of the additions is that of the
devices, for every element: ``((g0 + g1) + g2) + g3``. With a micro-batch on each device this is the
order of one device that does all of them.

A tensor that only some devices have is added up by these; the devices between them pass it on.

Where words pass the links in one part, a device adds up in its scratchpad (`on_chip_sum`), and sums
pass through memory only on their way back.

Chunks follow one another, and the two directions of a link are independent. So every wire carries
each element once, and the whole takes about as long as one transfer of the tensor, for any number
of devices, plus the time of a chunk for each hop. A ring all-reduce over ``n`` devices sends
``2 (n - 1) / n`` of the tensor over the wires in one direction (Patarasu and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", JPDC 2009).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, Opcode
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.kernels.optimiser import accumulate
from fpgapipe.lowering.memory.placed import page
from fpgapipe.lowering.sums.on_chip_sum import OnChipSum
from fpgapipe.lowering.sums.transfers import TransferKernel
from fpgapipe.lowering.tiling.kernel import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fpgapipe.lowering.placement import Placement
    from fpgapipe.lowering.tiling.kernel import Kernel, Region

CHUNK_BYTES = (1 << 13, 1 << 14)
"""Least and most bytes of a chunk, which is one packet on a link; the last one may be smaller.

With larger ones, the few requests of a SEND wait behind all those of an addition's loads."""

MANY_CHUNKS = 512
"""Chunks of a tensor that are so many that the time of a chunk for each hop hardly matters."""

LAG = 3
"""Chunks by which sums come back later for each device behind, in a device's order of kernels."""

BUFFERS = 16
"""Buffers for chunks that come from the device before: as many as its queue has SENDs."""

REGIONS = 4
"""Parts of the scratchpad that additions use in turn, so that none waits for the one before it."""

ADDITION_BYTES = 1 << 15
"""Most bytes of scratchpad of an addition of chunks above the least: it adds pieces of 4 KB, and
SENDs get their turn at the memory between these."""


@dataclass(frozen=True)
class Member:
    """A device's place in the chain.

    Attributes
    ----------
    index, num_devices : int
        Number of the device in the chain, and number of devices.
    before, after : int
        Numbers of its links to the device before and to the next one.
    """

    index: int
    num_devices: int
    before: int = 0
    after: int = 0

    @classmethod
    def of(cls, placement: Placement, node: int) -> Member:
        """The place of a node among all."""
        return cls(node, placement.num_nodes, *placement.between(node))

    @property
    def is_first(self) -> bool:
        """Whether no device comes before this one."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether no device follows."""
        return self.index == self.num_devices - 1


@dataclass(frozen=True)
class Team:
    """The devices of a chain that add up a tensor; those between them pass it on.

    Attributes
    ----------
    adders : tuple of int
        Devices with a summand, in ascending order, which is that of the additions.
    keepers : tuple of int
        Devices that get the sum, in ascending order: the adders, and any devices before the last.
    """

    adders: tuple[int, ...]
    keepers: tuple[int, ...]

    @classmethod
    def every(cls, num_devices: int) -> Team:
        """The team of all devices of a chain."""
        return cls(tuple(range(num_devices)), tuple(range(num_devices)))

    def shifted(self, devices: int) -> Team:
        """The team of devices that lie further behind."""
        return Team(
            tuple(each + devices for each in self.adders),
            tuple(each + devices for each in self.keepers),
        )

    def passes(self, index: int) -> bool:
        """Whether a device lies between the first and the last one that add up."""
        return self.adders[0] < index < self.adders[-1]

    def receives(self, index: int) -> bool:
        """Whether a sum of the devices before comes to a device."""
        return self.adders[0] < index <= self.adders[-1]

    def needs_buffers(self, index: int, *, on_chip: bool) -> bool:
        """Whether the sum of the devices before comes into a device's memory."""
        return self.receives(index) and not (on_chip and index in self.adders)

    def passes_on(self, index: int) -> bool:
        """Whether the whole sum goes through a device that does not keep it."""
        return self.keepers[0] < index < self.adders[-1] and index not in self.keepers


def chunks_of(name: str, elements: int) -> list[Tensor]:
    """The chunks of an FP32 tensor, in the order of its elements."""
    least, most = CHUNK_BYTES
    size = min(max(page(4 * elements // MANY_CHUNKS), least), most) // 4
    return [
        Tensor(f"{name}[{first}:]", (min(size, elements - first),))
        for first in range(0, elements, size)
    ]


def buffers_of(name: str, chunks: Sequence[Tensor]) -> list[Tensor]:
    """Tensors through which chunks go, some in turn: one for each of `chunks`."""
    most = max((chunk.elements for chunk in chunks), default=0)
    buffers = [Tensor(f"{name}{number}", (most,)) for number in range(BUFFERS)]
    return [buffers[number % BUFFERS] for number in range(len(chunks))]


def all_reduce(
    name: str,
    member: Member,
    chunks: Sequence[Tensor],
    coming: Sequence[Tensor],
    region: Region,
    team: Team | None = None,
    passing: Sequence[Tensor] = (),
    *,
    on_chip: bool = False,
) -> Iterator[Kernel]:
    """Yield a device's kernels, after which its chunks have the sums over all devices.

    The program must keep their order. A device sends the sum of chunk ``c`` back right after it has
    passed on chunk ``c + lag``, and the lag, which covers the time in between, falls from device to
    device down to 0. So a kernel waits for none, on whatever device, that its own device has to
    wait for: even if all queues are full, the first chunk that is not done can go on.

    Parameters
    ----------
    name : str
    member : Member
    chunks : sequence of Tensor
        The device's own values, which the sums replace; if it keeps none, the sizes count.
    coming : sequence of Tensor
        Result of `buffers_of`, for sums of the devices before.
    region : Region
        Part of the scratchpad for the additions.
    team : Team, optional
        The devices that add up the tensor; all of the chain if left out.
    passing : sequence of Tensor, optional
        Result of `buffers_of`, for sums that go through a device which does not keep them.
    on_chip : bool
        Whether sums are added up in the scratchpad (`adds_on_chip`), and need no `coming`.
    """
    team = team or Team.every(member.num_devices)
    regions = _regions(region, chunks)
    lag = LAG * max(team.adders[-1] - member.index, 0)
    keeps = member.index in team.keepers
    back: list[tuple[TransferKernel, ...]] = [()] * lag
    for number, chunk in enumerate(chunks):
        tensor = chunk if keeps else _buffer(passing, number, chunk)
        ways = passed_on(name, member, number, tensor, team.adders[-1], team.keepers[0])
        back.append(tuple(ways))
    if on_chip and chunks and team.receives(member.index) and member.index in team.adders:
        yield _added_on_chip(name, member, team, chunks, back, region)
        return
    for number, others in enumerate(back):
        if number < len(chunks):
            own, among = chunks[number], regions[number % len(regions)]
            yield from _gathered(name, member, team, number, own, coming, among)
        yield from others


def _added_on_chip(
    name: str,
    member: Member,
    team: Team,
    chunks: Sequence[Tensor],
    back: Sequence[tuple[TransferKernel, ...]],
    region: Region,
) -> OnChipSum:
    """Add up in the scratchpad what comes from the devices before, and send it to the next one."""
    comes, goes = (
        tuple(
            transfer(name, opcode, member, link, chunk, number)
            for number, chunk in enumerate(chunks)
        )
        for opcode, link in ((Opcode.RECEIVE, member.before), (Opcode.SEND, member.after))
    )
    is_last = member.index == team.adders[-1]
    return OnChipSum(
        f"{name}.add", tuple(chunks), comes, () if is_last else goes, tuple(back), region
    )


def _buffer(buffers: Sequence[Tensor], number: int, chunk: Tensor) -> Tensor:
    """The buffer of a chunk, with the chunk's size; the chunk itself if there are no buffers."""
    return Tensor(buffers[number].name, chunk.shape) if buffers else chunk


def _regions(region: Region, chunks: Sequence[Tensor]) -> list[Region]:
    """Parts of a region that additions use in turn, spread over its banks."""
    step = region.size_bytes // REGIONS // WORD_BYTES * WORD_BYTES
    large = any(chunk.size_bytes > CHUNK_BYTES[0] for chunk in chunks)
    size = min(step, ADDITION_BYTES) if large else step
    return [replace(region, base=region.base + n * step, size_bytes=size) for n in range(REGIONS)]


def _gathered(
    name: str,
    member: Member,
    team: Team,
    number: int,
    own: Tensor,
    coming: Sequence[Tensor],
    region: Region,
) -> Iterator[Kernel]:
    """Add what comes from the devices before, and send the sum to the next one."""
    index = member.index
    total = own
    if team.receives(index):
        came = _buffer(coming, number, own)
        yield transfer(name, Opcode.RECEIVE, member, member.before, came, number)
        if index in team.adders:
            yield accumulate(f"{name}.add", own, came, region)
        else:
            total = came
    if team.adders[0] <= index < team.adders[-1]:
        yield transfer(name, Opcode.SEND, member, member.after, total, number)


def passed_on(
    name: str, member: Member, number: int, tensor: Tensor, source: int, target: int
) -> Iterator[TransferKernel]:
    """Yield the kernels by which a tensor goes through the chain from one device to another.

    Parameters
    ----------
    name : str
    member : Member
    number : int
        Number of the tensor, below 2**28, which both ends of a link compare.
    tensor : Tensor
        The tensor of this device, which gets the values unless it is the source.
    source, target : int
        Devices where the way begins and ends.
    """
    if not min(source, target) <= member.index <= max(source, target):
        return
    comes, goes = member.before, member.after
    if target < source:
        comes, goes = goes, comes
    if member.index != source:
        yield transfer(name, Opcode.RECEIVE, member, comes, tensor, number)
    if member.index != target:
        yield transfer(name, Opcode.SEND, member, goes, tensor, number)


def transfer(
    name: str, opcode: Opcode, member: Member, link: int, tensor: Tensor, number: int
) -> TransferKernel:
    """Kernel that sends a tensor to a neighbour or receives it, in one part.

    Parameters
    ----------
    name : str
    opcode : Opcode
        SEND or RECEIVE.
    member : Member
    link : int
        Number of the link.
    tensor : Tensor
    number : int
        See `passed_on`.
    """
    to_next = (opcode is Opcode.SEND) == (link == member.after)
    channel = Channel.ACTIVATIONS if to_next else Channel.GRADIENTS
    return TransferKernel(f"{name}.{opcode.name.lower()}", opcode, link, channel, tensor, number, 1)
