"""Tensors over links: one device sends, the other receives, part by part."""

from collections.abc import Mapping
from dataclasses import dataclass

from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.model.link_dma import packet
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.tiling.kernel import Tensor, Track

PART_BYTES = 4096
"""Parts of a tensor are multiples of this, but for the last."""

MAX_PARTS = 16
"""Of a tensor: a receiver's queue has room for so many."""

_PART_BITS = 4


@dataclass(frozen=True)
class TransferKernel:
    """A tensor that goes over a link, or comes.

    It goes in parts, so that the first are on their way while the last are computed. Both ends have
    to agree about channel, stream, size and parts.

    Parameters
    ----------
    name : str
    opcode : Opcode
        SEND or RECEIVE.
    link : int
        Which of the core's.
    channel : Channel
    tensor : Tensor
    stream : int
        Which tensor of which micro-batch it is, below 2**28; it is part of what the ends compare.
    parts : int
        At most, 1 to `MAX_PARTS`.
    """

    name: str
    opcode: Opcode
    link: int
    channel: Channel
    tensor: Tensor
    stream: int
    parts: int = 8

    def __post_init__(self) -> None:
        if self.opcode not in (Opcode.SEND, Opcode.RECEIVE):
            raise ValueError(f"transfer opcode must be SEND or RECEIVE, not {self.opcode.name}")
        if not 1 <= self.parts <= MAX_PARTS:
            raise ValueError(f"transfer parts must be in 1..{MAX_PARTS}, not {self.parts!r}")
        if not 0 <= self.stream < 1 << (32 - _PART_BITS):
            raise ValueError(f"transfer stream must be below 2**28, not {self.stream!r}")

    @property
    def track(self) -> Track:
        """That of the link's engine."""
        first = Track.SEND0 if self.opcode is Opcode.SEND else Track.RECEIVE0
        return Track(first + 2 * self.link)

    @property
    def reads(self) -> frozenset[str]:
        """What it sends."""
        return frozenset((self.tensor.name,) if self.opcode is Opcode.SEND else ())

    @property
    def writes(self) -> frozenset[str]:
        """What it receives."""
        return frozenset((self.tensor.name,) if self.opcode is Opcode.RECEIVE else ())

    def instructions(self, addresses: Mapping[str, int]) -> list[Instruction]:
        """See `Kernel`."""
        size = self.tensor.size_bytes
        part_bytes = -(-size // (self.parts * PART_BYTES)) * PART_BYTES
        begin = addresses[self.tensor.name]
        return [
            Instruction(
                self.opcode,
                engine=self.link,
                body=packet(
                    begin + first,
                    min(part_bytes, size - first),
                    channel=self.channel,
                    stream=self.stream << _PART_BITS | number,
                ),
            )
            for number, first in enumerate(range(0, size, part_bytes))
        ]
