"""The sum of a tensor over the devices of a chain, as kernels of each of them.

The tensor is cut into chunks. For each chunk, the first device sends its values to the second one,
which adds its own and sends the sum to the third, and so on. The last device has the sum of all,
and sends it back through all devices, which keep it. The order of the additions is that of the
devices, for every element: ``((g0 + g1) + g2) + g3``. With a micro-batch on each device this is the
order of one device that does all of them.

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
from fpgapipe.lowering.kernels.transfers import TransferKernel
from fpgapipe.lowering.memory.placed import page
from fpgapipe.lowering.tiling.kernel import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fpgapipe.lowering.tiling.kernel import Kernel, Region

CHUNK_BYTES = (1 << 13, 1 << 16)
"""Least and most bytes of a chunk, which is one packet on a link; the last one may be smaller."""

MANY_CHUNKS = 512
"""Chunks of a tensor that are so many that the time of a chunk for each hop hardly matters."""

LAG = 3
"""Chunks by which sums come back later for each device behind, in a device's order of kernels."""

BUFFERS = 16
"""Buffers for chunks that come from the device before: as many as its queue has SENDs."""

REGIONS = 4
"""Parts of the scratchpad that additions use in turn, so that none waits for the one before it."""


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

    @property
    def is_first(self) -> bool:
        """Whether no device comes before this one."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether no device follows."""
        return self.index == self.num_devices - 1


def chunks_of(name: str, elements: int) -> list[Tensor]:
    """The chunks of an FP32 tensor, in the order of its elements."""
    least, most = CHUNK_BYTES
    size = min(max(page(4 * elements // MANY_CHUNKS), least), most) // 4
    return [
        Tensor(f"{name}[{first}:]", (min(size, elements - first),))
        for first in range(0, elements, size)
    ]


def coming_chunks(name: str, chunks: Sequence[Tensor]) -> list[Tensor]:
    """Tensors into which chunks are received, some in turn: one for each of `chunks`."""
    most = max((chunk.elements for chunk in chunks), default=0)
    buffers = [Tensor(f"{name}.coming{number}", (most,)) for number in range(BUFFERS)]
    return [buffers[number % BUFFERS] for number in range(len(chunks))]


def all_reduce(
    name: str,
    member: Member,
    chunks: Sequence[Tensor],
    coming: Sequence[Tensor],
    region: Region,
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
        The device's own values, which the sums replace.
    coming : sequence of Tensor
        Result of `coming_chunks`.
    region : Region
        Part of the scratchpad for the additions.
    """
    regions = _regions(region)
    lag = LAG * (member.num_devices - 1 - member.index)
    for number in range(len(chunks) + lag):
        if number < len(chunks):
            own, among = chunks[number], regions[number % len(regions)]
            yield from _gathered(name, member, number, own, coming[number], among)
        if number >= lag:
            yield from broadcast(name, member, number - lag, chunks[number - lag], to_last=False)


def _regions(region: Region) -> list[Region]:
    """Parts of a region that additions use in turn."""
    size = region.size_bytes // REGIONS // WORD_BYTES * WORD_BYTES
    return [replace(region, base=region.base + n * size, size_bytes=size) for n in range(REGIONS)]


def _gathered(
    name: str, member: Member, number: int, own: Tensor, coming: Tensor, region: Region
) -> Iterator[Kernel]:
    """Add what comes from the device before, and send the sum to the next one."""
    if not member.is_first:
        came = Tensor(coming.name, own.shape)
        yield _transfer(name, Opcode.RECEIVE, member, member.before, came, number)
        yield accumulate(f"{name}.add", own, came, region)
    if not member.is_last:
        yield _transfer(name, Opcode.SEND, member, member.after, own, number)


def broadcast(
    name: str, member: Member, number: int, tensor: Tensor, *, to_last: bool
) -> Iterator[Kernel]:
    """Yield the kernels by which all devices get the tensor of one end of the chain.

    Parameters
    ----------
    name : str
    member : Member
    number : int
        Number of the tensor, below 2**28, which both ends of a link compare.
    tensor : Tensor
    to_last : bool
        Whether it goes from the first device to the last one, or else back.
    """
    source, target = (member.before, member.after) if to_last else (member.after, member.before)
    begins, ends = member.is_first, member.is_last
    if not to_last:
        begins, ends = ends, begins
    if not begins:
        yield _transfer(name, Opcode.RECEIVE, member, source, tensor, number)
    if not ends:
        yield _transfer(name, Opcode.SEND, member, target, tensor, number)


def _transfer(
    name: str, opcode: Opcode, member: Member, link: int, tensor: Tensor, number: int
) -> TransferKernel:
    to_next = (opcode is Opcode.SEND) == (link == member.after)
    channel = Channel.ACTIVATIONS if to_next else Channel.GRADIENTS
    return TransferKernel(f"{name}.{opcode.name.lower()}", opcode, link, channel, tensor, number, 1)
