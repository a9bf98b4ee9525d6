"""The hop of a ring: at once, each device sends what it has to the next, the last to the first.

The devices are cabled as a chain. What the last device sends goes back to the first one through all
devices in between, which pass it on. The two directions of a link are independent, so every wire
carries the values of one device in each direction, and a hop takes about as long as in a ring that
is closed by a wire, plus the time of a chunk for each device that passes it on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.memory.placed import Placed
from fpgapipe.lowering.placement import Placement
from fpgapipe.lowering.program.assemble import assemble
from fpgapipe.lowering.sums.all_reduce import Member
from fpgapipe.lowering.sums.transfers import TransferKernel
from fpgapipe.lowering.tiling.kernel import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


CHUNK_BYTES = 1 << 13
"""Most bytes of a packet: what a device has to get before it passes it on."""

BUFFERS = 16
"""Buffers for packets that a device passes on: as many as its queue has SENDs."""

BUFFER_BYTES = BUFFERS * CHUNK_BYTES
"""Bytes of memory of all buffers together."""


def hop_programs(sends: Sequence[Sequence[Placed]], buffers: int) -> list[Program]:
    """Return the programs of all devices, at least two, for one hop.

    Parameters
    ----------
    sends : sequence of sequence of Placed
        For each device, the places of what it sends, which are the same in the memory of the device
        that gets it; none where a device sends nothing. A device must not send what it gets.
    buffers : int
        Address, in every memory, of `BUFFER_BYTES` that are free during the hop.
    """
    chunks = [list(_chunks(f"from {number}", places)) for number, places in enumerate(sends)]
    return [_program(number, chunks, buffers) for number in range(len(sends))]


def hop_bytes(sends: Sequence[Placed]) -> int:
    """Bytes that a device with these places sends."""
    return sum(each.size_bytes for each in sends)


def _chunks(name: str, places: Sequence[Placed]) -> Iterator[tuple[Tensor, Placed]]:
    """Parts of what a device sends, each of which is a packet."""
    for place in places:
        for begin in range(place.begin, place.end, CHUNK_BYTES):
            end = min(begin + CHUNK_BYTES, place.end)
            yield Tensor(f"{name}, {begin}", ((end - begin) // 4,)), Placed(begin, end)


def _program(number: int, chunks: Sequence[list[tuple[Tensor, Placed]]], buffers: int) -> Program:
    """The program of a device.

    Kernels come in the order of the numbers of chunks, on all devices. So the first chunk that is
    not done waits only for kernels that are done, and no device waits for ever.
    """
    last = len(chunks) - 1
    member = Member.of(Placement.chain(len(chunks)), number)
    own, coming, back = chunks[number], chunks[number - 1], chunks[last]
    is_between = 0 < number < last
    places = {tensor.name: place for tensor, place in (*own, *coming)}
    for index in range(BUFFERS):
        begin = buffers + index * CHUNK_BYTES
        places[_buffer(index)] = Placed(begin, begin + CHUNK_BYTES)
    kernels = []
    for at in range(max(map(len, chunks))):
        if at < len(own):
            to_next = not member.is_last
            kernels.append(_transfer(Opcode.SEND, member, own[at][0], at, to_next=to_next))
        if at < len(coming):
            to_next = not member.is_first
            kernels.append(_transfer(Opcode.RECEIVE, member, coming[at][0], at, to_next=to_next))
        if is_between and at < len(back):
            buffer = Tensor(_buffer(at % BUFFERS), back[at][0].shape)
            for opcode in (Opcode.RECEIVE, Opcode.SEND):
                kernels.append(_transfer(opcode, member, buffer, at, to_next=False))
    return assemble(kernels, places).instructions


def _buffer(index: int) -> str:
    return f"passed on, {index}"


def _transfer(
    opcode: Opcode, member: Member, tensor: Tensor, number: int, *, to_next: bool
) -> TransferKernel:
    """The kernel of a packet that goes to the next device, or back along the chain."""
    is_after = (opcode is Opcode.SEND) == to_next
    return TransferKernel(
        f"hop.{opcode.name.lower()}",
        opcode,
        member.after if is_after else member.before,
        Channel.ACTIVATIONS if to_next else Channel.GRADIENTS,
        tensor,
        number,
        1,
    )
