"""Sums that come over a link, and go on over another one or to memory, through the scratchpad.

A chunk of the sum of the devices before comes into the scratchpad, a chunk of the device's own
values is loaded beside it, both are added up, and the sum is sent on from where it lies. So only
the device's own values, and whole sums on their way back, pass through memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.isa.vector_op import Addend
from fpgapipe.hw.hls_models.model.dma import transfer
from fpgapipe.hw.hls_models.model.link_dma import packet
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_step
from fpgapipe.lowering.tiling.kernel import Region, Semaphore, Track, vector_instruction
from fpgapipe.lowering.tiling.tile import ceil_word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.sums.transfers import TransferKernel
    from fpgapipe.lowering.tiling.kernel import Tensor

PLACES = 8
"""Most chunks that are in the scratchpad at a time."""

_ADDITION = FlatStep("sum", "sum", "own", {"addend": Addend.Y})


CAME, ADDED, GONE = 11, 12, 13
"""Semaphores besides those of vector kernels: that a chunk has come, that a sum can go, and that it
has gone. In programs of two lanes, products have the first two."""


@dataclass(frozen=True)
class OnChipSum:
    """A device's additions of all chunks of a tensor, and its transfers of whole sums.

    Its loads come after those of all kernels before, and the loads of all kernels behind it come
    after its last sum has left the scratchpad.

    Parameters
    ----------
    name : str
    chunks : tuple of Tensor
        The device's own values, which the sums replace if they are stored.
    comes, goes : tuple of TransferKernel
        For each chunk, the RECEIVE of the sum of the devices before, and the SEND of the whole sum,
        but that they are of words in the scratchpad. Without SENDs, the sums are stored.
    others : tuple of tuple of TransferKernel
        Transfers of whole sums behind the addition of each chunk, and behind the last one.
    region : Region
        Part of the scratchpad.
    """

    name: str
    chunks: tuple[Tensor, ...]
    comes: tuple[TransferKernel, ...]
    goes: tuple[TransferKernel, ...]
    others: tuple[tuple[TransferKernel, ...], ...]
    region: Region

    @property
    def track(self) -> Track:
        """Track of the vector engine, which adds."""
        return Track.VECTOR

    @property
    def reads(self) -> frozenset[str]:
        """Names of the chunks."""
        return frozenset(each.name for each in self.chunks)

    @property
    def writes(self) -> frozenset[str]:
        """Names of the chunks, and of what further transfers receive."""
        found = (each.writes for step in self.others for each in step)
        return self.reads.union(*found)

    def instructions(self, addresses: Mapping[str, int]) -> Program:
        """See `fpgapipe.lowering.tiling.kernel.Kernel`."""
        size, places = _size_and_places(self.region, self.chunks)
        parts: list[Program] = [Program.of([self._barrier(addresses, signal=(GONE,))])]
        for number, others in enumerate(self.others):
            if number < len(self.chunks):
                at = self.region.base + number % places * size
                own = at + self.region.size_bytes // 2 // WORD_BYTES * WORD_BYTES
                parts.append(Program.of(self._chunk(number, at, own, places, addresses)))
            parts += [each.instructions(addresses) for each in others]
        parts.append(Program.of([self._barrier(addresses, wait=(int(Semaphore.FREE),))]))
        return Program.joined(parts)

    def _barrier(
        self,
        addresses: Mapping[str, int],
        wait: tuple[int, ...] = (),
        signal: tuple[int, ...] = (),
    ) -> Instruction:
        """A load of a word, for its place among the loads."""
        begin = addresses[self.chunks[0].name]
        into = self.region.base + self.region.size_bytes // 2 // WORD_BYTES * WORD_BYTES
        return Instruction(Opcode.LOAD, wait, signal, body=transfer(begin, into, WORD_BYTES))

    def _chunk(
        self, number: int, at: int, own: int, places: int, addresses: Mapping[str, int]
    ) -> Iterator[Instruction]:
        """Receive a chunk, add the device's own one, and send or store the sum."""
        chunk, waits = self.chunks[number], number >= places
        again, is_last = number + places < len(self.chunks), number == len(self.chunks) - 1
        # The first chunk waits until all kernels before have left the region.
        begins = (GONE,) if waits or number == 0 else ()
        yield _on_chip(self.comes[number], at, begins, (CAME,))
        free = (int(Semaphore.FREE),)
        body = transfer(addresses[chunk.name], own, chunk.size_bytes)
        loaded = int(Semaphore.LOADED)
        added = ADDED if self.goes else int(Semaphore.COMPUTED)
        yield Instruction(Opcode.LOAD, free if waits else (), (loaded,), body=body)
        step = flat_step(_ADDITION, {"sum": FP32, "own": FP32}, 0, chunk.elements)
        buffers = {"sum": at, "own": own}
        yield vector_instruction(step, buffers, (loaded, CAME), (added, *(free if again else ())))
        signals = (GONE,) if again else free if is_last else ()
        if self.goes:
            yield _on_chip(self.goes[number], at, (added,), signals)
            return
        body = transfer(addresses[chunk.name], at, chunk.size_bytes)
        yield Instruction(Opcode.STORE, (added,), signals, body=body)


def _on_chip(
    kernel: TransferKernel, at: int, wait: tuple[int, ...], signal: tuple[int, ...]
) -> Instruction:
    """The transfer of a tensor in whole words of the scratchpad."""
    body = packet(
        at,
        ceil_word(kernel.tensor.size_bytes),
        channel=kernel.channel,
        stream=kernel.first_tag,
        in_scratchpad=True,
    )
    return Instruction(kernel.opcode, wait, signal, kernel.link, body)


def adds_on_chip(core: CoreSpec, region: Region, chunks: Sequence[Tensor]) -> bool:
    """Whether sums that come over a core's links need not pass through memory.

    Programs of two lanes have no semaphores left for that.
    """
    return (
        region.lanes == 1
        and core.links_reach_scratchpad
        and _size_and_places(region, chunks)[1] > 0
    )


def _size_and_places(region: Region, chunks: Sequence[Tensor]) -> tuple[int, int]:
    """Bytes of scratchpad that a chunk takes, and for how many there is room twice."""
    size = ceil_word(max((each.size_bytes for each in chunks), default=0))
    half = region.size_bytes // 2 // WORD_BYTES * WORD_BYTES
    return size, min(half // size if size else 0, PLACES)
