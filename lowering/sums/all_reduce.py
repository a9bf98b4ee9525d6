"""The sum of a tensor over the devices of a chain, as kernels of each of them.

The tensor is cut into chunks. For each chunk, the first device sends its values to the second one,
which adds its own and sends the sum to the third, and so on. The last device has the sum of all,
and sends it back through all devices, which keep it. The order of the additions is that of the
devices, for every element: ``((g0 + g1) + g2) + g3``. With a micro-batch on each device this is the
order of one device that does all of them.

A tensor that only some devices have is added up by these; the devices between them pass it on.

Two or three nodes of a board send all values of a chunk to one end of their chain, by turns, which
adds them up in the same order (`adds_by_turns`).

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
from fpgapipe.hw.hls_models.spec.on_chip import OnChipSpec
from fpgapipe.lowering.kernels.optimiser import accumulate, add_up
from fpgapipe.lowering.memory.placed import page
from fpgapipe.lowering.sums.transfers import TransferKernel
from fpgapipe.lowering.tiling.kernel import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.placement import Placement
    from fpgapipe.lowering.tiling.kernel import Kernel, Region

CHUNK_BYTES = (1 << 13, 1 << 14)
"""Least and most bytes of a chunk, which is one packet on a link; the last one may be smaller.

With larger ones, the few requests of a SEND wait behind all those of an addition's loads."""

MANY_CHUNKS = 512
"""Chunks of a tensor that are so many that the time of a chunk for each hop hardly matters."""

LAG = 3
"""Chunks by which sums come back later for each device behind, in a device's order of kernels."""

TURN_LAG = 5
"""Chunks by which sums come back later for each link, where the ends add up by turns.

It is odd, so that a step has values in one direction and sums in the other. With 3, the sum over
three nodes of a U280 takes 5 % longer, with 4 25 %, and as long with 7."""

BUFFERS = 16
"""Buffers for chunks that come from the device before: as many as its queue has SENDs."""

REGIONS = 4
"""Parts of the scratchpad that additions use in turn, so that none waits for the one before it."""

BY_TURNS = 3
"""Largest number of nodes of a board that add up chunks at either end of their chain by turns."""

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

    def receives(self, index: int) -> bool:
        """Whether a sum of the devices before comes to a device."""
        return self.adders[0] < index <= self.adders[-1]

    def passes_on(self, index: int) -> bool:
        """Whether the whole sum goes through a device that does not keep it."""
        return self.keepers[0] < index < self.adders[-1] and index not in self.keepers


def chunks_of(name: str, elements: int, *, by_turns: bool = False) -> list[Tensor]:
    """The chunks of an FP32 tensor, in the order of its elements.

    The ends of a chain that add up by turns take the smallest: larger ones wait for each other.
    """
    least, most = CHUNK_BYTES
    size = least // 4 if by_turns else min(max(page(4 * elements // MANY_CHUNKS), least), most) // 4
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
    by_turns: bool = False,
) -> Iterator[Kernel]:
    """Yield a device's kernels, after which its chunks have the sums over all devices.

    The program must keep their order. A device sends the sum of chunk ``c`` back right after it has
    passed on chunk ``c + lag``, and the lag, which covers the time in between, falls from device to
    device down to 0. So a kernel waits for none, on whatever device, that its own device has to
    wait for: even if all queues are full, the first chunk that is not done can go on. By turns, all
    that goes over a link in one direction has the same order at both of its ends, step by step, and
    depends on earlier steps, or on what comes from further away in the same one.

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
        Result of `buffers_of`, for sums that go through a device which does not keep them, and for
        values of a third node.
    by_turns : bool
        Whether the two ends of the chain add up chunks by turns (`adds_by_turns`).
    """
    team = team or Team.every(member.num_devices)
    regions = _regions(region, chunks)
    if by_turns:
        for number in range(len(chunks) + TURN_LAG * (member.num_devices - 1)):
            if number < len(chunks):
                among = regions[number % len(regions)]
                yield from _given(name, member, number, chunks[number], coming, passing, among)
            yield from _given_back(name, member, number, chunks)
        return
    lag = LAG * max(team.adders[-1] - member.index, 0)
    keeps = member.index in team.keepers
    for number in range(len(chunks) + lag):
        if number < len(chunks):
            own, among = chunks[number], regions[number % len(regions)]
            yield from _gathered(name, member, team, number, own, coming, among)
        if number >= lag:
            back = number - lag
            tensor = chunks[back] if keeps else _buffer(passing, back, chunks[back])
            yield from passed_on(name, member, back, tensor, team.adders[-1], team.keepers[0])


def adds_by_turns(cores: Sequence[CoreSpec]) -> bool:
    """Whether devices with these cores add up chunks at either end of their chain by turns.

    A node between two others passes a running sum on through its memory seven times. By turns, two
    or three nodes do with three and a half and five passes each, and the memory binds. Three send
    half as many bytes again over each link, which only links within a board carry.
    """
    links = [link for core in cores for link in core.links]
    return 1 < len(cores) <= BY_TURNS and all(isinstance(link, OnChipSpec) for link in links)


def _end(member: Member, number: int) -> int:
    """The device that adds up a chunk by turns."""
    return 0 if number % 2 else member.num_devices - 1


def _given(
    name: str,
    member: Member,
    number: int,
    own: Tensor,
    coming: Sequence[Tensor],
    passing: Sequence[Tensor],
    region: Region,
) -> Iterator[Kernel]:
    """Send a chunk's values, and those that come, to the end that adds them up in their order."""
    end, index, count = _end(member, number), member.index, member.num_devices
    towards, behind = member.after, member.before
    if end < index:
        towards, behind = behind, towards
    away = range(index + 1, count) if end < index else range(index - 1, -1, -1)
    if index != end:
        yield _moved(name, Opcode.SEND, towards, Channel.ACTIVATIONS, own, number)
        for _ in away:
            came = _buffer(coming, number, own)
            yield _moved(name, Opcode.RECEIVE, behind, Channel.ACTIVATIONS, came, number)
            yield _moved(name, Opcode.SEND, towards, Channel.ACTIVATIONS, came, number)
        return
    values = {index: own}
    nearest_first = range(1, count) if index == 0 else range(count - 2, -1, -1)
    for other, buffers in zip(nearest_first, (coming, passing), strict=False):
        values[other] = _buffer(buffers, number, own)
        link = member.after if index == 0 else member.before
        yield _moved(name, Opcode.RECEIVE, link, Channel.ACTIVATIONS, values[other], number)
    summands = [values[each] for each in sorted(values)]
    yield add_up(f"{name}.add", summands, own, region)


def _given_back(name: str, member: Member, step: int, chunks: Sequence[Tensor]) -> Iterator[Kernel]:
    """Pass whole sums on, from the ends that have added them up to all others.

    A sum goes over a link in the same step at both of its ends, between the same values, since they
    share the link's direction.
    """
    for end in (0, member.num_devices - 1):
        away = abs(member.index - end)
        towards, onwards = member.before, member.after
        if end > member.index or end == member.index != 0:
            towards, onwards = onwards, towards
        for hops, opcode, link in (
            (away, Opcode.RECEIVE, towards),
            (away + 1, Opcode.SEND, onwards),
        ):
            number = step - TURN_LAG * hops
            is_way = 0 < hops < member.num_devices
            if is_way and 0 <= number < len(chunks) and _end(member, number) == end:
                yield _moved(name, opcode, link, Channel.GRADIENTS, chunks[number], number)


def _moved(
    name: str, opcode: Opcode, link: int, channel: Channel, tensor: Tensor, number: int
) -> TransferKernel:
    return TransferKernel(f"{name}.{opcode.name.lower()}", opcode, link, channel, tensor, number, 1)


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
) -> Iterator[Kernel]:
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
    return _moved(name, opcode, link, channel, tensor, number)
